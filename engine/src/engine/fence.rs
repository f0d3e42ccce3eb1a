//! Fences of other schedulers, by the devices of an engine.

use std::ptr::NonNull;

use estafette_devices::Fence;

use crate::core::error::Error;
use crate::engine::Engine;
use crate::exchange::foreign_fence::{self, RawFence};

impl Engine {
    /// Adopts the fence of another scheduler.
    ///
    /// # Errors
    /// [`Error::Invalid`] names the field that is wrong; nothing was retained then.
    ///
    /// # Safety
    /// As for [`foreign_fence::import`].
    #[doc(hidden)]
    pub unsafe fn import_fence(&self, fence: NonNull<RawFence>) -> Result<Fence, Error> {
        // SAFETY: the caller's promise is the same.
        unsafe { foreign_fence::import(fence, self.devices()) }
    }
}
