//! Arrow's PyCapsule interface, both ways: `__arrow_c_device_array__`, and `__arrow_c_array__` for host
//! memory; and one way `__arrow_c_stream__`, for columns of one chunk.

use std::ffi::{CStr, CString};

use estafette::bindings;
use estafette::exchange::arrow::{ArrowDeviceArray, ArrowSchema};
use pyo3::exceptions::{PyNotImplementedError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyCapsuleMethods, PyDict, PyTuple};

use crate::error::OrRaise;
use crate::exchange::capsule;
use crate::exchange::export::{self, ExportRequest, From};
use crate::interpreter::guard;
use crate::interpreter::once::intern;

const SCHEMA: &CStr = c"arrow_schema";
const ARRAY: &CStr = c"arrow_array";
const DEVICE_ARRAY: &CStr = c"arrow_device_array";
const STREAM: &CStr = c"arrow_array_stream";

/// Adopts the array behind an object that speaks Arrow's interface, or behind a pair of its capsules; also
/// gives the format of its schema. Raises `TypeError` for what does not speak Arrow; `ValueError` for
/// capsules that are none of Arrow's; `InvalidTensorError` for an array that was taken before.
pub fn take(object: &Bound<'_, PyAny>) -> PyResult<(CString, ArrowDeviceArray)> {
    let pair = match object.cast::<PyTuple>() {
        Ok(pair) => pair.clone().into_any(),
        Err(_) => match call_protocol(object)? {
            ExportedArrow::Array(pair) => pair,
            ExportedArrow::Stream(stream) => return only_chunk(&stream),
        },
    };
    let (schema, array): (Bound<'_, PyCapsule>, Bound<'_, PyCapsule>) = pair.extract().map_err(|_| {
        PyTypeError::new_err("an Arrow array is exchanged as a pair of capsules, of its schema and of itself")
    })?;
    let py = object.py();
    if !schema.is_valid_checked(Some(SCHEMA)) {
        return Err(not_arrow(&schema, "arrow_schema"));
    }
    let pointer = schema.pointer_checked(Some(SCHEMA))?.as_ptr();
    // SAFETY: by Arrow's PyCapsule interface a capsule of this name holds a valid schema. It stays in the
    // capsule, which is alive, and the format is copied before anything else runs.
    let format = unsafe { bindings::arrow::format_of(pointer) }.map(CStr::to_owned).or_raise(py)?;
    let taken = if array.is_valid_checked(Some(DEVICE_ARRAY)) {
        let pointer = array.pointer_checked(Some(DEVICE_ARRAY))?.as_ptr();
        // SAFETY: a capsule of this name holds a valid device array. What is moved out is marked as released,
        // so the capsule's destructor frees the struct alone; the lock on the interpreter keeps others from
        // it meanwhile.
        unsafe { ArrowDeviceArray::take(pointer) }
    } else if array.is_valid_checked(Some(ARRAY)) {
        let pointer = array.pointer_checked(Some(ARRAY))?.as_ptr();
        // SAFETY: the same of a plain array, which is in host memory.
        unsafe { bindings::arrow::take_host(pointer) }
    } else {
        return Err(not_arrow(&array, "arrow_device_array` or `arrow_array"));
    };
    Ok((format, taken.or_raise(py)?))
}

enum ExportedArrow<'py> {
    Array(Bound<'py, PyAny>),
    Stream(Bound<'py, PyAny>),
}

fn call_protocol<'py>(object: &Bound<'py, PyAny>) -> PyResult<ExportedArrow<'py>> {
    let py = object.py();
    for name in [intern!(py, "__arrow_c_device_array__"), intern!(py, "__arrow_c_array__")] {
        if let Ok(export) = object.getattr(name) {
            return export.call0().map(ExportedArrow::Array);
        }
    }
    if let Ok(export) = object.getattr(intern!(py, "__arrow_c_stream__")) {
        return export.call0().map(ExportedArrow::Stream);
    }
    let kind = object.get_type().fully_qualified_name()?;
    Err(PyTypeError::new_err(format!(
        "{kind} has none of `__arrow_c_device_array__`, `__arrow_c_array__` and `__arrow_c_stream__`: it is no Arrow array"
    )))
}

/// The array of a stream that has one.
fn only_chunk(stream: &Bound<'_, PyAny>) -> PyResult<(CString, ArrowDeviceArray)> {
    let py = stream.py();
    let stream = stream
        .cast::<PyCapsule>()
        .map_err(|_| PyTypeError::new_err("an Arrow stream is exchanged as a capsule"))?;
    if !stream.is_valid_checked(Some(STREAM)) {
        return Err(not_arrow(stream, "arrow_array_stream"));
    }
    let address = stream.pointer_checked(Some(STREAM))?.as_ptr().expose_provenance();
    let take = || {
        // SAFETY: a capsule of this name holds a valid stream. It was made for this call, and its destructor
        // releases the stream.
        unsafe { bindings::arrow::take_stream(std::ptr::with_exposed_provenance_mut(address)) }
    };
    // A producer may compute what it gives.
    guard::detach(py, take).or_raise(py)
}

fn not_arrow(raw: &Bound<'_, PyCapsule>, wanted: &str) -> PyErr {
    let name = match raw.name() {
        Err(error) => return error,
        Ok(None) => "has no name".to_owned(),
        Ok(Some(name)) => {
            // SAFETY: the name belongs to the capsule, which is alive, and is copied here.
            format!("is named `{}`", unsafe { name.as_cstr() }.to_string_lossy())
        }
    };
    PyValueError::new_err(format!("the capsule {name}; Arrow's is `{wanted}`"))
}

/// The answer to `__arrow_c_device_array__`: capsules of the schema and of the array. Raises as for
/// `__dlpack__`; `InvalidTensorError` for what an Arrow array cannot be; `NotImplementedError` for an
/// argument that this version does not know.
pub fn device_array<'py>(
    py: Python<'py>,
    from: From<'_>,
    unknown: Option<&Bound<'py, PyDict>>,
) -> PyResult<Bound<'py, PyTuple>> {
    for (name, value) in unknown.into_iter().flatten() {
        // The interface lets consumers pass what later versions may know, as long as it says nothing.
        if !value.is_none() {
            return Err(PyNotImplementedError::new_err(format!("the argument {name} is not known")));
        }
    }
    let (schema, array) = lend(py, from)?;
    let schema = PyCapsule::new_with_value(py, schema, SCHEMA)?;
    PyTuple::new(py, [schema, PyCapsule::new_with_value(py, array, DEVICE_ARRAY)?])
}

/// The answer to `__arrow_c_array__`.
/// Raises as [`device_array`], and `InvalidTensorError` for memory that is not the host's.
pub fn array<'py>(py: Python<'py>, from: From<'_>) -> PyResult<Bound<'py, PyTuple>> {
    let (schema, array) = lend(py, from)?;
    let array = bindings::arrow::into_host(array).or_raise(py)?;
    let schema = PyCapsule::new_with_value(py, schema, SCHEMA)?;
    PyTuple::new(py, [schema, PyCapsule::new_with_value(py, array, ARRAY)?])
}

/// Exports as `__dlpack__` does, with the same waiting and under the same lease, but an Arrow array.
fn lend(py: Python<'_>, from: From<'_>) -> PyResult<(ArrowSchema, ArrowDeviceArray)> {
    let request = ExportRequest { stream: None, max_version: Some((1, 0)), dl_device: None, copy: None };
    let lent = export::export(py, from, &request)?;
    let lent = capsule::consume(&lent)?;
    bindings::arrow::from_tensor(lent, None).or_raise(py)
}
