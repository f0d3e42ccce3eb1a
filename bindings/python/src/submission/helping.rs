//! Whether waits run operations on the thread that waits.

use pyo3::prelude::*;

/// Says whether the engine's functions may run operations on the calling thread; gives what was said before.
#[pyfunction(name = "_set_helping")]
pub fn set_helping(allowed: bool) -> bool {
    estafette::bindings::set_helping(allowed)
}
