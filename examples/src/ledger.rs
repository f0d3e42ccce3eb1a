//! Measures what crosses from one library to another.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};

/// Counters of everything that crossed from one library to another. Clones count together.
#[derive(Clone, Debug, Default)]
pub struct Ledger(Arc<Counters>);

#[derive(Debug, Default)]
struct Counters {
    crossings: AtomicU64,
    copies: AtomicU64,
    bytes: AtomicU64,
    operations: AtomicU64,
    handed_over: AtomicU64,
}

/// Counters of a [`Ledger`].
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Totals {
    /// The number of times that a library saw memory that another library had allocated.
    pub crossings: u64,
    /// Crossings after which the address of the data had changed.
    pub copies: u64,
    /// Bytes of the tensors that crossed, summed over all crossings.
    pub bytes: u64,
    /// Operations submitted.
    pub operations: u64,
    /// Tensors that an array crate has handed over.
    pub handed_over: u64,
}

impl Ledger {
    /// The trail of a new tensor.
    pub fn trail(&self) -> Trail {
        Trail { ledger: self.clone(), address: Arc::default() }
    }

    /// Counts a submitted operation.
    pub fn submitted(&self) {
        self.0.operations.fetch_add(1, Relaxed);
    }

    /// The counters.
    pub fn totals(&self) -> Totals {
        Totals {
            crossings: self.0.crossings.load(Relaxed),
            copies: self.0.copies.load(Relaxed),
            bytes: self.0.bytes.load(Relaxed),
            operations: self.0.operations.load(Relaxed),
            handed_over: self.0.handed_over.load(Relaxed),
        }
    }
}

/// The path of one tensor through the libraries. Clones follow the same tensor.
///
/// A trail holds the address at which the producer of the tensor has put the data, and compares it at each
/// crossing.
#[derive(Clone, Debug)]
pub struct Trail {
    ledger: Ledger,
    address: Arc<OnceLock<usize>>,
}

impl Trail {
    /// The producer hands the tensor over, with its data at `data`.
    pub fn starts<T>(&self, data: *const T) {
        let first = self.address.set(data as usize).is_ok();
        assert!(first, "a trail has one start");
        self.ledger.0.handed_over.fetch_add(1, Relaxed);
    }

    /// Another library gets the tensor, with `len` elements at `data`.
    pub fn crosses<T>(&self, data: *const T, len: usize) {
        let counters = &self.ledger.0;
        counters.crossings.fetch_add(1, Relaxed);
        counters.bytes.fetch_add((len * size_of::<T>()) as u64, Relaxed);
        if self.address.get() != Some(&(data as usize)) {
            counters.copies.fetch_add(1, Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_that_has_moved_counts_as_a_copy() {
        let ledger = Ledger::default();
        let trail = ledger.trail();
        let (original, copy) = (vec![1.0_f32; 4], vec![1.0_f32; 4]);
        trail.starts(original.as_ptr());
        trail.crosses(original.as_ptr(), original.len());
        assert_eq!(ledger.totals().copies, 0);
        trail.crosses(copy.as_ptr(), copy.len());
        let totals = ledger.totals();
        assert_eq!((totals.crossings, totals.copies, totals.bytes), (2, 1, 32));
    }

    #[test]
    fn data_from_nowhere_counts_as_a_copy() {
        let ledger = Ledger::default();
        ledger.trail().crosses([0_u8; 2].as_ptr(), 2);
        assert_eq!(ledger.totals().copies, 1);
    }
}
