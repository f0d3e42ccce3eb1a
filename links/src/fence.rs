//! A slot of a peer's board as an event of `estafette_devices`.

use std::fmt;
use std::sync::{Arc, Weak};

use estafette_devices::host::{self, Completer};
use estafette_devices::{DLDevice, Event, Fence, FenceState, Outcome, Subscriber, Watch};
use estafette_sync::sync::atomic::{AtomicBool, Ordering};
use estafette_sync::sync::{Mutex, OnceLock};

use crate::board::{Kind, SlotId};
use crate::link::Shared;
use crate::slots::Answer;

/// Settles when the peer has settled the slot, or when it is known that the peer never will.
pub(crate) struct PeerEvent {
    shared: Arc<Shared>,
    slot: SlotId,
    /// Decided once, by the first thread that finds it out: the peer may write anything afterwards.
    outcome: OnceLock<Outcome>,
    /// For subscribers, once there is one: a promise that the link thread settles.
    subscribers: OnceLock<(Mutex<Option<Completer>>, Fence)>,
    is_watched: AtomicBool,
    this: Weak<PeerEvent>,
}

impl PeerEvent {
    pub(crate) fn new(shared: Arc<Shared>, slot: SlotId) -> Arc<Self> {
        Arc::new_cyclic(|this| Self {
            shared,
            slot,
            outcome: OnceLock::new(),
            subscribers: OnceLock::new(),
            is_watched: AtomicBool::new(false),
            this: this.clone(),
        })
    }

    /// The outcome, once it is known. Takes no lock.
    pub(crate) fn outcome(&self) -> Option<Outcome> {
        if let Some(outcome) = self.outcome.get() {
            return Some(outcome.clone());
        }
        let outcome = self.shared.outcome(self.slot)?;
        Some(self.outcome.get_or_init(|| outcome).clone())
    }

    /// Notifies the subscribers, if it has settled. They are called on this thread.
    pub(crate) fn deliver(&self) {
        if let (Some(outcome), Some((completer, _))) = (self.outcome(), self.subscribers.get()) {
            let completer = completer.lock().take();
            if let Some(completer) = completer {
                completer.settle(outcome);
            }
        }
    }
}

impl Answer for Arc<PeerEvent> {
    fn outcome(&self) -> Option<Outcome> {
        PeerEvent::outcome(self)
    }
}

impl Event for PeerEvent {
    fn device(&self) -> DLDevice {
        DLDevice::CPU
    }

    fn state(&self) -> FenceState {
        self.outcome().map_or(FenceState::Pending, FenceState::from)
    }

    fn observed_done(&self) -> bool {
        matches!(self.outcome(), Some(Ok(())))
    }

    fn watch(&self, subscriber: &Arc<dyn Subscriber>) -> Watch {
        if let Some(outcome) = self.outcome() {
            return Watch::Settled(outcome);
        }
        let (_, fence) = self.subscribers.get_or_init(|| {
            let (completer, fence) = host::promise("a promise of another process");
            (Mutex::new(Some(completer)), fence)
        });
        let promise = fence.as_event().expect("a promise is an event");
        if let Watch::Settled(outcome) = promise.watch(subscriber) {
            return Watch::Settled(outcome);
        }
        if !self.is_watched.swap(true, Ordering::Relaxed) {
            self.shared.watch(self.this.upgrade().expect("a caller has it"));
        }
        self.shared.listen();
        if self.outcome().is_some() {
            self.deliver();
            self.shared.unwatch(self);
        }
        Watch::Subscribed
    }
}

impl fmt::Debug for PeerEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match self.slot.kind {
            Kind::Ready => "a value of",
            Kind::Used => "a use by",
        };
        write!(f, "{what} process {}, {:?}", self.shared.process(), self.state())
    }
}
