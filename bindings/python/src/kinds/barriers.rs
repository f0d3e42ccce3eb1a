//! Barriers over a device, held off while another library captures a graph there.

use estafette::exchange::quarantine::{Pause, pause};
use estafette_sync::sync::Mutex;
use pyo3::prelude::*;

use crate::interpreter::guard;

estafette_sync::per_process! {
    /// As many as there are callers that hold.
    static HELD: Mutex<Vec<Pause>> = Mutex::new(Vec::new());
}

/// Begins to hold barriers off, or ends it.
#[pyfunction(name = "_hold_barriers", signature = (hold, /))]
pub fn hold_barriers(py: Python<'_>, hold: bool) {
    guard::detach(py, || {
        if hold {
            let pause = pause();
            HELD.lock().push(pause);
        } else {
            let last = HELD.lock().pop();
            drop(last);
        }
    });
}
