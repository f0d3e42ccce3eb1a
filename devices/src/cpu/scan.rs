//! Jobs in somebody's hand: taking one particular job out of the middle of the queues, for a thread that waits for just that
//! job; and moving the jobs of a thread that leaves.
//!
//! Deques cannot be searched in place, so a scan takes jobs in hand, one after the other, until it finds a wanted one,
//! and puts the others back: what came from the shared ends goes to the front of the shared queues, what came from the
//! scanning worker's own deque goes back on top of it, priorities return to the heap. So the others keep their order,
//! but for those of other workers' deques, which become shared.
//!
//! # The excluded race
//! While jobs are in hand nobody else finds them, so somebody could go to sleep although a job for him exists. Hence
//! [`Queues::scanning`] is raised before the first job is taken and lowered after the last one is back;
//! [`Queues::has_work`] is true meanwhile, which keeps workers awake, and a thread that finds nothing waits for the
//! lock of the scan and looks again; also if a scan began and ended while it looked. Scans exclude each other by that lock, which `wanted` is called under: it only
//! classifies, and must not use the pool.

use std::collections::VecDeque;
use std::mem;

use crossbeam::deque::{Stealer, Worker};
use estafette_sync::sync::atomic::Ordering;

use super::priority::{Due, Entry};
use super::queues::{Queues, retried};

impl<J> Queues<J> {
    /// The first job for which `wanted` is true. `own` is the deque of the calling worker.
    pub(super) fn take_matching(
        &self,
        own: Option<&Worker<J>>,
        mut wanted: impl FnMut(&J) -> bool,
    ) -> Option<J> {
        let _scan = self.lock_scan();
        let due = self.priorities.due();
        Hand::new(self, own).find(due, &mut wanted)
    }
}

impl<J> Queues<J> {
    /// Moves the jobs of `deque` to where everybody finds them; false if there were none. They are in hand in between, as in a
    /// scan.
    pub(super) fn share(&self, deque: &Worker<J>) -> bool {
        if deque.is_empty() {
            return false;
        }
        let _scan = self.lock_scan();
        self.scanning.fetch_add(1, Ordering::SeqCst);
        while let Some(job) = deque.pop() {
            self.push(job);
        }
        self.scanned.fetch_add(1, Ordering::SeqCst);
        self.scanning.fetch_sub(1, Ordering::SeqCst);
        true
    }
}

/// The jobs in the hand of a scan. They are put back when it ends, also when `wanted` panics.
struct Hand<'a, J> {
    queues: &'a Queues<J>,
    own: Option<&'a Worker<J>>,
    /// All of the heap, best first.
    entries: Vec<Entry<J>>,
    /// From the worker's own deque, newest first.
    popped: Vec<J>,
    /// From the shared queues, oldest first.
    shared: VecDeque<J>,
}

impl<'a, J> Hand<'a, J> {
    fn new(queues: &'a Queues<J>, own: Option<&'a Worker<J>>) -> Self {
        queues.scanning.fetch_add(1, Ordering::SeqCst);
        Self {
            queues,
            own,
            entries: queues.priorities.take_all(),
            popped: Vec::new(),
            shared: VecDeque::new(),
        }
    }

    fn find(&mut self, due: Option<Due>, wanted: &mut impl FnMut(&J) -> bool) -> Option<J> {
        let by_age = match due {
            None => None,
            Some(Due::Ordinary(_)) => self
                .find_returned(wanted)
                .or_else(|| self.find_injected(wanted))
                .or_else(|| self.find_stolen(wanted)),
            Some(Due::Oldest) => self.find_oldest_entry(wanted),
        };
        by_age
            .or_else(|| self.find_entry(|entry| entry.is_positive() && wanted(&entry.job)))
            .or_else(|| self.find_own(wanted))
            .or_else(|| self.find_returned(wanted))
            .or_else(|| self.find_injected(wanted))
            .or_else(|| self.find_stolen(wanted))
            .or_else(|| self.find_entry(|entry| !entry.is_positive() && wanted(&entry.job)))
    }

    fn find_entry(&mut self, wanted: impl FnMut(&Entry<J>) -> bool) -> Option<J> {
        let place = self.entries.iter().position(wanted)?;
        Some(self.entries.remove(place).job)
    }

    fn find_oldest_entry(&mut self, wanted: &mut impl FnMut(&J) -> bool) -> Option<J> {
        let mut by_age: Vec<usize> = (0..self.entries.len()).collect();
        by_age.sort_unstable_by_key(|&place| self.entries[place].arrival);
        let place = by_age.into_iter().find(|&place| wanted(&self.entries[place].job))?;
        Some(self.entries.remove(place).job)
    }

    fn find_own(&mut self, wanted: &mut impl FnMut(&J) -> bool) -> Option<J> {
        while let Some(job) = self.own?.pop() {
            self.popped.push(job);
            if self.popped.last().is_some_and(&mut *wanted) {
                return self.popped.pop();
            }
        }
        None
    }

    fn find_returned(&mut self, wanted: &mut impl FnMut(&J) -> bool) -> Option<J> {
        let mut returned = self.queues.lock_returned();
        self.queues.returned_len.store(0, Ordering::SeqCst);
        let looked_at = self.shared.len();
        self.shared.append(&mut returned);
        drop(returned);
        let place = looked_at + self.shared.iter().skip(looked_at).position(wanted)?;
        self.shared.remove(place)
    }

    fn find_injected(&mut self, wanted: &mut impl FnMut(&J) -> bool) -> Option<J> {
        let injector = &self.queues.injector;
        // No more than is there now, or a busy pusher would keep the scan going for ever.
        (0..injector.len()).find_map(|_| self.consider(retried(|| injector.steal())?, wanted))
    }

    fn find_stolen(&mut self, wanted: &mut impl FnMut(&J) -> bool) -> Option<J> {
        let from = |hand: &mut Self, stealer: &Stealer<J>, wanted: &mut _| {
            (0..stealer.len()).find_map(|_| hand.consider(retried(|| stealer.steal())?, wanted))
        };
        self.queues.stealers().iter().find_map(|stealer| from(self, stealer, wanted))
    }

    /// Takes the job in hand and gives it back if it is wanted.
    fn consider(&mut self, job: J, wanted: &mut impl FnMut(&J) -> bool) -> Option<J> {
        self.shared.push_back(job);
        if self.shared.back().is_some_and(wanted) { self.shared.pop_back() } else { None }
    }
}

impl<J> Drop for Hand<'_, J> {
    fn drop(&mut self) {
        if !self.entries.is_empty() {
            self.queues.priorities.put_back(self.entries.drain(..));
        }
        if let Some(own) = self.own {
            // The newest comes out first and goes back last.
            self.popped.drain(..).rev().for_each(|job| own.push(job));
        }
        if !self.shared.is_empty() {
            let mut returned = self.queues.lock_returned();
            self.shared.append(&mut returned);
            *returned = mem::take(&mut self.shared);
            self.queues.returned_len.store(returned.len(), Ordering::SeqCst);
        }
        self.queues.scanned.fetch_add(1, Ordering::SeqCst);
        self.queues.scanning.fetch_sub(1, Ordering::SeqCst);
    }
}
