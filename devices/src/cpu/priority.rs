use std::cmp::{Ordering as Rank, Reverse};
use std::collections::BinaryHeap;
use std::mem;
use std::sync::PoisonError;

use estafette_sync::sync::atomic::{AtomicUsize, Ordering};
use estafette_sync::sync::{Mutex, MutexGuard};

/// Jobs with a priority: higher first, and in order of arrival among equals. Positive ones go before ordinary jobs,
/// negative ones after.
///
/// Most programs have none, so both counts can be read without the lock, and a push publishes its count before the
/// lock is released.
#[derive(Debug)]
pub(super) struct Priorities<J> {
    heap: Mutex<Heap<J>>,
    positive: AtomicUsize,
    all: AtomicUsize,
}

#[derive(Debug)]
struct Heap<J> {
    entries: BinaryHeap<Entry<J>>,
    arrivals: u64,
}

/// A job with its place in line.
#[derive(Debug)]
pub(super) struct Entry<J> {
    priority: i32,
    arrival: Reverse<u64>,
    pub(super) job: J,
}

impl<J> Entry<J> {
    pub(super) fn is_positive(&self) -> bool {
        self.priority > 0
    }

    fn rank(&self) -> (i32, Reverse<u64>) {
        (self.priority, self.arrival)
    }
}

impl<J> Priorities<J> {
    pub(super) fn new() -> Self {
        Self {
            heap: Mutex::new(Heap { entries: BinaryHeap::new(), arrivals: 0 }),
            positive: AtomicUsize::new(0),
            all: AtomicUsize::new(0),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.all.load(Ordering::SeqCst) == 0
    }

    pub(super) fn push(&self, job: J, priority: i32) {
        let mut heap = self.lock();
        heap.arrivals += 1;
        let arrival = Reverse(heap.arrivals);
        heap.entries.push(Entry { priority, arrival, job });
        self.count(&heap);
    }

    /// The best job that goes before ordinary ones.
    pub(super) fn pop_positive(&self) -> Option<J> {
        if self.positive.load(Ordering::SeqCst) == 0 {
            return None;
        }
        let mut heap = self.lock();
        let best = heap
            .entries
            .peek_mut()
            .filter(|entry| entry.is_positive())
            .map(std::collections::binary_heap::PeekMut::pop);
        self.count(&heap);
        best.map(|entry| entry.job)
    }

    /// The best job of all.
    pub(super) fn pop(&self) -> Option<J> {
        if self.is_empty() {
            return None;
        }
        let mut heap = self.lock();
        let best = heap.entries.pop();
        self.count(&heap);
        best.map(|entry| entry.job)
    }

    /// Takes everything out, best first.
    pub(super) fn take_all(&self) -> Vec<Entry<J>> {
        if self.is_empty() {
            return Vec::new();
        }
        let mut heap = self.lock();
        let mut entries = mem::take(&mut heap.entries).into_sorted_vec();
        self.count(&heap);
        entries.reverse();
        entries
    }

    /// Puts entries back in their places.
    pub(super) fn put_back(&self, entries: impl IntoIterator<Item = Entry<J>>) {
        let mut heap = self.lock();
        heap.entries.extend(entries);
        self.count(&heap);
    }

    fn count(&self, heap: &Heap<J>) {
        // Counting the positive ones would be a scan; that the best is positive is all that anybody asks.
        let positive = heap.entries.peek().is_some_and(Entry::is_positive);
        self.positive.store(usize::from(positive), Ordering::SeqCst);
        self.all.store(heap.entries.len(), Ordering::SeqCst);
    }

    fn lock(&self) -> MutexGuard<'_, Heap<J>> {
        self.heap.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<J> PartialEq for Entry<J> {
    fn eq(&self, other: &Self) -> bool {
        self.rank() == other.rank()
    }
}

impl<J> Eq for Entry<J> {}

impl<J> PartialOrd for Entry<J> {
    fn partial_cmp(&self, other: &Self) -> Option<Rank> {
        Some(self.cmp(other))
    }
}

impl<J> Ord for Entry<J> {
    fn cmp(&self, other: &Self) -> Rank {
        self.rank().cmp(&other.rank())
    }
}
