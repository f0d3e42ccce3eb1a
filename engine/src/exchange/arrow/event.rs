//! Which native event Arrow's `sync_event` points to, by the type of the device.
//!
//! The table is that of the C device interface (apache/arrow:docs/source/format/CDeviceDataInterface.rst); the numbers of
//! its device types are DLPack's. The event is the producer's, and lives until the array is released. NULL means that the
//! data may be used at once.

use estafette_devices::DeviceType;

/// A kind of native event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum EventKind {
    /// `cudaEvent_t*`.
    Cuda,
    /// `hipEvent_t*`.
    Hip,
    /// `cl_event*`.
    OpenCl,
    /// `VkEvent*`.
    Vulkan,
    /// `MTLEvent*`.
    Metal,
    /// `sycl::event*`.
    Sycl,
    /// What the device of an extension says; of the simulated device, a pointer to a fence.
    Extension,
}

const KINDS: [(DeviceType, EventKind); 10] = [
    (DeviceType::CUDA, EventKind::Cuda),
    (DeviceType::CUDA_HOST, EventKind::Cuda),
    (DeviceType::CUDA_MANAGED, EventKind::Cuda),
    (DeviceType::ROCM, EventKind::Hip),
    (DeviceType::ROCM_HOST, EventKind::Hip),
    (DeviceType::OPENCL, EventKind::OpenCl),
    (DeviceType::VULKAN, EventKind::Vulkan),
    (DeviceType::METAL, EventKind::Metal),
    (DeviceType::ONE_API, EventKind::Sycl),
    (DeviceType::EXT_DEV, EventKind::Extension),
];

/// The kind of event for memory of this type of device; `None` where there is none (the host, WebGPU, VPI, Hexagon, and
/// types that the interface does not name).
pub fn kind(device: DeviceType) -> Option<EventKind> {
    KINDS.iter().find(|(known, _)| *known == device).map(|(_, kind)| *kind)
}

impl EventKind {
    /// What the pointer is, in C.
    pub fn c_type(self) -> &'static str {
        match self {
            Self::Cuda => "cudaEvent_t*",
            Self::Hip => "hipEvent_t*",
            Self::OpenCl => "cl_event*",
            Self::Vulkan => "VkEvent*",
            Self::Metal => "MTLEvent*",
            Self::Sycl => "sycl::event*",
            Self::Extension => "an event of the extension's own",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_that_a_runtime_shares_with_the_host_has_the_events_of_that_runtime() {
        for device in [DeviceType::CUDA, DeviceType::CUDA_HOST, DeviceType::CUDA_MANAGED] {
            assert_eq!(kind(device).map(EventKind::c_type), Some("cudaEvent_t*"));
        }
        assert_eq!(kind(DeviceType::ROCM_HOST), Some(EventKind::Hip));
        for device in
            [DeviceType::CPU, DeviceType::WEBGPU, DeviceType::VPI, DeviceType::HEXAGON, DeviceType(99)]
        {
            assert_eq!(kind(device), None);
        }
    }
}
