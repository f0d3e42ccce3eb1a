use std::sync::{Arc, Weak};

use estafette_sync::sync::OnceLock;

use crate::fence::host_event::HostEvent;
use crate::fence::source::{self, Outcome, Subscriber, Watch};
use crate::{DLDevice, FenceState};

use super::api::{Object, STATUS_COMPLETE, STATUS_UNKNOWN};
use super::device::DeviceState;
use super::errors;
use super::exit::RUNTIME;
use super::handle::Handle;
use super::progress::Progress;
use super::push;

/// One native event: what stands behind every fence here.
pub(super) struct SyclEvent {
    shared: Arc<DeviceState>,
    handle: Handle,
    host_event: HostEvent,
    /// Its queue and number there, once it is the event of a number on a queue. The queue's numbers hold it,
    /// not the other way round.
    place: OnceLock<(Weak<Progress>, u64)>,
    /// True if the scheduler of the runtime may hold the event back behind a host task: on a foreign queue,
    /// and behind what foreign code has enqueued. Such an event is queried for its status and nothing else:
    /// its native event may not exist yet. A thread that waits for such an event holds a lock of the
    /// scheduler (DPC++ 2026) while a host task in front of the event runs; that task may wait for a thread
    /// that wants this lock, as dpctl's tasks do for the Python lock.
    held_back: bool,
    /// True if the driver will settle the event, once a subscriber exists.
    pushed: OnceLock<bool>,
}

/// The runtime's state of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Status {
    Pending,
    Complete,
    /// It threw when it was asked.
    Unknown,
    /// It was not asked, since all is known.
    Settled,
}

impl SyclEvent {
    pub(super) fn new(shared: &Arc<DeviceState>, handle: Handle, held_back: bool) -> Arc<Self> {
        Arc::new(Self {
            held_back,
            shared: Arc::clone(shared),
            handle,
            host_event: HostEvent::new(),
            place: OnceLock::new(),
            pushed: OnceLock::new(),
        })
    }

    pub(super) fn raw(&self) -> Object {
        self.handle.raw()
    }

    pub(super) fn shared(&self) -> &Arc<DeviceState> {
        &self.shared
    }

    pub(super) fn is_done(&self) -> bool {
        self.host_event.is_done()
    }

    /// True if the event, and what waits for it, may be with the runtime only.
    pub(super) fn is_held_back(&self) -> bool {
        self.held_back && !self.is_done()
    }

    /// Makes it the event of number `sequence` of a queue. An event gets one number.
    pub(super) fn put(&self, progress: &Arc<Progress>, sequence: u64) {
        let fresh = self.place.set((Arc::downgrade(progress), sequence)).is_ok();
        debug_assert!(fresh, "an event gets one number");
    }

    fn wait(&self) {
        // It stays pending where the runtime is not called any more.
        let Ok(api) = self.shared.api() else { return };
        // SAFETY: a live event.
        let outcome = errors::catch(|| unsafe { (api.event_wait)(self.raw()) });
        self.settle(outcome);
    }

    /// The state of the event; asks the runtime while it is pending.
    pub(super) fn poll(self: &Arc<Self>) -> FenceState {
        let status = self.query();
        self.end(status)
    }

    /// Asks the runtime, unless it has settled. An event that is complete has yet to be [ended](Self::end).
    pub(super) fn query(self: &Arc<Self>) -> Status {
        if !self.host_event.state().is_pending() {
            return Status::Settled;
        }
        let Ok(api) = self.shared.api() else { return Status::Pending };
        self.shared.counters.status_queries.one();
        // SAFETY: a live event.
        match unsafe { (api.event_status)(self.raw()) } {
            STATUS_COMPLETE => Status::Complete,
            STATUS_UNKNOWN => Status::Unknown,
            _ => Status::Pending,
        }
    }

    /// Settles it if that is what `status`, its own, means.
    pub(super) fn end(&self, status: Status) -> FenceState {
        match status {
            // The status says nothing about memory and carries no error; a wait for what is complete does
            // both, and returns at once.
            Status::Complete => self.wait(),
            Status::Unknown => self.settle(Err(errors::failed(0))),
            Status::Settled | Status::Pending => {}
        }
        self.host_event.state()
    }

    /// A later event of its queue is done, and has counted; so it is done too.
    pub(super) fn passed(&self) {
        self.host_event.settle_and_notify(&Ok(()));
    }

    /// Settles the event and notifies its subscribers, under no lock. Later calls do nothing.
    pub(super) fn settle(&self, outcome: Outcome) {
        // An event that the exit ends has not failed.
        if outcome.is_err() && RUNTIME.has_begun() {
            return;
        }
        let place = self.place.get().and_then(|(progress, sequence)| Some((progress.upgrade()?, *sequence)));
        let outcome = match place {
            Some((progress, sequence)) => progress.reach(sequence, outcome),
            None => outcome,
        };
        self.host_event.settle_and_notify(&outcome);
    }

    pub(super) fn watch(self: &Arc<Self>, subscriber: &Arc<dyn Subscriber>) -> Watch {
        if let Some(outcome) = self.host_event.state().outcome() {
            return Watch::Settled(outcome);
        }
        let arm = || !self.held_back && self.shared.pushes && push::arm(self);
        if !*self.pushed.get_or_init(arm) {
            return Watch::MustPoll;
        }
        self.host_event.watch(subscriber)
    }
}

debug_as!(event: SyclEvent, "SYCL event {:?}, {:?}", event.handle, event.host_event);

/// A fence that is one event and no number: work of a foreign queue, or an event from outside.
#[derive(Debug)]
pub(super) struct Single(pub(super) Arc<SyclEvent>);

impl source::Event for Single {
    fn device(&self) -> DLDevice {
        self.0.shared.id
    }

    fn state(&self) -> FenceState {
        self.0.poll()
    }

    fn observed_done(&self) -> bool {
        self.0.is_done()
    }

    fn watch(&self, subscriber: &Arc<dyn Subscriber>) -> Watch {
        self.0.watch(subscriber)
    }
}
