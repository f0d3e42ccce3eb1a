use std::sync::Arc;

use estafette_sync::sync::atomic::{AtomicBool, Ordering};

use crate::fence::host_event::HostEvent;
use crate::fence::source::{Event, Subscriber, Watch};
use crate::{DLDevice, FenceState, QueueId};

use super::command::CommandId;
use super::device::SimNotify;
use super::trace::Counters;

/// A mark in an out-of-order or foreign queue: done when everything enqueued before the mark is.
pub(super) struct SimMark {
    pub(super) queue: QueueId,
    /// True if it has a number there; one of a foreign queue stands alone.
    pub(super) numbered: bool,
    pub(super) device: DLDevice,
    pub(super) notify: SimNotify,
    pub(super) counters: Arc<Counters>,
    pub(super) command: CommandId,
    pub(super) host_event: HostEvent,
    /// True if the host has seen that it is done; see [`super::timeline::SimTimeline`].
    pub(super) observed: AtomicBool,
    pub(super) recorded: AtomicBool,
}

impl SimMark {
    pub(super) fn record_natively(&self) {
        if !self.recorded.swap(true, Ordering::Relaxed) {
            self.counters.records.one();
        }
    }
}

impl Event for SimMark {
    fn device(&self) -> DLDevice {
        self.device
    }

    fn queue(&self) -> Option<QueueId> {
        self.numbered.then_some(self.queue)
    }

    fn state(&self) -> FenceState {
        if self.observed_done() {
            return FenceState::Done;
        }
        self.counters.queries.one();
        let state = self.host_event.state();
        if matches!(state, FenceState::Done) {
            // Another thread may have found it pending, and come here later.
            self.observed.store(true, Ordering::Release);
        }
        state
    }

    fn observed_done(&self) -> bool {
        self.observed.load(Ordering::Acquire) || (self.notify == SimNotify::Push && self.host_event.is_done())
    }

    fn watch(&self, subscriber: &Arc<dyn Subscriber>) -> Watch {
        if let Some(outcome) = self.host_event.state().outcome() {
            return Watch::Settled(outcome);
        }
        self.record_natively();
        match self.notify {
            SimNotify::Push => self.host_event.watch(subscriber),
            SimNotify::Poll => Watch::MustPoll,
        }
    }
}

debug_as!(mark: SimMark, "mark {} of {}, {:?}", mark.command.0, mark.queue, mark.host_event);
