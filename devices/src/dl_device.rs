use std::fmt;

/// The place of memory in DLPack's terms: a device type and a number among the devices of that type.
///
/// The layout is that of `DLDevice` in `dlpack.h`, so it can be read from and written into DLPack structures.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DLDevice {
    /// The kind of device.
    pub device_type: DeviceType,
    /// The number of the device among its kind; 0 for host memory.
    pub device_id: i32,
}

impl DLDevice {
    /// Host memory.
    pub const CPU: DLDevice = DLDevice { device_type: DeviceType::CPU, device_id: 0 };

    /// The device `device_id` of kind `device_type`.
    pub const fn new(device_type: DeviceType, device_id: i32) -> Self {
        Self { device_type, device_id }
    }

    /// The device whose queues use memory of this device. For memory that a runtime shares with the host,
    /// this is the device of that runtime with the same number, which need not be one that the process uses.
    pub const fn queue_device(self) -> Self {
        let device_type = match self.device_type {
            DeviceType::CUDA_HOST | DeviceType::CUDA_MANAGED => DeviceType::CUDA,
            DeviceType::ROCM_HOST => DeviceType::ROCM,
            own => own,
        };
        Self { device_type, ..self }
    }
}

impl fmt::Display for DLDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.device_type, self.device_id)
    }
}

debug_as!(device: DLDevice, "{device}");

/// A kind of device: `DLDeviceType` of `dlpack.h`. Numbers that this version does not name are legal.
#[repr(transparent)]
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DeviceType(pub i32);

/// Declares the constants and their names in one place, so that neither can be forgotten.
macro_rules! device_types {
    ($($(#[$doc:meta])* $constant:ident = $number:literal, $name:literal;)*) => {
        impl DeviceType {
            $($(#[$doc])* pub const $constant: DeviceType = DeviceType($number);)*

            /// The name used in messages ("cpu"), `None` for numbers that this version does not know.
            pub const fn name(self) -> Option<&'static str> {
                match self.0 {
                    $($number => Some($name),)*
                    _ => None,
                }
            }
        }
    };
}

device_types! {
    /// Host memory.
    CPU = 1, "cpu";
    /// CUDA GPU memory.
    CUDA = 2, "cuda";
    /// Host memory pinned by CUDA.
    CUDA_HOST = 3, "cuda_host";
    /// OpenCL memory.
    OPENCL = 4, "opencl";
    /// Vulkan buffers.
    VULKAN = 7, "vulkan";
    /// Metal buffers.
    METAL = 8, "metal";
    /// Verilog simulator.
    VPI = 9, "vpi";
    /// ROCm GPU memory.
    ROCM = 10, "rocm";
    /// Host memory pinned by ROCm.
    ROCM_HOST = 11, "rocm_host";
    /// Reserved for extensions; the simulated device uses it.
    EXT_DEV = 12, "ext_dev";
    /// CUDA managed memory.
    CUDA_MANAGED = 13, "cuda_managed";
    /// oneAPI unified shared memory (SYCL).
    ONE_API = 14, "oneapi";
    /// WebGPU buffers.
    WEBGPU = 15, "webgpu";
    /// Qualcomm Hexagon.
    HEXAGON = 16, "hexagon";
    /// Microsoft MAIA.
    MAIA = 17, "maia";
    /// AWS Trainium.
    TRN = 18, "trn";
    /// Google TPU memory.
    TPU = 19, "tpu";
    /// Host memory pinned for a TPU.
    TPU_HOST = 20, "tpu_host";
    /// Huawei Ascend.
    ASCEND = 21, "ascend";
}

impl DeviceType {
    /// True if the host may load and store in all memory of this kind. Other memory is a question for its
    /// [`Device`](crate::Device).
    pub const fn is_host_readable(self) -> bool {
        matches!(self, Self::CPU | Self::CUDA_HOST | Self::ROCM_HOST | Self::CUDA_MANAGED)
    }

    /// True if data pointers of this kind are addresses, to which offsets can be added, and not handles of
    /// buffer objects (OpenCL, Vulkan, Metal). Pointers of kinds that this version does not know count as
    /// handles.
    pub const fn has_addresses(self) -> bool {
        matches!(
            self,
            Self::CPU
                | Self::CUDA
                | Self::CUDA_HOST
                | Self::CUDA_MANAGED
                | Self::ROCM
                | Self::ROCM_HOST
                | Self::ONE_API
                | Self::EXT_DEV
                | Self::TPU_HOST
        )
    }

    /// True if a number of this kind stands for a context of its API and nothing else: no device has it.
    pub(crate) const fn is_context_alone(self) -> bool {
        matches!(self, Self::OPENCL | Self::VULKAN | Self::METAL)
    }

    /// True if consumers of this kind of memory want the `data` of a DLPack struct to be the lowest address
    /// that the elements touch, and never NULL. dpnp does; its offsets are never negative.
    pub const fn data_is_range_start(self) -> bool {
        matches!(self, Self::ONE_API)
    }

    /// True if functions that free memory of this kind need its device to be current on the calling thread
    /// ([`Device::make_current`](crate::Device::make_current)).
    pub const fn frees_on_current_device(self) -> bool {
        matches!(self, Self::CUDA | Self::CUDA_HOST | Self::CUDA_MANAGED | Self::ROCM | Self::ROCM_HOST)
    }
}

impl fmt::Display for DeviceType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "device_type({})", self.0),
        }
    }
}

debug_as!(kind: DeviceType, "{kind}");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_print_as_kind_and_number_even_when_the_kind_is_unknown() {
        assert_eq!(DLDevice::CPU.to_string(), "cpu:0");
        assert_eq!(DLDevice::new(DeviceType::ONE_API, 3).to_string(), "oneapi:3");
        assert_eq!(DLDevice::new(DeviceType(99), 1).to_string(), "device_type(99):1");
    }

    #[test]
    fn memory_that_a_runtime_shares_with_the_host_has_the_queues_of_that_runtime() {
        for shared in [DeviceType::CUDA, DeviceType::CUDA_HOST, DeviceType::CUDA_MANAGED] {
            assert_eq!(DLDevice::new(shared, 3).queue_device(), DLDevice::new(DeviceType::CUDA, 3));
        }
        for kind in
            [DeviceType::CPU, DeviceType::WEBGPU, DeviceType::VPI, DeviceType::HEXAGON, DeviceType(99)]
        {
            assert_eq!(DLDevice::new(kind, 1).queue_device(), DLDevice::new(kind, 1));
        }
    }

    #[test]
    fn layout_is_that_of_the_c_struct() {
        assert_eq!(std::mem::size_of::<DLDevice>(), 8);
        assert_eq!(std::mem::offset_of!(DLDevice, device_id), 4);
    }
}
