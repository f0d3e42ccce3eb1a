//! Barriers over a device, held off while another library records a graph there.

use estafette::exchange::quarantine::{Pause, pause};
use pyo3::prelude::*;

use crate::interpreter::attached::Attached;
use crate::interpreter::guard;

/// As many as there are callers that hold.
static HELD: Attached<Vec<Pause>> = Attached::new(Vec::new());

/// Begins to hold barriers off, or ends it.
#[pyfunction(name = "_hold_barriers")]
#[pyo3(signature = (hold, /))]
pub fn hold_barriers(py: Python<'_>, hold: bool) {
    let pause = hold.then(|| guard::detach(py, pause));
    // SAFETY: neither runs Python code.
    unsafe {
        HELD.with(py, |held| match pause {
            Some(pause) => held.push(pause),
            None => drop(held.pop()),
        });
    }
}
