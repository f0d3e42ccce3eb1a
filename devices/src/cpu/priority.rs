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
        // Counting the positive ones would be a scan; that the best is positive is all that anybody asks.
        let positive = sorted.best.first_key_value().is_some_and(|((Reverse(priority), _), _)| *priority > 0);
        self.positive.store(usize::from(positive), Ordering::SeqCst);
        self.all.store(sorted.best.len(), Ordering::SeqCst);
    }
}
