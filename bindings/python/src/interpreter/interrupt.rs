//! Ctrl-C during a blocking wait: Python's signal handlers run between Python instructions, and a wait has none, so the
//! engine asks here now and then.

use std::cell::RefCell;
use std::time::{Duration, Instant};

use pyo3::exceptions::PyException;
use pyo3::prelude::*;

use crate::asyncio::stopped_loop::{self, WaitForAll};
use crate::interpreter::guard;

thread_local! {
    /// What a signal handler has raised, until the wait has come back with an error to raise in its place.
    static RAISED: RefCell<Option<PyErr>> = const { RefCell::new(None) };
}

/// NumPy clears whatever a buffer's exporter raises, and goes on to ask the object for ``__array_interface__`` or ``__array__``. So an
/// interruption is kept for that call.
struct Kept {
    /// The object that was asked.
    owner: usize,
    error: PyErr,
    since: Instant,
}

thread_local! {
    static KEPT: RefCell<Option<Kept>> = const { RefCell::new(None) };
}

/// How long an interruption is kept: the other call follows at once, or not at all.
const KEPT_MAX: Duration = Duration::from_millis(500);

/// Keeps `error`, which the buffer protocol is about to give, if it is no ordinary exception.
pub fn keep(py: Python<'_>, owner: usize, error: &PyErr) {
    if !error.is_instance_of::<PyException>(py) {
        KEPT.set(Some(Kept { owner, error: error.clone_ref(py), since: Instant::now() }));
    }
}

/// What was kept a moment ago for this object.
pub fn kept(owner: usize) -> Option<PyErr> {
    let kept = KEPT.take()?;
    (kept.owner == owner && kept.since.elapsed() < KEPT_MAX).then_some(kept.error)
}

/// Nothing is kept any more: the buffer is asked for again.
pub fn forget() {
    drop(KEPT.take());
}

/// Whether a wait of this thread has something to ask: only the main thread has signal handlers, and the cells of a notebook.
pub fn concerns() -> bool {
    guard::is_known_main() || WaitForAll::is_here() || stopped_loop::has_begun_here()
}

/// Whether a signal handler has raised something, or the wait, which `needs` the end of some operations, can no longer end.
pub fn asked(needs: &dyn Fn(u64) -> bool) -> bool {
    match guard::attach(|py| py.check_signals().and_then(|()| stopped_loop::check_again(py, needs))) {
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
