//! What must not be touched in a forked child: the engine's threads do not exist there, and its locks may be held for
//! ever by threads that did not come along.

use std::mem::ManuallyDrop;

use estafette::Error;
use estafette::exchange::fork;
use estafette_sync::sync::OnceLock;
use pyo3::exceptions::PyImportError;
use pyo3::ffi;
use pyo3::prelude::*;

use crate::error::to_py;

/// The fork generation of the process that made the first engine.
static FIRST: OnceLock<u32> = OnceLock::new();

/// Called when an engine was made.
pub fn has_engine() {
    FIRST.get_or_init(fork::generation);
}

/// Whether this process was forked from one with an engine.
pub fn is_engines_child() -> bool {
    FIRST.get().is_some_and(|first| *first != fork::generation())
}

/// The engine belongs to the process: it could not distinguish an interpreter's end from that of the process.
///
/// # Errors
/// `ImportError` in a subinterpreter.
#[pyfunction(name = "_check_interpreter")]
pub fn check_interpreter(py: Python<'_>) -> PyResult<()> {
    let _ = py;
    // SAFETY: the calling thread has a thread state, since it has the Python lock.
    let id = unsafe { ffi::PyInterpreterState_GetID(ffi::PyInterpreterState_Get()) };
    if id == 0 {
        return Ok(());
    }
    Err(PyImportError::new_err(
        "estafette works in the main interpreter only, not in subinterpreters; start threads or processes (by spawn) instead",
    ))
}

/// Something of the engine that belongs to the process it was made in. In a forked child it is neither used nor dropped.
pub struct Own<T> {
    value: ManuallyDrop<T>,
    generation: u32,
}

impl<T> Own<T> {
    pub fn new(value: T) -> Self {
        Self { value: ManuallyDrop::new(value), generation: fork::generation() }
    }

    /// # Errors
    /// `ForkedError` in a forked child.
    #[inline]
    pub fn get(&self, py: Python<'_>) -> PyResult<&T> {
        if self.generation == fork::generation() { Ok(&self.value) } else { Err(to_py(py, &Error::Forked)) }
    }

    /// As [`get`](Self::get), to change it.
    ///
    /// # Errors
    /// As there.
    pub fn get_mut(&mut self, py: Python<'_>) -> PyResult<&mut T> {
        if self.generation == fork::generation() {
            Ok(&mut self.value)
        } else {
            Err(to_py(py, &Error::Forked))
        }
    }

    /// As [`get`](Self::get), to have it.
    ///
    /// # Errors
    /// As there.
    pub fn into_inner(self, py: Python<'_>) -> PyResult<T> {
        self.get(py)?;
        let mut this = ManuallyDrop::new(self);
        // SAFETY: taken once, and the destructor of `self` will not run.
        Ok(unsafe { ManuallyDrop::take(&mut this.value) })
    }

    /// For what has no way to fail; `None` in a forked child.
    pub fn try_get(&self) -> Option<&T> {
        (self.generation == fork::generation()).then_some(&self.value)
    }
}

impl<T> Drop for Own<T> {
    fn drop(&mut self) {
        if self.generation == fork::generation() {
            // SAFETY: dropped here, once, and not used afterwards.
            unsafe { ManuallyDrop::drop(&mut self.value) };
        }
    }
}
