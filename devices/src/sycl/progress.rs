use std::collections::VecDeque;
use std::sync::Arc;

use estafette_sync::sync::Mutex;
use smallvec::SmallVec;

use crate::fence::completed::Completed;
use crate::fence::source::{Outcome, Subscriber, Timeline, Watch};
use crate::{DLDevice, DeviceError, QueueId};

use super::event::{Status, SyclEvent};
use super::exit::RUNTIME;

/// Numbers whose events are kept. Beyond, every second event is dropped: a subscriber for its number is
/// notified when the next number is done, late and never wrong.
const MARKS_MAX: usize = 1_024;
/// Numbers that come before those who record look what is done by now: an event that is kept keeps memory of
/// the runtime, and new memory for each command costs more than asking does. A question in vain is shared by
/// as many.
const LOOK_EVERY: usize = 16;

/// The numbers of one queue, each with an event that covers it. An event covers everything enqueued before,
/// on an out-of-order queue by what it waits for; so the numbers complete in order on either kind.
#[derive(Debug)]
pub(super) struct Progress {
    queue: QueueId,
    device: DLDevice,
    /// True if all events are of one queue of the runtime: then the errors of all of them come back to a wait
    /// for the last.
    in_order: bool,
    /// Changed under the lock.
    completed: Completed,
    inner: Mutex<ProgressState>,
}

#[derive(Debug, Default)]
struct ProgressState {
    marks: VecDeque<(u64, Arc<SyclEvent>)>,
    /// Length of `marks` at which they are looked through next.
    look_at: usize,
}

impl Progress {
    pub(super) fn new(queue: QueueId, device: DLDevice, in_order: bool) -> Arc<Self> {
        Arc::new(Self { queue, device, in_order, completed: Completed::new(), inner: Mutex::default() })
    }

    /// Gives number `sequence` its event. True if it is time to [look](Self::tidy) what is done, under no
    /// lock.
    pub(super) fn add(self: &Arc<Self>, sequence: u64, event: &Arc<SyclEvent>) -> bool {
        event.put(self, sequence);
        let mut dropped = Vec::new();
        let look = {
            let mut inner = self.inner.lock();
            inner.marks.push_back((sequence, Arc::clone(event)));
            if inner.marks.len() > MARKS_MAX {
                let newest = inner.marks.len() - 1;
                let all = std::mem::take(&mut inner.marks).into_iter().enumerate();
                let (kept, thinned): (Vec<_>, Vec<_>) = all.partition(|(at, _)| at % 2 == 1 || *at == newest);
                inner.marks = kept.into_iter().map(|(_, mark)| mark).collect();
                dropped = thinned;
            }
            inner.marks.len() >= inner.look_at.max(LOOK_EVERY)
        };
        drop(dropped);
        // It may have completed before it had its place.
        if event.is_done() {
            let _ = self.reach(sequence, Ok(()));
        }
        look
    }

    /// Releases what is done.
    pub(super) fn tidy(&self) {
        self.poll();
        let mut inner = self.inner.lock();
        inner.look_at = inner.marks.len() + LOOK_EVERY;
    }

    /// Notes how number `sequence` ended, and says what that means: after a failure nothing more is done on
    /// this queue.
    pub(super) fn reach(&self, sequence: u64, outcome: Outcome) -> Outcome {
        let mut passed = SmallVec::<[_; 4]>::new();
        let mut inner = self.inner.lock();
        let outcome = match (outcome, self.completed.failure()) {
            (_, Some(failure)) if sequence > self.completed() => Err(failure.clone()),
            (Err(error), None) => {
                let error = error.with_queue(self.queue);
                self.completed.fail(&error);
                Err(error)
            }
            (outcome, _) => {
                self.completed.reach(sequence);
                while let Some((_, event)) = inner.marks.pop_front_if(|(number, _)| *number <= sequence) {
                    passed.push(event);
                }
                outcome
            }
        };
        drop(inner);
        // Waiters for an earlier number are notified now, not when its own event is queried. Deleting an
        // event calls the runtime.
        passed.into_iter().for_each(|event| event.passed());
        outcome
    }

    /// The queue takes no more work, because of `error`.
    pub(super) fn fail(&self, error: &DeviceError) {
        // A call that the exit refuses is no failure of the queue.
        if RUNTIME.is_driver_gone() {
            return;
        }
        let _under_the_lock = self.inner.lock();
        self.completed.fail(error);
    }

    /// The first event that covers `sequence`; `None` when that is done or can never be.
    pub(super) fn event_of(&self, sequence: u64) -> Option<Arc<SyclEvent>> {
        let inner = self.inner.lock();
        let at = inner.marks.partition_point(|(number, _)| *number < sequence);
        inner.marks.get(at).map(|(_, event)| Arc::clone(event))
    }

    fn after(&self, sequence: u64) -> Option<(u64, Arc<SyclEvent>)> {
        let inner = self.inner.lock();
        let at = inner.marks.partition_point(|(number, _)| *number <= sequence);
        inner.marks.get(at).cloned()
    }

    /// Settles `event`, that of number `sequence`, which has ended; false if it has failed.
    fn settle(&self, sequence: u64, event: &SyclEvent, status: Status) -> bool {
        // An event that ended while it got its number may not have counted yet.
        event.end(status).outcome().is_some_and(|outcome| self.reach(sequence, outcome).is_ok())
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
        self.completed.number()
    }

    fn failure(&self) -> Option<DeviceError> {
        self.completed.failure().cloned()
    }

    /// Asks the oldest numbers, up to the first one that is pending: none that failed is passed over. Of
    /// those that are done the last one is settled for all.
    fn poll(&self) -> u64 {
        // In a forked child a thread of the parent may have the lock for ever.
        if RUNTIME.is_driver_gone() {
            return self.completed();
        }
        let mut complete: Option<(u64, Arc<SyclEvent>)> = None;
        loop {
            let sequence = complete.as_ref().map_or_else(|| self.completed(), |(sequence, _)| *sequence);
            let Some((sequence, event)) = self.after(sequence) else { break };
            match event.query() {
                Status::Pending => break,
                Status::Complete if self.in_order => complete = Some((sequence, event)),
                status => {
                    // Events that are done come before an event that failed.
                    if let Some((sequence, event)) = complete.take() {
                        self.settle(sequence, &event, Status::Complete);
                    }
                    if !self.settle(sequence, &event, status) {
                        break;
                    }
                }
            }
        }
        if let Some((sequence, event)) = complete {
            self.settle(sequence, &event, Status::Complete);
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
