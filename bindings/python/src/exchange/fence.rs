//! `__dlpack_fence__`: tensors with fences of both sides in a capsule, both ways, so that no thread blocks in
//! between.
//!
//! The method takes `max_version`, `dl_device` and `copy` as `__dlpack__` does, and never waits. It returns a
//! capsule named [`FENCED`] with a pointer to a `DLManagedTensorFenced` of `dlpack_fence.h`, which the
//! consumer renames to [`USED`] and owns then; or it raises `BufferError`, and the consumer calls
//! `__dlpack__`. The fences may be used on any thread, with and without the Python lock.

use std::ffi::CStr;

use estafette::bindings::{self, exchange::Fenced};
use estafette::{Access, Engine, Error, ExportOptions, ImportOptions, Tensor};
use pyo3::exceptions::{PyBufferError, PyTypeError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyDict};

use crate::error::{OrRaise, exchange_error, to_py};
use crate::exchange::capsule::{self, FENCED};
use crate::exchange::export::is_ready;
use crate::exchange::peers;
use crate::interpreter::once::intern;
use crate::interpreter::{call_site, guard};
use crate::submission::scope;

/// The name that the consumer gives it.
const USED: &CStr = c"used_dltensor_fenced";

/// The method of a type.
pub const METHOD: &str = "__dlpack_fence__";

/// The answer of an Estafette tensor. Raises `ExchangeError`, a `BufferError`, for what needs a copy or a
/// struct without fences, and in an operation that has the tensor for an operand; `BufferError` for memory
/// that may not be written.
pub fn export<'py>(
    py: Python<'py>,
    tensor: &Tensor,
    access: Access,
    max_version: Option<(u32, u32)>,
    dl_device: Option<(i32, i32)>,
    copy: Option<bool>,
) -> PyResult<Bound<'py, PyCapsule>> {
    let elsewhere = |device| tensor.device().is_ok_and(|own| (own.device_type.0, own.device_id) != device);
    let refused = if max_version.is_some_and(|(major, _)| major < 1) {
        Some("a struct from before DLPack 1.0 has no fences")
    } else if copy == Some(true) || dl_device.is_some_and(elsewhere) {
        Some("a copy has no fences")
    } else if dl_device.is_some() && !bindings::tensor::is_defined(tensor) {
        Some("the device is known once the tensor is defined")
    } else if access == Access::Alias {
        Some("no fence orders an alias")
    } else if scope::has_operand(py, tensor)? {
        Some("an operand is ready in the function of its operation")
    } else {
        None
    };
    if let Some(refused) = refused {
        return Err(exchange_error(py, format!("{refused}: call `__dlpack__`")));
    }
    let options = ExportOptions { owner: Some(call_site::caller(py).place), ..ExportOptions::from(access) };
    let export = || bindings::tensor::export_fenced(tensor, &options);
    // Neither way waits. What is not ready may be granted here, and callbacks run.
    let exported = if is_ready(py, tensor) { export() } else { guard::detach(py, export) };
    // SAFETY: such a struct.
    unsafe { capsule::wrap_raw(py, exported.or_raise(py)?.into_raw(), FENCED) }
}

/// A tensor of an object whose type gives fences, without waiting; `None` if it gives none, or not for this.
/// With `read_only` operations may not write it. Raises what the method raises, but for `BufferError`;
/// `TypeError` for what is no such capsule; `InvalidError` names the field of the struct that is wrong.
pub fn import(object: &Bound<'_, PyAny>, engine: &Engine, read_only: bool) -> PyResult<Option<Tensor>> {
    let py = object.py();
    if !peers::of(object).fences {
        return Ok(None);
    }
    let arguments = PyDict::new(py);
    arguments.set_item(intern!(py, "max_version"), (1, 3))?;
    let answer = match object.call_method(intern!(py, "__dlpack_fence__"), (), Some(&arguments)) {
        Ok(answer) => answer,
        Err(error) if error.is_instance_of::<PyBufferError>(py) => return Ok(None),
        Err(error) => return Err(error),
    };
    let raw = match answer.cast::<PyCapsule>() {
        // SAFETY: a live capsule; a name that differs gives NULL and an error.
        Ok(capsule) => unsafe { ffi::PyCapsule_GetPointer(capsule.as_ptr(), FENCED.as_ptr()) },
        Err(_) => std::ptr::null_mut(),
    };
    if raw.is_null() {
        let _ = PyErr::take(py);
        let kind = object.get_type().fully_qualified_name()?;
        return Err(PyTypeError::new_err(format!(
            "`{METHOD}` of {kind} returned no capsule of `dltensor_fenced`"
        )));
    }
    // SAFETY: the name of the capsule says what is in it. A struct that is refused stays the capsule's.
    let fenced = unsafe { Fenced::take(raw) }.map_err(|error| to_py(py, &Error::from(error)))?;
    // SAFETY: the name is static. The capsule leaves its struct alone from here on.
    if unsafe { ffi::PyCapsule_SetName(answer.as_ptr(), USED.as_ptr()) } != 0 {
        return Err(PyErr::fetch(py));
    }
    // SAFETY: the producer vouches for the memory and its fence.
    let import = || unsafe {
        bindings::engine::import_fenced(
            engine,
            fenced,
            ImportOptions { read_only, ..ImportOptions::default() },
        )
    };
    let imported = guard::detach(py, import);
    // A tensor that is refused goes back by its deleter.
    imported.map(Some).map_err(|back| to_py(py, &back.0))
}
