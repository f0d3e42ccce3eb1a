use std::collections::BTreeMap;

use estafette_sync::sync::Mutex;
use estafette_sync::sync::atomic::{AtomicUsize, Ordering};

/// Jobs that run in a given order, as far as they are here: the least number first.
///
/// Work that is enqueued on queues of devices runs in the order in which it is enqueued. A pool that takes the newest job
/// first would enqueue a chain of operations to its end before it begins the next chain, and on the device nothing would
/// overlap.
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
