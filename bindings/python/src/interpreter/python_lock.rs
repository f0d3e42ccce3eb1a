//! The Python lock as a lock that bodies share: a worker keeps it from one body to the next.
//!
//! Python code gives the lock away once another thread has asked for it and the switch interval has passed. A body in C, such as a function
//! of NumPy on a small array, runs no Python code, and never looks. So a thread that has run bodies for [`SWITCH_INTERVAL`] releases the
//! lock between two of them. If a thread has asked for the lock by then, CPython gives it to that thread. An event loop thus waits for two
//! intervals and one body at most per thread that runs bodies.

use std::cell::Cell;

use estafette::engine::SharedLock;
use estafette_sync::time::{Duration, Instant};
use pyo3::prelude::*;

use crate::interpreter::guard;

/// The default of `sys.setswitchinterval`.
const SWITCH_INTERVAL: Duration = Duration::from_millis(5);

thread_local! {
    /// When this thread last released the lock between two bodies. A thread without workers keeps the lock from one
    /// [`hold`](SharedLock::hold) to the next, as its caller in Python has it.
    static RELEASED: Cell<Option<Instant>> = const { Cell::new(None) };
}

#[derive(Debug)]
pub struct PythonLock;

impl SharedLock for PythonLock {
    fn lock_while(&self, next: &mut dyn FnMut() -> bool) {
        let held = guard::attach(|py| {
            loop {
                let has_next = next();
                if guard::is_closed() {
                    break;
                }
                release_if_due(py);
                if !has_next {
                    break;
                }
            }
        });
        if held.is_none() {
            // The operation notices the end of the interpreter.
            next();
        }
    }
}

/// Lets a thread that waits for the lock have it, at most once in a switch interval.
fn release_if_due(py: Python<'_>) {
    let now = Instant::now();
    if RELEASED.get().is_none_or(|released| now - released >= SWITCH_INTERVAL) {
        py.detach(|| ());
        RELEASED.set(Some(Instant::now()));
    }
}
