//! The choice of threads to run operations while they wait.

use pyo3::prelude::*;

/// Sets if the engine's functions may run operations on the calling thread. Returns the former setting.
#[pyfunction(name = "_set_helping")]
pub fn set_helping(allowed: bool) -> bool {
    estafette::bindings::set_helping(allowed)
}
