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
use std::sync::Arc;

use estafette_sync::sync::atomic::{AtomicU8, Ordering};
use estafette_sync::sync::{Mutex, MutexGuard};

use crate::fence::source::{Outcome, Subscriber, Subscribers, Watch};
use crate::{DeviceError, FenceState};

/// Pending. Changes once, to one of the other two.
const PENDING: u8 = 0;
/// Done. Final.
const DONE: u8 = 1;
/// Failed; the error is in [`Subscribed::failure`]. Final.
const FAILED: u8 = 2;

/// Settles once; everybody may ask and subscribe.
pub(crate) struct HostEvent {
    word: AtomicU8,
    inner: Mutex<Subscribed>,
}

struct Subscribed {
    failure: Option<DeviceError>,
    subscribers: Subscribers,
}

impl HostEvent {
    pub(crate) fn new() -> Self {
        let inner = Subscribed { failure: None, subscribers: Subscribers::default() };
        Self { word: AtomicU8::new(PENDING), inner: Mutex::new(inner) }
    }

    /// Settles the event. Returns the subscribers, which the caller notifies under no lock. Later calls do
    /// nothing.
    #[must_use = "the subscribers wait to be told"]
    pub(crate) fn settle(&self, outcome: &Outcome) -> Vec<Arc<dyn Subscriber>> {
        let mut inner = self.lock();
        if self.word.load(Ordering::Relaxed) != PENDING {
            return Vec::new();
        }
        inner.failure = outcome.as_ref().err().cloned();
        self.word.store(if outcome.is_ok() { DONE } else { FAILED }, Ordering::Release);
        inner.subscribers.take()
    }

    pub(crate) fn state(&self) -> FenceState {
        match self.word.load(Ordering::Acquire) {
            PENDING => FenceState::Pending,
            DONE => FenceState::Done,
            _ => self.settled_outcome(&self.lock()).map_or(FenceState::Pending, FenceState::from),
        }
    }

    pub(crate) fn is_done(&self) -> bool {
        self.word.load(Ordering::Acquire) == DONE
    }

    pub(crate) fn watch(&self, subscriber: &Arc<dyn Subscriber>) -> Watch {
        let swept = {
            let mut inner = self.lock();
            if let Some(outcome) = self.settled_outcome(&inner) {
                return Watch::Settled(outcome);
            }
            inner.subscribers.add(subscriber.clone())
        };
        drop(swept);
        Watch::Subscribed
    }

    fn settled_outcome(&self, inner: &Subscribed) -> Option<Outcome> {
        match (self.word.load(Ordering::Acquire), &inner.failure) {
            (PENDING, _) => None,
            (_, None) => Some(Ok(())),
            (_, Some(error)) => Some(Err(error.clone())),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Subscribed> {
        self.inner.lock()
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
        let waiting = signal.lock().subscribers.len();
        assert!(waiting <= 32, "{waiting} entries for one live waiter");
        let told = signal.settle(&Ok(()));
        assert!(told.iter().any(|subscriber| Arc::ptr_eq(subscriber, &stays)));
        assert!(signal.settle(&Ok(())).is_empty(), "settling twice tells nobody twice");
    }
}
