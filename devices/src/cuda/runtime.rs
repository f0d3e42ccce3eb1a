use std::ffi::c_int;
use std::sync::Arc;

use estafette_sync::sync::OnceLock;

use super::api::Api;
use super::device::CudaDevice;
use super::library::{self, CudaUnavailable};
use super::peers::Peers;

/// The CUDA driver of this process, with its devices.
#[derive(Debug)]
pub struct CudaRuntime {
    devices: Vec<Arc<CudaDevice>>,
    driver_version: i32,
}

impl CudaRuntime {
    /// The driver; loaded and looked through at the first call.
    ///
    /// # Errors
    /// Why there is none, the same at every call.
    pub fn get() -> Result<&'static CudaRuntime, CudaUnavailable> {
        static PROBED: OnceLock<Result<CudaRuntime, CudaUnavailable>> = OnceLock::new();
        PROBED.get_or_init(Self::probe).as_ref().map_err(CudaUnavailable::clone)
    }

    fn probe() -> Result<Self, CudaUnavailable> {
        let (api, count) = library::load()?;
        let api: &'static Api = Box::leak(Box::new(api));
        let mut driver_version: c_int = 0;
        // SAFETY: writes one number.
        let _ = unsafe { (api.driver_version)(&raw mut driver_version) };
        let mut devices = Vec::new();
        let mut why = None;
        for ordinal in 0..count as i32 {
            match CudaDevice::new(api, ordinal) {
                Ok(device) => devices.push(Arc::new(device)),
                Err(error) => {
                    tracing::warn!(%error, ordinal, "a CUDA device cannot be used");
                    why.get_or_insert(error);
                }
            }
        }
        if let (true, Some(error)) = (devices.is_empty(), why) {
            return Err(CudaUnavailable(error.to_string()));
        }
        for device in &devices {
            device.peers.get_or_init(|| Peers::of(device, &devices));
        }
        Ok(Self { devices, driver_version })
    }

    /// The devices in the driver's order; one that cannot be used is left out.
    pub fn devices(&self) -> &[Arc<CudaDevice>] {
        &self.devices
    }

    /// The device with the driver's number `ordinal`.
    pub fn device(&self, ordinal: i32) -> Option<&Arc<CudaDevice>> {
        self.devices.iter().find(|device| device.ordinal() == ordinal)
    }

    /// The newest version of CUDA that the driver supports, as `1000 * major + 10 * minor`.
    pub fn driver_version(&self) -> i32 {
        self.driver_version
    }
}
