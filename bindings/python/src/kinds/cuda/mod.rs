//! CUDA in Python.
//!
//! | part | what it has |
//! |---|---|
//! | `array` | The CUDA array interface |
//! | `stream` | Streams as people pass them |

pub(crate) mod array;
mod stream;

use std::sync::Arc;

use estafette::Tensor;
use estafette::devices::cuda::CudaRuntime;
use estafette::devices::{DLDevice, DeviceType, FenceSet, Queue, table};
use estafette::exchange::ManagedTensor;
use estafette::lease::Consumer;
use pyo3::prelude::*;

use crate::error::raise;
use crate::exchange::peers::Peer;
use crate::kinds::{self, Kind};

/// CUDA's devices, and pinned and managed memory.
pub struct Cuda;

impl Kind for Cuda {
    fn covers(&self, device: DLDevice) -> bool {
        device.device_type == DeviceType::CUDA || is_shared(device)
    }

    fn device_names(&self) -> &'static [&'static str] {
        &["\"cuda:<number>\""]
    }

    fn parse_device(&self, _py: Python<'_>, text: &str) -> PyResult<Option<DLDevice>> {
        let number = text.strip_prefix("cuda").map(|number| number.strip_prefix(':').unwrap_or("0"));
        let number = number.and_then(|number| number.parse().ok());
        Ok(number.map(|number| DLDevice::new(DeviceType::CUDA, number)))
    }

    /// Pinned and managed memory carries the number 0, and is ordered there if there is a driver.
    fn ordered_on(&self, device: DLDevice) -> Option<DLDevice> {
        let cuda = DLDevice::new(DeviceType::CUDA, device.device_id);
        (!is_shared(device) || table::resolve(cuda).is_ok()).then_some(cuda)
    }

    fn check_place(&self, py: Python<'_>, managed: &ManagedTensor) -> PyResult<()> {
        let said = managed.device();
        if is_shared(said) {
            return Ok(());
        }
        let Ok(runtime) = CudaRuntime::get() else { return Ok(()) };
        let known = runtime.device(said.device_id).and_then(|device| device.pointer_info(managed.data()));
        match known {
            Some(info) if info.ordinal != said.device_id => {
                let message = format!(
                    "the struct says {said}, and the driver that the memory is of cuda:{}",
                    info.ordinal
                );
                Err(raise(py, "ExchangeError", message))
            }
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
        let on = self.ordered_on(device).unwrap_or(device);
        kinds::consumer_on(stream.py(), tensor, on, handle).map(Some)
    }

    fn queue_of(&self, object: &Bound<'_, PyAny>) -> PyResult<Option<Arc<dyn Queue>>> {
        stream::queue_of(object)
    }

    fn current_stream(&self, queue: &dyn Queue) -> Option<(usize, i32)> {
        Some((queue.native(), queue.device().device_id))
    }

    fn import_array(
        &self,
        object: &Bound<'_, PyAny>,
        peer: &Peer,
    ) -> PyResult<Option<(ManagedTensor, FenceSet)>> {
        array::is_to_be_asked(object, peer)?.then(|| array::take(object, peer)).transpose()
    }

    /// What is enqueued on the producer's stream by now, it may have enqueued for this tensor.
    fn acquire(
        &self,
        object: &Bound<'_, PyAny>,
        device: DLDevice,
        stream: Option<usize>,
    ) -> PyResult<FenceSet> {
        match stream {
            Some(0) => kinds::fence_of(object.py(), device, stream::LEGACY),
            Some(stream) => kinds::fence_of(object.py(), device, stream),
            None => Ok(FenceSet::default()),
        }
    }
}

/// Whether both the host and CUDA's streams use memory of `device`.
fn is_shared(device: DLDevice) -> bool {
    [DeviceType::CUDA_HOST, DeviceType::CUDA_MANAGED].contains(&device.device_type)
}
