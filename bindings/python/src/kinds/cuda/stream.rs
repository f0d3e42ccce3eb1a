//! What consumers write as `stream`, and which of our devices is behind memory.
//!
//! | memory | `None` | a stream |
//! |---|---|---|
//! | host | the host waits | refused, but for -1 |
//! | CUDA | the legacy default stream waits | an integer handle above 2, or an object with `__cuda_stream__`: that stream waits; 1 and 2: the default streams; 0: refused, since it may mean either; -1: no stream waits |
//! | pinned, managed | the host waits, since a host reader reads at once | as CUDA, on the CUDA device of the stream |
//! | SYCL | the host waits | a `dpctl.SyclQueue` or its capsule: the queue waits |
//! | others | the host waits | refused, but for -1 |
//!
//! The values are those of the array API (data-apis/array-api: array_object.py, `__dlpack__`), and of `__cuda_stream__`
//! (NVIDIA/cuda-python: cuda_core, interoperability), whose 0 is the legacy default stream.

use std::sync::Arc;

use estafette::devices::cuda::CudaRuntime;
use estafette::devices::{DLDevice, Device, DeviceType, Queue, table};
use estafette::exchange::{ManagedTensor, ReleaseStream};
use estafette::lease::Consumer;
use estafette::{ImportStream, Tensor};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyInt};

use crate::error::{OrRaise, raise};
use crate::exchange::unordered::{self, Reason};
use crate::interpreter::guard;
use crate::kinds::sycl;

/// CUDA's legacy default stream.
pub const LEGACY: usize = 1;
/// CUDA's default stream of the calling thread.
const PER_THREAD: usize = 2;

/// Whether streams on memory of `device` are CUDA's.
pub fn is_cuda(device: DLDevice) -> bool {
    device.device_type == DeviceType::CUDA || is_shared(device)
}

/// Whether both the host and CUDA's streams use memory of `device`.
fn is_shared(device: DLDevice) -> bool {
    [DeviceType::CUDA_HOST, DeviceType::CUDA_MANAGED].contains(&device.device_type)
}

/// Whether a consumer that names no stream has one all the same.
pub fn has_default_stream(device: DLDevice) -> bool {
    device.device_type == DeviceType::CUDA
}

/// The device that queues of memory of `device` belong to; `None` for memory that needs none, or that nothing is known of.
///
/// # Errors
/// `BufferError` for a number that was never registered, or that is registered no more, and for CUDA without a driver.
pub fn device_of(py: Python<'_>, device: DLDevice) -> PyResult<Option<Arc<dyn Device>>> {
    if device.device_type == DeviceType::CUDA {
        let entry = guard::detach(py, || table::resolve(device));
        return Ok(entry.map_err(|error| raise(py, "ExchangeError", error.to_string()))?.device);
    }
    Ok(sycl::resolve(py, device)?.and_then(|entry| entry.device))
}

/// The CUDA device that pinned or managed memory is ordered on, where there is a driver. Such memory carries the number 0.
fn cuda_for(device: DLDevice) -> Option<DLDevice> {
    let cuda = DLDevice::new(DeviceType::CUDA, device.device_id);
    table::resolve(cuda).is_ok().then_some(cuda)
}

/// Who takes `tensor`, memory of `device`, with `stream`.
///
/// # Errors
/// `ValueError` for a stream that memory of this kind has not, or of another device; `TypeError` for what is no stream.
pub fn consumer(
    tensor: &Tensor,
    device: DLDevice,
    stream: Option<&Bound<'_, PyAny>>,
    py: Python<'_>,
) -> PyResult<Consumer> {
    let Some(stream) = stream else {
        if has_default_stream(device) {
            return on_cuda(py, tensor, device, LEGACY);
        }
        return Ok(Consumer::Host);
    };
    let unordered =
        !stream.is_instance_of::<PyBool>() && stream.extract::<i64>().is_ok_and(|number| number == -1);
    if unordered {
        if has_default_stream(device) {
            unordered::note(py, false, Reason::NoStream, device.to_string());
            return Ok(Consumer::Unordered);
        }
        // PyTorch's consumers say so on the host too; waiting all the same does no harm.
        return Ok(Consumer::Host);
    }
    if is_cuda(device) {
        let handle = cuda_handle(stream)?;
        let on = if is_shared(device) { cuda_for(device).unwrap_or(device) } else { device };
        return on_cuda(py, tensor, on, handle);
    }
    if device.device_type == DeviceType::ONE_API
        && let Some(queue) = sycl::queue_on(stream, Some(device))?
    {
        return Ok(Consumer::Queue(queue));
    }
    Err(PyValueError::new_err(format!(
        "stream must be None{} for memory on {device}, not {}",
        if device.device_type == DeviceType::ONE_API { " or a SYCL queue" } else { "" },
        stream.repr()?
    )))
}

fn on_cuda(py: Python<'_>, tensor: &Tensor, device: DLDevice, handle: usize) -> PyResult<Consumer> {
    if let Some(device) = device_of(py, device)? {
        let ours = device.default_queue();
        if ours.native() == handle {
            // Known to last, so it is looked at again when the lease ends.
            return Ok(Consumer::Queue(ours));
        }
    }
    // SAFETY: the caller that passes a stream vouches for it for the length of the call; default streams always are.
    unsafe { tensor.consumer_on(device, handle) }.map_err(|error| PyValueError::new_err(error.to_string()))
}

/// The handle of a CUDA stream: an integer, or an object with `__cuda_stream__`.
///
/// # Errors
/// `ValueError` for 0 and negative numbers; `TypeError` for what is no stream.
pub fn cuda_handle(stream: &Bound<'_, PyAny>) -> PyResult<usize> {
    if let Some(handle) = of_protocol(stream)? {
        return Ok(handle);
    }
    if stream.is_instance_of::<PyBool>() {
        return Err(PyTypeError::new_err(format!("stream must not be a bool, which {} is", stream.repr()?)));
    }
    // What acts as an integer is taken by the first; handles above half of 64 bits by the second.
    match stream.extract::<i64>().map(i128::from).or_else(|_| stream.extract::<i128>()) {
        Ok(0) => Err(PyValueError::new_err(
            "stream 0 may mean either default stream of CUDA: say 1 for the legacy one, 2 for that of the calling thread",
        )),
        Ok(number) => usize::try_from(number).map_err(|_| {
            PyValueError::new_err(format!("stream {number} is no handle of a CUDA stream, nor -1"))
        }),
        Err(_) if stream.is_instance_of::<PyInt>() => {
            Err(PyValueError::new_err("stream is a number too large for a handle of a CUDA stream"))
        }
        Err(_) => Err(PyTypeError::new_err(format!(
            "{} is no CUDA stream: a handle or an object with `__cuda_stream__`",
            stream.repr()?
        ))),
    }
}

/// What `__cuda_stream__` gives: a method in the protocol, an attribute in its first version.
fn of_protocol(stream: &Bound<'_, PyAny>) -> PyResult<Option<usize>> {
    let py = stream.py();
    let Some(given) = stream.getattr_opt(intern!(py, "__cuda_stream__"))? else { return Ok(None) };
    let given = if given.is_callable() { given.call0()? } else { given };
    let pair = given.extract::<(Bound<'_, PyAny>, Bound<'_, PyAny>)>().ok();
    let numbers = pair.filter(|(version, handle)| {
        !version.is_instance_of::<PyBool>() && !handle.is_instance_of::<PyBool>()
    });
    let numbers = numbers.and_then(|(version, handle)| {
        Some((version.extract::<i64>().ok()?, handle.extract::<usize>().ok()?))
    });
    let (version, handle) = numbers.ok_or_else(|| {
        PyTypeError::new_err("`__cuda_stream__` did not give a pair of a version and a handle")
    })?;
    if version != 0 {
        return Err(PyValueError::new_err(format!("`__cuda_stream__` is of version {version}; 0 is known")));
    }
    Ok(Some(if handle == 0 { LEGACY } else { handle }))
}

/// A queue of the engine for a producer of memory on `device` to order its work before; `None` where streams are no handles, or there
/// is no driver.
///
/// # Errors
/// `BufferError` when the device gives no queue.
pub fn import_stream(py: Python<'_>, device: DLDevice) -> PyResult<Option<ImportStream>> {
    let device = match device {
        device if has_default_stream(device) => device,
        device if is_shared(device) => match cuda_for(device) {
            Some(cuda) => cuda,
            None => return Ok(None),
        },
        _ => return Ok(None),
    };
    let Some(device) = device_of(py, device)? else { return Ok(None) };
    ImportStream::on(device).map(Some).or_raise(py)
}

/// Refuses CUDA memory that the driver knows to be of another device than its struct says: everything would be ordered there.
///
/// # Errors
/// `BufferError` that names both.
pub fn check_place(py: Python<'_>, managed: &ManagedTensor) -> PyResult<()> {
    let said = managed.device();
    if !has_default_stream(said) {
        return Ok(());
    }
    let Ok(runtime) = CudaRuntime::get() else { return Ok(()) };
    let known = runtime.device(said.device_id).and_then(|device| device.pointer_info(managed.data()));
    match known {
        Some(info) if info.ordinal != said.device_id => {
            let message =
                format!("the struct says {said}, and the driver that the memory is of cuda:{}", info.ordinal);
            Err(raise(py, "ExchangeError", message))
        }
        _ => Ok(()),
    }
}

/// The fence of what is enqueued by now on `stream`, a native handle, for memory on `device`; `None` where there is no driver.
///
/// # Errors
/// `BufferError` for a stream of another device.
pub fn fence_of(
    py: Python<'_>,
    device: DLDevice,
    stream: usize,
) -> PyResult<Option<estafette::devices::Fence>> {
    let device = if is_shared(device) { cuda_for(device) } else { Some(device) };
    let Some(device) = device.map(|device| device_of(py, device)).transpose()?.flatten() else {
        return Ok(None);
    };
    // SAFETY: the producer vouches for its stream for the length of the call; default streams always are.
    let fence = unsafe { device.foreign_queue(stream) }.and_then(|queue| queue.record());
    fence.map(Some).map_err(|error| raise(py, "ExchangeError", error.to_string()))
}

/// The stream on which the allocator of memory on `device` gives it out again, which is kept.
///
/// # Errors
/// `ValueError` for memory of a device without streams, and for a stream that is none of that device or not the same on every
/// thread; as [`cuda_handle`].
pub fn home(device: DLDevice, stream: &Bound<'_, PyAny>) -> PyResult<ReleaseStream> {
    let py = stream.py();
    if !has_default_stream(device) {
        return Err(PyValueError::new_err(format!(
            "freed_on: memory on {device} is not freed in the order of a stream"
        )));
    }
    let handle = cuda_handle(stream)?;
    let found = device_of(py, device)?;
    let found = found.ok_or_else(|| PyValueError::new_err(format!("freed_on: {device} is not available")))?;
    let keeper = Keeper(Some(stream.clone().unbind()));
    // SAFETY: the caller vouches for it, and the object keeps it alive.
    let home = unsafe { ReleaseStream::new(found, handle, Some(Box::new(keeper))) };
    home.map_err(|error| PyValueError::new_err(format!("freed_on: {error}")))
}

/// A Python object that is dropped on a thread without the Python lock.
struct Keeper(Option<Py<PyAny>>);

impl Drop for Keeper {
    fn drop(&mut self) {
        // With the guard closed it is left to the interpreter that is going away.
        guard::attach(|_| drop(self.0.take()));
        std::mem::forget(self.0.take());
    }
}

/// A foreign stream for an operation to run on; `None` if the object is no stream. The object keeps it alive.
///
/// # Errors
/// `ValueError` for the default stream of a thread, which is another one on the thread that runs the operation, and for a
/// stream of no device here.
pub fn queue_of(stream: &Bound<'_, PyAny>) -> PyResult<Option<Arc<dyn Queue>>> {
    let Some(handle) = of_protocol(stream)? else { return Ok(None) };
    if handle == PER_THREAD {
        return Err(PyValueError::new_err(
            "on=: the default stream of a thread is another one on the thread that runs the operation",
        ));
    }
    let named = stream.getattr_opt(intern!(stream.py(), "device_index"))?;
    let number = named.and_then(|number| number.extract::<i32>().ok());
    let mut refused = None;
    for number in number.map_or(0..i32::from(u8::MAX), |number| number..number + 1) {
        let Ok(entry) = table::resolve(DLDevice::new(DeviceType::CUDA, number)) else { break };
        // SAFETY: the object is alive, and the owner of the queue keeps it.
        match entry.device.map(|device| unsafe { device.foreign_queue(handle) }) {
            Some(Ok(queue)) => return Ok(Some(queue)),
            Some(Err(error)) => refused = Some(error.to_string()),
            None => {}
        }
    }
    let why = refused.unwrap_or_else(|| "there is no CUDA device".into());
    Err(PyValueError::new_err(format!("on={}: {why}", stream.repr()?)))
}
