//! Ctrl-C during a blocking wait: Python's signal handlers run between Python instructions, and a wait has
//! none, so the engine asks here now and then.

use std::cell::RefCell;
use std::ffi::{c_int, c_void};
use std::ptr;
use std::time::{Duration, Instant};

use estafette::bindings::{Current, WaitHook};
use estafette_sync::sync::atomic::{AtomicBool, Ordering};
use pyo3::exceptions::PyException;
use pyo3::ffi;
use pyo3::prelude::*;

use crate::asyncio::{running_loop, stopped_loop};
use crate::interpreter::guard;
use crate::submission::body::helper;

thread_local! {
    /// The exception that a signal handler has raised during a wait or a submission, until that comes back
    /// and raises it.
    static RAISED: RefCell<Option<PyErr>> = const { RefCell::new(None) };
    static KEPT: RefCell<Option<PendingInterrupt>> = const { RefCell::new(None) };
}

/// True if any thread has set [`RAISED`].
static HAS_EVER_RAISED: AtomicBool = AtomicBool::new(false);

/// NumPy clears whatever a buffer's exporter raises, and goes on to ask the object for
/// ``__array_interface__`` or ``__array__``. So an interruption is kept for that call.
struct PendingInterrupt {
    /// The object that was asked.
    owner: usize,
    error: PyErr,
    since: Instant,
}

/// The time that an interruption is kept: the other call follows at once, or not at all.
const KEPT_MAX: Duration = Duration::from_millis(500);

/// Keeps `error`, which the buffer protocol is about to give, if it is no ordinary exception.
pub fn keep(py: Python<'_>, owner: usize, error: &PyErr) {
    if !error.is_instance_of::<PyException>(py) {
        KEPT.set(Some(PendingInterrupt { owner, error: error.clone_ref(py), since: Instant::now() }));
    }
}

/// The exception that was kept a moment ago for this object.
pub fn kept(owner: usize) -> Option<PyErr> {
    let kept = KEPT.take()?;
    (kept.owner == owner && kept.since.elapsed() < KEPT_MAX).then_some(kept.error)
}

/// Nothing is kept any more: the buffer is asked for again.
pub fn forget() {
    drop(KEPT.take());
}

/// Ends a wait where a signal handler has raised something, or where the wait could never end.
pub struct Interrupts;

impl WaitHook for Interrupts {
    /// Only the main thread has signal handlers, and the cells of a notebook. Others may have stopped an
    /// event loop.
    fn concerns(&self) -> bool {
        guard::is_known_main() || running_loop::has_run_here() || stopped_loop::stands_for_another()
    }

    /// A function must not find itself in an event loop. Each wait has asked for that before.
    fn may_run_bodies(&self) -> bool {
        !running_loop::ran_last()
    }

    fn may_sleep(&self) -> bool {
        guard::attach(|py| running_loop::get(py).is_ok_and(|running| running.is_none())) == Some(true)
    }

    fn has_raised(&self) -> bool {
        RAISED.with_borrow(Option::is_some)
    }

    fn raises(&self) {
        // A wait in C returns a status alone.
        guard::attach(raise_next);
    }

    /// True if a signal handler has raised something, or the wait can no longer end.
    fn ends(&self, needs: &dyn Fn(&[Current]) -> Option<usize>) -> bool {
        if self.has_raised() {
            return true;
        }
        let ended = guard::attach(|py| {
            let error = py.check_signals().and_then(|()| stopped_loop::check_again(py, needs)).err()?;
            set_raised(error);
            self.raises();
            Some(())
        });
        ended.flatten().is_some()
    }
}

/// Notes that a function of the program which this thread has run for its wait, or its submission, has ended
/// by `error`. If a signal handler has raised that in the middle of the function, it is meant for the
/// program: the wait or the submission raises it, too. Returns whether that is so.
pub fn note(py: Python<'_>, error: &PyErr) -> bool {
    if !guard::is_main(py) {
        return false;
    }
    match was_sent(py, error) {
        Ok(false) => return false,
        Ok(true) => set_raised(error.clone_ref(py)),
        // A second signal has come in the middle of that.
        Err(raised) => set_raised(raised),
    }
    true
}

/// As [`note`], for what the thread calls wherever it is: where it is in no wait and no submission, its
/// Python code raises that next.
pub fn raise_later(py: Python<'_>, error: &PyErr) {
    if note(py, error) {
        raise_next(py);
    }
}

/// Has the main thread's Python code raise what was raised there, unless a wait or a submission of Python
/// raises that before.
fn raise_next(py: Python<'_>) {
    extern "C" fn raise(_: *mut c_void) -> c_int {
        let Some(error) = take() else { return 0 };
        // SAFETY: the main thread calls it between two instructions, with the Python lock.
        error.restore(unsafe { Python::assume_attached() });
        -1
    }

    if guard::is_main(py) {
        // SAFETY: with the Python lock. Where too many calls are pending, the next wait or submission raises
        // it.
        unsafe { ffi::Py_AddPendingCall(Some(raise), ptr::null_mut()) };
    }
}

fn was_sent(py: Python<'_>, error: &PyErr) -> PyResult<bool> {
    helper(py, "was_sent")?.call1((error.value(py), error.traceback(py)))?.is_truthy()
}

/// The exception that was raised during this thread's last wait or submission.
#[inline]
pub fn take() -> Option<PyErr> {
    // Each result of the engine asks, and a thread-local with a destructor costs more than most of them.
    if HAS_EVER_RAISED.load(Ordering::Relaxed) { RAISED.take() } else { None }
}

fn set_raised(error: PyErr) {
    HAS_EVER_RAISED.store(true, Ordering::Relaxed);
    RAISED.set(Some(error));
}
