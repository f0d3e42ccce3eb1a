//! The permission of a thread to run operations while it waits.

use pyo3::prelude::*;

/// Allows the engine's functions to run operations on the calling thread, or forbids it. Returns the former
/// setting.
#[pyfunction(name = "_set_helping")]
pub fn set_helping(allowed: bool) -> bool {
    estafette::bindings::set_helping(allowed)
}
