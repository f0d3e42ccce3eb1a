use std::ffi::c_int;
use std::fmt;
use std::sync::Arc;

use estafette_sync::sync::OnceLock;

use super::api::Api;
use super::device::CudaDevice;
use super::library::{self, CudaUnavailable};
use super::memory::PointerInfo;

/// The CUDA driver of this process, with its devices.
///
/// A device is opened when it is first asked for: its primary context takes some hundred megabytes of its memory and some time,
/// which a process that uses one of eight devices should pay once.
pub struct CudaRuntime {
    api: &'static Api,
    driver_version: i32,
    /// By the driver's numbers; `None` for one that cannot be used.
    opened: Vec<OnceLock<Option<Arc<CudaDevice>>>>,
    all: OnceLock<Vec<Arc<CudaDevice>>>,
}

impl CudaRuntime {
    /// The driver; loaded and started at the first call.
    ///
    /// # Errors
    /// Why there is none, the same at every call.
    pub fn get() -> Result<&'static CudaRuntime, CudaUnavailable> {
        estafette_sync::statics! {
            static PROBED: OnceLock<Result<CudaRuntime, CudaUnavailable>> = OnceLock::new();
        }
        PROBED.get_or_init(Self::probe).as_ref().map_err(CudaUnavailable::clone)
    }

    fn probe() -> Result<Self, CudaUnavailable> {
        let (api, count) = library::load()?;
        let api: &'static Api = Box::leak(Box::new(api));
        let mut driver_version: c_int = 0;
        // SAFETY: writes one number.
        let _ = unsafe { (api.driver_version)(&raw mut driver_version) };
        let opened = (0..count).map(|_| OnceLock::new()).collect();
        Ok(Self { api, driver_version, opened, all: OnceLock::new() })
    }

    /// How many devices the driver has.
    pub fn count(&self) -> usize {
        self.opened.len()
    }

    /// The device with the driver's number `ordinal`, opened now if nobody has asked for it yet. `None` for one that is not there
    /// or cannot be used; a log line says why.
    pub fn device(&self, ordinal: i32) -> Option<&Arc<CudaDevice>> {
        let place = self.opened.get(usize::try_from(ordinal).ok()?)?;
        let opened = place.get_or_init(|| match CudaDevice::new(self.api, ordinal, self.count()) {
            Ok(device) => Some(Arc::new(device)),
            Err(error) => {
                tracing::warn!(%error, ordinal, "a CUDA device cannot be used");
                None
            }
        });
        opened.as_ref()
    }

    /// All devices, in the driver's order, opened now; those that cannot be used are left out.
    pub fn devices(&self) -> &[Arc<CudaDevice>] {
        self.all.get_or_init(|| (0..self.count() as i32).filter_map(|at| self.device(at)).cloned().collect())
    }

    /// What `pointer` is to, as [`CudaDevice::pointer_info`] tells it, by way of whichever device is open. Opens the first one if
    /// none is.
    pub fn pointer_info(&self, pointer: *const u8) -> Option<PointerInfo> {
        let open = self.opened.iter().find_map(|place| place.get()?.as_ref());
        open.or_else(|| self.device(0))?.pointer_info(pointer)
    }

    /// The newest version of CUDA that the driver supports, as `1000 * major + 10 * minor`.
    pub fn driver_version(&self) -> i32 {
        self.driver_version
    }
}

impl fmt::Debug for CudaRuntime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CudaRuntime(version {}, {} devices)", self.driver_version, self.count())
    }
}
