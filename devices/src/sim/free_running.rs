//! The thread that makes time pass on a device that runs freely.
//!
//! # Protocol
//! The thread sleeps on a [`Doorbell`] and owns no device; a thread that changes the schedule lends it a
//! reference.
//! 1. *Change* (launch, release): change the schedule, then ring: put a reference to the device on the
//!    doorbell, notify.
//! 2. *Run*: take the reference from the doorbell, sleeping until there is one; do what is due; while
//!    something is due later, sleep until then or until the doorbell rings, and go on; when nothing is due
//!    any more, release the device.
//!
//! The excluded race is a change while the thread releases it: it rings afterwards or the thread sees it, so
//! the thread either finds the reference on the doorbell or the work in the schedule. As long as work is left
//! that can complete, the doorbell or the thread holds the device; so dropping the last handle lets that work
//! end, and then the device's drop stops the thread.

use std::sync::Arc;

use estafette_sync::essential::essential;
use estafette_sync::stack;
use estafette_sync::sync::{Condvar, Mutex};
use estafette_sync::time::{Duration, Instant};

use crate::{DeviceError, DeviceErrorKind};

use super::device::{Core, SimPace};

/// The part of a device that drives it. Does nothing in manual mode.
#[derive(Debug)]
pub(super) struct Runner {
    pace: SimPace,
    began: Instant,
    doorbell: Arc<Doorbell>,
}

#[derive(Debug, Default)]
struct Doorbell {
    state: Mutex<DoorbellState>,
    rung: Condvar,
}

#[derive(Default)]
struct DoorbellState {
    /// The device to be looked after.
    lent: Option<Arc<Core>>,
    stopped: bool,
}

impl Runner {
    pub(super) fn new(pace: SimPace) -> Self {
        Self { pace, began: Instant::now(), doorbell: Arc::default() }
    }

    /// Starts the thread of `core`, if its pace asks for one.
    pub(super) fn start(core: &Arc<Core>) -> Result<(), DeviceError> {
        let runner = &core.runner;
        if runner.pace == SimPace::Manual {
            return Ok(());
        }
        let doorbell = runner.doorbell.clone();
        let work = move || essential("a simulated device", || run(&doorbell));
        stack::thread("estafette-sim").spawn(work).map_err(|error| {
            let message = format!("cannot start the thread of a simulated device: {error}");
            DeviceError::new(DeviceErrorKind::Other, message)
        })?;
        Ok(())
    }

    /// Real time since the device was made, if virtual time follows it.
    pub(super) fn real_time_ns(&self) -> Option<u64> {
        (self.pace == SimPace::RealTime)
            .then(|| self.began.elapsed().as_nanos().try_into().unwrap_or(u64::MAX))
    }

    /// The schedule of `core`, whose runner this is, has changed.
    pub(super) fn ring(&self, core: &Arc<Core>) {
        if self.pace != SimPace::Manual {
            self.doorbell.state.lock().lent.get_or_insert_with(|| core.clone());
            self.doorbell.rung.notify_all();
        }
    }

    pub(super) fn stop(&self) {
        self.doorbell.state.lock().stopped = true;
        self.doorbell.rung.notify_all();
    }
}

impl Doorbell {
    /// Takes the device from the doorbell, sleeping until there is one. `None` when there never will be.
    fn take(&self) -> Option<Arc<Core>> {
        let mut state = self.state.lock();
        loop {
            if let Some(core) = state.lent.take() {
                return Some(core);
            }
            if state.stopped {
                return None;
            }
            state = self.rung.wait(state);
        }
    }

    /// Sleeps until the doorbell rings, at most for `most`. Waking too early is harmless: the thread looks
    /// again.
    fn sleep(&self, most: Duration) {
        let state = self.state.lock();
        if state.lent.is_none() {
            drop(self.rung.wait_timeout(state, most));
        }
    }
}

debug_as!(doorbell: DoorbellState, "DoorbellState(rung: {}, stopped: {})", doorbell.lent.is_some(), doorbell.stopped);

fn run(doorbell: &Doorbell) {
    while let Some(core) = doorbell.take() {
        loop {
            while core.step(core.runner.real_time_ns().unwrap_or(u64::MAX)) {}
            let Some(due_ns) = core.schedule().next_due_ns() else { break };
            if let Some(now_ns) = core.runner.real_time_ns() {
                doorbell.sleep(Duration::from_nanos(due_ns.saturating_sub(now_ns)));
            }
            // The device that was lent meanwhile is this one.
            drop(doorbell.state.lock().lent.take());
        }
    }
}
