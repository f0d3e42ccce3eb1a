//! Subscriptions to one in-order queue, oldest point first, or to one event, which has one point.

use std::collections::VecDeque;
use std::mem;
use std::sync::Arc;

use crate::DeviceError;
use crate::fence::source::{Outcome, Subscriber};

/// A subscription that is over, to be delivered under no lock.
pub(crate) type Ready = (Arc<dyn Subscriber>, Outcome);

/// Subscribers to points of one in-order queue, or to an event.
#[derive(Default)]
pub(crate) struct SubscriberList {
    pending: VecDeque<(u64, Arc<dyn Subscriber>)>,
    /// Length at which abandoned subscriptions are looked for next.
    tidy_at: usize,
}

/// A list shorter than this is never searched for abandoned subscriptions: the search would cost more than
/// they do.
const TIDY_MIN: usize = 64;

impl SubscriberList {
    pub(crate) fn is_empty(&self) -> bool {
        self.pending.is_empty()
    }

    pub(crate) fn add(&mut self, sequence: u64, subscriber: Arc<dyn Subscriber>) {
        // Points are mostly subscribed to in order, so the place is searched from the back.
        let place = self.pending.iter().rposition(|(known, _)| *known <= sequence).map_or(0, |at| at + 1);
        self.pending.insert(place, (sequence, subscriber));
    }

    /// Moves the subscribers of `completed` and of earlier points to `ready`.
    pub(crate) fn settle_through(&mut self, completed: u64, ready: &mut Vec<Ready>) {
        while let Some((_, subscriber)) = self.pending.pop_front_if(|(sequence, _)| *sequence <= completed) {
            ready.push((subscriber, Ok(())));
        }
    }

    /// Moves all subscribers to `ready`, with the failure of the queue.
    pub(crate) fn fail(&mut self, error: &DeviceError, ready: &mut Vec<Ready>) {
        ready.extend(self.pending.drain(..).map(|(_, subscriber)| (subscriber, Err(error.clone()))));
    }

    /// Moves abandoned subscriptions to `ready` if many may have gathered; telling them does nothing.
    pub(crate) fn tidy(&mut self, ready: &mut Vec<Ready>) {
        if self.pending.len() < self.tidy_at.max(TIDY_MIN) {
            return;
        }
        let (gone, kept): (Vec<_>, Vec<_>) =
            mem::take(&mut self.pending).into_iter().partition(|(_, subscriber)| subscriber.abandoned());
        self.pending = kept.into();
        self.tidy_at = self.pending.len() * 2;
        ready.extend(gone.into_iter().map(|(_, subscriber)| (subscriber, Ok(()))));
    }
}

#[cfg(test)]
mod tests {
    use estafette_sync::sync::Mutex;

    use super::*;
    use crate::DeviceErrorKind;

    #[derive(Default)]
    struct Waiter {
        outcomes: Mutex<Vec<bool>>,
    }

    impl Subscriber for Waiter {
        fn settled(self: Arc<Self>, outcome: Outcome) {
            self.outcomes.lock().push(outcome.is_ok());
        }
    }

    #[test]
    fn a_prefix_settles_and_the_rest_fails_whatever_order_they_came_in() {
        let waiters: Vec<_> = (0..6).map(|_| Arc::new(Waiter::default())).collect();
        let mut waiting = SubscriberList::default();
        for sequence in [3_usize, 1, 5, 0, 4, 2] {
            waiting.add(sequence as u64, waiters[sequence].clone());
        }
        let mut ready = Vec::new();
        waiting.settle_through(3, &mut ready);
        assert_eq!(ready.len(), 4);
        waiting.fail(&DeviceError::new(DeviceErrorKind::Fault, "gone"), &mut ready);
        assert!(waiting.is_empty());
        ready.into_iter().for_each(|(subscriber, outcome)| subscriber.settled(outcome));
        let outcomes: Vec<_> = waiters.iter().map(|waiter| waiter.outcomes.lock().clone()).collect();
        assert_eq!(outcomes, [vec![true], vec![true], vec![true], vec![true], vec![false], vec![false]]);
    }
}
