//! Jobs that no deque has: by priority and age, or in the order of their numbers.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::mem;

use estafette_sync::sync::Mutex;
use estafette_sync::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

/// While jobs with a priority wait, one of so many takes goes by age: in turn, the next is an ordinary job,
/// or the one that has a priority and has waited longest. So each class gets one of twice as many. Small
/// enough that nothing waits for long, and large enough that what is urgent loses 3 %.
pub(super) const AGE: u32 = 32;

/// Jobs with a priority: higher first, and in order of arrival among equals. Positive ones go before ordinary
/// jobs, negative ones after.
///
/// Most programs have none, so both counts can be read without the lock, and a push publishes its count
/// before the lock is released.
#[derive(Debug)]
pub(super) struct Priorities<J> {
    sorted: Mutex<Sorted<J>>,
    positive: AtomicUsize,
    all: AtomicUsize,
    /// Takes since one went by age, or came while no job was in here: that one took an ordinary job, if one
    /// waited. Relaxed, as is `turns`: they order nothing.
    takes: AtomicU32,
    /// Takes that went by age.
    turns: AtomicU32,
}

#[derive(Debug)]
struct Sorted<J> {
    /// The best first.
    best: BTreeMap<(Reverse<i32>, u64), J>,
    /// The same jobs by arrival.
    oldest: BTreeSet<(u64, i32)>,
    arrivals: u64,
}

#[derive(Debug)]
pub(super) struct PrioritizedJob<J> {
    pub(super) priority: i32,
    pub(super) arrival: u64,
    pub(super) job: J,
}

/// Whose turn it is when a take goes by age. The number grows from one such take to the next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Due {
    Ordinary(u32),
    /// The job with a priority that arrived first.
    Oldest,
}

impl<J> Sorted<J> {
    fn insert(&mut self, entry: PrioritizedJob<J>) {
        self.oldest.insert((entry.arrival, entry.priority));
        self.best.insert((Reverse(entry.priority), entry.arrival), entry.job);
    }

    fn pop_best(&mut self, wanted: impl FnOnce(i32) -> bool) -> Option<J> {
        let first = self.best.first_entry()?;
        let (Reverse(priority), arrival) = *first.key();
        wanted(priority).then(|| {
            self.oldest.remove(&(arrival, priority));
            first.remove()
        })
    }

    fn pop_oldest(&mut self) -> Option<J> {
        let (arrival, priority) = self.oldest.pop_first()?;
        self.best.remove(&(Reverse(priority), arrival))
    }
}

impl<J> Priorities<J> {
    pub(super) fn new() -> Self {
        Self {
            sorted: Mutex::new(Sorted { best: BTreeMap::new(), oldest: BTreeSet::new(), arrivals: 0 }),
            positive: AtomicUsize::new(0),
            all: AtomicUsize::new(0),
            takes: AtomicU32::new(0),
            turns: AtomicU32::new(0),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.all.load(Ordering::SeqCst) == 0
    }

    pub(super) fn push(&self, job: J, priority: i32) {
        let mut sorted = self.sorted.lock();
        sorted.arrivals += 1;
        let arrival = sorted.arrivals;
        sorted.insert(PrioritizedJob { priority, arrival, job });
        self.count(&sorted);
    }

    /// Counts a take; says whether it goes by age. Where no job is in here, as in most programs, it costs two
    /// loads.
    pub(super) fn due(&self) -> Option<Due> {
        if self.is_empty() {
            if self.takes.load(Ordering::Relaxed) != 0 {
                self.takes.store(0, Ordering::Relaxed);
            }
            return None;
        }
        if self.takes.fetch_add(1, Ordering::Relaxed) % AGE != AGE - 1 {
            return None;
        }
        let turn = self.turns.fetch_add(1, Ordering::Relaxed);
        Some(if turn.is_multiple_of(2) { Due::Ordinary(turn / 2) } else { Due::Oldest })
    }

    pub(super) fn pop_positive(&self) -> Option<J> {
        if self.positive.load(Ordering::SeqCst) == 0 {
            return None;
        }
        self.pop_by(|sorted| sorted.pop_best(|priority| priority > 0))
    }

    pub(super) fn pop(&self) -> Option<J> {
        self.pop_by(|sorted| sorted.pop_best(|_| true))
    }

    pub(super) fn pop_oldest(&self) -> Option<J> {
        self.pop_by(Sorted::pop_oldest)
    }

    fn pop_by(&self, pop: impl FnOnce(&mut Sorted<J>) -> Option<J>) -> Option<J> {
        if self.is_empty() {
            return None;
        }
        let mut sorted = self.sorted.lock();
        let job = pop(&mut sorted);
        self.count(&sorted);
        job
    }

    /// Takes everything out, best first.
    pub(super) fn take_all(&self) -> Vec<PrioritizedJob<J>> {
        if self.is_empty() {
            return Vec::new();
        }
        let mut sorted = self.sorted.lock();
        sorted.oldest.clear();
        let best = mem::take(&mut sorted.best);
        self.count(&sorted);
        drop(sorted);
        let entry = |((Reverse(priority), arrival), job)| PrioritizedJob { priority, arrival, job };
        best.into_iter().map(entry).collect()
    }

    pub(super) fn put_back(&self, entries: impl IntoIterator<Item = PrioritizedJob<J>>) {
        let mut sorted = self.sorted.lock();
        entries.into_iter().for_each(|entry| sorted.insert(entry));
        self.count(&sorted);
    }

    fn count(&self, sorted: &Sorted<J>) {
        // Counting the positive ones would be a scan; callers only need to know that the best is positive.
        let positive = sorted.best.first_key_value().is_some_and(|((Reverse(priority), _), _)| *priority > 0);
        self.positive.store(usize::from(positive), Ordering::SeqCst);
        self.all.store(sorted.best.len(), Ordering::SeqCst);
    }
}

/// Jobs that run in a given order, as far as they are here: the least number first.
///
/// Work that is enqueued on queues of devices runs in the order in which it is enqueued. A pool that takes
/// the newest job first would enqueue a chain of operations to its end before it begins the next chain, and
/// on the device nothing would overlap.
#[derive(Debug)]
pub(super) struct InOrder<J> {
    jobs: Mutex<BTreeMap<u64, J>>,
    /// Number of jobs, published before the lock is released.
    len: AtomicUsize,
}

impl<J> InOrder<J> {
    pub(super) fn new() -> Self {
        Self { jobs: Mutex::new(BTreeMap::new()), len: AtomicUsize::new(0) }
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.len.load(Ordering::SeqCst) == 0
    }

    /// Adds a job. Its number is no other job's here.
    pub(super) fn push(&self, number: u64, job: J) {
        self.locked(|jobs| jobs.insert(number, job));
    }

    pub(super) fn pop(&self) -> Option<J> {
        self.pop_if(|_| true)
    }

    /// The first job, if `wanted` is true for it.
    pub(super) fn pop_if(&self, wanted: impl FnOnce(&J) -> bool) -> Option<J> {
        if self.is_empty() {
            return None;
        }
        self.locked(|jobs| jobs.first_entry().filter(|first| wanted(first.get())).map(|first| first.remove()))
    }

    /// The first job for which `wanted` is true.
    pub(super) fn find(&self, mut wanted: impl FnMut(&J) -> bool) -> Option<J> {
        if self.is_empty() {
            return None;
        }
        self.locked(|jobs| {
            let number = jobs.iter().find_map(|(number, job)| wanted(job).then_some(*number))?;
            jobs.remove(&number)
        })
    }

    /// `job`, or the first job in exchange for it, if that comes before it and `wanted` is true for it.
    #[inline]
    pub(super) fn exchange(&self, number: u64, job: J, wanted: impl FnOnce(&J) -> bool) -> J {
        if self.is_empty() {
            return job;
        }
        self.locked(|jobs| match jobs.first_entry() {
            Some(first) if *first.key() < number && wanted(first.get()) => {
                let first = first.remove();
                jobs.insert(number, job);
                first
            }
            _ => job,
        })
    }

    fn locked<R>(&self, change: impl FnOnce(&mut BTreeMap<u64, J>) -> R) -> R {
        let mut jobs = self.jobs.lock();
        let result = change(&mut jobs);
        self.len.store(jobs.len(), Ordering::SeqCst);
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_number_comes_first_and_is_exchanged_for_a_greater_one() {
        let queue = InOrder::new();
        assert_eq!(queue.exchange(4, 4, |_| true), 4, "nothing else is here");
        [5, 2, 9].into_iter().for_each(|number| queue.push(number, number));
        assert_eq!(queue.exchange(1, 1, |_| true), 1);
        assert_eq!(queue.exchange(7, 7, |_| false), 7, "the first is not wanted");
        assert_eq!(queue.exchange(7, 7, |_| true), 2);
        assert_eq!(queue.find(|number| *number > 6), Some(7));
        assert_eq!(queue.pop_if(|number| *number > 6), None);
        assert_eq!([queue.pop(), queue.pop(), queue.pop()], [Some(5), Some(9), None]);
        assert!(queue.is_empty());
    }
}
