//! The list that the reactor polls: one entry per in-order queue, and the stand-alone events. No thread, no
//! clock.

use std::collections::BTreeMap;
use std::sync::Arc;

use estafette_sync::panic::contain_panic;

use crate::fence::source::{Event, Subscriber, Timeline};
use crate::fence::waiting::{Ready, SubscriberList};
use crate::fence::{contained, panicked};
use crate::{DeviceError, Fence, QueueId};

pub(super) struct Armed {
    pub(super) fence: Fence,
    pub(super) subscriber: Arc<dyn Subscriber>,
}

#[derive(Default)]
pub(super) struct PollList {
    /// Ordered by identity, so that sweeps are deterministic.
    queues: BTreeMap<QueueId, PolledQueue>,
    events: Vec<(Arc<dyn Event>, Arc<dyn Subscriber>)>,
}

/// One in-order queue. Only the queue is asked, never a single fence: one answer settles a whole prefix.
struct PolledQueue {
    timeline: Arc<dyn Timeline>,
    waiting: SubscriberList,
}

impl PollList {
    pub(super) fn add(&mut self, armed: Armed) {
        let Armed { fence, subscriber } = armed;
        if let Some((timeline, sequence)) = fence.as_point() {
            let queue = || PolledQueue { timeline: timeline.clone(), waiting: SubscriberList::default() };
            self.queues.entry(timeline.queue()).or_insert_with(queue).waiting.add(sequence, subscriber);
        } else if let Some(event) = fence.as_event() {
            self.events.push((event.clone(), subscriber));
        }
    }

    /// Asks every queue once and every event once, and moves what has settled to `ready`. Abandoned
    /// subscriptions go there as well: telling them does nothing. Without `drivers`, only those are asked
    /// whose answer is a load. Says whether there are such.
    pub(super) fn sweep(&mut self, drivers: bool, ready: &mut Vec<Ready>) -> bool {
        let mut loads = false;
        self.queues.retain(|_, queue| {
            let is_load = queue.timeline.query_is_cheap();
            loads |= is_load;
            if is_load || drivers {
                queue.sweep(ready);
            }
            !queue.waiting.is_empty()
        });
        if !drivers {
            return loads;
        }
        let mut index = 0;
        while let Some((event, subscriber)) = self.events.get(index) {
            let outcome =
                if subscriber.abandoned() { Some(Ok(())) } else { contained(|| event.state()).outcome() };
            match outcome {
                None => index += 1,
                Some(outcome) => ready.push((self.events.swap_remove(index).1, outcome)),
            }
        }
        loads
    }
}

impl PolledQueue {
    fn sweep(&mut self, ready: &mut Vec<Ready>) {
        let (failure, completed) = poll(&self.timeline);
        self.waiting.settle_through(completed, ready);
        if let Some(error) = failure {
            self.waiting.fail(&error, ready);
        }
        self.waiting.tidy(ready);
    }
}

/// Polls a queue. The failure is read before the counter, which it freezes: what the counter covers is done
/// even if the queue failed since. A failure that only this poll finds is seen by the next sweep.
///
/// A backend that panics has failed: those who wait must not hang.
fn poll(timeline: &Arc<dyn Timeline>) -> (Option<DeviceError>, u64) {
    contain_panic(|| (timeline.failure(), timeline.poll())).unwrap_or_else(|panic| {
        // The names are a backend's code as well.
        let queue = contain_panic(|| format!(" ({} of {})", timeline.queue(), timeline.device()));
        let error = panicked(&format!("{panic}{}", queue.unwrap_or_default()));
        (Some(error), timeline.completed())
    })
}

#[cfg(test)]
mod tests {
    use estafette_sync::sync::atomic::Ordering;

    use super::super::double::Driver;
    use super::*;
    use crate::fence::source::Outcome;
    use crate::{Clock, DeviceErrorKind};

    struct Nobody;

    impl Subscriber for Nobody {
        fn settled(self: Arc<Self>, _outcome: Outcome) {}
    }

    fn armed(driver: &Arc<Driver>, sequence: u64) -> Armed {
        let fence = Fence::point(driver.clone(), sequence, Clock::default());
        Armed { fence, subscriber: Arc::new(Nobody) }
    }

    #[test]
    fn a_queue_with_many_fences_is_asked_once_per_sweep() {
        let (one, two) = (Driver::new(), Driver::new());
        let mut poll_list = PollList::default();
        for sequence in 1..=1_000 {
            poll_list.add(armed(&one, sequence));
            poll_list.add(armed(&two, sequence));
        }
        let mut ready = Vec::new();
        poll_list.sweep(true, &mut ready);
        assert!(ready.is_empty());
        one.completed.store(400, Ordering::Release);
        poll_list.sweep(true, &mut ready);
        assert_eq!(ready.len(), 400);
        one.completed.store(1_000, Ordering::Release);
        poll_list.sweep(true, &mut ready);
        poll_list.sweep(true, &mut ready);
        assert_eq!(ready.len(), 1_000);
        let queries = [&one, &two].map(|driver| driver.queries.load(Ordering::Relaxed));
        assert_eq!(queries, [3, 4], "a queue without pending fences is not asked any more");
    }

    #[test]
    fn without_drivers_only_those_are_asked_whose_answer_is_a_load() {
        let (one, two) = (Driver::new(), Driver::new());
        two.is_cheap.store(true, Ordering::Relaxed);
        let mut poll_list = PollList::default();
        [&one, &two].into_iter().for_each(|driver| poll_list.add(armed(driver, 1)));
        [&one, &two].into_iter().for_each(|driver| driver.completed.store(1, Ordering::Release));
        let mut ready = Vec::new();
        assert!(poll_list.sweep(false, &mut ready), "one of them answers by a load");
        let queries = [&one, &two].map(|driver| driver.queries.load(Ordering::Relaxed));
        assert_eq!((ready.len(), queries), (1, [0, 1]));
        assert!(!poll_list.sweep(true, &mut ready));
        assert_eq!(ready.len(), 2);
    }

    #[test]
    fn a_queue_that_panics_twice_fails_what_waits_for_it() {
        let driver = Driver::new();
        let mut poll_list = PollList::default();
        poll_list.add(armed(&driver, 1));
        driver.panics.store(true, Ordering::Relaxed);
        let mut ready = Vec::new();
        poll_list.sweep(true, &mut ready);
        assert!(matches!(&ready[..], [(_, Err(_))]));
    }

    #[test]
    fn a_failed_queue_fails_what_its_counter_does_not_cover() {
        let driver = Driver::new();
        let mut poll_list = PollList::default();
        (1..=3).for_each(|sequence| poll_list.add(armed(&driver, sequence)));
        driver.completed.store(1, Ordering::Release);
        *driver.failure.lock() = Some(DeviceError::new(DeviceErrorKind::Fault, "gone"));
        let mut ready = Vec::new();
        poll_list.sweep(true, &mut ready);
        let done: Vec<_> = ready.iter().map(|(_, outcome)| outcome.is_ok()).collect();
        assert_eq!(done, [true, false, false]);
        assert!(poll_list.queues.is_empty());
    }
}
