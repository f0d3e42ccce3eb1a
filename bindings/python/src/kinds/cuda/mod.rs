//! CUDA in Python.
//!
//! | part | what it has |
//! |---|---|
//! | `array` | The CUDA array interface |
//! | `peers` | Libraries of CUDA alone |
//! | `stream` | Streams as people pass them |

pub(crate) mod array;
mod peers;
mod stream;

use std::ptr;
use std::sync::Arc;

use estafette::Tensor;
use estafette::bindings;
use estafette::devices::cuda::{CudaRuntime, PointerInfo};
use estafette::devices::{DLDevice, DeviceType, FenceSet, Queue, table};
use estafette::exchange::ManagedTensor;
use estafette::lease::Consumer;
use pyo3::prelude::*;

use crate::error::exchange_error;
use crate::exchange::peers::Peer;
use crate::interpreter::guard;
use crate::kinds::{self, Kind};

/// CUDA's devices, and pinned and managed memory.
pub struct Cuda;

impl Kind for Cuda {
    fn covers(&self, device: DLDevice) -> bool {
        device.device_type == DeviceType::CUDA || is_shared(device)
    }

    fn module(&self) -> Option<&'static str> {
        Some("estafette._kinds.cuda")
    }

    fn peers(&self) -> &'static [Peer] {
        peers::PEERS
    }

    fn passes_for_host(&self, device: DLDevice) -> bool {
        device.device_type == DeviceType::CUDA_HOST
    }

    fn device_names(&self) -> &'static [&'static str] {
        &["\"cuda:<number>\""]
    }

    fn parse_device(&self, _py: Python<'_>, text: &str) -> PyResult<Option<DLDevice>> {
        let number = if text == "cuda" { Some("0") } else { text.strip_prefix("cuda:") };
        let number = number.filter(|number| number.bytes().all(|digit| digit.is_ascii_digit()));
        let number = number.and_then(|number| number.parse().ok());
        Ok(number.map(|number| DLDevice::new(DeviceType::CUDA, number)))
    }

    /// Pinned and managed memory carries the number 0 whichever devices use it, so the stream says where it
    /// is ordered, if there is a driver. Without a stream any device does: streams of one wait for those of
    /// another.
    fn ordered_on(&self, py: Python<'_>, device: DLDevice, stream: Option<usize>) -> Option<DLDevice> {
        if !is_shared(device) {
            return Some(device);
        }
        guard::detach(py, || {
            let runtime = CudaRuntime::get().ok()?;
            let said = match stream {
                // SAFETY: the caller that passes a stream vouches for it for the length of the call; default
                // streams always are.
                Some(stream) => unsafe { runtime.device_of_stream(stream) },
                None => runtime.current(),
            };
            let said = said.map(|number| DLDevice::new(DeviceType::CUDA, number));
            let cuda = said.unwrap_or_else(|| table::owner(device));
            table::resolve(cuda).is_ok().then_some(cuda)
        })
    }

    fn owner(&self, py: Python<'_>, device: DLDevice, data: *const u8) -> Option<DLDevice> {
        let place = if is_shared(device) { place_of(py, data) } else { None };
        place.map(|place| DLDevice::new(DeviceType::CUDA, place.ordinal))
    }

    fn check_place(&self, py: Python<'_>, managed: &ManagedTensor) -> PyResult<()> {
        let (said, data) = (bindings::exchange::device(managed), managed.data());
        match said.device_type {
            DeviceType::CUDA => check_device(py, said, data),
            DeviceType::CUDA_MANAGED => check_managed(py, data),
            _ => Ok(()),
        }
    }

    fn queue_name(&self) -> Option<&'static str> {
        Some("a CUDA stream")
    }

    fn default_stream(&self, device: DLDevice) -> Option<usize> {
        (device.device_type == DeviceType::CUDA).then_some(stream::LEGACY)
    }

    fn unnamed_stream(&self) -> Option<usize> {
        Some(stream::LEGACY)
    }

    fn handle(&self, stream: &Bound<'_, PyAny>) -> PyResult<usize> {
        stream::handle(stream)
    }

    fn consumer(
        &self,
        tensor: &Tensor,
        device: DLDevice,
        stream: &Bound<'_, PyAny>,
    ) -> PyResult<Option<Consumer>> {
        let handle = stream::handle(stream)?;
        let on = self.ordered_on(stream.py(), device, Some(handle)).unwrap_or(device);
        let keeper = stream::keeper(stream, handle, on);
        kinds::consumer_on(stream.py(), tensor, on, handle, keeper).map(Some)
    }

    fn queue_of(&self, object: &Bound<'_, PyAny>) -> PyResult<Option<Arc<dyn Queue>>> {
        stream::queue_of(object)
    }

    fn current_stream(&self, queue: &dyn Queue) -> Option<(usize, i32)> {
        Some((queue.handle(), queue.device().device_id))
    }

    fn import_array(
        &self,
        object: &Bound<'_, PyAny>,
        peer: &Peer,
    ) -> PyResult<Option<(ManagedTensor, FenceSet)>> {
        array::is_to_be_asked(object, peer)?.then(|| array::take(object, peer)).transpose()
    }

    /// Work that is on the producer's stream by now may be for this tensor.
    fn acquire(
        &self,
        object: &Bound<'_, PyAny>,
        (device, data): (DLDevice, *mut u8),
        stream: Option<usize>,
    ) -> PyResult<FenceSet> {
        let fence_of = |stream| kinds::fence_of(object.py(), device, data, stream);
        stream.map_or(Ok(FenceSet::default()), |stream| {
            fence_of(if stream == 0 { stream::LEGACY } else { stream })
        })
    }
}

/// The place of the memory at `data`, by the driver's account.
fn place_of(py: Python<'_>, data: *const u8) -> Option<PointerInfo> {
    let data = data.expose_provenance();
    guard::detach(py, || CudaRuntime::get().ok()?.pointer_info(ptr::with_exposed_provenance(data)))
}

/// Refuses memory that the device that its struct names cannot use. Memory of other devices that it can use
/// (by peer access, or mapped for both) is said to be its own by some, such as PyTorch's symmetric memory.
fn check_device(py: Python<'_>, said: DLDevice, data: *mut u8) -> PyResult<()> {
    let data = data.expose_provenance();
    let elsewhere = guard::detach(py, || {
        let data = ptr::with_exposed_provenance(data);
        let device = CudaRuntime::get().ok()?.device(said.device_id)?;
        let info = device.pointer_info(data)?;
        (info.ordinal != said.device_id && !device.can_access(data)).then_some(info.ordinal)
    });
    elsewhere.map_or(Ok(()), |ordinal| {
        let message = format!("the struct says {said}, and the driver that the memory is of cuda:{ordinal}");
        Err(exchange_error(py, message))
    })
}

/// Refuses managed memory of a device that keeps the host from all such memory while it works.
fn check_managed(py: Python<'_>, data: *mut u8) -> PyResult<()> {
    let data = data.expose_provenance();
    let refused = guard::detach(py, || {
        let runtime = CudaRuntime::get().ok()?;
        let info = runtime.pointer_info(ptr::with_exposed_provenance(data))?;
        let device = runtime.device(info.ordinal)?;
        (!device.managed_is_concurrent()).then_some(info.ordinal)
    });
    refused.map_or(Ok(()), |ordinal| {
        let message = format!(
            "the host may not use managed memory of cuda:{ordinal} while that device works; pinned memory can be exchanged"
        );
        Err(exchange_error(py, message))
    })
}

/// True if both the host and CUDA's streams use memory of `device`.
fn is_shared(device: DLDevice) -> bool {
    [DeviceType::CUDA_HOST, DeviceType::CUDA_MANAGED].contains(&device.device_type)
}
