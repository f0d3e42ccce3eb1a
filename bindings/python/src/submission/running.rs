//! The plain bodies that run right now, with their threads.

use estafette_sync::sync::Mutex;
use pyo3::exceptions::PySystemExit;
use pyo3::ffi;
use pyo3::prelude::*;

use crate::interpreter::guard;

/// A plain body that runs right now.
struct RunningBody {
    /// Python's name of its thread.
    thread: u64,
    /// Identity of its operation.
    op: u64,
    function: Py<PyAny>,
}

estafette_sync::per_process! {
    /// Held for as long as it takes to add or remove one, and never while Python runs. In the order of their
    /// beginnings: a body that waits may run another one on its thread.
    static RUNNING: Mutex<Vec<RunningBody>> = Mutex::new(Vec::new());
}

/// A plain body on its way through a thread; dropped when it has ended.
pub struct Running {
    thread: u64,
}

impl Running {
    pub fn note(function: &Bound<'_, PyAny>, op: u64) -> PyResult<Self> {
        let thread = guard::ident(function.py())?;
        RUNNING.lock().push(RunningBody { thread, op, function: function.clone().unbind() });
        Ok(Self { thread })
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let ended = {
            let mut running = RUNNING.lock();
            let at = running.iter().rposition(|body| body.thread == self.thread);
            at.map(|at| running.remove(at))
        };
        // This may drop the operation's function.
        drop(ended);
    }
}

/// Raises `SystemExit` in every plain body that runs; what is not in Python code notices when it comes back
/// to it.
pub fn interrupt_all(py: Python<'_>) {
    let threads: Vec<u64> = RUNNING.lock().iter().map(|body| body.thread).collect();
    let exit = py.get_type::<PySystemExit>();
    for thread in threads {
        // SAFETY: called with the Python lock; a thread that is gone is not found and not touched.
        unsafe { ffi::PyThreadState_SetAsyncExc(thread as std::ffi::c_long, exit.as_ptr()) };
    }
}

/// The operations whose plain bodies run right now, with their functions.
pub fn all_running(py: Python<'_>) -> Vec<(u64, Py<PyAny>)> {
    RUNNING.lock().iter().map(|body| (body.op, body.function.clone_ref(py))).collect()
}
