//! The exit of the process: no call reaches the driver once its own shutdown may have begun.
//!
//! The driver shuts down in a handler of the C library's `exit`, which it registers when it starts. A call
//! after that is undefined (CUDA Programming Guide, "Initialization"), and threads of the engine still run
//! then: the reactor, the quarantine, workers. So [`arrange`] registers a handler right after the driver has
//! started; handlers run in the opposite order. It refuses calls from then on and waits for those that are
//! under way. What was in flight stays as it is: nothing fails, and memory is left to the end of the process.
//!
//! Calls are uses of a [`Rundown`], whose models check that none begins after the exit has begun to wait.

use std::time::Duration;

use estafette_sync::platform::exit;
use estafette_sync::process::Generation;
use estafette_sync::rundown::Rundown;
use estafette_sync::sync::OnceLock;

use crate::{DeviceError, DeviceErrorKind};

/// How long the exit waits for calls that are under way. One that waits for the device may last for ever.
const GRACE: Duration = Duration::from_millis(500);
/// `CUDA_ERROR_DEINITIALIZED`: the driver is shutting down.
pub(super) const DEINITIALIZED: i32 = 4;

estafette_sync::statics! {
    /// Closed when the process exits. Calls that are under way are its uses.
    static DRIVER: Rundown = Rundown::new();
    /// The process that has started the driver.
    static OF: OnceLock<Generation> = OnceLock::new();
}

/// To be called before the driver starts. False if a process that this one was forked from has started it: it does not work in
/// children.
pub(super) fn claim() -> bool {
    let _ = OF.set(Generation::current());
    !is_inherited()
}

/// Whether a process that this one was forked from has started the driver.
pub(super) fn is_inherited() -> bool {
    OF.get().is_some_and(|of| of.is_inherited())
}

/// To be called once, after the driver has started.
pub(super) fn arrange() {
    // Where the handler cannot be registered, the exit is as it was.
    exit::at_exit(at_exit);
}

extern "C" fn at_exit() {
    // A call that waits for the device goes on.
    let _ = DRIVER.close(GRACE);
}

/// Refuses calls from now on.
pub(super) fn begin() {
    let _ = DRIVER.close(Duration::ZERO);
}

/// Whether calls are refused.
pub(super) fn has_begun() -> bool {
    DRIVER.is_closed()
}

/// Whether nothing of the driver works in this process any more: it exits, or is a forked child.
pub(super) fn is_driver_gone() -> bool {
    is_inherited() || has_begun()
}

/// While this lives, the exit waits.
#[must_use]
pub(super) struct Call(());

impl Call {
    /// Fails while the process exits, with the driver's own code for that.
    pub(super) fn begin() -> Result<Self, DeviceError> {
        if DRIVER.enter() {
            return Ok(Self(()));
        }
        let message = "the process exits: the CUDA driver is not called any more";
        Err(DeviceError::new(DeviceErrorKind::Other, message).with_code(DEINITIALIZED.into()))
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        DRIVER.leave();
    }
}
