use std::sync::Arc;

use estafette_sync::sync::Mutex;
use estafette_sync::sync::atomic::{AtomicU64, Ordering};

use crate::fence::source::{Outcome, Subscriber, Timeline, Watch, deliver};
use crate::fence::waiting::{Ready, SubscriberList};
use crate::{DLDevice, DeviceError, QueueId};

use super::device::SimNotify;
use super::trace::Counters;

/// The progress of one in-order queue. It outlives queue and device, as fences do.
///
/// There are two counters, as with a driver: how far the device is, and how far the host knows. A device that
/// pushes keeps them equal; one that must be polled moves the second in [`Timeline::poll`] only.
#[derive(Debug)]
pub(super) struct SimTimeline {
    queue: QueueId,
    device: DLDevice,
    notify: SimNotify,
    counters: Arc<Counters>,
    /// The progress of the device.
    reached: AtomicU64,
    /// The progress that the host knows.
    observed: AtomicU64,
    inner: Mutex<TimelineState>,
}

#[derive(Default)]
struct TimelineState {
    failure: Option<DeviceError>,
    waiting: SubscriberList,
    /// The newest point with a native event.
    recorded: u64,
}

impl SimTimeline {
    pub(super) fn new(queue: QueueId, device: DLDevice, notify: SimNotify, counters: Arc<Counters>) -> Self {
        Self {
            queue,
            device,
            notify,
            counters,
            reached: AtomicU64::new(0),
            observed: AtomicU64::new(0),
            inner: Mutex::new(TimelineState::default()),
        }
    }

    /// The device has completed everything up to `sequence`. The subscribers go to `ready`.
    pub(super) fn reach(&self, sequence: u64, ready: &mut Vec<Ready>) {
        let mut inner = self.inner.lock();
        self.reached.store(sequence, Ordering::Release);
        if self.notify == SimNotify::Push {
            self.observed.store(sequence, Ordering::Release);
        }
        inner.waiting.settle_through(sequence, ready);
    }

    /// The queue has failed. The subscribers go to `ready`.
    pub(super) fn fail(&self, error: &DeviceError, ready: &mut Vec<Ready>) {
        let mut inner = self.inner.lock();
        let error = inner.failure.get_or_insert_with(|| error.clone()).clone();
        inner.waiting.fail(&error, ready);
    }

    pub(super) fn reached(&self) -> u64 {
        self.reached.load(Ordering::Acquire)
    }

    /// Makes sure that a native event covers exactly `sequence`.
    pub(super) fn record_natively(&self, sequence: u64) {
        self.count_record(&mut self.inner.lock(), sequence);
    }

    fn count_record(&self, inner: &mut TimelineState, sequence: u64) {
        if inner.recorded < sequence {
            inner.recorded = sequence;
            self.counters.records.one();
        }
    }
}

impl Timeline for SimTimeline {
    fn queue(&self) -> QueueId {
        self.queue
    }

    fn device(&self) -> DLDevice {
        self.device
    }

    fn completed(&self) -> u64 {
        self.observed.load(Ordering::Acquire)
    }

    fn failure(&self) -> Option<DeviceError> {
        self.inner.lock().failure.clone()
    }

    fn poll(&self) -> u64 {
        self.counters.queries.one();
        let reached = self.reached();
        self.observed.fetch_max(reached, Ordering::AcqRel).max(reached)
    }

    fn watch(&self, sequence: u64, subscriber: &Arc<dyn Subscriber>) -> Watch {
        let mut swept = Vec::new();
        {
            let mut inner = self.inner.lock();
            if self.reached() >= sequence {
                return Watch::Settled(Outcome::Ok(()));
            }
            if let Some(error) = &inner.failure {
                return Watch::Settled(Err(error.clone()));
            }
            self.count_record(&mut inner, sequence);
            if self.notify == SimNotify::Poll {
                return Watch::MustPoll;
            }
            inner.waiting.add(sequence, subscriber.clone());
            inner.waiting.tidy(&mut swept);
        }
        swept.into_iter().for_each(|(subscriber, outcome)| deliver(subscriber, outcome));
        Watch::Subscribed
    }
}

debug_as!(state: TimelineState, "TimelineState({:?})", state.failure);
