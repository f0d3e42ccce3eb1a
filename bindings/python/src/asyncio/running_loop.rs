//! The asyncio event loop that runs on the calling thread, if any.

use std::cell::Cell;

use pyo3::prelude::*;

use crate::interpreter::once::{PyOnce, intern, loaded};

thread_local! {
    static HAS_RUN: Cell<bool> = const { Cell::new(false) };
    static RUNS: Cell<bool> = const { Cell::new(false) };
}

/// True if this thread has called while it ran a loop.
pub fn has_run_here() -> bool {
    HAS_RUN.get()
}

/// True if a loop ran at the last call of [`get`] on this thread.
pub fn ran_last() -> bool {
    RUNS.get()
}

/// The running loop; `None` when there is none. Without a process that has imported asyncio there is none,
/// and it is not imported here just to find that out.
pub fn get(py: Python<'_>) -> PyResult<Option<Bound<'_, PyAny>>> {
    static GET: PyOnce<Py<PyAny>> = PyOnce::new();
    let get = match GET.get(py) {
        Some(get) => get.bind(py).clone(),
        None => {
            let Some(get) = find(py)? else { return Ok(None) };
            GET.get_or_init(py, || get.clone().unbind());
            get
        }
    };
    let running = Some(get.call0()?).filter(|running| !running.is_none());
    RUNS.set(running.is_some());
    HAS_RUN.set(HAS_RUN.get() || running.is_some());
    Ok(running)
}

fn find(py: Python<'_>) -> PyResult<Option<Bound<'_, PyAny>>> {
    let Some(events) = loaded(py, intern!(py, "asyncio.events"))? else { return Ok(None) };
    // Another thread may be in the middle of importing it; then no loop runs yet.
    Ok(events.getattr_opt(intern!(py, "_get_running_loop")).unwrap_or(None))
}
