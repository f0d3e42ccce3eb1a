//! The exit of the process: no call reaches the driver once its own shutdown may have begun
//! ([`DriverExit`]).
//!
//! The driver shuts down in a handler of the C library's `exit`, which it registers when it starts. A call
//! after that is undefined (CUDA Programming Guide, "Initialization"). What was in flight stays as it is:
//! nothing fails, and memory is left to the end of the process.

use estafette_sync::platform::exit;

use crate::DeviceError;
use crate::driver_exit::{DriverCall, DriverExit, GRACE};

/// `CUDA_ERROR_DEINITIALIZED`: the driver is shutting down.
pub(super) const DEINITIALIZED: i32 = 4;

estafette_sync::statics! {
    pub(super) static DRIVER: DriverExit = DriverExit::new("CUDA driver");
}

/// To be called once, after the driver has started.
pub(super) fn arrange() {
    // Where the handler cannot be registered, the exit is as it was.
    exit::at_exit(at_exit);
}

extern "C" fn at_exit() {
    DRIVER.close(GRACE);
}

/// True if nothing of the driver works in this process any more: it exits, or is a forked child.
pub(super) fn is_driver_gone() -> bool {
    DRIVER.is_driver_gone()
}

/// A call of the driver. Fails while the process exits, with the driver's own code for that, and in a forked child.
pub(super) fn call() -> Result<DriverCall, DeviceError> {
    DRIVER.begin_call().ok_or_else(|| DRIVER.gone().with_code(DEINITIALIZED.into()))
}
