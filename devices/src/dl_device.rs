use std::fmt;

/// Where memory lives, as DLPack says it: a device type and a number among the devices of that type.
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
}

impl fmt::Display for DLDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.device_type, self.device_id)
    }
}

impl fmt::Debug for DLDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

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

impl fmt::Display for DeviceType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "device_type({})", self.0),
        }
    }
}

impl fmt::Debug for DeviceType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

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
    fn layout_is_that_of_the_c_struct() {
        assert_eq!(std::mem::size_of::<DLDevice>(), 8);
        assert_eq!(std::mem::offset_of!(DLDevice, device_id), 4);
    }
}
