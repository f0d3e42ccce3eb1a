//! Questions to one kind of device.

use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::Arc;

use estafette::devices::{DLDevice, FenceSet, Queue};
use estafette::exchange::ManagedTensor;
use estafette::lease::Consumer;
use estafette::{Tensor, Variable};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;

use crate::exchange::peers::Peer;
use crate::kinds::{Place, device_of};

/// One kind of device. What a kind does not have it leaves as it is here.
pub trait Kind: Sync {
    /// True if queues of this kind use memory on `device`.
    fn covers(&self, device: DLDevice) -> bool;

    /// The Python module with the rest of what is known of its libraries: a `KIND` of `estafette._kinds`.
    fn module(&self) -> Option<&'static str> {
        None
    }

    /// Libraries of this kind of device alone.
    fn peers(&self) -> &'static [Peer] {
        &[]
    }

    /// True if some producers take memory of `device` for the host's own, for which they want no stream.
    fn passes_for_host(&self, _device: DLDevice) -> bool {
        false
    }

    /// Makes the driver findable, before a device is looked up.
    fn prepare(&self, _py: Python<'_>) -> PyResult<()> {
        Ok(())
    }

    /// Names of devices as people write them, in quotes, for an error.
    fn device_names(&self) -> &'static [&'static str] {
        &[]
    }

    /// The device with this name; `None` if it is none of this kind.
    /// Raises `ValueError` if there is no such device.
    fn parse_device(&self, _py: Python<'_>, _text: &str) -> PyResult<Option<DLDevice>> {
        Ok(None)
    }

    /// True if the numbers of devices are those of our device table. Producers then know at best a device of
    /// their own.
    fn has_numbers_of_ours(&self) -> bool {
        false
    }

    /// The device whose queues order memory on `device`, used on `stream`, a native handle, where one is
    /// known; `None` where nothing does.
    fn ordered_on(&self, _py: Python<'_>, device: DLDevice, _stream: Option<usize>) -> Option<DLDevice> {
        self.covers(device).then_some(device)
    }

    /// One more device that may have work with the memory at `data`, of `device`, whose stream has no name.
    fn owner(&self, _py: Python<'_>, _device: DLDevice, _data: *const u8) -> Option<DLDevice> {
        None
    }

    /// Raises `BufferError` that names both places if the memory is elsewhere than its struct says:
    /// everything would be ordered there.
    fn check_place(&self, _py: Python<'_>, _managed: &ManagedTensor) -> PyResult<()> {
        Ok(())
    }

    /// The name of a queue of this kind in errors.
    fn queue_name(&self) -> Option<&'static str> {
        None
    }

    /// The stream of a consumer that names none, for memory on `device`; `None` if the host waits for it.
    fn default_stream(&self, _device: DLDevice) -> Option<usize> {
        None
    }

    /// The native handle of the stream that work is on that names none; `None` where streams are no native
    /// handles in DLPack.
    fn unnamed_stream(&self) -> Option<usize> {
        None
    }

    /// The native handle of a stream.
    /// Raises `ValueError` for a number that is no handle; `TypeError` for what is no stream.
    fn handle(&self, stream: &Bound<'_, PyAny>) -> PyResult<usize> {
        Err(PyTypeError::new_err(format!("{} is no stream", stream.repr()?)))
    }

    /// The consumer of `tensor`, memory of `device`, with `stream`, which is neither `None` nor -1; `None`
    /// for what is no queue of this kind. Raises `ValueError` for a stream of another device; `TypeError` for
    /// what is no stream.
    fn consumer(
        &self,
        _tensor: &Tensor,
        _device: DLDevice,
        _stream: &Bound<'_, PyAny>,
    ) -> PyResult<Option<Consumer>> {
        Ok(None)
    }

    /// The queue that an object is, for an operation to run on; the object keeps it alive. `None` if it is no
    /// queue. Raises `ValueError` for a queue that no device here has.
    fn queue_of(&self, _object: &Bound<'_, PyAny>) -> PyResult<Option<Arc<dyn Queue>>> {
        Ok(None)
    }

    /// The queue that functions enqueue on at `device` by default: one of the engine, or one that the
    /// libraries agree on. Raises `BufferError` for a device that is not there.
    fn queue_for_functions<'py>(&self, py: Python<'py>, device: DLDevice) -> PyResult<Option<Place<'py>>> {
        Ok(device_of(py, device)?.map(|device| (device.default_queue(), None)))
    }

    /// Handle and device of the stream that is made the libraries' current one on the thread while a function
    /// runs on `queue`. `None` where libraries have no current stream: then a coroutine can run there too.
    /// Else [`module`](Self::module) has its class.
    fn current_stream(&self, _queue: &dyn Queue) -> Option<(usize, i32)> {
        None
    }

    /// As [`crate::kinds::submission_mutex`].
    fn submission_mutex(&self, _queue: &dyn Queue) -> Option<Variable> {
        None
    }

    /// The memory behind an object that speaks this kind's array interface, and not DLPack in its library's
    /// name; the object is kept. `None` for other objects. Raises `TypeError` and `ValueError` for what
    /// breaks the interface's rules; `BufferError` for memory that no device here knows.
    fn import_array(
        &self,
        _object: &Bound<'_, PyAny>,
        _peer: &Peer,
    ) -> PyResult<Option<(ManagedTensor, FenceSet)>> {
        Ok(None)
    }

    /// Orders reads of memory at an address of a device that `object` has given after the work before: on
    /// `stream`, the producer's, where it came with one (0 is the default stream), and else on the queue that
    /// the object names, where its library orders nothing. Raises `BufferError` for memory that cannot be
    /// ordered.
    fn acquire(
        &self,
        _object: &Bound<'_, PyAny>,
        (_device, _data): (DLDevice, *mut u8),
        _stream: Option<usize>,
    ) -> PyResult<FenceSet> {
        Ok(FenceSet::default())
    }

    /// The class of the objects that are native contexts, for an error.
    fn context_name(&self) -> Option<&'static str> {
        None
    }

    /// The native context that an object is, to be registered in the device table; `None` if it is none.
    /// Raises `TypeError` for a capsule with something else.
    fn context_of(&self, _object: &Bound<'_, PyAny>) -> PyResult<Option<NonNull<c_void>>> {
        Ok(None)
    }
}

/// Memory that no queue is known of: the host's, and that of kinds without a folder here.
pub struct Opaque;

impl Kind for Opaque {
    fn covers(&self, _device: DLDevice) -> bool {
        false
    }
}
