//! The SYCL USM array interface, version 1, in both directions (IntelPython/dpctl: docs, "USM memory manager
//! and array interface"): shape, strides and offset in elements, and `syclobj`, what the memory's context is
//! known by.
//!
//! The interface keeps nothing alive and defines no order. So an import keeps the object itself until the
//! last use of the memory is over, and what its queue had by then comes first, where `syclobj` is one. The
//! end of an export's use is unknown: the dictionary of a tensor is that of memory that is ready, without a
//! lease, and counted as an exchange that could not be ordered.

use std::ptr::{self, NonNull};
use std::sync::Arc;

use estafette::bindings;
use estafette::devices::{DLDevice, Device, DeviceType, FenceSet, Queue, table};
use estafette::exchange::ManagedTensor;
use estafette::{Access, Layout, Tensor};
use pyo3::exceptions::{PyAttributeError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyDict, PyString, PyTuple};

use crate::classes::access::PyView;
use crate::classes::tensor::PyTensor;
use crate::error::{OrRaise, exchange_error};
use crate::exchange::array_interface::{self, Dictionary};
use crate::exchange::export::{until_defined, until_ready};
use crate::exchange::typestr;
use crate::exchange::unordered::{self, Reason};
use crate::interpreter::guard;
use crate::kinds::sycl::{self, sycl_device};

const NAME: &str = "__sycl_usm_array_interface__";
const VERSION: i64 = 1;

/// True if an object speaks this interface and not DLPack, as `dpctl.memory`'s do.
pub fn is_all_there_is(object: &Bound<'_, PyAny>) -> PyResult<bool> {
    array_interface::is_all_there_is(object, NAME)
}

/// Adopts the memory behind an object that has the interface, and keeps the object. Raises `TypeError` and
/// `ValueError` for a dictionary that breaks the rules; `BufferError` for memory that is not USM of the
/// context that it names, or of a context that the device table does not know.
pub fn take(object: &Bound<'_, PyAny>) -> PyResult<(ManagedTensor, FenceSet)> {
    let py = object.py();
    let interface = Dictionary::of(object, NAME)?;
    let version: i64 = interface.needed("version")?.extract()?;
    if version != VERSION {
        return Err(PyValueError::new_err(format!("`{NAME}` is of version {version}; {VERSION} is known")));
    }
    let shape: Vec<i64> = interface.needed("shape")?.extract()?;
    let (address, read_only): (usize, bool) = interface.needed("data")?.extract()?;
    let dtype = typestr::parse(&interface.needed("typestr")?.extract::<String>()?, NAME)?;
    let named = interface.needed("syclobj")?;
    let (id, device) = device_of(&named)?;
    let ready = ready_at(&named, id)?;
    let strides: Option<Vec<i64>> =
        interface.entry("strides")?.map(|strides| strides.extract()).transpose()?;
    let layout = match strides {
        None => Layout::contiguous(dtype, id, &shape),
        Some(strides) => Layout::strided(dtype, id, &shape, &strides),
    };
    let layout = layout.or_raise(py)?;
    let offset: i64 = interface.entry("offset")?.map_or(Ok(0), |offset| offset.extract())?;
    let bytes = isize::try_from(offset).ok().and_then(|offset| offset.checked_mul(dtype.itemsize() as isize));
    let first = bytes.and_then(|bytes| address.checked_add_signed(bytes)).ok_or_else(|| {
        PyValueError::new_err(format!("offset {offset} of `{NAME}` leads out of the address space"))
    })?;
    let data: *mut u8 = ptr::with_exposed_provenance_mut(first);
    let empty = layout.is_empty();
    let known = sycl_device(&device).is_some_and(|device| device.usm_kind_of(data).is_some());
    if !empty && !known {
        let message = format!("the memory at {first:#x} is no unified shared memory of the context of {id}");
        return Err(exchange_error(py, message));
    }
    // SAFETY: the object vouches for its memory as long as it lives.
    Ok((unsafe { array_interface::kept_by(object, &layout, data, read_only) }, ready))
}

/// The time at which the memory may be read: when what its queue had by now is done. Of one that names no
/// queue, its maker vouches for it.
fn ready_at(named: &Bound<'_, PyAny>, device: DLDevice) -> PyResult<FenceSet> {
    if named.is_instance_of::<PyString>() {
        return Ok(FenceSet::default());
    }
    let Some(queue) = sycl::queue_on(named, Some(device))? else { return Ok(FenceSet::default()) };
    let fence = queue.record().map_err(|error| exchange_error(named.py(), error.to_string()))?;
    Ok(FenceSet::from(fence))
}

/// The device that `syclobj` stands for: a queue or its capsule, a context, or a device's filter string.
fn device_of(named: &Bound<'_, PyAny>) -> PyResult<(DLDevice, Arc<dyn Device>)> {
    let py = named.py();
    if let Ok(text) = named.cast::<PyString>() {
        let dpctl = py.import("dpctl")?;
        let device = dpctl.call_method1("SyclDevice", (text,))?;
        let number: i32 = dpctl.call_method0("get_devices")?.call_method1("index", (device,))?.extract()?;
        return entry(py, DLDevice::new(DeviceType::ONE_API, number));
    }
    if let Some(queue) = sycl::queue_on(named, None)? {
        return entry(py, queue.device());
    }
    let context = sycl::pointer_of(named, false)?.ok_or_else(|| {
        PyTypeError::new_err(format!(
            "`syclobj` of `{NAME}` is {}: no SYCL queue, context or filter string",
            named.repr().map_or_else(|_| "an object".into(), |text| text.to_string())
        ))
    })?;
    sycl::device_of_context(py, context)?.map_or_else(
        || {
            let message = "the memory is of a context that the device table does not know; register it";
            Err(exchange_error(py, message.to_owned()))
        },
        |id| entry(py, id),
    )
}

/// A device of the table.
fn entry(py: Python<'_>, id: DLDevice) -> PyResult<(DLDevice, Arc<dyn Device>)> {
    let entry = guard::detach(py, || table::resolve(id));
    let device = entry.map_err(|error| exchange_error(py, error.to_string()))?.device;
    let device = device.ok_or_else(|| exchange_error(py, format!("{id} is a context without a device")))?;
    Ok((id, device))
}

/// The dictionary of `tensor`, whose data is there. `leased` says whether a lease covers it, and what it
/// allows. Raises `AttributeError` for memory that is not SYCL's, so that the tensor seems not to have the
/// interface, for types that it has no name for, and without dpctl; the failure of the tensor;
/// `WouldBlockError` where waiting would stop an event loop.
fn describe<'py>(py: Python<'py>, tensor: &Tensor, leased: Option<Access>) -> PyResult<Bound<'py, PyDict>> {
    if leased.is_none() {
        until_defined(py, tensor)?;
    }
    let place = tensor.device().or_raise(py)?;
    let lacks = |why: String| PyAttributeError::new_err(format!("no `{NAME}`: {why}"));
    if place.device_type != DeviceType::ONE_API {
        return Err(lacks(format!("the memory is on {place}")));
    }
    let dtype = tensor.dtype().or_raise(py)?;
    let typestr =
        typestr::of(dtype).ok_or_else(|| lacks(format!("it has no name for elements of type {dtype}")))?;
    let (_, device) = entry(py, place)?;
    let device = sycl_device(&device).ok_or_else(|| lacks(format!("{place} is no SYCL device")))?;
    // A context, not a queue: dpctl enqueues on its own queue.
    let context = NonNull::new(ptr::with_exposed_provenance_mut(device.native_context()))
        .ok_or_else(|| lacks("the context is gone".into()))?;
    let dpctl = py.import("dpctl").map_err(|_| lacks("dpctl is not here".into()))?;
    // SAFETY: a live context for as long as the device lives; dpctl copies it below.
    let capsule = unsafe { PyCapsule::new_with_pointer(py, context, c"SyclContextRef") }?;
    let context = dpctl.call_method1("SyclContext", (capsule,))?;
    if leased.is_none() {
        until_ready(py, tensor, None)?;
        unordered::note(py, false, Reason::Untracked, place.to_string());
    }
    let layout = tensor.layout().or_raise(py)?;
    let dictionary = PyDict::new(py);
    dictionary.set_item("version", VERSION)?;
    dictionary.set_item("typestr", typestr)?;
    dictionary.set_item("shape", PyTuple::new(py, layout.shape())?)?;
    dictionary.set_item("strides", PyTuple::new(py, layout.strides())?)?;
    dictionary.set_item("offset", 0)?;
    let address = tensor.data_ptr().or_raise(py)?.expose_provenance();
    dictionary.set_item("data", (address, leased != Some(Access::Write)))?;
    dictionary.set_item("syclobj", context)?;
    Ok(dictionary)
}

#[pymethods]
impl PyTensor {
    /// The SYCL USM array interface, for libraries of SYCL without DLPack. Only tensors in SYCL memory have
    /// this attribute. Waits until the data is ready. The consumer does not report the end of its use, so no
    /// operation may write the tensor meanwhile.
    #[getter]
    fn __sycl_usm_array_interface__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        describe(py, self.tensor(py)?, None)
    }
}

#[pymethods]
impl PyView {
    /// The memory for libraries of SYCL that know no DLPack, while the block lasts. Missing on memory that is
    /// not SYCL's.
    #[getter]
    fn __sycl_usm_array_interface__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let lease = self.lease(py)?;
        describe(py, lease.tensor(), Some(bindings::lease::access(&lease)))
    }
}
