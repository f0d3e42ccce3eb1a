use crate::cuda::CudaRuntime;
use crate::table::{self, DeviceEntry};
use crate::{DeviceError, DeviceType};

/// CUDA's devices under the driver's numbers.
pub(crate) struct Backend;

impl table::Backend for Backend {
    fn kind(&self) -> DeviceType {
        DeviceType::CUDA
    }

    fn missing(&self) -> Option<DeviceError> {
        runtime().err()
    }

    fn find(&self, number: i32) -> Result<Option<DeviceEntry>, DeviceError> {
        Ok(runtime()?.open(number)?.map(DeviceEntry::of))
    }

    fn all(&self) -> Vec<DeviceEntry> {
        CudaRuntime::get().into_iter().flat_map(CudaRuntime::usable).map(DeviceEntry::of).collect()
    }

    fn used(&self) -> Option<i32> {
        CudaRuntime::get().ok()?.used()
    }

    fn all_used(&self) -> Vec<i32> {
        CudaRuntime::get().map_or_else(|_| Vec::new(), CudaRuntime::all_used)
    }

    fn identified(&self, uuid: [u8; 16]) -> Option<i32> {
        CudaRuntime::get().ok()?.identified(uuid)
    }
}

fn runtime() -> Result<&'static CudaRuntime, DeviceError> {
    CudaRuntime::get().map_err(|why| DeviceError::invalid(why.to_string()))
}
