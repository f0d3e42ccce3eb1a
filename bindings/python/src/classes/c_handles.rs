//! The C interface in this extension: its functions, and handles of what Python has. Code in C or C++ in the
//! same process uses the same graph, pools and traces as Python.

use std::ptr::{self, NonNull};

use estafette_c::{estafette_engine, estafette_op, estafette_tensor};
use pyo3::exceptions::{PyMemoryError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyCapsule;

use crate::classes::engine::PyEngine;
use crate::classes::operation::PyOperation;
use crate::classes::tensor::PyTensor;
use crate::error::OrRaise;
use crate::unretrieved::Failures;

/// Returns the functions of `estafette.h` in a table: a capsule named ``estafette.c_api`` with a pointer to
/// the struct `estafette_api`.
///
/// Code in C takes the pointer by `PyCapsule_GetPointer`. It needs no other library, and what it does is in
/// the graph of this process, beside what Python does. ``python -m estafette config`` names the header, and
/// how to link instead.
#[pyfunction]
pub fn c_api(py: Python<'_>) -> PyResult<Bound<'_, PyCapsule>> {
    let table = NonNull::new(estafette_c::estafette_get_api().cast_mut()).expect("a static");
    // SAFETY: the table is static.
    unsafe { PyCapsule::new_with_pointer(py, table.cast(), c"estafette.c_api") }
}

/// Returns the engine of a handle from C, an ``estafette_engine*`` as an integer. The handle stays its
/// owner's. From now on the engine runs Python functions beside those of C, as one that Python has made: its
/// workers share the interpreter's lock, the exit of the interpreter waits for it, and unretrieved failures
/// are raised at its end. Its options are those that C gave, or Python. Raises `ValueError` for what is no
/// handle of an engine, such as one of another copy of the library in this process.
#[pyfunction]
pub fn engine_from_c(py: Python<'_>, handle: usize) -> PyResult<PyEngine> {
    estafette_c::check_process().or_raise(py)?;
    let handle: *const estafette_engine = ptr::with_exposed_provenance(handle);
    let engine = estafette_c::engine_of(handle).map_err(PyValueError::new_err)?;
    Ok(PyEngine::of(engine, Failures::Raise, None))
}

/// The number that stands in Python for a handle, which is made here.
fn number<H>(py: Python<'_>, handle: impl FnOnce() -> Option<*mut H>) -> PyResult<usize> {
    estafette_c::check_process().or_raise(py)?;
    let handle = handle().ok_or_else(|| PyMemoryError::new_err("there are too many handles for C"))?;
    Ok(handle.expose_provenance())
}

#[pymethods]
impl PyTensor {
    /// Returns a handle of the tensor for C, an ``estafette_tensor*`` as an integer. The caller owns it, and
    /// gives it up by ``estafette_tensor_release``.
    fn c_handle(&self, py: Python<'_>) -> PyResult<usize> {
        let tensor = self.tensor(py)?.clone();
        number(py, || estafette_c::tensor_handle(tensor))
    }
}

#[pymethods]
impl PyOperation {
    /// Returns a handle of the operation for C, an ``estafette_op*`` as an integer, to query, wait for,
    /// cancel, or have a fence of. The caller owns it, and gives it up by ``estafette_op_release``.
    fn c_handle(&self, py: Python<'_>) -> PyResult<usize> {
        let op = self.ended(py)?.clone();
        number(py, || estafette_c::op_handle(op))
    }
}

#[pymethods]
impl PyEngine {
    /// Returns a handle of the engine for C, an ``estafette_engine*`` as an integer. The caller owns it, and
    /// gives it up by ``estafette_engine_destroy``, which leaves the engine as it is for Python.
    fn c_handle(&self, py: Python<'_>) -> PyResult<usize> {
        let engine = self.engine(py)?.clone();
        number(py, || estafette_c::engine_handle(engine))
    }

    /// Returns the tensor of a handle from C, an ``estafette_tensor*`` as an integer. The handle stays its
    /// owner's. The tensor is ordered with all uses of it, in C and here; no memory is exchanged. Raises
    /// `ValueError` for what is no such handle.
    fn tensor_from_c(&self, py: Python<'_>, handle: usize) -> PyResult<PyTensor> {
        self.engine(py)?;
        estafette_c::check_process().or_raise(py)?;
        let handle: *const estafette_tensor = ptr::with_exposed_provenance(handle);
        Ok(self.wrap(estafette_c::tensor_of(handle).map_err(PyValueError::new_err)?))
    }

    /// Returns the operation of a handle from C, an ``estafette_op*`` as an integer. The handle stays its
    /// owner's. Raises `ValueError` for what is no handle of a submitted operation.
    fn operation_from_c(&self, py: Python<'_>, handle: usize) -> PyResult<PyOperation> {
        self.engine(py)?;
        estafette_c::check_process().or_raise(py)?;
        let handle: *mut estafette_op = ptr::with_exposed_provenance_mut(handle);
        let op = estafette_c::op_of(handle).map_err(PyValueError::new_err)?;
        Ok(PyOperation::new(op, self.handle.clone()))
    }
}
