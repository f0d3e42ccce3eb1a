//! The Python lock as a lock that bodies share: a worker keeps it from one body to the next. With one worker,
//! a body of 1 µs took 6.4 µs in all in place of 7.4 (`2026-11-27-python-pipelines.md`).
//!
//! A thread that has waited for the lock for a switch interval requests it, and Python code then releases the
//! lock. A body in C, such as a function of NumPy on a small array, runs no Python code, and never checks for
//! a request. So a thread that runs bodies releases the lock between two of them, and CPython gives the lock
//! to a thread that has requested it. A thread that has not requested it yet is likely to find the lock taken
//! again, and waits for another whole interval. So releases are one and a half intervals apart: by the next
//! release the thread has requested the lock. An event loop thus waits for at most two and a half intervals
//! and two bodies per thread that runs bodies.

use std::cell::Cell;

use estafette::engine::SharedLock;
use estafette_sync::time::{Duration, Instant};
use pyo3::prelude::*;

use crate::interpreter::once::imported;
use crate::interpreter::{fastcall, guard};

/// The time between two queries of a thread for the switch interval, which a program may change.
const PERIOD_QUERY: Duration = Duration::from_secs(1);

thread_local! {
    /// A thread without workers keeps the lock from one [`lock_while`](SharedLock::lock_while) to the next,
    /// as its caller in Python has it.
    static CLOCK: Cell<Option<Clock>> = const { Cell::new(None) };
}

#[derive(Debug)]
pub struct PythonLock;

impl SharedLock for PythonLock {
    fn lock_while(&self, next: &mut dyn FnMut() -> bool) {
        // An interpreter on its way out must not be asked.
        let had_lock = !guard::is_closed() && fastcall::has_lock();
        let held = guard::attach(|py| {
            if !had_lock {
                restart_clock();
            }
            loop {
                // The job in hand needs the lock. After the last call of `next` it may be one that does not,
                // for which a thread with the lock may be waiting.
                release_if_due(py);
                if !next() || guard::is_closed() {
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

/// The times at which a thread releases the lock.
#[derive(Clone, Copy)]
struct Clock {
    /// The time at which it last released the lock between two bodies, or got it.
    began: Instant,
    /// The time from one release to the next.
    period: Duration,
    queried: Instant,
}

/// The calling thread has just got the lock.
fn restart_clock() {
    if let Some(clock) = CLOCK.get() {
        CLOCK.set(Some(Clock { began: Instant::now(), ..clock }));
    }
}

/// Releases the lock for a moment, for a thread that waits, at most once in one and a half switch intervals.
fn release_if_due(py: Python<'_>) {
    let now = Instant::now();
    let clock = CLOCK.get().map_or_else(
        || Clock { began: now, period: period(py), queried: now },
        |clock| {
            let is_new = now.saturating_duration_since(clock.queried) < PERIOD_QUERY;
            if is_new { clock } else { Clock { period: period(py), queried: now, ..clock } }
        },
    );
    let is_due = now.saturating_duration_since(clock.began) >= clock.period;
    if is_due {
        py.detach(|| ());
    }
    CLOCK.set(Some(Clock { began: if is_due { Instant::now() } else { clock.began }, ..clock }));
}

fn period(py: Python<'_>) -> Duration {
    let interval = || imported!(py, "sys", "getswitchinterval")?.call0()?.extract();
    // Python's default.
    let seconds = interval().unwrap_or(0.005_f64);
    Duration::try_from_secs_f64(1.5 * seconds).unwrap_or(Duration::MAX)
}
