//! The device table in Python: what has memory, and contexts of other libraries.

use std::ptr::{self, NonNull};

use estafette::devices::{DLDevice, DeviceType, table};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::error::import_module;
use crate::interpreter::guard;
use crate::kinds::{self, KINDS};

/// The device table, and whatever else has memory: a tuple of `estafette.DeviceInfo`. Loads the drivers that
/// there are.
#[pyfunction]
pub fn devices(py: Python<'_>) -> PyResult<Bound<'_, PyTuple>> {
    KINDS.iter().try_for_each(|kind| kind.prepare(py))?;
    let class = import_module(py, "estafette._reports")?.getattr("DeviceInfo")?;
    let entries = guard::detach(py, table::entries);
    let host = class.call1(((1, 0), "host", true, 0_usize, 0_usize))?;
    let rows = entries.iter().map(|entry| {
        let name = entry.device.as_ref().map_or("a context", |device| device.name());
        let host = entry.device.as_ref().is_some_and(|device| device.host_accessible());
        let id = (entry.id.device_type.0, entry.id.device_id);
        class.call1((id, name, host, entry.context, entry.registrations))
    });
    let rows = std::iter::once(Ok(host)).chain(rows).collect::<PyResult<Vec<_>>>()?;
    PyTuple::new(py, rows)
}

/// A device as messages name it: "cpu:0".
#[pyfunction(name = "_device_text", signature = (device_type, device_id, /))]
pub fn device_text(device_type: i32, device_id: i32) -> String {
    DLDevice::new(DeviceType(device_type), device_id).to_string()
}

/// Gives a native context a number that can travel in DLPack: the `(type, id)` pair. `context` is a
/// `dpctl.SyclContext`, or a pointer. The context must stay alive until `unregister_context`.
#[pyfunction(signature = (context, /, *, device_type = 14))]
pub fn register_context(context: &Bound<'_, PyAny>, device_type: i32) -> PyResult<(i32, i32)> {
    let py = context.py();
    let known = KINDS.iter().find_map(|kind| kind.context_of(context).transpose()).transpose()?;
    let context = match known {
        Some(context) => context,
        None => {
            let address = context.extract::<usize>().map_err(|_| {
                let names: Vec<_> = KINDS.iter().filter_map(|kind| kind.context_name()).collect();
                let names = names.join(", a ");
                PyTypeError::new_err(format!("a context is a {names} or the address of a native context"))
            })?;
            NonNull::new(ptr::with_exposed_provenance_mut(address))
                .ok_or_else(|| PyValueError::new_err("the address of a context is not 0"))?
        }
    };
    let device_type = DeviceType(device_type);
    kinds::of(DLDevice::new(device_type, 0)).prepare(py)?;
    // SAFETY: the caller vouches for the pointer, as documented.
    let id = unsafe { table::register(device_type, context) };
    let id = id.map_err(|error| PyValueError::new_err(error.to_string()))?;
    Ok((id.device_type.0, id.device_id))
}

/// Ends one registration of a context.
#[pyfunction(signature = (device, /))]
pub fn unregister_context(device: (i32, i32)) -> PyResult<()> {
    let id = DLDevice::new(DeviceType(device.0), device.1);
    table::unregister(id).map_err(|error| PyValueError::new_err(error.to_string()))
}
