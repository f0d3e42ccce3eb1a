//! The CUDA array interface, version 3, in both directions (numba/numba:
//! docs/source/cuda/cuda_array_interface.rst).
//!
//! The interface describes memory in a dictionary that keeps nothing alive. So an import keeps the object
//! itself, until the last use of the memory is over. The end of an export's use is unknown: the dictionary of
//! a tensor is a view without a lease, read-only in what it says, and counted as an exchange that could not
//! be ordered; that of a view (`t.read()`, `eng.access`) is covered by the view's lease, and that of an
//! operand, in the function of an operation, by the operation.

use std::ptr;
use std::sync::Arc;

use estafette::bindings;
use estafette::devices::cuda::CudaRuntime;
use estafette::devices::{DLDevice, DeviceType, FenceSet, table};
use estafette::exchange::ManagedTensor;
use estafette::lease::Consumer;
use estafette::{Access, Layout, Tensor};
use pyo3::exceptions::{PyAttributeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyTuple};

use crate::classes::access::PyView;
use crate::classes::tensor::PyTensor;
use crate::error::{OrRaise, exchange_error};
use crate::exchange::array_interface::{self, Dictionary};
use crate::exchange::export::until_defined;
use crate::exchange::peers::Peer;
use crate::exchange::typestr;
use crate::exchange::unordered::{self, Reason};
use crate::interpreter::guard;
use crate::kinds::cuda::{Cuda, place_of, stream};
use crate::kinds::{self, Kind};
use crate::submission::scope;

const NAME: &str = "__cuda_array_interface__";
/// The version whose producers name a stream.
const WITH_STREAM: i64 = 3;

/// True if an object is to be taken by this interface: it does not speak DLPack, or not in its own library's
/// name.
pub fn is_to_be_asked(object: &Bound<'_, PyAny>, peer: &Peer) -> PyResult<bool> {
    if peer.interface_first && object.hasattr(NAME)? {
        return Ok(true);
    }
    array_interface::is_all_there_is(object, NAME)
}

/// Adopts the memory behind an object that has the interface, and keeps the object. Raises `TypeError` and
/// `ValueError` for a dictionary that breaks the rules; `BufferError` for a mask, and for memory that no CUDA
/// device here knows.
pub fn take(object: &Bound<'_, PyAny>, peer: &Peer) -> PyResult<(ManagedTensor, FenceSet)> {
    let py = object.py();
    let interface = Dictionary::of(object, NAME)?;
    if interface.entry("mask")?.is_some() {
        return Err(exchange_error(py, "a masked array is no tensor (`mask` of `__cuda_array_interface__`)"));
    }
    let version: i64 = interface.needed("version")?.extract()?;
    let shape: Vec<i64> = interface.needed("shape")?.extract()?;
    let (address, read_only): (usize, bool) = interface.needed("data")?.extract()?;
    let dtype = typestr::parse(&interface.needed("typestr")?.extract::<String>()?, NAME)?;
    let device = if address == 0 { any_device(py) } else { device_of(py, address)? };
    let layout = match interface.entry("strides")? {
        None => Layout::contiguous(dtype, device, &shape),
        Some(strides) => {
            let size = dtype.itemsize() as i64;
            let strides: Vec<i64> = strides.extract()?;
            if strides.iter().any(|stride| stride % size != 0) {
                return Err(PyValueError::new_err(format!(
                    "strides {strides:?} of `__cuda_array_interface__` are no multiples of the {size} bytes of an element"
                )));
            }
            let strides: Vec<i64> = strides.into_iter().map(|stride| stride / size).collect();
            Layout::strided(dtype, device, &shape, &strides)
        }
    };
    let layout = layout.or_raise(py)?;
    // The interface says: without an entry no synchronization is needed. Before version 3 there was no such
    // entry.
    let of_default = version < WITH_STREAM || peer.unnamed_is_default;
    let stream = match interface.entry("stream")? {
        Some(stream) if peer.unnamed_is_default && is_zero(&stream) => Some(stream::LEGACY),
        Some(stream) => Some(stream::handle(&stream)?),
        None => of_default.then_some(stream::LEGACY),
    };
    let data = ptr::with_exposed_provenance_mut(address);
    let ready = match stream {
        Some(stream) => kinds::fence_of(py, device, data, stream)?,
        None => FenceSet::default(),
    };
    // SAFETY: the object vouches for its memory as long as it lives.
    Ok((unsafe { array_interface::kept_by(object, &layout, data, read_only) }, ready))
}

fn is_zero(stream: &Bound<'_, PyAny>) -> bool {
    !stream.is_instance_of::<PyBool>() && stream.extract::<i64>().is_ok_and(|number| number == 0)
}

/// The device of the memory.
fn device_of(py: Python<'_>, address: usize) -> PyResult<DLDevice> {
    let found = place_of(py, ptr::with_exposed_provenance(address));
    found.map(|info| info.device).ok_or_else(|| {
        let message = format!("no CUDA device here knows the memory at {address:#x}");
        exchange_error(py, message)
    })
}

/// A device for an array without memory.
fn any_device(py: Python<'_>) -> DLDevice {
    let used = guard::detach(py, || CudaRuntime::get().ok()?.used());
    DLDevice::new(DeviceType::CUDA, used.unwrap_or(0))
}

/// The dictionary of `tensor` for a consumer, whose stream is to be ordered after the one that it names.
/// `leased` says whether a lease covers it, and what it allows. Raises `AttributeError` for memory that is
/// not CUDA's, so that the tensor seems not to have the interface, and for types that it has no name for; the
/// failure of the tensor.
fn describe<'py>(py: Python<'py>, tensor: &Tensor, leased: Option<Access>) -> PyResult<Bound<'py, PyDict>> {
    let scope = if leased.is_none() { scope::current_scope(py)? } else { None };
    let operand = scope.as_ref().and_then(|scope| {
        let scope = scope.get().scope();
        Some((bindings::scope::describe(scope, tensor)?, scope.queue()))
    });
    if leased.is_none() && operand.is_none() {
        until_defined(py, tensor)?;
    }
    let place = tensor.device().or_raise(py)?;
    if !Cuda.covers(place) {
        return Err(PyAttributeError::new_err(format!(
            "memory on {place} has no `__cuda_array_interface__`"
        )));
    }
    let dtype = tensor.dtype().or_raise(py)?;
    let typestr = typestr::of(dtype).ok_or_else(|| {
        PyAttributeError::new_err(format!(
            "`__cuda_array_interface__` has no name for elements of type {dtype}"
        ))
    })?;
    // Memory that devices share is of one that the process uses.
    let owner = guard::detach(py, || table::owner(place));
    let device =
        kinds::device_of(py, owner)?.ok_or_else(|| PyAttributeError::new_err("there is no CUDA driver"))?;
    let (access, queue) = match (operand, leased) {
        // Earlier work was left to the operation's queue; on the host it has been waited for.
        (Some((access, queue)), _) => (access, queue),
        // A queue of the engine that lives as long as the process: the consumer orders its work behind the
        // queue.
        (None, Some(access)) => (access, Some(device.default_queue())),
        (None, None) => {
            let queue = device.default_queue();
            // The lease is over when the waits are enqueued.
            let consumer = Consumer::Queue(Arc::clone(&queue));
            let lease = guard::detach(py, || {
                let lease = tensor.lease(Access::Read, "a CUDA array interface").for_consumer(&consumer);
                lease.wait(None).map(drop)
            });
            lease.or_raise(py)?;
            unordered::note(py, false, Reason::Untracked, place.to_string());
            (Access::Read, Some(queue))
        }
    };
    let layout = tensor.layout().or_raise(py)?;
    let size = dtype.itemsize() as i64;
    let dictionary = PyDict::new(py);
    dictionary.set_item("version", WITH_STREAM)?;
    dictionary.set_item("shape", PyTuple::new(py, layout.shape().iter())?)?;
    dictionary.set_item("typestr", typestr)?;
    dictionary.set_item("strides", PyTuple::new(py, layout.strides().iter().map(|stride| stride * size))?)?;
    let empty = layout.is_empty();
    let address = if empty { 0 } else { tensor.data_ptr().or_raise(py)?.expose_provenance() };
    dictionary.set_item("data", (address, access != Access::Write))?;
    dictionary.set_item("stream", guard::detach(py, || queue.map(|queue| queue.native())))?;
    Ok(dictionary)
}

#[pymethods]
impl PyTensor {
    /// The CUDA array interface (version 3). Only tensors in CUDA memory have this attribute. The engine does
    /// not track the consumer's view: the consumer must finish before any operation writes the tensor.
    /// `t.read()` and `eng.access` return views under a lease.
    #[getter]
    fn __cuda_array_interface__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        describe(py, self.tensor(py)?, None)
    }
}

#[pymethods]
impl PyView {
    /// The CUDA array interface (version 3), of CUDA memory, under this lease.
    #[getter]
    fn __cuda_array_interface__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let lease = self.lease(py)?;
        // No notification says on which streams the consumer uses it.
        bindings::lease::hand_to(&lease, &Consumer::Unordered).or_raise(py)?;
        describe(py, lease.tensor(), Some(bindings::lease::access(&lease)))
    }
}
