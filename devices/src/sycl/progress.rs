use std::collections::VecDeque;
use std::sync::{Arc, PoisonError};

use estafette_sync::sync::atomic::{AtomicU64, Ordering};
use estafette_sync::sync::{Mutex, MutexGuard};

use crate::source::{Outcome, Subscriber, Timeline, Watch};
use crate::{DLDevice, DeviceError, QueueId};

use super::event::Event;

/// Numbers whose events are kept. Past it every second one is let go: whoever then asks for such a number is told when the next
/// one is done, late and never wrong.
const MARKS_MAX: usize = 1_024;

/// The numbers of one queue, each with an event that covers it. An event covers everything enqueued before, on an
/// out-of-order queue by what it waits for; so the numbers complete in order on either kind.
#[derive(Debug)]
pub(super) struct Progress {
    queue: QueueId,
    device: DLDevice,
    completed: AtomicU64,
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    /// Ascending.
    marks: VecDeque<(u64, Arc<Event>)>,
    failure: Option<DeviceError>,
}

impl Progress {
    pub(super) fn new(queue: QueueId, device: DLDevice) -> Arc<Self> {
        Arc::new(Self { queue, device, completed: AtomicU64::new(0), inner: Mutex::default() })
    }

    /// Gives number `sequence` its event.
    pub(super) fn add(self: &Arc<Self>, sequence: u64, event: &Arc<Event>) {
        event.put(self, sequence);
        let mut dropped = Vec::new();
        {
            let mut inner = self.lock();
            inner.marks.push_back((sequence, Arc::clone(event)));
            if inner.marks.len() > MARKS_MAX {
                let newest = inner.marks.len() - 1;
                let all = std::mem::take(&mut inner.marks).into_iter().enumerate();
                let (kept, thinned): (Vec<_>, Vec<_>) = all.partition(|(at, _)| at % 2 == 1 || *at == newest);
                inner.marks = kept.into_iter().map(|(_, mark)| mark).collect();
                dropped = thinned;
            }
        }
        drop(dropped);
        // It may have completed before it had its place.
        if event.is_done() {
            let _ = self.reach(sequence, Ok(()));
        }
    }

    /// Notes how number `sequence` ended, and says what that means: after a failure nothing more is done on this queue.
    pub(super) fn reach(&self, sequence: u64, outcome: Outcome) -> Outcome {
        let mut passed = Vec::new();
        let mut inner = self.lock();
        let outcome = match (outcome, &inner.failure) {
            (_, Some(failure)) if sequence > self.completed() => Err(failure.clone()),
            (Err(error), None) => {
                let error = error.with_queue(self.queue);
                inner.failure = Some(error.clone());
                Err(error)
            }
            (outcome, _) => {
                self.completed.fetch_max(sequence, Ordering::Release);
                while let Some(mark) = inner.marks.pop_front_if(|(number, _)| *number <= sequence) {
                    passed.push(mark);
                }
                outcome
            }
        };
        drop(inner);
        // Deleting an event calls the runtime.
        drop(passed);
        outcome
    }

    /// The queue takes no more work, because of `error`.
    pub(super) fn fail(&self, error: DeviceError) {
        self.lock().failure.get_or_insert(error);
    }

    /// The first event that covers `sequence`; `None` when that is done or can never be.
    pub(super) fn event_of(&self, sequence: u64) -> Option<Arc<Event>> {
        let inner = self.lock();
        let at = inner.marks.partition_point(|(number, _)| *number < sequence);
        inner.marks.get(at).map(|(_, event)| Arc::clone(event))
    }

    fn oldest(&self) -> Option<(u64, Arc<Event>)> {
        self.lock().marks.front().cloned()
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Timeline for Progress {
    fn queue(&self) -> QueueId {
        self.queue
    }

    fn device(&self) -> DLDevice {
        self.device
    }

    fn completed(&self) -> u64 {
        self.completed.load(Ordering::Acquire)
    }

    fn failure(&self) -> Option<DeviceError> {
        self.lock().failure.clone()
    }

    fn poll(&self) -> u64 {
        // Each round asks about the oldest unfinished number and leaves when that is pending.
        while let Some((sequence, event)) = self.oldest() {
            let Some(outcome) = event.look().outcome() else { break };
            // An event that ended while it got its number may not have counted yet.
            if self.reach(sequence, outcome).is_err() {
                break;
            }
        }
        self.completed()
    }

    fn watch(&self, sequence: u64, subscriber: &Arc<dyn Subscriber>) -> Watch {
        match self.event_of(sequence) {
            Some(event) => event.watch(subscriber),
            None => match self.failure() {
                Some(error) if self.completed() < sequence => Watch::Settled(Err(error)),
                _ => Watch::Settled(Ok(())),
            },
        }
    }
}
