//! The exit of the process and its forked children: no call reaches the runtime where it does not work
//! ([`DriverExit`]).
//!
//! The runtime shuts down in destructors of its library and of statics that it makes when it is first used
//! (DPC++: `GlobalHandler`, `shutdown_early` and `shutdown_late`). What was in flight stays as it is: nothing
//! fails, and objects and memory are left to the end of the process. In a forked child they are the parent's.

use std::ops::Deref;

use estafette_sync::platform::exit;

use crate::DeviceError;
use crate::driver_exit::{DriverCall, DriverExit, GRACE};

use super::api::Api;

estafette_sync::statics! {
    pub(super) static RUNTIME: DriverExit = DriverExit::new("SYCL runtime");
}

/// To be called once, after the runtime has found its devices.
pub(super) fn arrange() {
    // If the handler cannot be registered, the exit is as it was.
    exit::at_exit(at_exit);
}

extern "C" fn at_exit() {
    RUNTIME.close(GRACE);
}

/// Fails where nothing of the runtime works any more: the process exits, or is a forked child.
pub(super) fn check() -> Result<(), DeviceError> {
    if RUNTIME.is_driver_gone() { Err(RUNTIME.gone()) } else { Ok(()) }
}

/// The functions. While this lives, the exit waits.
#[must_use]
pub(super) struct Calls {
    pub(super) table: &'static Api,
    _call: DriverCall,
}

impl Calls {
    /// Fails where [`check`] does.
    pub(super) fn begin(api: &'static Api) -> Result<Self, DeviceError> {
        Ok(Self { table: api, _call: RUNTIME.begin_call().ok_or_else(|| RUNTIME.gone())? })
    }
}

impl Deref for Calls {
    type Target = Api;

    fn deref(&self) -> &Api {
        self.table
    }
}
