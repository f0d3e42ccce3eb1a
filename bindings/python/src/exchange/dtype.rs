//! Element types in Python: `estafette.DType`, and the types of NumPy that they are.

use estafette::DType;
use estafette::bindings;
use pyo3::exceptions::PyAttributeError;
use pyo3::prelude::*;

use crate::arguments::parse_dtype;
use crate::interpreter::once::{imported, intern};

/// The value of `t.dtype`: a text that is equal to the type's name.
pub fn object(py: Python<'_>, dtype: DType) -> PyResult<Bound<'_, PyAny>> {
    imported!(py, "estafette._dtype", "of")?.call1((dtype.to_string(), dtype.itemsize()))
}

/// The name of an element type, in whatever form `eng.zeros` takes it.
/// Raises as [`parse_dtype`].
#[pyfunction(name = "_dtype_name", signature = (dtype, /))]
pub fn name_of(dtype: &Bound<'_, PyAny>) -> PyResult<String> {
    parse_dtype(dtype).map(|dtype| dtype.to_string())
}

/// The `numpy.dtype` of the same elements, of `ml_dtypes` for those that NumPy itself lacks.
/// Raises `AttributeError` for a type that neither has, and where they are not installed.
pub fn numpy(py: Python<'_>, dtype: DType) -> PyResult<Bound<'_, PyAny>> {
    if bindings::exchange::is_sub_byte(dtype) || dtype.lanes != 1 {
        // NumPy's have a byte each.
        return Err(PyAttributeError::new_err(format!("NumPy has no packed elements of type {dtype}")));
    }
    object(py, dtype)?.getattr(intern!(py, "__numpy_dtype__"))
}
