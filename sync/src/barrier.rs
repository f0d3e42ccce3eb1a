//! A store-load fence that costs only one of the two sides.
//!
//! Two threads that each store to one place and then load the other's must both fence in between, or both may
//! miss the other's store. If one side does so for every operation and the other only before it sleeps, the
//! whole cost can be moved to the latter: [`light`] keeps the compiler from reordering, and [`heavy`] makes
//! the kernel run a fence on every processor that runs a thread of this process (Linux, `membarrier(2)`,
//! command *private expedited*). If the kernel refuses that from the beginning, both are ordinary fences. If
//! it refuses later, the heavy side uses another way that is as strong, or ends the process
//! (`platform/linux/membarrier.rs`).

use crate::platform::barrier as imp;

/// The cheap side: orders stores before with loads after, with regard to threads that call [`heavy`].
#[inline(always)]
pub fn light() {
    imp::light();
}

/// The expensive side, some microseconds: orders stores before with loads after, with regard to threads that
/// call [`light`] or `heavy`.
pub fn heavy() {
    imp::heavy();
}

/// True if [`light`] costs almost nothing. True in a model.
pub fn is_asymmetric() -> bool {
    cfg!(any(estafette_loom, estafette_shuttle)) || imp::is_asymmetric()
}

#[cfg(all(test, not(any(estafette_loom, estafette_shuttle))))]
mod tests {
    use std::sync::Barrier;
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// Without the fences both threads miss each other's store within a few thousand rounds on common
    /// processors.
    #[test]
    fn two_threads_never_miss_each_other() {
        const ROUNDS: usize = 20_000;
        let (a, b) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let (start, end) = (Barrier::new(2), Barrier::new(2));
        let saw = AtomicUsize::new(0);
        super::heavy();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for round in 1..=ROUNDS {
                    start.wait();
                    a.store(round, Ordering::Relaxed);
                    super::light();
                    saw.fetch_add(usize::from(b.load(Ordering::Relaxed) == round), Ordering::Relaxed);
                    end.wait();
                }
            });
            for round in 1..=ROUNDS {
                start.wait();
                b.store(round, Ordering::Relaxed);
                super::heavy();
                saw.fetch_add(usize::from(a.load(Ordering::Relaxed) == round), Ordering::Relaxed);
                end.wait();
                assert!(saw.swap(0, Ordering::Relaxed) > 0, "round {round}: neither saw the other");
            }
        });
    }
}
