//! CUDA's streams as people pass them: handles and objects with `__cuda_stream__`.

use std::sync::Arc;

use estafette::devices::cuda::CudaRuntime;
use estafette::devices::{DLDevice, Device, DeviceType, Queue, table};
use estafette::lease::Keeper;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyInt};

use crate::exchange::peers::Streams;
use crate::interpreter::call_site;
use crate::interpreter::guard;
use crate::interpreter::kept::Kept;
use crate::interpreter::once::{intern, loaded};

/// CUDA's legacy default stream.
pub const LEGACY: usize = 1;
/// CUDA's default stream of the calling thread.
const PER_THREAD: usize = 2;

/// The handle of a CUDA stream: an integer, or an object with `__cuda_stream__`.
/// Raises `ValueError` for 0 and negative numbers; `TypeError` for what is no stream.
pub fn handle(stream: &Bound<'_, PyAny>) -> PyResult<usize> {
    if let Some(handle) = of_protocol(stream)? {
        return Ok(handle);
    }
    if stream.is_instance_of::<PyBool>() {
        return Err(PyTypeError::new_err(format!("stream must not be a bool, which {} is", stream.repr()?)));
    }
    // The first conversion takes objects that act as integers; the second takes handles above half of 64
    // bits.
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

/// The handle of `__cuda_stream__`: a method in the protocol, an attribute in its first version.
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

/// The object that keeps a consumer's stream until the end of its lease; `None` where the stream may end
/// before, so that a barrier over the device has to show the end of its work.
pub fn keeper(stream: &Bound<'_, PyAny>, handle: usize, device: DLDevice) -> Option<Keeper> {
    let py = stream.py();
    if handle <= PER_THREAD {
        // The legacy stream needs no keeper. The handle of a thread's default stream means another stream on
        // the thread where the lease ends.
        return None;
    }
    if stream.hasattr(intern!(py, "__cuda_stream__")).unwrap_or(false) {
        return Some(Arc::new(Kept::new(stream.clone().unbind())));
    }
    let stays = match call_site::caller(py).library?.streams {
        Streams::Unknown => false,
        Streams::Last => true,
        Streams::PyTorchPool => is_of_pytorch_pool(py, handle, device.device_id).unwrap_or(false),
    };
    stays.then(|| Arc::new(()) as Keeper)
}

/// True if `handle` is PyTorch's current stream and one of its pool. The identifier of an external stream is
/// its handle (pytorch/pytorch: c10/cuda/CUDAStream.cpp).
fn is_of_pytorch_pool(py: Python<'_>, handle: usize, device: i32) -> PyResult<bool> {
    let Some(torch) = loaded(py, intern!(py, "torch"))? else { return Ok(false) };
    let current =
        torch.getattr(intern!(py, "cuda"))?.call_method1(intern!(py, "current_stream"), (device,))?;
    let is_current = current.getattr(intern!(py, "cuda_stream"))?.extract::<usize>()? == handle;
    let id = current.getattr(intern!(py, "stream_id"))?.extract::<i128>()?;
    Ok(is_current && id != handle as i128)
}

/// A foreign stream for an operation to run on; `None` if the object is no stream. The object keeps it alive.
/// Raises `ValueError` for the default stream of a thread, which is another one on the thread that runs the
/// operation; for the legacy default stream where neither the object nor the thread says of which device; and
/// for a stream of no device here.
pub fn queue_of(stream: &Bound<'_, PyAny>) -> PyResult<Option<Arc<dyn Queue>>> {
    let Some(handle) = of_protocol(stream)? else { return Ok(None) };
    if handle == PER_THREAD {
        return Err(PyValueError::new_err(
            "on=: the default stream of a thread is another one on the thread that runs the operation",
        ));
    }
    let named = stream.getattr_opt(intern!(stream.py(), "device_index"))?;
    let number = named.and_then(|number| number.extract::<i32>().ok());
    let number = match number {
        Some(number) => number,
        None => device_of(stream, handle)?,
    };
    let device = DLDevice::new(DeviceType::CUDA, number);
    // SAFETY: the object is alive, and the owner of the queue keeps it.
    let acquire = |device: Arc<dyn Device>| unsafe { device.foreign_queue(handle) };
    let found = guard::detach(stream.py(), || table::resolve(device)?.device.map(acquire).transpose());
    let why = match found {
        Ok(Some(queue)) => return Ok(Some(queue)),
        Ok(None) => "there is no CUDA device".to_owned(),
        Err(error) => error.to_string(),
    };
    Err(PyValueError::new_err(format!("on={}: {why}", stream.repr()?)))
}

/// The device number of a stream whose object does not report it.
fn device_of(stream: &Bound<'_, PyAny>, handle: usize) -> PyResult<i32> {
    let found = guard::detach(stream.py(), || {
        // Without a driver the device is not found, which says more.
        let Ok(runtime) = CudaRuntime::get() else { return Ok(0) };
        // SAFETY: the object is alive, and keeps its stream.
        let said = unsafe { runtime.device_of_stream(handle) };
        said.or((runtime.count() == 1).then_some(0)).ok_or(runtime.count())
    });
    found.or_else(|count| {
        let which = if handle == LEGACY {
            format!("each of the {count} CUDA devices has a legacy default stream, and the thread has no current device")
        } else {
            "the driver does not say of which device it is".to_owned()
        };
        Err(PyValueError::new_err(format!("on={}: {which}; `device_index` of the object names one", stream.repr()?)))
    })
}
