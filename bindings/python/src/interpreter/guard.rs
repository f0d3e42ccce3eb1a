//! The guard between threads of the engine and the interpreter.
//!
//! A thread that waits for the Python lock while the interpreter finalizes is ended by CPython where it
//! stands, which tears down Rust frames and aborts the process (before 3.14; from then on it hangs). So every
//! thread that is not Python's own goes through this guard, and the interpreter's exit closes it and waits
//! until no thread is inside:
//!
//! 1. [`attach`] steps in, takes the Python lock, runs, releases it, and steps out. After the guard was
//!    closed it does nothing.
//! 2. [`detach`] releases the Python lock for a wait. A Python thread that comes back from one steps in until
//!    it has the lock; when the guard is closed it stays away for good, as the interpreter will not be there.
//!    The main thread, which runs the exit, always comes back.
//! 3. [`close`] closes the guard, then waits, without the Python lock, until no thread is inside.
//!
//! A thread that is inside, in code of the program in C, cannot be interrupted, and is not waited for without
//! end. Where it comes back to a finalizing interpreter it [stays](crate::interpreter::finalization) instead
//! of being torn down.
//!
//! The race excluded: a thread that has looked at an open guard cannot ask for the lock after `close` has
//! returned, since looking and stepping in are one step. That, and forks, are the business of [`Rundown`],
//! which has models.

use std::cell::Cell;
use std::ptr;
use std::time::Duration;

use estafette::bindings;
use estafette_sync::process::Generation;
use estafette_sync::rundown::Rundown;
use estafette_sync::sync::atomic::{AtomicU64, Ordering};
use pyo3::ffi;
use pyo3::prelude::*;

use crate::interpreter::once::{imported, intern, loaded};
use crate::interpreter::{fastcall, thread_state};

estafette_sync::per_process! {
    static GUARD: Rundown = Rundown::new();
}
/// Python's name for its main thread.
static MAIN_IDENT: AtomicU64 = AtomicU64::new(0);

thread_local! {
    /// The number of times that this thread is inside; only the first time counts.
    static DEPTH: Cell<u32> = const { Cell::new(0) };
    static MAIN: Cell<Option<bool>> = const { Cell::new(None) };
    /// Python's name for this thread, once it was asked for. A fork keeps it.
    static IDENT: Cell<Option<u64>> = const { Cell::new(None) };
    /// True if traces know what `threading` calls this thread.
    static IS_NAMED: Cell<bool> = const { Cell::new(false) };
}

/// Being inside; dropping it steps out.
struct Inside(&'static Rundown);

impl Inside {
    fn acquire() -> Option<Self> {
        let (depth, guard) = (DEPTH.get(), &*GUARD);
        if depth == 0 && !guard.acquire() {
            return None;
        }
        DEPTH.set(depth + 1);
        Some(Self(guard))
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        let depth = DEPTH.get() - 1;
        DEPTH.set(depth);
        if depth == 0 {
            // After a fork this is that of the parent.
            self.0.release();
        }
    }
}

/// Runs `f` with the Python lock; `None`, without running it, when the interpreter is on its way out. The
/// caller may be a drop, and an exception pending: see [`apart_from_error`].
pub fn attach<R>(f: impl FnOnce(Python<'_>) -> R) -> Option<R> {
    let _inside = Inside::acquire()?;
    thread_state::keep();
    Python::try_attach(|py| apart_from_error(py, || f(py)))
}

/// Runs `f` while a pending exception of the calling thread is set aside: a call of Python code with an
/// exception set fails, and loses it.
fn apart_from_error<R>(py: Python<'_>, f: impl FnOnce() -> R) -> R {
    struct Pending([*mut ffi::PyObject; 3]);

    impl Drop for Pending {
        fn drop(&mut self) {
            let [kind, value, traceback] = self.0;
            // SAFETY: what was fetched, with the lock that the thread still has.
            unsafe { ffi::PyErr_Restore(kind, value, traceback) };
        }
    }

    let _pending = PyErr::occurred(py).then(|| {
        let [mut kind, mut value, mut traceback] = [ptr::null_mut(); 3];
        // SAFETY: with the Python lock. Not `PyErr::take`, which goes on with a panic that is on its way.
        unsafe { ffi::PyErr_Fetch(&raw mut kind, &raw mut value, &raw mut traceback) };
        Pending([kind, value, traceback])
    });
    f()
}

/// Runs `f` inside the guard, if that is open, without the Python lock.
pub fn inside(f: impl FnOnce()) {
    if let Some(_inside) = Inside::acquire() {
        f();
    }
}

/// Runs `f` without the Python lock, on this thread.
pub fn detach<R: Send>(py: Python<'_>, f: impl FnOnce() -> R + Send) -> R {
    name_thread(py);
    let (main, process) = (is_main(py), Generation::current());
    let (value, inside) = py.detach(|| {
        let value = f();
        // In a forked child the thread that forked is the main one, whatever it was before.
        let free = main || process.is_inherited();
        let inside = if free { None } else { Some(Inside::acquire().unwrap_or_else(|| stay_away())) };
        (value, inside)
    });
    // The lock is back: from here on the thread is Python's own again.
    drop(inside);
    estafette::bindings::wait_has_lock();
    value
}

/// Runs `f` without the Python lock, whether or not the calling thread has it. An exception that is on its
/// way stays so.
pub fn without_lock(f: &mut dyn FnMut()) {
    struct Here<'a>(&'a mut dyn FnMut());
    // SAFETY: it runs on the thread that made it.
    unsafe impl Send for Here<'_> {}
    impl Here<'_> {
        fn run(self) {
            (self.0)();
        }
    }

    // An interpreter on its way out must not be asked.
    if is_closed() || !fastcall::has_lock() {
        return f();
    }
    // SAFETY: the thread has the lock.
    let (py, here) = (unsafe { Python::assume_attached() }, Here(f));
    apart_from_error(py, || detach(py, || here.run()));
}

/// The interpreter this thread wants to go back to is finalizing. Whatever the thread was doing, it ends with
/// the process.
fn stay_away() -> ! {
    loop {
        std::thread::park();
    }
}

/// Notes which thread is Python's main thread. Python code answers that, and such code runs signal handlers,
/// whose exceptions a wait could not raise. So it is asked once, when the extension is loaded. Raises what a
/// signal handler raises meanwhile.
pub fn install(py: Python<'_>) -> PyResult<()> {
    let main: u64 = py.import("threading")?.call_method0("main_thread")?.getattr("ident")?.extract()?;
    MAIN_IDENT.store(main, Ordering::Relaxed);
    ident(py)?;
    // A wait in C asks for it without the lock.
    is_main(py);
    Ok(())
}

/// The calling thread is the main one from now on: it has forked, and this is the child.
pub fn become_main(py: Python<'_>) {
    if let Ok(ident) = ident(py) {
        MAIN_IDENT.store(ident, Ordering::Relaxed);
        MAIN.set(Some(true));
    }
}

/// True if this is Python's main thread, the one that handles signals and runs the exit.
pub fn is_main(py: Python<'_>) -> bool {
    MAIN.get().unwrap_or_else(|| {
        let main = ident(py).is_ok_and(|ident| ident == MAIN_IDENT.load(Ordering::Relaxed));
        MAIN.set(Some(main));
        main
    })
}

/// As [`is_main`], without the Python lock: false until it was determined once with the lock.
pub fn is_known_main() -> bool {
    MAIN.get().unwrap_or(false)
}

/// Python's name for the calling thread.
pub fn ident(py: Python<'_>) -> PyResult<u64> {
    if let Some(ident) = IDENT.get() {
        return Ok(ident);
    }
    let get = || imported!(py, "threading", "get_ident")?.call0()?.extract();
    let ident = apart_from_error(py, get)?;
    IDENT.set(Some(ident));
    Ok(ident)
}

/// Has traces call this thread what `threading` calls it. To be called where a thread may be about to write
/// its first event.
#[inline]
pub fn name_thread(py: Python<'_>) {
    if bindings::is_trace_open() && !IS_NAMED.get() && !PyErr::occurred(py) {
        IS_NAMED.set(true);
        name_thread_now(py);
    }
}

#[cold]
fn name_thread_now(py: Python<'_>) {
    let name = || -> PyResult<Option<String>> {
        let Some(threading) = loaded(py, intern!(py, "threading"))? else { return Ok(None) };
        // `current_thread` would make an object for a thread that is none of Python's.
        let threads = threading.getattr(intern!(py, "_active"))?;
        let thread = threads.call_method1(intern!(py, "get"), (ident(py)?,))?;
        if thread.is_none() { Ok(None) } else { thread.getattr(intern!(py, "name"))?.extract().map(Some) }
    };
    // The main thread has a name of its own in traces. A name that is no text leaves the thread its number.
    if !is_main(py)
        && let Ok(Some(name)) = name()
    {
        bindings::call_this_thread(&name);
    }
}

/// Closes the guard and waits until no thread is inside, for at most `timeout`. Returns whether that was so.
pub fn close(py: Python<'_>, timeout: Duration) -> bool {
    py.detach(|| GUARD.close(timeout))
}

/// True if the interpreter is on its way out.
pub fn is_closed() -> bool {
    GUARD.is_closed()
}
