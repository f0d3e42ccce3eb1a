//! The states that Python keeps of threads of the engine.
//!
//! Taking the Python lock on a thread that Python does not know makes a thread state, and releasing the lock
//! deletes it, with whatever the body left in a `threading.local`. So such a thread gets a state that lasts,
//! at its first use of Python, and deletes it when it ends.
//!
//! There is a second reason. CPython before 3.12 hangs in a forked child when the fork comes while another
//! thread makes or deletes a state, which needs no Python lock (`_PyEval_ReInitThreads` takes a lock that no
//! thread of the child holds). So both happen in turn with forks: [`before_fork`] waits until no thread does
//! either, and holds new ones off.

use std::cell::{Cell, RefCell};

use estafette_sync::sync::{Condvar, Mutex};
use pyo3::exceptions::PyImportError;
use pyo3::ffi;
use pyo3::prelude::*;

use crate::error::show_failed;
use crate::interpreter::guard;
use crate::interpreter::once::{intern, loaded};
use crate::submission::plain_call::note_fork;

estafette_sync::per_process! {
    /// True if a thread makes or deletes a thread state, or forks.
    static BUSY: Mutex<bool> = Mutex::new(false);
    static IDLE: Condvar = Condvar::new();
}

thread_local! {
    static KEPT: RefCell<Option<LastingState>> = const { RefCell::new(None) };
    /// True if this thread has a state that lasts, ours or Python's own.
    static KNOWN: Cell<bool> = const { Cell::new(false) };
}

/// The lock of thread states.
struct StatesLock(());

impl StatesLock {
    /// Must not be called with the Python lock: the thread that has the lock may be waiting for it.
    fn take() -> Self {
        let mut busy = BUSY.lock();
        while *busy {
            busy = IDLE.wait(busy);
        }
        *busy = true;
        Self(())
    }
}

impl Drop for StatesLock {
    fn drop(&mut self) {
        *BUSY.lock() = false;
        IDLE.notify_one();
    }
}

/// A thread state that outlasts single uses of Python.
struct LastingState(());

/// Makes sure that the calling thread has a state that lasts. Called inside the guard.
pub fn keep() {
    if KNOWN.get() {
        return;
    }
    KNOWN.set(true);
    // SAFETY: asks for this thread's state, which may be NULL.
    if !unsafe { ffi::PyGILState_GetThisThreadState() }.is_null() {
        return;
    }
    let lock = StatesLock::take();
    // SAFETY: the guard is open, so the interpreter is there. The state made here is released in `drop`; the
    // lock is released at once, as after any `PyEval_SaveThread`.
    unsafe {
        ffi::PyGILState_Ensure();
        ffi::PyEval_SaveThread();
    }
    drop(lock);
    KEPT.set(Some(LastingState(())));
    Python::try_attach(|py| {
        show_failed(py, trace(py));
    });
}

/// Gives the thread what `threading.settrace` and `threading.setprofile` have set, as `threading` does for
/// its threads: coverage and debuggers see functions by it.
fn trace(py: Python<'_>) -> PyResult<()> {
    let Some(threading) = loaded(py, intern!(py, "threading"))? else { return Ok(()) };
    // Both are taken before one of them could see that.
    let hooks = [threading.call_method0("getprofile")?, threading.call_method0("gettrace")?];
    for (set, hook) in ["setprofile", "settrace"].into_iter().zip(hooks) {
        if !hook.is_none() {
            py.import("sys")?.call_method1(set, (hook,))?;
        }
    }
    Ok(())
}

/// As [`keep`], for a thread that is about to run code that uses Python by itself.
pub fn prepare() {
    guard::inside(keep);
}

impl Drop for LastingState {
    fn drop(&mut self) {
        // The thread ends. An interpreter that ends as well clears the state itself.
        guard::inside(|| {
            // SAFETY: the guard is open, so the interpreter is there. The values of `threading.local` go
            // while no lock is held: their finalizers may fork, or wait for a thread that makes its state.
            unsafe {
                let before = ffi::PyGILState_Ensure();
                let values = ffi::PyThreadState_GetDict();
                if !values.is_null() {
                    ffi::PyDict_Clear(values);
                }
                ffi::PyGILState_Release(before);
            }
            let lock = StatesLock::take();
            // SAFETY: the state made in `keep` is this thread's. The first release undoes this `Ensure` and
            // keeps the lock; the second one has been owed since `keep`, and deletes the state.
            unsafe {
                ffi::PyGILState_Ensure();
                ffi::PyGILState_Release(ffi::PyGILState_STATE::PyGILState_LOCKED);
                ffi::PyGILState_Release(ffi::PyGILState_STATE::PyGILState_UNLOCKED);
            }
            drop(lock);
        });
    }
}

/// The engine belongs to the process: it could not distinguish an interpreter's end from that of the process.
/// Raises `ImportError` in a subinterpreter.
#[pyfunction(name = "_check_interpreter")]
pub fn check_interpreter(py: Python<'_>) -> PyResult<()> {
    let _ = py;
    // SAFETY: the calling thread has a thread state, since it has the Python lock.
    let id = unsafe { ffi::PyInterpreterState_GetID(ffi::PyInterpreterState_Get()) };
    if id == 0 {
        return Ok(());
    }
    Err(PyImportError::new_err(
        "estafette works in the main interpreter only, not in subinterpreters; start threads or processes (by spawn) instead",
    ))
}

/// Called by Python before a fork, on the thread that forks.
#[pyfunction(name = "_before_fork")]
pub fn before_fork(py: Python<'_>) {
    std::mem::forget(py.detach(StatesLock::take));
}

/// Called by Python after a fork in the parent, on the thread that forked.
#[pyfunction(name = "_after_fork_in_parent")]
pub fn after_fork_in_parent() {
    drop(StatesLock(()));
}

/// Called by Python after a fork in the child, on its only thread.
#[pyfunction(name = "_after_fork_in_child")]
pub fn after_fork_in_child(py: Python<'_>) -> PyResult<()> {
    guard::become_main(py);
    note_fork(py)
}
