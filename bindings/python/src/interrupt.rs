//! Ctrl-C during a blocking wait: Python's signal handlers run between Python instructions, and a wait has none, so the
//! engine asks here now and then.

use std::cell::RefCell;

use pyo3::prelude::*;

use crate::gate;

thread_local! {
    /// What a signal handler has raised, until the wait has come back with an error to raise in its place.
    static RAISED: RefCell<Option<PyErr>> = const { RefCell::new(None) };
}

/// Whether a signal handler has raised something. Only the main thread has signal handlers.
pub fn asked() -> bool {
    if !gate::is_known_main() {
        return false;
    }
    match gate::attach(|py| py.check_signals()) {
        Some(Err(error)) => {
            RAISED.set(Some(error));
            true
        }
        Some(Ok(())) | None => false,
    }
}

/// What was raised during this thread's last wait.
pub fn take() -> Option<PyErr> {
    RAISED.take()
}
