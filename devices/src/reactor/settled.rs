use std::sync::Arc;

use crate::fence::source::{Event, Outcome, Subscriber, Watch};
use crate::{DLDevice, FenceState};

/// An event that has settled already, on its way to the subscribers that the reactor notifies.
#[derive(Debug)]
pub(super) struct Settled(pub(super) Outcome);

impl Event for Settled {
    fn device(&self) -> DLDevice {
        DLDevice::CPU
    }

    fn state(&self) -> FenceState {
        self.0.clone().into()
    }

    fn observed_done(&self) -> bool {
        self.0.is_ok()
    }

    fn watch(&self, _subscriber: &Arc<dyn Subscriber>) -> Watch {
        Watch::Settled(self.0.clone())
    }
}
