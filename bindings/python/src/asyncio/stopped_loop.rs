//! Blocking waits on the thread of an event loop.
//!
//! Such a wait stops the loop, so it is refused. In a notebook each cell stops the loop of its kernel anyway, so a cell may wait, unless
//! a function or a future that the engine has begun on that loop could then not go on: the wait is refused, or ends with the same error
//! once such a thing has begun.

use std::collections::BTreeMap;

use estafette_sync::sync::Mutex;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::asyncio::running_loop;
use crate::error::raise;
use crate::interpreter::guard;
use crate::interpreter::once::{PyOnce, intern};

estafette_sync::per_process! {
    /// How many functions run on each loop, by its address.
    static BEGUN: Mutex<BTreeMap<usize, usize>> = Mutex::new(BTreeMap::new());
}

/// A function that an event loop runs for the engine.
pub struct Begun {
    address: usize,
}

impl Begun {
    pub fn on(event_loop: &Bound<'_, PyAny>) -> Self {
        let address = event_loop.as_ptr().addr();
        *BEGUN.lock().entry(address).or_default() += 1;
        Self { address }
    }
}

impl Drop for Begun {
    fn drop(&mut self) {
        let mut begun = BEGUN.lock();
        if let Some(count) = begun.get_mut(&self.address) {
            *count -= 1;
            if *count == 0 {
                begun.remove(&self.address);
            }
        }
    }
}

/// Called before a wait for `what`.
///
/// # Errors
/// `WouldBlockError` where the wait would stop an event loop that must go on.
pub fn check(py: Python<'_>, what: &str) -> PyResult<()> {
    if may_block(py)? { Ok(()) } else { Err(would_block(py, what)) }
}

/// Called during a wait.
///
/// # Errors
/// `WouldBlockError` where the wait stops the loop of a notebook, and something has begun on that loop.
pub fn check_again(py: Python<'_>) -> PyResult<()> {
    match running_loop::get(py)? {
        Some(running) if is_needed(&running)? && is_notebook(py)? => {
            Err(would_block(py, "what a cell waits for"))
        }
        _ => Ok(()),
    }
}

/// Whether this thread may wait.
pub fn may_block(py: Python<'_>) -> PyResult<bool> {
    match running_loop::get(py)? {
        None => Ok(true),
        Some(running) => Ok(is_notebook(py)? && !is_needed(&running)?),
    }
}

/// Whether the engine has begun something on this loop that has not ended.
fn is_needed(event_loop: &Bound<'_, PyAny>) -> PyResult<bool> {
    if BEGUN.lock().contains_key(&event_loop.as_ptr().addr()) {
        return Ok(true);
    }
    // Futures, see `_loops.py`.
    let ends = event_loop.getattr_opt(intern!(event_loop.py(), "_estafette_ends"))?;
    ends.map_or(Ok(false), |ends| Ok(ends.len()? > 0))
}

/// Whether this thread is that of a notebook's cells.
fn is_notebook(py: Python<'_>) -> PyResult<bool> {
    static MODULES: PyOnce<Py<PyDict>> = PyOnce::new();
    let modules = MODULES.import(py, "sys", "modules")?;
    let Some(ipython) = modules.get_item(intern!(py, "IPython"))? else { return Ok(false) };
    // Another thread may be in the middle of importing it.
    let Some(get_shell) = ipython.getattr_opt(intern!(py, "get_ipython"))? else { return Ok(false) };
    Ok(guard::is_main(py) && get_shell.call0()?.hasattr(intern!(py, "kernel"))?)
}

fn would_block(py: Python<'_>, what: &str) -> PyErr {
    let message = format!(
        "{what} is not ready, and waiting for it here would stop the running event loop; use `await`"
    );
    raise(py, "WouldBlockError", message)
}
