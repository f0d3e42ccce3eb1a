//! Fences, sets of them, and what stands behind a fence.
//!
//! | part | idea |
//! |---|---|
//! | this file | [`Fence`]: a point in the work of a device, waited for by a future or by a thread |
//! | `fence_set` | [`FenceSet`]: fences of several queues, the newest of each |
//! | `clock` | [`Clock`]: what a queue has seen of other queues, so that waits are left out |
//! | `source` | [`Timeline`] and [`Event`], which a backend implements; subscribers |
//! | `waiting` | subscribers of a timeline, by their numbers, or of an event |
//! | `host_event` | an event that the host settles |
//! | `native_event` | an event of a driver that leaves the process's hands |
//! | `completed` | progress of a queue, and the failure after which it comes no further |

mod clock;
#[cfg(feature = "_driver")]
pub(crate) mod completed;
mod fence_set;
pub(crate) mod host_event;
mod native_event;
pub(crate) mod source;
pub(crate) mod waiting;

use std::fmt;
use std::future::Future;
use std::ops::Deref;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use estafette_sync::panic::contain_panic;
use estafette_sync::process::Generation;
use estafette_sync::sleeper::Sleeper;
use estafette_sync::sync::Mutex;
use estafette_sync::sync::atomic::{AtomicBool, Ordering};
use estafette_sync::time::{Duration, Instant};

use crate::fence::source::{Once, deliver};
use crate::log_panic::log_panic;
use crate::reactor::spin;
use crate::{DLDevice, DeviceError, DeviceErrorKind, QueueId, Reactor};

pub use self::{
    clock::{Clock, QueueClock},
    fence_set::FenceSet,
    native_event::NativeEvent,
    source::{Event, Outcome, Subscriber, Timeline, Watch},
};

/// A point in the work of a device: pending, done or failed. Cheap to clone and to query.
///
/// On an in-order queue it is (queue, sequence number), and *done* is a comparison with the queue's completed
/// counter. Elsewhere a fence is an event of its own. A settled fence stays settled. A failed fence returns
/// the same root error at every query.
#[derive(Clone)]
pub struct Fence {
    source: FenceSource,
    /// The queue, asked once: fences are compared where nothing of a user's may be called.
    queue: Option<QueueId>,
    /// The number on the queue; for events, the number among the records of their queue, or 0.
    sequence: u64,
    /// The queue's clock of other queues when this was recorded.
    seen: Clock,
    /// The source is of this crate: it neither panics nor notifies a subscriber twice, and its `peek` loads
    /// and calls nothing.
    is_own: bool,
    /// The process that it settles in.
    generation: Generation,
}

#[derive(Clone)]
enum FenceSource {
    Point(ContainedArc<dyn Timeline>),
    Event(ContainedArc<dyn Event>),
}

/// A share in something of a user's. A panic in its destructor is logged and goes no further: fences are
/// dropped by threads that have something else to do.
struct ContainedArc<T: ?Sized>(Option<Arc<T>>);

impl<T: ?Sized> Deref for ContainedArc<T> {
    type Target = Arc<T>;

    #[inline]
    fn deref(&self) -> &Arc<T> {
        self.0.as_ref().expect("present until dropped")
    }
}

impl<T: ?Sized> Clone for ContainedArc<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<T: ?Sized> Drop for ContainedArc<T> {
    fn drop(&mut self) {
        let share = self.0.take();
        log_panic("the destructor of what stands behind a fence", || drop(share));
    }
}

/// The state of a fence.
#[derive(Clone, Debug)]
pub enum FenceState {
    /// The work is not finished.
    Pending,
    /// The work is finished. Its effects are visible to a thread that reads this state.
    Done,
    /// The work will never finish, for this reason.
    Failed(DeviceError),
}

impl FenceState {
    /// The outcome, `None` while pending.
    pub fn outcome(self) -> Option<Outcome> {
        match self {
            FenceState::Pending => None,
            FenceState::Done => Some(Ok(())),
            FenceState::Failed(error) => Some(Err(error)),
        }
    }

    /// True if it is [`FenceState::Pending`].
    pub fn is_pending(&self) -> bool {
        matches!(self, FenceState::Pending)
    }
}

impl From<Outcome> for FenceState {
    fn from(outcome: Outcome) -> Self {
        match outcome {
            Ok(()) => FenceState::Done,
            Err(error) => FenceState::Failed(error),
        }
    }
}

impl Fence {
    /// The point `sequence` of an in-order queue. `seen` is what the queue knew of others when it was
    /// recorded.
    pub fn point(timeline: Arc<dyn Timeline>, sequence: u64, seen: Clock) -> Self {
        let queue = Some(timeline.queue());
        Self::new(FenceSource::Point(ContainedArc(Some(timeline))), queue, sequence, seen)
    }

    /// The same fence, whose source is of this crate: subscribers need no guard against a source that panics
    /// or notifies twice, and `peek` may be called under locks.
    pub(crate) fn of_this_crate(self) -> Self {
        Self { is_own: true, ..self }
    }

    /// A stand-alone fence.
    pub fn event(event: Arc<dyn Event>) -> Self {
        Self::recorded_event(event, 0, Clock::default())
    }

    /// Record number `sequence` (from 1) of the out-of-order queue that the event names, covering everything
    /// enqueued there before: it settles no earlier than records with smaller numbers. `seen` as for
    /// [`Fence::point`].
    pub fn recorded_event(event: Arc<dyn Event>, sequence: u64, seen: Clock) -> Self {
        let queue = event.queue();
        Self::new(FenceSource::Event(ContainedArc(Some(event))), queue, sequence, seen)
    }

    fn new(source: FenceSource, queue: Option<QueueId>, sequence: u64, seen: Clock) -> Self {
        let generation = Generation::current();
        Self { source, queue, sequence, seen, is_own: false, generation }
    }

    /// True if it was made in a process that this one was forked from, and settles there.
    pub fn is_inherited(&self) -> bool {
        self.generation.is_inherited()
    }

    /// The state of the fence. Queries the backend while the answer is not known yet. A backend that panics
    /// has failed.
    pub fn state(&self) -> FenceState {
        contained(|| match &self.source {
            FenceSource::Event(event) => event.state(),
            FenceSource::Point(timeline) => {
                if timeline.completed() >= self.sequence {
                    return FenceState::Done;
                }
                // A failure freezes the counter, so a failure that was read before the counter is final. One
                // that the poll found is read after it, and the loop goes round once more.
                let mut failure = timeline.failure();
                loop {
                    if timeline.poll_for(self.sequence) >= self.sequence {
                        return FenceState::Done;
                    }
                    if let Some(error) = failure {
                        return FenceState::Failed(error);
                    }
                    failure = timeline.failure();
                    if failure.is_none() {
                        return FenceState::Pending;
                    }
                }
            }
        })
    }

    /// True if the work is finished. Queries the backend while the answer is not known yet.
    pub fn is_done(&self) -> bool {
        self.observed_done() || matches!(self.state(), FenceState::Done)
    }

    /// True if the work is known to be finished, without a query of the backend: one load.
    pub fn observed_done(&self) -> bool {
        match &self.source {
            FenceSource::Point(timeline) => timeline.completed() >= self.sequence,
            FenceSource::Event(event) => event.observed_done(),
        }
    }

    /// The state as far as it is known: pending where only a call of a driver could say more. A device makes
    /// no effort to announce its progress for this.
    pub fn observed_state(&self) -> FenceState {
        contained(|| match &self.source {
            FenceSource::Event(event) => event.observed_state(),
            FenceSource::Point(timeline) => {
                // A failure freezes the counter, so a failure that was read before the counter is final.
                let failure = timeline.failure();
                match timeline.peek(self.sequence) {
                    Some(true) => FenceState::Done,
                    _ if timeline.completed() >= self.sequence => FenceState::Done,
                    _ => failure.map_or(FenceState::Pending, FenceState::Failed),
                }
            }
        })
    }

    /// True if the work is finished. `None` if loads cannot tell, but only the backend. Calls no driver,
    /// takes no lock.
    #[inline]
    pub fn peek(&self) -> Option<bool> {
        match &self.source {
            FenceSource::Point(timeline) => timeline.peek(self.sequence),
            FenceSource::Event(event) => event.observed_done().then_some(true),
        }
    }

    /// As [`peek`](Self::peek), for callers that hold a lock: `None` for what may be a user's.
    #[inline]
    pub fn peek_under_lock(&self) -> Option<bool> {
        if self.is_own { self.peek() } else { None }
    }

    /// The queue, where there is one.
    pub fn queue(&self) -> Option<QueueId> {
        self.queue
    }

    /// The device that does the work.
    pub fn device(&self) -> DLDevice {
        match &self.source {
            FenceSource::Point(timeline) => timeline.device(),
            FenceSource::Event(event) => event.device(),
        }
    }

    /// The number on its queue, where there is a queue.
    pub fn sequence(&self) -> Option<u64> {
        self.queue().map(|_| self.sequence)
    }

    /// The timeline, when this is a point on an in-order queue. For devices to recognise their own.
    pub fn as_point(&self) -> Option<(&Arc<dyn Timeline>, u64)> {
        match &self.source {
            FenceSource::Point(timeline) => Some((timeline, self.sequence)),
            FenceSource::Event(_) => None,
        }
    }

    /// The event, when this is a stand-alone fence. For devices to recognise their own.
    pub fn as_event(&self) -> Option<&Arc<dyn Event>> {
        match &self.source {
            FenceSource::Point(_) => None,
            FenceSource::Event(event) => Some(event),
        }
    }

    /// The clock of its queue when this fence was recorded: fences of other queues that the queue had waited
    /// for.
    pub fn seen(&self) -> &Clock {
        &self.seen
    }

    /// True if this fence is known to settle no earlier than `other`: the same fence, a later point of the
    /// same queue, or a point of a queue that had been made to wait for `other` (or for something later)
    /// before.
    ///
    /// `false` means "not known", never "earlier".
    pub fn same_or_later_on_queue(&self, other: &Fence) -> bool {
        if let (FenceSource::Event(mine), FenceSource::Event(theirs)) = (&self.source, &other.source)
            && Arc::ptr_eq(mine, theirs)
        {
            return true;
        }
        let Some(queue) = other.queue() else { return false };
        (self.queue() == Some(queue) && self.sequence >= other.sequence)
            || self.seen.covers(queue, other.sequence)
    }

    /// A future of the outcome, for any executor. Dropping the future does not cancel the work.
    pub fn settled(&self) -> Settled {
        Settled { fence: self.clone(), slot: None }
    }

    /// Blocks the calling thread until the fence has settled; `None` when `timeout` passed first. No timeout
    /// means waiting for as long as it takes.
    pub fn wait_timeout(&self, timeout: Option<Duration>) -> Option<Outcome> {
        if timeout == Some(Duration::ZERO) {
            return self.state().outcome();
        }
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let sleeper = Arc::<Sleeper>::default();
        let waker = Waker::from(Arc::clone(&sleeper));
        let mut settled = self.settled();
        loop {
            if let Poll::Ready(outcome) = Pin::new(&mut settled).poll(&mut Context::from_waker(&waker)) {
                return Some(outcome);
            }
            if !sleeper.sleep(deadline) {
                return None;
            }
        }
    }

    fn waiter_left(&self) {
        if let FenceSource::Event(event) = &self.source {
            log_panic("what stands behind a fence", || event.waiter_left());
        }
    }

    /// True if each query costs one load and the source notifies no subscriber.
    pub(crate) fn query_is_cheap(&self) -> bool {
        match &self.source {
            FenceSource::Point(timeline) => timeline.query_is_cheap(),
            FenceSource::Event(_) => false,
        }
    }

    /// A backend that panics has failed. A user's backend may have kept the subscriber before the panic, and
    /// notify it later.
    pub(crate) fn watch(&self, subscriber: &Arc<dyn Subscriber>) -> Watch {
        let once: Arc<dyn Subscriber> = match self.is_own {
            true => Arc::clone(subscriber),
            false => Arc::new(Once::new(subscriber)),
        };
        let watched = contain_panic(|| match &self.source {
            FenceSource::Point(timeline) => timeline.watch(self.sequence, &once),
            FenceSource::Event(event) => event.watch(&once),
        });
        watched.unwrap_or_else(|panic| {
            deliver(once, Err(panicked(&panic)));
            Watch::Subscribed
        })
    }
}

/// The answer of a backend. The caller may have granted operations in hand, so a panic becomes a failure.
pub(crate) fn contained(query: impl FnOnce() -> FenceState) -> FenceState {
    contain_panic(query).unwrap_or_else(|panic| FenceState::Failed(panicked(&panic)))
}

pub(crate) fn panicked(panic: &str) -> DeviceError {
    let message = format!("querying the progress of device work panicked: {panic}");
    DeviceError::new(DeviceErrorKind::Fault, message)
}

impl fmt::Debug for Fence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.source {
            FenceSource::Point(timeline) => write!(f, "Fence({} at {})", timeline.queue(), self.sequence),
            FenceSource::Event(event) => write!(f, "Fence({:?})", &**event),
        }
    }
}

/// The future of [`Fence::settled`]: ready when the fence is.
///
/// Registers with the source first and looks again afterwards, so no settling is missed; dropping it leaves a
/// tombstone that the source sweeps out, at once or later.
#[must_use = "futures do nothing unless polled"]
#[derive(Debug)]
pub struct Settled {
    fence: Fence,
    slot: Option<Arc<OutcomeSlot>>,
}

impl Future for Settled {
    type Output = Outcome;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Outcome> {
        let slot = match &self.slot {
            Some(slot) => slot.clone(),
            None => {
                if let Some(outcome) = self.fence.state().outcome() {
                    return Poll::Ready(outcome);
                }
                if let Some(outcome) = spin(&self.fence) {
                    return Poll::Ready(outcome);
                }
                let slot = Arc::new(OutcomeSlot::default());
                // The waker goes in before the fence can settle.
                let _ = slot.poll(context);
                Reactor::global().watch(&self.fence, slot.clone());
                self.slot = Some(slot.clone());
                slot
            }
        };
        slot.poll(context)
    }
}

impl Drop for Settled {
    fn drop(&mut self) {
        if let Some(slot) = &self.slot
            && slot.abandon()
        {
            self.fence.waiter_left();
        }
    }
}

/// The slot in which the fence leaves its outcome for a [`Settled`] future.
#[derive(Debug, Default)]
struct OutcomeSlot {
    abandoned: AtomicBool,
    state: Mutex<SlotState>,
}

#[derive(Debug, Default)]
struct SlotState {
    outcome: Option<Outcome>,
    waker: Option<Waker>,
}

impl OutcomeSlot {
    fn poll(&self, context: &mut Context<'_>) -> Poll<Outcome> {
        {
            let state = self.state.lock();
            if let Some(outcome) = &state.outcome {
                return Poll::Ready(outcome.clone());
            }
            if state.waker.as_ref().is_some_and(|waker| waker.will_wake(context.waker())) {
                return Poll::Pending;
            }
        }
        // Cloning and dropping wakers is foreign code: done outside of the lock.
        let fresh = context.waker().clone();
        let mut state = self.state.lock();
        if let Some(outcome) = &state.outcome {
            return Poll::Ready(outcome.clone());
        }
        let old = state.waker.replace(fresh);
        drop(state);
        drop(old);
        Poll::Pending
    }

    /// Says whether the fence had not settled yet.
    fn abandon(&self) -> bool {
        self.abandoned.store(true, Ordering::Relaxed);
        let mut state = self.state.lock();
        let (waker, pending) = (state.waker.take(), state.outcome.is_none());
        drop(state);
        drop(waker);
        pending
    }
}

impl Subscriber for OutcomeSlot {
    fn settled(self: Arc<Self>, outcome: Outcome) {
        let mut state = self.state.lock();
        state.outcome = Some(outcome);
        let waker = state.waker.take();
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    fn abandoned(&self) -> bool {
        self.abandoned.load(Ordering::Relaxed)
    }
}
