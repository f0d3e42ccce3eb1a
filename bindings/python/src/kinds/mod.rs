//! Facts about kinds of devices for Python, beyond [`Device`]: their libraries' streams, queues and array
//! interfaces.
//!
//! | part | what it has |
//! |---|---|
//! | `another` | A kind that tests have, as a proof that a folder is all that a kind needs |
//! | `barriers` | Barriers over a device, held off while another library captures a graph there |
//! | `cuda` | CUDA's streams, and its array interface |
//! | `device_table` | The device table: what has memory, and contexts of other libraries |
//! | `kind` | Questions to one kind of device: [`Kind`] |
//! | `sycl` | Queues of dpctl, arrays whose memory is USM, and their interface |
//!
//! A new kind is a folder here, its `mod` and its entry in [`KINDS`]. What consumers write as `stream`:
//!
//! | memory | `None` | a stream |
//! |---|---|---|
//! | host | the host waits | refused, but for -1 |
//! | CUDA | the legacy default stream waits; the host, for libraries that work on other streams | an integer handle above 2, or an object with `__cuda_stream__`: that stream waits; 1 and 2: the default streams; 0: refused, since it may mean either; -1: no stream waits |
//! | pinned, managed | the host waits, since a host reader reads at once | as CUDA, on the CUDA device of the stream; 1 and 2: on the thread's current device |
//! | SYCL | the host waits | a `dpctl.SyclQueue` or its capsule: the queue waits |
//! | others | the host waits | refused, but for -1 |
//!
//! The values are those of the array API (data-apis/array-api: array_object.py, `__dlpack__`), and of
//! `__cuda_stream__` (NVIDIA/cuda-python: cuda_core, interoperability), whose 0 is the legacy default stream.
//!
//! Calls that may reach a driver are made without the Python lock: a driver may wait for a thread in a host
//! function, which may want that lock.

#[cfg(feature = "another-kind")]
#[path = "../../../../tests/kinds/another/mod.rs"]
mod another;
pub(crate) mod barriers;
pub(crate) mod cuda;
pub(crate) mod device_table;
mod kind;
pub(crate) mod sycl;

use std::sync::Arc;

use estafette::bindings::{self, ImportStream};
use estafette::devices::{DLDevice, Device, DeviceError, DeviceType, FenceSet, Queue, table};
use estafette::exchange::{ManagedTensor, ReleaseStream};
use estafette::lease::{Consumer, Keeper};
use estafette::{Tensor, Variable};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBool;

use crate::error::{OrRaise, exchange_error};
use crate::exchange::peers::{Peer, Stream};
use crate::exchange::unordered::{self, Reason};
use crate::interpreter::call_site;
use crate::interpreter::guard;
use crate::interpreter::kept::Kept;
pub use crate::kinds::kind::Kind;
use crate::kinds::kind::Opaque;

/// The kinds that have queues, in the order in which they are asked about an object.
static KINDS: &[&dyn Kind] = &[
    &cuda::Cuda,
    &sycl::Sycl,
    #[cfg(feature = "another-kind")]
    &another::Another,
];

/// The kind whose queues use memory on `device`; one without queues for any other memory.
pub fn of(device: DLDevice) -> &'static dyn Kind {
    if device.device_type == DeviceType::CPU {
        return &Opaque;
    }
    KINDS.iter().find(|kind| kind.covers(device)).copied().unwrap_or(&Opaque)
}

/// True if `device` has queues of its own, so that it is in the device table, allocates and copies.
pub fn has_queues(device: DLDevice) -> bool {
    !device.device_type.is_host_readable() && KINDS.iter().any(|kind| kind.covers(device))
}

/// Libraries of one kind of device alone.
pub fn peers() -> impl Iterator<Item = &'static Peer> {
    KINDS.iter().flat_map(|kind| kind.peers())
}

/// The modules of `estafette._kinds` for the kinds that have one.
#[pyfunction(name = "_kind_modules", signature = ())]
pub fn kind_modules() -> Vec<&'static str> {
    KINDS.iter().filter_map(|kind| kind.module()).collect()
}

/// The stream of a consumer that names none, for memory on `device`.
pub fn default_stream(device: DLDevice) -> Option<usize> {
    of(device).default_stream(device)
}

/// The device that queues of memory of `device` belong to; `None` for memory that needs none, or that nothing
/// is known of. Raises `BufferError` for a number that was never registered, or that is registered no more,
/// and for a kind without a driver.
pub fn device_of(py: Python<'_>, device: DLDevice) -> PyResult<Option<Arc<dyn Device>>> {
    if !has_queues(device) {
        return Ok(None);
    }
    of(device).prepare(py)?;
    let entry = guard::detach(py, || table::resolve(device));
    Ok(entry.map_err(|error| exchange_error(py, error.to_string()))?.device)
}

/// The device whose queues order memory of `device`, used on `stream`, a native handle, where there is a
/// driver.
pub fn ordered_on(
    py: Python<'_>,
    device: DLDevice,
    stream: Option<usize>,
) -> PyResult<Option<Arc<dyn Device>>> {
    match of(device).ordered_on(py, device, stream) {
        Some(device) => device_of(py, device),
        None => Ok(None),
    }
}

/// The consumer of `tensor`, memory of `device`, with `stream`. Raises `ValueError` for a stream that memory
/// of this kind has not, or of another device; `TypeError` for what is no stream.
pub fn consumer(
    tensor: &Tensor,
    device: DLDevice,
    stream: Option<&Bound<'_, PyAny>>,
    py: Python<'_>,
) -> PyResult<Consumer> {
    let kind = of(device);
    let Some(stream) = stream else {
        let Some(handle) = kind.default_stream(device) else { return Ok(Consumer::Host) };
        return match call_site::caller(py).library {
            Some(library) if library.own_streams => Ok(Consumer::Host),
            Some(_) => consumer_on(py, tensor, device, handle, None),
            None => {
                unordered::note(py, false, Reason::NamelessStream, device.to_string());
                consumer_on(py, tensor, device, handle, None)
            }
        };
    };
    let unordered =
        !stream.is_instance_of::<PyBool>() && stream.extract::<i64>().is_ok_and(|number| number == -1);
    if unordered {
        if kind.default_stream(device).is_some() {
            unordered::note(py, false, Reason::NoStream, device.to_string());
            return Ok(Consumer::Unordered);
        }
        // PyTorch's consumers say so on the host too; waiting all the same does no harm.
        return Ok(Consumer::Host);
    }
    kind.consumer(tensor, device, stream)?.ok_or_else(|| {
        let or = kind.queue_name().map_or_else(String::new, |name| format!(" or {name}"));
        let given = stream.repr().map_or_else(|error| error.to_string(), |text| text.to_string());
        PyValueError::new_err(format!("stream must be None{or} for memory on {device}, not {given}"))
    })
}

/// The consumer of `tensor`, memory of `device`, on the stream with this native handle, which stays as long
/// as `keeper` if there is one. Raises `ValueError` for a stream of another device.
fn consumer_on(
    py: Python<'_>,
    tensor: &Tensor,
    device: DLDevice,
    handle: usize,
    keeper: Option<Keeper>,
) -> PyResult<Consumer> {
    if let Some(device) = device_of(py, device)? {
        let ours = device.default_queue();
        if ours.handle() == handle {
            // Known to last, so it is looked at again when the lease ends.
            return Ok(Consumer::Queue(ours));
        }
    }
    let consumer = guard::detach(py, || match keeper {
        // SAFETY: the keeper is the stream's object, or the stream is of a library whose streams stay.
        Some(keeper) => unsafe { bindings::tensor::consumer_on_kept(tensor, device, handle, keeper) },
        // SAFETY: the caller that passes a stream vouches for it for the length of the call; default streams
        // always are.
        None => unsafe { bindings::tensor::consumer_on(tensor, device, handle) },
    });
    consumer.map_err(|error| PyValueError::new_err(error.to_string()))
}

/// A queue of the engine for a producer of memory on `device` to order its work before; `None` where streams
/// are no handles, or there is no driver. Raises `BufferError` when the device gives no queue.
pub fn import_stream(py: Python<'_>, device: DLDevice) -> PyResult<Option<ImportStream>> {
    if of(device).unnamed_stream().is_none() {
        return Ok(None);
    }
    let Some(device) = ordered_on(py, device, None)? else { return Ok(None) };
    guard::detach(py, || ImportStream::on(device)).map(Some).or_raise(py)
}

/// The fences of what is enqueued by now on `stream`, a native handle, for the memory at `data` on `device`;
/// empty where there is no driver. Raises `BufferError` for a stream of another device.
pub fn fence_of(py: Python<'_>, device: DLDevice, data: *mut u8, stream: usize) -> PyResult<FenceSet> {
    let Some(place) = ordered_on(py, device, Some(stream))? else { return Ok(FenceSet::default()) };
    // A handle is of one device, and a default stream is another one on each.
    let is_default = of(device).unnamed_stream() == Some(stream);
    let owner = if is_default { of(device).owner(py, device, data) } else { None };
    let owner =
        owner.filter(|owner| *owner != place.id()).map(|owner| device_of(py, owner)).transpose()?.flatten();
    let record = |device: &Arc<dyn Device>| {
        // SAFETY: the producer vouches for its stream for the length of the call; default streams always are.
        unsafe { device.foreign_queue(stream) }.and_then(|queue| queue.record())
    };
    let fences: Result<FenceSet, DeviceError> =
        guard::detach(py, || [Some(place), owner].iter().flatten().map(record).collect());
    fences.map_err(|error| exchange_error(py, error.to_string()))
}

/// The memory behind an object that speaks the array interface of a kind, and not DLPack in its library's
/// name.
pub fn import_array(object: &Bound<'_, PyAny>, peer: &Peer) -> PyResult<Option<(ManagedTensor, FenceSet)>> {
    // A library without devices has none of their array interfaces.
    let kinds = if peer.stream == Stream::HostOnly { &[] } else { KINDS };
    for kind in kinds {
        if let Some(taken) = kind.import_array(object, peer)? {
            return Ok(Some(taken));
        }
    }
    Ok(None)
}

/// The stream on which the allocator of memory on `device` gives it out again, which is kept. Raises
/// `ValueError` for memory of a device without streams, and for a stream that is none of that device or not
/// the same on every thread; `TypeError` for what is no stream.
pub fn release_stream(device: DLDevice, stream: &Bound<'_, PyAny>) -> PyResult<ReleaseStream> {
    if default_stream(device).is_none() {
        return Err(PyValueError::new_err(format!(
            "freed_on: memory on {device} is not freed in the order of a stream"
        )));
    }
    let handle = of(device).handle(stream)?;
    let found = device_of(stream.py(), device)?;
    let found = found.ok_or_else(|| PyValueError::new_err(format!("freed_on: {device} is not available")))?;
    let keeper = Kept::new(stream.clone().unbind());
    // SAFETY: the caller vouches for it, and the object keeps it alive.
    let release_stream =
        guard::detach(stream.py(), || unsafe { ReleaseStream::new(found, handle, Some(Box::new(keeper))) });
    release_stream.map_err(|error| PyValueError::new_err(format!("freed_on: {error}")))
}

/// A queue for an operation to run on, and the Python object that keeps it alive, if one does.
pub type Place<'py> = (Arc<dyn Queue>, Option<Bound<'py, PyAny>>);

/// The queue that `on` is, or that functions enqueue on at the device that it names; `None` for the host.
/// Raises `ValueError` for what is neither the host, nor a device, nor a queue; `BufferError` for a device
/// that is not there.
pub fn queue_of<'py>(on: &Bound<'py, PyAny>) -> PyResult<Option<Place<'py>>> {
    for kind in KINDS {
        if let Some(queue) = kind.queue_of(on)? {
            return Ok(Some((queue, Some(on.clone()))));
        }
    }
    let device = parse_device(on)?;
    if device == DLDevice::CPU {
        return Ok(None);
    }
    let found = of(device).queue_for_functions(on.py(), device)?.map(Some);
    found.ok_or_else(|| {
        let names: Vec<_> = KINDS.iter().filter_map(|kind| kind.queue_name()).collect();
        PyValueError::new_err(format!(
            "on={}: name a device with queues, or the queue that the function enqueues on: {}",
            on.repr().map_or_else(|error| error.to_string(), |text| text.to_string()),
            names.join(", or ")
        ))
    })
}

/// A variable that every function that enqueues on `queue` writes, where the libraries of its kind let one
/// thread at a time enqueue.
pub fn submission_mutex(queue: &dyn Queue) -> Option<Variable> {
    of(queue.device()).submission_mutex(queue)
}

/// A device as people write it: a `(type, id)` pair, `"cpu"`, or something with such a pair in it.
/// Raises `ValueError` for what names no device.
pub fn parse_device(device: &Bound<'_, PyAny>) -> PyResult<DLDevice> {
    if let Ok((kind, id)) = device.extract::<(i32, i32)>() {
        return Ok(DLDevice::new(DeviceType(kind), id));
    }
    let text = device.str()?.to_string();
    if matches!(text.as_str(), "cpu" | "cpu:0") {
        return Ok(DLDevice::CPU);
    }
    for kind in KINDS {
        if let Some(device) = kind.parse_device(device.py(), &text)? {
            return Ok(device);
        }
    }
    let names: Vec<_> = KINDS.iter().flat_map(|kind| kind.device_names()).copied().collect();
    Err(PyValueError::new_err(format!(
        "device {text}: \"cpu\", {} are names of devices, and so are DLPack's numbers such as (1, 0)",
        names.join(", ")
    )))
}
