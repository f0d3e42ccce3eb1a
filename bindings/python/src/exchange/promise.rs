//! `__estafette_promise__`: the promise of a tensor as a C struct in a capsule, both ways.
//!
//! An object whose *type* has the attribute gives a capsule named [`NAME`] with a pointer to an `estafette_fence`: when it is
//! done, the object's data may be read. The capsule owns one count of the fence; a consumer retains it for itself. So the
//! data comes by DLPack and its readiness by the promise, and no thread blocks in between:
//! - an object whose memory exists already gives it at once when asked for `__dlpack__(stream=-1)`, which means "do not wait"
//!   in the array API, and here on the host too;
//! - any other object is asked when its promise is done. What it gives then is its state at that time.

use std::ffi::{CStr, c_void};
use std::ptr::NonNull;

use estafette::devices::{DLDevice, Fence, FenceState};
use estafette::exchange::foreign_fence::RawFence;
use estafette::exchange::{Abi, ExportFlags, Layout, ManagedTensor, export};
use estafette::{Completion, DType, Engine, Error, ImportOptions, Tensor};
use pyo3::exceptions::{PyBufferError, PyException, PyTypeError, PyValueError};
use pyo3::ffi;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyDict, PyTuple};

use crate::error::OrRaise;
use crate::exchange::capsule;
use crate::exchange::peers::{self, Legacy};
use crate::submission::body::Body;
use crate::submission::outcome::Use;

/// What the capsule is called.
pub const NAME: &CStr = c"estafette_fence";

/// The attribute of a type.
pub const ATTRIBUTE: &str = "__estafette_promise__";

/// The readiness of the version of `tensor` that is current now.
pub fn of_tensor<'py>(py: Python<'py>, tensor: &Tensor) -> PyResult<Bound<'py, PyCapsule>> {
    let raw = Box::into_raw(Box::new(tensor.export_ready_fence()));
    // SAFETY: the pointer is not NULL, the name is static, and the destructor expects what such a capsule holds.
    let capsule = unsafe { ffi::PyCapsule_New(raw.cast::<c_void>(), NAME.as_ptr(), Some(drop_capsule)) };
    if capsule.is_null() {
        // SAFETY: it has no other owner.
        unsafe { give_up(raw) };
        return Err(PyErr::fetch(py));
    }
    // SAFETY: a new reference to a capsule.
    Ok(unsafe { Bound::from_owned_ptr(py, capsule).cast_into_unchecked() })
}

unsafe extern "C" fn drop_capsule(capsule: *mut ffi::PyObject) {
    // SAFETY: Python calls this once, with a capsule made above, whose name does not change.
    unsafe { give_up(ffi::PyCapsule_GetPointer(capsule, NAME.as_ptr()).cast()) };
}

/// # Safety
/// `raw` is NULL, or from `of_tensor` and not given up before.
unsafe fn give_up(raw: *mut RawFence) {
    if raw.is_null() {
        return;
    }
    // SAFETY: by contract.
    let raw = unsafe { Box::from_raw(raw) };
    if let Some(release) = raw.release {
        // SAFETY: the capsule's own count.
        unsafe { release(raw.context) };
    }
}

/// The promise of an object whose type has one; `None` when there is none, or when it is kept already.
///
/// # Errors
/// `TypeError` for what is no such capsule; `InvalidError` names the field of the fence that is wrong.
pub fn pending(object: &Bound<'_, PyAny>, engine: &Engine) -> PyResult<Option<Fence>> {
    let py = object.py();
    if !peers::of(object).promise {
        return Ok(None);
    }
    let value = object.getattr(intern!(py, "__estafette_promise__"))?;
    let pointer = match value.cast::<PyCapsule>() {
        // SAFETY: a live capsule; a name that differs gives NULL and an error.
        Ok(capsule) => unsafe { ffi::PyCapsule_GetPointer(capsule.as_ptr(), NAME.as_ptr()) },
        Err(_) => std::ptr::null_mut(),
    };
    let Some(raw) = NonNull::new(pointer.cast::<RawFence>()) else {
        let _ = PyErr::take(py);
        let kind = object.get_type().fully_qualified_name()?;
        return Err(PyTypeError::new_err(format!(
            "`{ATTRIBUTE}` of {kind} is no capsule of an `estafette_fence`"
        )));
    };
    // SAFETY: the name of the capsule says what is in it, and `value` holds its count until the fence is retained.
    let fence = unsafe { engine.import_fence(raw) }.or_raise(py)?;
    Ok(match fence.state() {
        FenceState::Done => None,
        FenceState::Pending | FenceState::Failed(_) => Some(fence),
    })
}

/// A tensor of the object's data, which may be read when `promise` is done. Does not wait for it.
///
/// # Errors
/// As the engine's imports.
pub fn import(object: &Bound<'_, PyAny>, engine: &Engine, promise: Fence) -> PyResult<Tensor> {
    let py = object.py();
    match without_waiting(object)? {
        Some((managed, immutable)) => {
            // SAFETY: the producer vouches for the memory, and for its promise.
            unsafe {
                engine.import_with(managed, ImportOptions::default().ready(promise).read_only(immutable))
            }
            .or_raise(py)
        }
        None => late(object, engine, promise),
    }
}

/// The object's memory, given at once; `None` if it is not to be had that way.
fn without_waiting(object: &Bound<'_, PyAny>) -> PyResult<Option<(ManagedTensor, bool)>> {
    let py = object.py();
    let arguments = PyDict::new(py);
    arguments.set_item(intern!(py, "max_version"), (1, 3))?;
    arguments.set_item(intern!(py, "stream"), -1)?;
    let answer = match object.call_method(intern!(py, "__dlpack__"), (), Some(&arguments)) {
        Ok(answer) => answer,
        Err(error) if is_refusal(py, &error) => return Ok(None),
        Err(error) => return Err(error),
    };
    let raw = answer
        .cast::<PyCapsule>()
        .map_err(|_| PyTypeError::new_err("`__dlpack__` did not return a capsule"))?;
    let managed = capsule::consume(raw)?;
    let immutable = managed.version().is_none() && peers::of(object).peer().legacy == Legacy::ReadOnly;
    Ok(Some((managed, immutable)))
}

/// What a producer raises that has no memory yet, or does not know of not waiting.
fn is_refusal(py: Python<'_>, error: &PyErr) -> bool {
    error.is_instance_of::<PyTypeError>(py)
        || error.is_instance_of::<PyValueError>(py)
        || error.is_instance_of::<PyBufferError>(py)
        || (error.is_instance_of::<PyException>(py)
            && error.get_type(py).name().is_ok_and(|name| name == "NotDefinedError"))
}

/// A promise of what the object gives when its own promise is done.
fn late(object: &Bound<'_, PyAny>, engine: &Engine, promise: Fence) -> PyResult<Tensor> {
    let py = object.py();
    // Stands for the promise in the graph: a tensor of nothing that is ready when it is done.
    let nothing = Layout::contiguous(DType::U8, DLDevice::CPU, &[0]).map_err(Error::from).or_raise(py)?;
    // SAFETY: there is no memory, and so nothing to keep.
    let nothing =
        unsafe { export(&nothing, std::ptr::null_mut(), ExportFlags::default(), Abi::Versioned, || ()) };
    // SAFETY: as above.
    let gate =
        unsafe { engine.import_with(nothing, ImportOptions::default().ready(promise).read_only(true)) }
            .or_raise(py)?;
    let give = py.import("estafette._body")?.getattr("give")?;
    let function = py.import("functools")?.getattr("partial")?.call1((give, object))?;
    let body = Body::new(&function, None, &PyTuple::empty(py), Use::Produced(None))?;
    let op = engine.op("foreign promise").reads([&gate]).worker_only();
    op.produce_external(move |end: Completion| body.start(end)).or_raise(py)
}
