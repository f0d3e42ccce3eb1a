//! The queues of jobs.
//!
//! A worker takes, in this order: jobs of positive priority, its own deque (newest first: what it pushed is
//! warm), jobs that were looked at and put back, the injector (oldest first), the other threads' deques
//! (oldest first), jobs of negative priority. Breadth first, it takes up to [`BATCH`] jobs at once from the
//! injector and the other deques, and of its own the oldest first: so the successors of a batch follow
//! behind all of it. Threads from outside that push have *external* deques (taken from oldest first by every
//! thread); the injector is for those that came when all were taken. Every
//! [`FAIR_TICKS`] jobs the shared ends come first, so neither the injector nor the old end of its own deque
//! can starve while it feeds itself.
//!
//! Jobs [in order](InOrder) are those that enqueue work on devices. They take turns with the deques, so that
//! neither the devices nor the host wait for the other's backlog.
//!
//! Priorities age: while jobs with a priority wait, every [`AGE`]th take of the pool, by whichever thread,
//! goes by age. In turn it takes one of the oldest ordinary jobs, from another deque each time, or the job
//! with a priority that has waited longest. So of 2 × `AGE` takes at least one is an ordinary job, if one
//! waits, and at least one the oldest of those with a priority.

use std::collections::VecDeque;
use std::mem;

use estafette_sync::sync::Mutex;
use estafette_sync::sync::atomic::{AtomicUsize, Ordering, fence};

use super::deques::{self, Injector, Steal, Stealer, Worker};
use super::sorted::{Due, InOrder, Priorities, PrioritizedJob};

/// After this many jobs a worker serves the shared queues before its own deque. Prime, so that it does not
/// fall into step with loops in the work; the number is tokio's.
const FAIR_TICKS: u32 = 61;

/// Jobs that a worker takes at once, breadth first. They are many enough that code which a batch shares stays
/// in the caches, and few enough for the results of a batch, which all exist at the same time.
const BATCH: usize = 16;

/// The number of times that a steal which lost a race is tried again before it counts as "found nothing
/// here". Each loss means that another thread got a job, and a worker looks once more before it sleeps.
const STEAL_RETRIES_MAX: usize = 32;

#[derive(Debug)]
pub(super) struct Queues<J> {
    pub(super) priorities: Priorities<J>,
    pub(super) in_order: InOrder<J>,
    /// Jobs that a scan took from the front of the injector or from the old end of a deque and did
    /// not want. They are older than what is still there, so they go first.
    returned: Mutex<VecDeque<J>>,
    returned_len: AtomicUsize,
    injector: Injector<J>,
    /// Of the workers' deques, then of the external ones.
    stealers: Box<[Stealer<J>]>,
    /// The number of stealers that are the workers'.
    workers: usize,
    /// The number of stealers that are searched: external deques that no thread has had yet are empty.
    used: AtomicUsize,
    /// Held while a thread looks for a particular job (`take_matching`).
    scan: Mutex<()>,
    /// Scans that hold jobs in their hands.
    scanning: AtomicUsize,
    /// Scans that have put everything back.
    scanned: AtomicUsize,
}

impl<J> Queues<J> {
    /// Queues with one deque for each of `workers` workers and `external` outside threads.
    pub(super) fn new(workers: usize, external: usize) -> (Self, Vec<Worker<J>>, Vec<Worker<J>>) {
        deques::make_shared();
        let owned: Vec<_> = std::iter::repeat_with(Worker::new_lifo).take(workers).collect();
        // The last one is given out first.
        let lent: Vec<_> = std::iter::repeat_with(Worker::new_fifo).take(external).collect();
        let queues = Self {
            priorities: Priorities::new(),
            in_order: InOrder::new(),
            returned: Mutex::new(VecDeque::new()),
            returned_len: AtomicUsize::new(0),
            injector: Injector::new(),
            stealers: owned.iter().chain(lent.iter().rev()).map(Worker::stealer).collect(),
            workers,
            used: AtomicUsize::new(workers),
            scan: Mutex::new(()),
            scanning: AtomicUsize::new(0),
            scanned: AtomicUsize::new(0),
        };
        (queues, owned, lent)
    }

    pub(super) fn set_external_in_use(&self, count: usize) {
        self.used.fetch_max(self.workers + count, Ordering::SeqCst);
    }

    /// The stealers of deques that may hold something.
    fn stealers(&self) -> &[Stealer<J>] {
        &self.stealers[..self.used.load(Ordering::SeqCst)]
    }

    pub(super) fn push(&self, job: J) {
        self.injector.push(job);
    }

    /// True if a job is queued, or held by a thread that may put it back.
    pub(super) fn has_work(&self) -> bool {
        let scanned = self.scanned.load(Ordering::SeqCst);
        let (workers, external) = self.stealers().split_at(self.workers);
        let waits = |stealers: &[Stealer<J>]| stealers.iter().any(|stealer| !stealer.is_empty());
        // In the order in which jobs move on, so that one that moves meanwhile is met where it comes from or
        // where it goes to; jobs in hand move backwards. What one worker takes from another may be missed: it
        // is awake, and runs that.
        self.scanning.load(Ordering::SeqCst) > 0
            || !self.priorities.is_empty()
            || !self.in_order.is_empty()
            || waits(external)
            || self.returned_len.load(Ordering::SeqCst) > 0
            || !self.injector.is_empty()
            || waits(workers)
            || self.scanned.load(Ordering::SeqCst) != scanned
    }

    /// The next job for the worker that owns deque number `index`; `ticks` counts the jobs that it has run.
    /// `breadth_first`: successors follow behind their batch, instead of at once.
    pub(super) fn take(&self, index: usize, own: &Worker<J>, ticks: u32, breadth_first: bool) -> Option<J> {
        let fair = || {
            let tick = ticks % FAIR_TICKS == FAIR_TICKS - 1;
            tick.then(|| {
                self.pop_returned()
                    .or_else(|| retried(|| self.injector.steal()))
                    .or_else(|| {
                        self.stealers()[self.workers..]
                            .iter()
                            .find_map(|registered| retried(|| registered.steal()))
                    })
                    .or_else(|| retried(|| self.stealers[index].steal()))
            })
            .flatten()
        };
        let ordinary = || {
            if breadth_first {
                return self.take_breadth_first(index, own);
            }
            own.pop()
                .or_else(|| self.pop_returned())
                .or_else(|| retried(|| self.injector.steal_batch_and_pop(own)))
                .or_else(|| self.steal(index, |stealer| stealer.steal_batch_and_pop(own)))
        };
        let in_order = || self.in_order.pop();
        let sorted = self.take_sorted().or_else(fair);
        let job = if ticks.is_multiple_of(2) {
            sorted.or_else(in_order).or_else(ordinary)
        } else {
            sorted.or_else(ordinary).or_else(in_order)
        };
        job.or_else(|| self.priorities.pop())
    }

    /// The oldest own job, else the first of a new batch, whose others become own jobs.
    fn take_breadth_first(&self, index: usize, own: &Worker<J>) -> Option<J> {
        if let Some(job) = retried(|| self.stealers[index].steal()) {
            return Some(job);
        }
        let others = || self.stealers().iter().enumerate().filter(|(place, _)| *place != index);
        let shared = || {
            let injected = self.pop_returned().or_else(|| retried(|| self.injector.steal()));
            injected.or_else(|| others().find_map(|(_, stealer)| retried(|| stealer.steal())))
        };
        let first = shared()?;
        (1..BATCH).map_while(|_| shared()).for_each(|job| own.push(job));
        Some(first)
    }

    /// The next job for a thread that is no worker; `own` is its external deque.
    pub(super) fn take_from_outside(&self, own: Option<&Worker<J>>) -> Option<J> {
        loop {
            let scanned = self.scanned.load(Ordering::SeqCst);
            let job = self
                .take_sorted()
                .or_else(|| self.pop_returned())
                .or_else(|| self.in_order.pop())
                .or_else(|| own?.pop())
                .or_else(|| retried(|| self.injector.steal()))
                .or_else(|| self.steal(0, Stealer::steal))
                .or_else(|| self.priorities.pop());
            if job.is_some() || !self.was_scanned_since(scanned) {
                return job;
            }
        }
    }

    /// The job that goes before ordinary ones, or the one whose turn it is by age.
    fn take_sorted(&self) -> Option<J> {
        match self.priorities.due() {
            None => None,
            Some(Due::Ordinary(turn)) => self.take_oldest(turn),
            Some(Due::Oldest) => self.priorities.pop_oldest(),
        }
        .or_else(|| self.priorities.pop_positive())
    }

    /// One of the oldest ordinary jobs; each `turn` begins at another deque.
    fn take_oldest(&self, turn: u32) -> Option<J> {
        self.pop_returned().or_else(|| {
            let stealers = self.stealers();
            let places = stealers.len() + 1;
            (0..places).find_map(|at| match (turn as usize + at) % places {
                0 => retried(|| self.injector.steal()),
                place => retried(|| stealers[place - 1].steal()),
            })
        })
    }

    /// True if a scan had jobs in hand at any time since `scanned` were over. Waits until none has.
    fn was_scanned_since(&self, scanned: usize) -> bool {
        let scanning = self.scanning.load(Ordering::SeqCst) > 0;
        if scanning {
            drop(self.scan.lock());
        }
        scanning || self.scanned.load(Ordering::SeqCst) != scanned
    }

    /// True if there are jobs whose place among the others matters.
    pub(super) fn has_sorted(&self) -> bool {
        !self.priorities.is_empty() || self.returned_len.load(Ordering::SeqCst) > 0
    }

    /// A job of no priority, for a thread that is no worker; `own` is its external deque.
    pub(super) fn take_unsorted(&self, own: Option<&Worker<J>>) -> Option<J> {
        own.and_then(Worker::pop)
            .or_else(|| retried(|| self.injector.steal()))
            .or_else(|| self.steal(0, Stealer::steal))
    }

    /// Puts a job that was just taken in front of the others.
    pub(super) fn put_back(&self, job: J) {
        let mut returned = self.returned.lock();
        returned.push_front(job);
        self.returned_len.store(returned.len(), Ordering::SeqCst);
    }

    fn pop_returned(&self) -> Option<J> {
        if self.returned_len.load(Ordering::SeqCst) == 0 {
            return None;
        }
        let mut returned = self.returned.lock();
        let job = returned.pop_front();
        self.returned_len.store(returned.len(), Ordering::SeqCst);
        job
    }

    /// Steals from the deques in turn, beginning behind `start`, so that thieves spread over their victims.
    fn steal(&self, start: usize, mut steal: impl FnMut(&Stealer<J>) -> Steal<J>) -> Option<J> {
        let (before, behind) = self.stealers().split_at(start);
        behind.iter().chain(before).find_map(|stealer| retried(|| steal(stealer)))
    }

    /// Jobs are taken in hand from here on.
    fn begin_scan(&self) {
        self.scanning.fetch_add(1, Ordering::SeqCst);
        // A thread that misses a job sees this. The pop of its owner releases nothing by itself.
        fence(Ordering::Release);
    }
}

/// Repeats a steal that lost a race, a bounded number of times.
fn retried<J>(mut steal: impl FnMut() -> Steal<J>) -> Option<J> {
    (0..STEAL_RETRIES_MAX).map(|_| steal()).find(|attempt| !attempt.is_retry()).and_then(Steal::success)
}

// Jobs in hand: a thread takes one particular job that it waits for out of the middle of the queues, or moves
// the jobs of a thread that leaves.
//
// Deques cannot be searched in place, so a scan takes jobs in hand, one after the other, until it finds a
// wanted one, and puts the others back: what came from the shared ends goes to the front of the shared
// queues, what came from the scanning worker's own deque goes back on top of it, priorities return to the
// heap. So the others keep their order, but for those of other workers' deques, which become shared.
//
// # The excluded race
// While jobs are in hand no other thread finds them, so a worker could fall asleep although a job exists.
// Hence [`Queues::scanning`] is raised before the first job is taken and lowered after the last one is back;
// [`Queues::has_work`] is true meanwhile, which keeps workers awake, and a thread that finds nothing waits
// for the lock of the scan and looks again; also if a scan began and ended while it looked. Scans exclude
// each other by that lock, which `wanted` is called under: it only classifies, and must not use the pool.

impl<J> Queues<J> {
    /// The first job for which `wanted` is true. `own` is the deque of the calling worker.
    pub(super) fn take_matching(
        &self,
        own: Option<&Worker<J>>,
        mut wanted: impl FnMut(&J) -> bool,
    ) -> Option<J> {
        let _scan = self.scan.lock();
        let due = self.priorities.due();
        Hand::new(self, own).find(due, &mut wanted)
    }

    /// Moves the jobs of `deque` to the shared queue; false if there were none. They are in hand in
    /// between, as in a scan.
    pub(super) fn share(&self, deque: &Worker<J>) -> bool {
        if deque.is_empty() {
            return false;
        }
        let _scan = self.scan.lock();
        self.begin_scan();
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
    entries: Vec<PrioritizedJob<J>>,
    /// From the worker's own deque, newest first.
    popped: Vec<J>,
    /// From the shared queues, oldest first.
    shared: VecDeque<J>,
}

impl<'a, J> Hand<'a, J> {
    fn new(queues: &'a Queues<J>, own: Option<&'a Worker<J>>) -> Self {
        queues.begin_scan();
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
            .or_else(|| self.find_entry(|entry| entry.priority > 0 && wanted(&entry.job)))
            .or_else(|| self.queues.in_order.find(&mut *wanted))
            .or_else(|| self.find_own(wanted))
            .or_else(|| self.find_returned(wanted))
            .or_else(|| self.find_injected(wanted))
            .or_else(|| self.find_stolen(wanted))
            .or_else(|| self.find_entry(|entry| entry.priority <= 0 && wanted(&entry.job)))
    }

    fn find_entry(&mut self, wanted: impl FnMut(&PrioritizedJob<J>) -> bool) -> Option<J> {
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
        let mut returned = self.queues.returned.lock();
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

    /// Takes the job in hand, and returns it if it is wanted.
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
            let mut returned = self.queues.returned.lock();
            self.shared.append(&mut returned);
            *returned = mem::take(&mut self.shared);
            self.queues.returned_len.store(returned.len(), Ordering::SeqCst);
        }
        self.queues.scanned.fetch_add(1, Ordering::SeqCst);
        self.queues.scanning.fetch_sub(1, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The jobs that worker 0 of two takes; each job below 100 is followed by one that is 100 more.
    fn taken(jobs: u32, breadth_first: bool) -> Vec<u32> {
        let (queues, owned, _) = Queues::new(2, 0);
        (0..jobs).for_each(|job| queues.push(job));
        let mut taken = vec![];
        while let Some(job) = queues.take(0, &owned[0], 0, breadth_first) {
            taken.push(job);
            if job < 100 {
                owned[0].push(job + 100);
            }
        }
        taken
    }

    #[test]
    fn the_successors_of_a_batch_follow_behind_all_of_it() {
        let size = BATCH as u32;
        let batches = [0..size, 100..100 + size, size..size + 3, 100 + size..103 + size];
        assert_eq!(taken(size + 3, true), batches.into_iter().flatten().collect::<Vec<_>>());
    }

    #[test]
    fn depth_first_a_successor_follows_at_once() {
        let pairs = (0..40).flat_map(|job| [job, job + 100]);
        assert_eq!(taken(40, false), pairs.collect::<Vec<_>>());
    }

    #[test]
    fn a_batch_takes_what_another_worker_has_too() {
        let (queues, owned, _) = Queues::new(2, 0);
        (0..3).for_each(|job| owned[1].push(job));
        assert_eq!(queues.take(0, &owned[0], 0, true), Some(0));
        assert_eq!((owned[0].len(), owned[1].len()), (2, 0));
    }
}
