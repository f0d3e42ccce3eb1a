//! A queue's knowledge of other queues: the vector clock that makes repeated waits unnecessary.
//!
//! # Idea
//! When queue *B* has been made to wait for point *s* of queue *A*, everything enqueued on *B* later is
//! ordered after everything up to *s* on *A*. A second wait for *s*, or for anything before it, would change
//! nothing. The same holds for whatever *A* itself had been made to wait for before *s* was recorded. So:
//!
//! 1. every queue keeps a [`QueueClock`]: for each other queue the newest number it is ordered after;
//! 2. every fence carries the [`Clock`] of its queue at the moment it was recorded;
//! 3. a wait for a fence is skipped when the queue's clock covers it, and otherwise merges the fence's clock.
//!
//! # What is sound
//! Forgetting an entry only costs a wait, so a clock is bounded: it keeps the entries used last. Claiming an
//! entry too much would lose a wait, so an entry is made only after the wait has been enqueued, and the clock
//! is read and changed under the lock of its queue. A fence without a queue, as that of a promise, is
//! never in a clock.
//!
//! An out-of-order queue is not even ordered after its own records, so it appears in its own clock like any
//! other queue. Its records cover everything enqueued before, which makes their numbers ordered among
//! themselves.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::{Fence, QueueId};

/// Entries that a clock keeps. A queue that works with more than this many others at once waits more often
/// than it must; comparing clocks stays cheap.
const CLOCK_ENTRIES_MAX: usize = 16;

/// An immutable vector clock: of each named queue, the newest number that is ordered before. Cloning is
/// cheap.
#[derive(Clone, Default)]
pub struct Clock(Option<Arc<Entries>>);

/// Most recently used first.
type Entries = SmallVec<[(QueueId, u64); 4]>;

impl Clock {
    /// True if everything up to `sequence` on `queue` is known to be ordered before.
    pub fn covers(&self, queue: QueueId, sequence: u64) -> bool {
        self.entries().iter().any(|&(known, newest)| known == queue && newest >= sequence)
    }

    /// True if nothing is known.
    pub fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    fn entries(&self) -> &[(QueueId, u64)] {
        self.0.as_deref().map_or(&[], SmallVec::as_slice)
    }
}

debug_as!(clock: Clock, "{:?}", clock.entries());

/// The clock of one queue. Lives under the lock that the queue holds while it enqueues.
#[derive(Debug)]
pub struct QueueClock {
    queue: QueueId,
    in_order: bool,
    seen: Clock,
}

impl QueueClock {
    /// The clock of a queue that has waited for nothing.
    pub fn new(queue: QueueId, in_order: bool) -> Self {
        Self { queue, in_order, seen: Clock::default() }
    }

    /// True if work enqueued next is ordered after `fence` already.
    pub fn covers(&self, fence: &Fence) -> bool {
        let (Some(queue), Some(sequence)) = (fence.queue(), fence.sequence()) else { return false };
        (self.in_order && queue == self.queue) || self.seen.covers(queue, sequence)
    }

    /// A device-side wait for `fence` has been enqueued: from here on, this queue is ordered after it and
    /// after everything its queue had seen.
    pub fn note_wait(&mut self, fence: &Fence) {
        let (Some(queue), Some(sequence)) = (fence.queue(), fence.sequence()) else { return };
        let mut entries = Entries::from_slice(self.seen.entries());
        for &(queue, sequence) in fence.seen().entries().iter().rev() {
            self.raise(&mut entries, queue, sequence);
        }
        self.raise(&mut entries, queue, sequence);
        entries.truncate(CLOCK_ENTRIES_MAX);
        self.seen = Clock(Some(Arc::new(entries)));
    }

    /// The clock for a fence that is recorded now.
    pub fn snapshot(&self) -> Clock {
        self.seen.clone()
    }

    /// Raises the entry of `queue` and moves it to the front.
    fn raise(&self, entries: &mut Entries, queue: QueueId, sequence: u64) {
        if self.in_order && queue == self.queue {
            return;
        }
        let mut newest = sequence;
        if let Some(index) = entries.iter().position(|&(known, _)| known == queue) {
            newest = newest.max(entries.remove(index).1);
        }
        entries.insert(0, (queue, newest));
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;
    use crate::fence::source::Timeline;
    use crate::reactor::double::Driver;
    /// A queue with its clock, and what it is really ordered after: the numbers of records in the whole
    /// history.
    struct Modelled {
        timeline: Arc<Driver>,
        in_order: bool,
        clock: QueueClock,
        before_work: BTreeSet<usize>,
        before_record: BTreeSet<usize>,
        records: u64,
    }

    struct Record {
        fence: Fence,
        after: BTreeSet<usize>,
    }

    #[derive(Debug, Clone)]
    enum QueueStep {
        Record { queue: usize },
        Wait { queue: usize, record: usize },
    }

    fn steps(queues: usize) -> impl Strategy<Value = Vec<QueueStep>> {
        let step = prop_oneof![
            (0..queues).prop_map(|queue| QueueStep::Record { queue }),
            (0..queues, 0..1_000_usize).prop_map(|(queue, record)| QueueStep::Wait { queue, record }),
        ];
        prop::collection::vec(step, 1..80)
    }

    /// Plays `steps`; at the end, everything that the clocks claim must be so. With `exact`, what is so must
    /// be claimed.
    fn play(in_order: &[bool], steps: &[QueueStep], exact: bool) {
        let mut queues: Vec<_> = in_order
            .iter()
            .map(|&in_order| {
                let timeline = Driver::new();
                let id = timeline.queue();
                Modelled {
                    timeline,
                    in_order,
                    clock: QueueClock::new(id, in_order),
                    before_work: BTreeSet::new(),
                    before_record: BTreeSet::new(),
                    records: 0,
                }
            })
            .collect();
        let mut history: Vec<Record> = Vec::new();
        for step in steps {
            match *step {
                QueueStep::Record { queue } => {
                    let queue = &mut queues[queue];
                    queue.records += 1;
                    let fence = Fence::point(queue.timeline.clone(), queue.records, queue.clock.snapshot());
                    let after = queue.before_record.clone();
                    queue.before_record.insert(history.len());
                    if queue.in_order {
                        queue.before_work.insert(history.len());
                    }
                    history.push(Record { fence, after });
                }
                QueueStep::Wait { queue, record } if !history.is_empty() => {
                    let number = record % history.len();
                    let record = &history[number];
                    let queue = &mut queues[queue];
                    if !queue.clock.covers(&record.fence) {
                        queue.clock.note_wait(&record.fence);
                    }
                    for set in [&mut queue.before_work, &mut queue.before_record] {
                        set.insert(number);
                        set.extend(&record.after);
                    }
                }
                QueueStep::Wait { .. } => {}
            }
        }
        for queue in &queues {
            for (number, record) in history.iter().enumerate() {
                let (claimed, so) = (queue.clock.covers(&record.fence), queue.before_work.contains(&number));
                assert!(so || !claimed, "a wait for record {number} would be lost");
                assert!(claimed || !so || !exact, "a wait for record {number} would be made in vain");
            }
        }
        for (later, record) in history.iter().enumerate() {
            for (earlier, other) in history.iter().enumerate() {
                let claimed = record.fence.same_or_later_on_queue(&other.fence);
                let so = later == earlier || record.after.contains(&earlier);
                assert!(so || !claimed, "record {later} is not ordered after record {earlier}");
                assert!(claimed || !so || !exact, "record {later} is ordered after record {earlier}");
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

        #[test]
        fn a_wait_is_skipped_exactly_when_it_is_implied(steps in steps(5)) {
            play(&[true, true, true, false, false], &steps, true);
        }

        #[test]
        fn forgetting_costs_waits_but_loses_none(steps in steps(CLOCK_ENTRIES_MAX + 4)) {
            let mut in_order = vec![true; CLOCK_ENTRIES_MAX + 4];
            in_order[3] = false;
            play(&in_order, &steps, false);
        }
    }

    #[test]
    fn a_clock_is_bounded_and_forgets_what_was_used_longest_ago() {
        let fences: Vec<_> =
            (0..CLOCK_ENTRIES_MAX + 1).map(|_| Fence::point(Driver::new(), 1, Clock::default())).collect();
        let mut clock = QueueClock::new(QueueId::next(), true);
        fences.iter().for_each(|fence| clock.note_wait(fence));
        assert!(!clock.covers(&fences[0]));
        assert!(fences[1..].iter().all(|fence| clock.covers(fence)));
    }
}
