//! The end of a driver: no call reaches it once its own shutdown may have begun, or in a forked child.
//!
//! Drivers shut down in handlers of the C library's `exit`. A call after that is undefined, and threads of
//! the engine still run then: the reactor, the quarantine, workers. A driver does not work in a forked child
//! either.
//!
//! Calls are uses of a [`Rundown`], whose models check that none begins after the exit has begun to wait. A
//! backend has one static of this, and registers a handler that closes it right after its driver has started:
//! handlers run in the opposite order.

use std::time::Duration;

use estafette_sync::process::Generation;
use estafette_sync::rundown::Rundown;
use estafette_sync::sync::OnceLock;

use crate::{DeviceError, DeviceErrorKind};

/// The time that the exit waits for calls that are under way. One that waits for the device may last for
/// ever.
pub(crate) const GRACE: Duration = Duration::from_millis(500);

pub(crate) struct DriverExit {
    driver: &'static str,
    /// Closed when the process exits. Calls that are under way are its uses.
    calls: Rundown,
    /// The process that has started the driver.
    of: OnceLock<Generation>,
}

impl DriverExit {
    estafette_sync::const_fn! {
        pub(crate) fn new(driver: &'static str) -> Self {
            Self { driver, calls: Rundown::new(), of: OnceLock::new() }
        }
    }

    /// To be called before the driver starts. False if a process that this one was forked from has started
    /// it.
    pub(crate) fn claim(&self) -> bool {
        let _ = self.of.set(Generation::current());
        !self.is_inherited()
    }

    /// True if a process that this one was forked from has started the driver.
    pub(crate) fn is_inherited(&self) -> bool {
        self.of.get().is_some_and(|of| of.is_inherited())
    }

    /// Refuses calls from now on, and waits as long as `grace` for those that are under way. One that waits
    /// for the device goes on.
    pub(crate) fn close(&self, grace: Duration) {
        // In a forked child, calls that threads of the parent were in never end.
        if !self.is_inherited() {
            let _ = self.calls.close(grace);
        }
    }

    pub(crate) fn has_begun(&self) -> bool {
        self.calls.is_closed()
    }

    /// True if nothing of the driver works in this process any more: it exits, or is a forked child.
    pub(crate) fn is_driver_gone(&self) -> bool {
        self.is_inherited() || self.has_begun()
    }

    /// The reason why nothing of the driver works in this process any more.
    pub(crate) fn gone(&self) -> DeviceError {
        let driver = self.driver;
        let why = if self.is_inherited() {
            format!("forked child: the {driver} belongs to the parent process")
        } else {
            format!("the process exits: the {driver} is not called any more")
        };
        DeviceError::new(DeviceErrorKind::Other, why)
    }

    /// `None` while the process exits, and in a forked child.
    pub(crate) fn begin_call(&'static self) -> Option<DriverCall> {
        // Made only then: its drop ends a use.
        (!self.is_inherited() && self.calls.acquire()).then(|| DriverCall(self))
    }
}

/// While this lives, the exit waits.
#[must_use]
pub(crate) struct DriverCall(&'static DriverExit);

impl Drop for DriverCall {
    fn drop(&mut self) {
        self.0.calls.release();
    }
}
