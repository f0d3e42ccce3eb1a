//! The sources of a [`Fence`](crate::Fence): the two small traits that a device implements.
//!
//! An in-order queue completes a prefix, so one [`Timeline`] serves all its fences: a fence is done when the
//! timeline's completed counter has reached its sequence number. Everything else (a promise of the host, a
//! marker in an out-of-order queue, a fence of a foreign scheduler) is an [`Event`] of its own.
//!
//! # How progress becomes known
//! [`Watch`] is the answer of a source to a subscription: some sources *push* (promises, simulated queues),
//! others must be *polled* by the reactor (drivers that offer no cheap notification).
//!
//! # Threads
//! All methods may be called from any thread, under no lock of this crate. A source calls a [`Subscriber`]
//! under no lock either, through [`Subscriber::settled`], exactly once per successful subscription unless it
//! is [abandoned](Subscriber::abandoned).

use std::any::Any;
use std::collections::VecDeque;
use std::fmt::Debug;
use std::sync::Arc;

use estafette_sync::sync::atomic::{AtomicBool, Ordering};
use estafette_sync::thread_local;

use crate::log_panic::log_panic;
use crate::{DLDevice, DeviceError, FenceState, Order, Queue, QueueId};

/// The outcome of a fence.
pub type Outcome = Result<(), DeviceError>;

/// The progress of one in-order queue.
pub trait Timeline: Send + Sync + Debug + Any {
    /// The queue.
    fn queue(&self) -> QueueId;

    /// Its device.
    fn device(&self) -> DLDevice;

    /// The newest sequence number known to be done. One load, never a driver call; never goes back.
    fn completed(&self) -> u64;

    /// The failure of the queue. Sticky: whatever [`Timeline::poll`] does not cover from now on has failed
    /// with this root error, as the queue completes nothing more.
    fn failure(&self) -> Option<DeviceError>;

    /// Asks the driver about the oldest unfinished fence and returns the new [`Timeline::completed`]. A
    /// failure found on the way becomes [`Timeline::failure`].
    fn poll(&self) -> u64;

    /// As [`poll`](Timeline::poll), for a caller interested in `sequence`. A queue that reports progress only
    /// on request sends that request now.
    fn poll_for(&self, sequence: u64) -> u64 {
        let _ = sequence;
        self.poll()
    }

    /// True if `sequence` is done, as far as loads tell: no driver call, no lock. `None` if the timeline has
    /// to be polled, or a poll is due.
    fn peek(&self, sequence: u64) -> Option<bool> {
        (self.completed() >= sequence).then_some(true)
    }

    /// True if each query costs one load and the timeline notifies no subscriber: then a waiter polls for a
    /// moment.
    fn query_is_cheap(&self) -> bool {
        false
    }

    /// Arranges that `subscriber` learns how `sequence` settled. A queue that records native events lazily
    /// makes sure now that one covers `sequence`.
    fn watch(&self, sequence: u64, subscriber: &Arc<dyn Subscriber>) -> Watch;
}

/// A stand-alone thing that settles once.
pub trait Event: Send + Sync + Debug + Any {
    /// The device that runs the work (the host for promises).
    fn device(&self) -> DLDevice;

    /// The queue on which it was recorded, where there is one.
    fn queue(&self) -> Option<QueueId> {
        None
    }

    /// The state of the event. May query the driver while pending; the answer after pending never changes.
    fn state(&self) -> FenceState;

    /// True if it is known to be done without a query. May be false for something done.
    fn observed_done(&self) -> bool;

    /// As [`state`](Event::state), where that may call a driver: pending unless more is known without a call.
    fn observed_state(&self) -> FenceState {
        self.state()
    }

    /// Arranges that `subscriber` learns how it settled. A panic is a failure of the fence, and the
    /// subscriber learns that.
    fn watch(&self, subscriber: &Arc<dyn Subscriber>) -> Watch;

    /// A waiter has gone before this settled: subscriptions whose subscriber is
    /// [abandoned](Subscriber::abandoned) may go too.
    fn waiter_left(&self) {}

    /// A foreign promise that can order work on one of our queues does so and says how; `None` means that it
    /// cannot.
    fn order_on(&self, queue: &dyn Queue) -> Option<Result<Order, DeviceError>> {
        let _ = queue;
        None
    }
}

/// The answer to a subscription.
#[derive(Debug)]
pub enum Watch {
    /// The source has settled already; the subscriber was not kept, and the caller notifies it.
    Settled(Outcome),
    /// The source keeps the subscriber and will call it.
    Subscribed,
    /// The source cannot push: the reactor has to poll it. The subscriber was not kept.
    MustPoll,
}

/// A waiter for fences.
pub trait Subscriber: Send + Sync {
    /// One watched fence has settled. Runs on the thread that observed it, under no lock; it must be short
    /// and must not block. A panic is logged and goes no further.
    fn settled(self: Arc<Self>, outcome: Outcome);

    /// True if the waiter has gone. Lists of subscribers drop abandoned ones from time to time, so a waiter
    /// that left is a harmless tombstone and no list grows without bound.
    fn abandoned(&self) -> bool {
        false
    }
}

/// A subscriber as a backend sees it: of several calls, as after a panic, the first one counts.
pub(crate) struct Once {
    subscriber: Arc<dyn Subscriber>,
    was_called: AtomicBool,
}

impl Once {
    pub(crate) fn new(subscriber: &Arc<dyn Subscriber>) -> Self {
        Self { subscriber: Arc::clone(subscriber), was_called: AtomicBool::new(false) }
    }
}

impl Subscriber for Once {
    fn settled(self: Arc<Self>, outcome: Outcome) {
        // Relaxed: it only excludes the other calls, and hands nothing over.
        if !self.was_called.swap(true, Ordering::Relaxed) {
            Arc::clone(&self.subscriber).settled(outcome);
        }
    }

    fn abandoned(&self) -> bool {
        self.subscriber.abandoned()
    }
}

/// The depth to which [`deliver`] lets callbacks nest (a callback that completes a promise whose callback
/// completes another) before it queues them instead: enough for every honest chain, far from the end of any
/// stack.
const DELIVERY_DEPTH_MAX: usize = 8;

thread_local! {
    static DELIVERY: std::cell::RefCell<Delivery> = std::cell::RefCell::new(Delivery::default());
}

#[derive(Default)]
struct Delivery {
    depth: usize,
    postponed: VecDeque<(Arc<dyn Subscriber>, Outcome)>,
}

/// Notifies `subscriber` on this thread, before the thread's outermost delivery returns. The caller holds no
/// lock.
pub(crate) fn deliver(subscriber: Arc<dyn Subscriber>, outcome: Outcome) {
    let mut now = Some((subscriber, outcome));
    // Without thread-locals (the thread is ending) nesting cannot be counted, and deliveries run where they
    // are.
    let depth = with_delivery(|delivery| {
        if delivery.depth == DELIVERY_DEPTH_MAX {
            delivery.postponed.extend(now.take());
        } else {
            delivery.depth += 1;
        }
        delivery.depth
    });
    let Some((subscriber, outcome)) = now else { return };
    notify(subscriber, outcome);
    if depth == Some(1) {
        while let Some((subscriber, outcome)) =
            with_delivery(|delivery| delivery.postponed.pop_front()).flatten()
        {
            notify(subscriber, outcome);
        }
    }
    if depth.is_some() {
        with_delivery(|delivery| delivery.depth -= 1);
    }
}

fn with_delivery<R>(f: impl FnOnce(&mut Delivery) -> R) -> Option<R> {
    DELIVERY.try_with(|delivery| f(&mut delivery.borrow_mut())).ok()
}

fn notify(subscriber: Arc<dyn Subscriber>, outcome: Outcome) {
    log_panic("a callback of a fence", || subscriber.settled(outcome));
}
