//! Finding the driver: one probe, which never panics where there is none.

use std::ffi::c_int;

use cudarc::driver::sys;

use super::api::Api;
use super::errors::name_of;

/// Why there is no CUDA in this process.
#[derive(Clone, Debug, thiserror::Error)]
#[error("CUDA is not available: {0}")]
pub struct CudaUnavailable(pub(super) String);

/// Loads the driver, or takes the one that is there, and starts it.
///
/// The oldest driver that does is 11.1's, by its symbols; what came later is looked for by name.
pub(super) fn load() -> Result<(Api, usize), CudaUnavailable> {
    // SAFETY: the driver is made to be loaded at any time, by any thread.
    if !unsafe { sys::is_culib_present() } {
        return Err(CudaUnavailable("there is no NVIDIA driver (libcuda.so.1) on this machine".to_owned()));
    }
    // SAFETY: it was found just now, so this does not panic; a library of that name is the driver.
    let api = unsafe { Api::find(sys::culib()) }.map_err(|symbol| {
        CudaUnavailable(format!("the driver lacks the function {symbol}; it is too old"))
    })?;
    // SAFETY: the arguments are those of the header.
    let code = unsafe { (api.init)(0) };
    if code != 0 {
        return Err(CudaUnavailable(format!("cuInit says {} ({code})", name_of(&api, code))));
    }
    let mut count: c_int = 0;
    // SAFETY: as above.
    let code = unsafe { (api.device_count)(&raw mut count) };
    if code != 0 {
        return Err(CudaUnavailable(format!("cuDeviceGetCount says {} ({code})", name_of(&api, code))));
    }
    match usize::try_from(count) {
        Ok(count) if count > 0 => Ok((api, count)),
        _ => Err(CudaUnavailable("the driver knows no device; is CUDA_VISIBLE_DEVICES set?".to_owned())),
    }
}
