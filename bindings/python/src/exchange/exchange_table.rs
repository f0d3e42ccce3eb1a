//! Our own C exchange table: how consumers that know it take our tensors, and make them, without a Python
//! call.
//!
//! | function | what it means here |
//! |---|---|
//! | tensor from object | `__dlpack__` with the newest version: waits on the host until the data is ready, takes a lease |
//! | description from object | waits likewise; nothing is leased, so it is for calls that are over when control comes back |
//! | object from tensor | `from_dlpack` of the default engine |
//! | allocator | zeroed host memory that belongs to its receiver; needs no engine and no Python |
//! | current stream | of a CUDA device the engine's own, before which what is taken is ordered; else NULL: the host has none |
//!
//! "No sync" in the names of the specification is about streams. Host memory has none, so what is not ready
//! is waited for.
//!
//! Objects with an access of their own ([`Exporter`], [`PyView`]) have a table without descriptions: an
//! access has to be held.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::ptr::NonNull;

use estafette::bindings::{
    self,
    exchange::table::{self, DLDeviceType, DLManagedTensorVersioned, DLTensor, Table},
};
use estafette::devices::{DLDevice, DeviceType};
use estafette::exchange::{Abi, ManagedTensor};
use estafette::{Access, Tensor};
use estafette_sync::panic::contain_panic;
use pyo3::exceptions::{PySystemError, PyTypeError};
use pyo3::prelude::*;
use pyo3::type_object::PyTypeInfo;
use pyo3::types::PyCapsule;

use crate::classes::access::PyView;
use crate::classes::engine::PyEngine;
use crate::classes::exporter::Exporter;
use crate::classes::tensor::PyTensor;
use crate::error::{OrRaise, exchange_error};
use crate::exchange::export::{self, ExportRequest, From};
use crate::exchange::protocols::Exports;
use crate::interpreter::guard;
use crate::kinds;
use crate::submission::scope;

static TENSORS: Published = Published(Table {
    header: table::HEADER,
    managed_tensor_allocator: Some(allocate),
    managed_tensor_from_py_object_no_sync: Some(from_object),
    managed_tensor_to_py_object_no_sync: Some(to_object),
    dltensor_from_py_object_no_sync: Some(describe),
    current_work_stream: Some(current_stream),
});

static ACCESSES: Published = Published(Table { dltensor_from_py_object_no_sync: None, ..TENSORS.0 });

struct Published(Table);

// SAFETY: a table is constant, and its functions may be called from any thread as far as each says.
unsafe impl Sync for Published {}

/// Puts the tables on our types.
pub fn install(py: Python<'_>) -> PyResult<()> {
    for (class, table) in [
        (PyTensor::type_object(py), &TENSORS),
        (Exporter::type_object(py), &ACCESSES),
        (PyView::type_object(py), &ACCESSES),
    ] {
        // SAFETY: the table is static.
        let capsule =
            unsafe { PyCapsule::new_with_pointer(py, NonNull::from(&table.0).cast(), table::CAPSULE) }?;
        class.setattr(table::ATTRIBUTE, capsule)?;
    }
    Ok(())
}

/// Runs `f` for a caller in C, which has the Python lock: an error or a panic becomes an exception and -1.
fn for_c(f: impl FnOnce(Python<'_>) -> PyResult<()>) -> c_int {
    // SAFETY: these functions of the table are called with the Python lock, as the specification demands.
    let py = unsafe { Python::assume_attached() };
    let error = match contain_panic(|| f(py)) {
        Ok(Ok(())) => return 0,
        Ok(Err(error)) => error,
        Err(_) => PySystemError::new_err("a function of the C exchange table panicked"),
    };
    error.restore(py);
    -1
}

fn null_argument() -> PyErr {
    PySystemError::new_err("an argument of a C exchange function is NULL")
}

unsafe extern "C" fn from_object(object: *mut c_void, out: *mut *mut DLManagedTensorVersioned) -> c_int {
    for_c(|py| {
        let out = NonNull::new(out).ok_or_else(null_argument)?;
        // SAFETY: the caller lends a live object, or NULL.
        let object =
            unsafe { Bound::from_borrowed_ptr_or_opt(py, object.cast()) }.ok_or_else(null_argument)?;
        let managed = take(&object)?;
        let raw = managed.into_raw();
        // SAFETY: the place is the caller's.
        unsafe { out.write(raw.cast()) };
        Ok(())
    })
}

/// The tensor behind an object of one of the types that have a table.
fn take(object: &Bound<'_, PyAny>) -> PyResult<ManagedTensor> {
    let py = object.py();
    let request = ExportRequest { stream: None, max_version: Some((1, 3)), dl_device: None, copy: None };
    if let Ok(tensor) = object.cast::<PyTensor>() {
        let from = From::Tensor(tensor.get().tensor(py)?, Access::Read, tensor.get().engine());
        export::until_defined(py, from.tensor())?;
        let device = from.tensor().device().or_raise(py)?;
        if let Some(default) = kinds::default_stream(device) {
            // Ordered before the stream that we say is ours.
            let ours = work_stream(py, device, default)?.into_pyobject(py)?.into_any();
            let request = ExportRequest { stream: Some(&ours), ..request };
            return export::export_managed(py, from, &request);
        }
        return export::export_plain(py, from, &request);
    }
    if let Ok(exporter) = object.cast::<Exporter>() {
        return exporter.get().with_source(py, |from| export::export_managed(py, from, &request));
    }
    if let Ok(view) = object.cast::<PyView>() {
        return view.get().with_source(py, |from| export::export_managed(py, from, &request));
    }
    let kind = object.get_type().fully_qualified_name()?;
    Err(PyTypeError::new_err(format!("{kind} is not of the type whose C exchange table this is")))
}

/// The stream that our work on `device` goes to, and that consumers of this table come after. `default` is
/// the stream of a context for which the engine has no device.
fn work_stream(py: Python<'_>, device: DLDevice, default: usize) -> PyResult<usize> {
    let device = kinds::device_of(py, device)?;
    Ok(guard::detach(py, || device.map_or(default, |device| device.default_queue().native())))
}

unsafe extern "C" fn describe(object: *mut c_void, out: *mut DLTensor) -> c_int {
    for_c(|py| {
        let out = NonNull::new(out).ok_or_else(null_argument)?;
        // SAFETY: the caller lends a live object, or NULL.
        let object =
            unsafe { Bound::from_borrowed_ptr_or_opt(py, object.cast()) }.ok_or_else(null_argument)?;
        let tensor = object.cast::<PyTensor>().map_err(|_| {
            PyTypeError::new_err("this C exchange function describes instances of estafette.Tensor")
        })?;
        let tensor = tensor.get().tensor(py)?;
        until_ready(py, tensor)?;
        export::count();
        // SAFETY: the place is the caller's. It may use what is lent until control returns, and keeps the
        // object that long.
        unsafe { bindings::tensor::lend(tensor, out) }.or_raise(py)
    })
}

/// Waits until a reader may look, unless the running operation has the tensor anyway.
fn until_ready(py: Python<'_>, tensor: &Tensor) -> PyResult<()> {
    if scope::has_operand(py, tensor)? { Ok(()) } else { export::until_ready(py, tensor, None) }
}

unsafe extern "C" fn to_object(tensor: *mut DLManagedTensorVersioned, out: *mut *mut c_void) -> c_int {
    for_c(|py| {
        // Taken first: whatever goes wrong, the tensor is ours to release.
        // SAFETY: the caller gives the tensor up, whether this succeeds or not.
        let managed = unsafe { ManagedTensor::from_raw(tensor.cast(), Abi::Versioned) }.or_raise(py)?;
        let out = NonNull::new(out).ok_or_else(null_argument)?;
        let engine = py.import("estafette")?.call_method0("default_engine")?;
        let engine = engine.cast_into::<PyEngine>().map_err(PyErr::from)?;
        let made = engine.get().adopt(py, managed)?;
        // SAFETY: the place is the caller's, and gets a reference of its own.
        unsafe { out.write(made.into_ptr().cast()) };
        Ok(())
    })
}

unsafe extern "C" fn current_stream(kind: DLDeviceType, id: i32, out: *mut *mut c_void) -> c_int {
    for_c(|py| {
        let out = NonNull::new(out).ok_or_else(null_argument)?;
        let device = DLDevice::new(DeviceType(kind.0 as i32), id);
        if let Some(default) = kinds::default_stream(device) {
            let stream = work_stream(py, device, default)?;
            // SAFETY: the place is the caller's.
            unsafe { out.write(std::ptr::with_exposed_provenance_mut(stream)) };
            return Ok(());
        }
        if !device.device_type.is_host_readable() {
            // Never NULL there, which would say "the default stream".
            return Err(exchange_error(py, format!("no work is done on device {device} here")));
        }
        // SAFETY: the place is the caller's.
        unsafe { out.write(std::ptr::null_mut()) };
        Ok(())
    })
}

/// Callable without the Python lock: errors go through `set_error`.
unsafe extern "C" fn allocate(
    prototype: *mut DLTensor,
    out: *mut *mut DLManagedTensorVersioned,
    error_ctx: *mut c_void,
    set_error: Option<unsafe extern "C" fn(*mut c_void, *const c_char, *const c_char)>,
) -> c_int {
    let made = contain_panic(|| {
        let (Some(prototype), Some(out)) = (NonNull::new(prototype), NonNull::new(out)) else {
            return Err((c"SystemError", "an argument of a C exchange function is NULL".to_string()));
        };
        // SAFETY: the caller's prototype is readable, with as many dimensions as it says.
        match unsafe { table::allocate(prototype) } {
            Ok(managed) => {
                // SAFETY: the place is the caller's.
                unsafe { out.write(managed.into_raw().cast()) };
                Ok(())
            }
            Err(error) => Err((c"BufferError", error.to_string())),
        }
    });
    let (kind, message): (&CStr, String) = match made {
        Ok(Ok(())) => return 0,
        Ok(Err(error)) => error,
        Err(_) => (c"SystemError", "the allocator of the C exchange table panicked".to_string()),
    };
    if let Some(set_error) = set_error {
        let message = CString::new(message).unwrap_or_default();
        // SAFETY: the caller's function and context; both texts live through the call.
        unsafe { set_error(error_ctx, kind.as_ptr(), message.as_ptr()) };
    }
    -1
}
