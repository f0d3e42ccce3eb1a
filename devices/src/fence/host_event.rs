//! An event that is settled by hand: what stands behind promises of the host and behind marks in simulated
//! queues.
//!
//! # Protocol
//! One word says pending, done or failed, and a lock guards the list of subscribers.
//! 1. *Settle*: under the lock, store the outcome and then the word (Release), and take the list; after
//!    unlocking, call the subscribers.
//! 2. *Subscribe*: under the lock, look at the word; pending: add to the list; settled: answer at once.
//! 3. *Ask*: one Acquire load of the word; only a failure takes the lock, to clone the error.
//!
//! The excluded race: a subscriber that is added after the list was taken would never be called. Both steps
//! hold the same lock, so a subscriber either is in the list that is taken, or sees a word that is no longer
//! pending.

use std::fmt;
use std::mem;
use std::sync::Arc;

use estafette_sync::sync::Mutex;
use estafette_sync::sync::atomic::{AtomicU8, Ordering};

use crate::fence::source::{Outcome, Subscriber, Watch, deliver};
use crate::fence::waiting::{Ready, SubscriberList};
use crate::{DeviceError, FenceState};

/// The one point that the subscribers wait for.
const POINT: u64 = 0;

/// Pending. Changes once, to one of the other two.
const PENDING: u8 = 0;
const DONE: u8 = 1;
/// Failed; the error is in [`Subscribed::failure`]. Final.
const FAILED: u8 = 2;

/// Settles once; every thread may query and subscribe.
pub(crate) struct HostEvent {
    word: AtomicU8,
    inner: Mutex<Subscribed>,
}

struct Subscribed {
    failure: Option<DeviceError>,
    subscribers: SubscriberList,
}

impl HostEvent {
    pub(crate) fn new() -> Self {
        let inner = Subscribed { failure: None, subscribers: SubscriberList::default() };
        Self { word: AtomicU8::new(PENDING), inner: Mutex::new(inner) }
    }

    /// Settles the event. Returns the subscribers, which the caller notifies under no lock. Later calls do
    /// nothing.
    #[must_use = "the subscribers wait to be notified"]
    pub(crate) fn settle(&self, outcome: &Outcome) -> Vec<Ready> {
        let mut inner = self.inner.lock();
        if self.word.load(Ordering::Relaxed) != PENDING {
            return Vec::new();
        }
        inner.failure = outcome.as_ref().err().cloned();
        self.word.store(if outcome.is_ok() { DONE } else { FAILED }, Ordering::Release);
        let mut subscribers = mem::take(&mut inner.subscribers);
        drop(inner);
        let mut ready = Vec::new();
        match outcome {
            Ok(()) => subscribers.settle_through(POINT, &mut ready),
            Err(error) => subscribers.fail(error, &mut ready),
        }
        ready
    }

    /// [Settles](Self::settle) the event and notifies its subscribers; the caller holds no lock.
    pub(crate) fn settle_and_notify(&self, outcome: &Outcome) {
        self.settle(outcome).into_iter().for_each(|(subscriber, outcome)| deliver(subscriber, outcome));
    }

    pub(crate) fn state(&self) -> FenceState {
        match self.word.load(Ordering::Acquire) {
            PENDING => FenceState::Pending,
            DONE => FenceState::Done,
            _ => self.settled_outcome(&self.inner.lock()).map_or(FenceState::Pending, FenceState::from),
        }
    }

    pub(crate) fn is_done(&self) -> bool {
        self.word.load(Ordering::Acquire) == DONE
    }

    pub(crate) fn watch(&self, subscriber: &Arc<dyn Subscriber>) -> Watch {
        // Abandoned subscriptions, which are dropped under no lock.
        let mut swept = Vec::new();
        let mut inner = self.inner.lock();
        if let Some(outcome) = self.settled_outcome(&inner) {
            return Watch::Settled(outcome);
        }
        inner.subscribers.add(POINT, subscriber.clone());
        inner.subscribers.tidy(&mut swept);
        drop(inner);
        Watch::Subscribed
    }

    fn settled_outcome(&self, inner: &Subscribed) -> Option<Outcome> {
        match (self.word.load(Ordering::Acquire), &inner.failure) {
            (PENDING, _) => None,
            (_, None) => Some(Ok(())),
            (_, Some(error)) => Some(Err(error.clone())),
        }
    }
}

impl fmt::Debug for HostEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.word.load(Ordering::Acquire) {
            PENDING => "pending",
            DONE => "done",
            FAILED => "failed",
            _ => "invalid",
        })
    }
}

#[cfg(test)]
mod tests {
    use estafette_sync::sync::atomic::AtomicBool;

    use super::*;

    struct Waiter(AtomicBool);

    impl Subscriber for Waiter {
        fn settled(self: Arc<Self>, _outcome: Outcome) {}

        fn abandoned(&self) -> bool {
            self.0.load(Ordering::Relaxed)
        }
    }

    #[test]
    fn waiters_that_went_away_do_not_pile_up() {
        let signal = HostEvent::new();
        let stays: Arc<dyn Subscriber> = Arc::new(Waiter(AtomicBool::new(false)));
        assert!(matches!(signal.watch(&stays), Watch::Subscribed));
        for _ in 0..10_000 {
            let leaves: Arc<dyn Subscriber> = Arc::new(Waiter(AtomicBool::new(true)));
            assert!(matches!(signal.watch(&leaves), Watch::Subscribed));
        }
        let told = signal.settle(&Ok(()));
        assert!(told.len() <= 128, "{} entries for one live waiter", told.len());
        assert!(told.iter().any(|(subscriber, _)| Arc::ptr_eq(subscriber, &stays)));
        assert!(signal.settle(&Ok(())).is_empty(), "a second settlement notifies no subscriber");
    }
}

#[cfg(all(test, estafette_loom))]
mod models {
    use estafette_sync::cell::UnsafeCell;
    use estafette_sync::thread;

    use super::*;
    use crate::DeviceErrorKind;

    /// The work that the event stands for. Loom reports a read that the write does not happen before.
    struct HostEventModel {
        event: HostEvent,
        content: UnsafeCell<u32>,
    }

    // SAFETY: loom checks the accesses to the content.
    unsafe impl Sync for HostEventModel {}

    impl HostEventModel {
        fn read(&self) -> u32 {
            // SAFETY: loom checks this.
            self.content.with(|content| unsafe { *content })
        }
    }

    /// Reads the content when the event settles.
    struct Reader {
        model: Arc<HostEventModel>,
        told: AtomicU8,
    }

    impl Subscriber for Reader {
        fn settled(self: Arc<Self>, outcome: Outcome) {
            assert_eq!((outcome.is_ok(), self.model.read()), (true, 1));
            self.told.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Settles the event beside `meet` on another thread. The thread that settles begins: of a load of
    /// another thread before both a load and a store of its own, loom would not see that the store depends on
    /// it.
    fn settled_beside(
        outcome: impl Fn() -> Outcome + Sync + Send + Copy + 'static,
        meet: fn(&Arc<HostEventModel>),
    ) {
        loom::model(move || {
            let model = Arc::new(HostEventModel { event: HostEvent::new(), content: UnsafeCell::new(0) });
            let other = Arc::clone(&model);
            let meeting = thread::spawn(move || meet(&other));
            // SAFETY: loom checks this.
            model.content.with_mut(|content| unsafe { *content = 1 });
            for (subscriber, outcome) in model.event.settle(&outcome()) {
                subscriber.settled(outcome);
            }
            meeting.join().expect("it does not panic");
        });
    }

    #[test]
    fn what_came_before_a_settled_event_is_seen_by_those_who_ask() {
        settled_beside(
            || Ok(()),
            |model| {
                if model.event.is_done() {
                    assert_eq!(model.read(), 1);
                }
                if matches!(model.event.state(), FenceState::Done) {
                    assert_eq!(model.read(), 1);
                }
            },
        );
    }

    #[test]
    fn a_failed_event_has_its_error() {
        let fault = || Err(DeviceError::new(DeviceErrorKind::Fault, "gone"));
        settled_beside(fault, |model| match model.event.state() {
            FenceState::Pending => {}
            FenceState::Failed(error) => {
                assert_eq!((error.kind(), model.read()), (DeviceErrorKind::Fault, 1));
            }
            FenceState::Done => panic!("it fails"),
        });
    }

    #[test]
    fn a_subscriber_is_notified_once_or_at_once() {
        settled_beside(
            || Ok(()),
            |model| {
                let reader = Arc::new(Reader { model: Arc::clone(model), told: AtomicU8::new(0) });
                let subscriber: Arc<dyn Subscriber> = reader.clone();
                if let Watch::Settled(outcome) = model.event.watch(&subscriber) {
                    subscriber.settled(outcome);
                }
                while !model.event.is_done() {
                    thread::yield_now();
                }
                while reader.told.load(Ordering::Relaxed) == 0 {
                    thread::yield_now();
                }
                assert_eq!(reader.told.load(Ordering::Relaxed), 1);
            },
        );
    }
}
