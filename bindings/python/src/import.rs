//! Taking tensors from other libraries, by the rules of the array API and DLPack's Python specification.

use estafette::devices::{DLDevice, DeviceType};
use estafette::exchange::ManagedTensor;
use estafette_sync::sync::atomic::AtomicU64;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyDict};

use crate::capsule;
use crate::error::raise;
use crate::peers::{self, Legacy};

/// Tensors from outside that this process's engines have taken over.
pub static IMPORTED: AtomicU64 = AtomicU64::new(0);

/// The newest DLPack version that we understand.
const MAX_VERSION: (u32, u32) = (1, 3);

/// What the caller asks of an import.
#[derive(Debug, Clone, Copy, Default)]
pub struct Wanted {
    /// Where the data shall be; `None` means where it is.
    pub device: Option<DLDevice>,
    /// Whether it shall be copied; `None` means if needed.
    pub copy: Option<bool>,
}

/// Takes over the tensor behind a DLPack object or a raw capsule; also says whether nobody may write it although its
/// struct does not say so.
///
/// # Errors
/// `TypeError` for what does not speak DLPack; `BufferError` when the producer refuses, or gives another device or a copy
/// that was not wanted; `ValueError` for a capsule that was consumed or is none of DLPack's.
pub fn take(object: &Bound<'_, PyAny>, wanted: &Wanted) -> PyResult<(ManagedTensor, bool)> {
    let py = object.py();
    if let Ok(raw) = object.cast::<PyCapsule>() {
        // Nobody says whose it is, so NumPy's rule holds: a legacy struct gives no consent to write.
        let managed = capsule::consume(raw)?;
        let immutable = managed.version().is_none();
        check(py, &managed, wanted)?;
        return Ok((managed, immutable));
    }
    let export = match object.getattr(intern!(py, "__dlpack__")) {
        Ok(export) => export,
        Err(_) => {
            let kind = object.get_type().fully_qualified_name()?;
            return Err(PyTypeError::new_err(format!("{kind} has no `__dlpack__`: it cannot be exchanged")));
        }
    };
    let device = device_of(object)?;
    if let Some(device) = device
        && !host_can_read(wanted.device.unwrap_or(device))
    {
        // Said before anything is taken: of a device that is not here, nothing could be given back in order.
        let device = wanted.device.unwrap_or(device);
        return Err(raise(py, "ExchangeError", format!("device {device} is not available in this engine")));
    }
    let answer = ask(&export, device, wanted)?;
    let raw = answer.cast::<PyCapsule>().map_err(|_| {
        let kind = answer.get_type().name().map_or_else(|_| "?".into(), |name| name.to_string());
        PyTypeError::new_err(format!("`__dlpack__` returned {kind}, not a capsule"))
    })?;
    let managed = capsule::consume(raw)?;
    let immutable = managed.version().is_none() && peers::legacy_of(object) == Legacy::ReadOnly;
    check(py, &managed, wanted)?;
    Ok((managed, immutable))
}

/// Devices whose memory host code may read, so that they need no device of ours.
fn host_can_read(device: DLDevice) -> bool {
    let kinds = [DeviceType::CPU, DeviceType::CUDA_HOST, DeviceType::ROCM_HOST, DeviceType::CUDA_MANAGED];
    kinds.contains(&device.device_type)
}

/// Where the producer says its data is. Optional in practice: very old producers lack the method.
fn device_of(object: &Bound<'_, PyAny>) -> PyResult<Option<DLDevice>> {
    let Ok(method) = object.getattr(intern!(object.py(), "__dlpack_device__")) else { return Ok(None) };
    let (kind, id): (i32, i32) = method
        .call0()?
        .extract()
        .map_err(|_| PyTypeError::new_err("`__dlpack_device__` did not return a pair of integers"))?;
    Ok(Some(DLDevice::new(DeviceType(kind), id)))
}

/// Calls `__dlpack__`, leaving out what an older producer does not know. A producer that knows an argument and refuses it
/// raises something other than `TypeError`.
fn ask<'py>(
    export: &Bound<'py, PyAny>,
    device: Option<DLDevice>,
    wanted: &Wanted,
) -> PyResult<Bound<'py, PyAny>> {
    let py = export.py();
    let arguments = PyDict::new(py);
    arguments.set_item(intern!(py, "max_version"), MAX_VERSION)?;
    let moved = wanted.device.filter(|wanted| device != Some(*wanted));
    if let Some(device) = moved {
        arguments.set_item("dl_device", (device.device_type.0, device.device_id))?;
    }
    if let Some(copy) = wanted.copy {
        arguments.set_item("copy", copy)?;
    }
    let type_error = |error: &PyErr| error.is_instance_of::<PyTypeError>(py);
    let mut answer = export.call((), Some(&arguments));
    if arguments.len() > 1 && answer.as_ref().is_err_and(type_error) {
        // Whether the result is what was wanted is checked afterwards; a copy can be made here.
        let versioned = PyDict::new(py);
        versioned.set_item("max_version", MAX_VERSION)?;
        answer = export.call((), Some(&versioned));
    }
    if answer.as_ref().is_err_and(type_error) {
        answer = export.call0();
    }
    answer
}

/// Whether the producer did what was wanted. What was taken is given back otherwise.
fn check(py: Python<'_>, managed: &ManagedTensor, wanted: &Wanted) -> PyResult<()> {
    if let Some(device) = wanted.device
        && managed.device() != device
    {
        let is = managed.device();
        return Err(raise(
            py,
            "ExchangeError",
            format!("the producer gave data on {is}, not on {device} as asked"),
        ));
    }
    if !host_can_read(managed.device()) {
        let is = managed.device();
        return Err(raise(py, "ExchangeError", format!("device {is} is not available in this engine")));
    }
    if wanted.copy == Some(false) && managed.is_copied() {
        return Err(raise(py, "ExchangeError", "the producer made a copy although copying was refused"));
    }
    Ok(())
}

/// A device as people write it: a `(type, id)` pair, `"cpu"`, or something with such a pair in it.
pub fn parse_device(device: &Bound<'_, PyAny>) -> PyResult<DLDevice> {
    if let Ok((kind, id)) = device.extract::<(i32, i32)>() {
        return Ok(DLDevice::new(DeviceType(kind), id));
    }
    let text = device.str()?.to_string();
    match text.as_str() {
        "cpu" | "cpu:0" => Ok(DLDevice::CPU),
        _ => Err(PyValueError::new_err(format!(
            "device {text}: only the host (\"cpu\", or DLPack's numbers (1, 0)) is available in this version"
        ))),
    }
}
