//! The interpreter's exit, with whatever is still open.
//!
//! 1. The gate closes: operations that have not begun fail instead of calling Python. Those that run get a moment to end,
//!    then an exception, since a thread that came back to a finalizing interpreter would take the process down.
//! 2. The reaper runs the deleters that are due, which may need the interpreter, and stops; later ones leak. The process
//!    ends anyway.
//!
//! What other libraries still hold of ours stays valid to the end: nothing is freed here.

use std::time::Duration;

use estafette::exchange::reaper;
use pyo3::prelude::*;

use crate::{body, gate, process};

/// How long functions that run at exit may take to end by themselves.
const GRACE: Duration = Duration::from_secs(5);

/// How long they may take once they were interrupted.
const LAST_GRACE: Duration = Duration::from_secs(1);

/// How long deleters that are due may take.
const DELETERS: Duration = Duration::from_secs(5);

/// Called by `atexit`, on the main thread.
#[pyfunction]
#[pyo3(name = "_at_exit")]
pub fn at_exit(py: Python<'_>) {
    if process::is_engines_child() {
        return;
    }
    if !gate::close(py, GRACE) {
        body::interrupt_all(py);
        gate::close(py, LAST_GRACE);
    }
    py.detach(|| {
        reaper().flush(DELETERS);
        reaper().stop(DELETERS);
    });
}
