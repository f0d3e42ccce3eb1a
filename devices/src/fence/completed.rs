//! Progress of a queue, and the failure after which the queue comes no further.
//!
//! # Protocol
//! One word has the newest number known to be done, which only goes up, and the bit [`FROZEN`].
//! 1. *Reach*, by a thread that learned of a number: raise the word to it (AcqRel), unless it is frozen.
//! 2. *Fail*: store the failure, once; then set the bit (AcqRel).
//! 3. *Ask*: one Acquire load of the word.
//!
//! The excluded races: no thread that has seen a fence fail sees it done later, as number and bit are in one
//! word. A thread that sees the bit finds the failure. A thread that sees a number sees the work that it
//! stands for, and that of all before it, whichever threads learned of these: each step is a
//! read-modify-write, so it acquires what the earlier ones released.

use std::sync::OnceLock;

use estafette_sync::sync::atomic::{AtomicU64, Ordering};

use crate::DeviceError;

/// The number stands still for ever.
const FROZEN: u64 = 1 << 63;

#[derive(Debug)]
pub(crate) struct Completed {
    word: AtomicU64,
    failure: OnceLock<DeviceError>,
}

impl Completed {
    /// Number 0 is done.
    pub(crate) fn new() -> Self {
        Self { word: AtomicU64::new(0), failure: OnceLock::new() }
    }

    /// The newest number that is known to be done.
    #[inline]
    pub(crate) fn number(&self) -> u64 {
        self.word.load(Ordering::Acquire) & !FROZEN
    }

    /// True if the number stands still for ever.
    #[inline]
    pub(crate) fn is_frozen(&self) -> bool {
        self.word.load(Ordering::Acquire) & FROZEN != 0
    }

    /// The reason why the number stands still for ever. [`number`](Self::number) is final afterwards.
    #[inline]
    pub(crate) fn failure(&self) -> Option<&DeviceError> {
        if self.is_frozen() { self.failure.get() } else { None }
    }

    /// Number `sequence` is done, and all before it.
    pub(crate) fn reach(&self, sequence: u64) {
        let mut known = self.word.load(Ordering::Relaxed);
        while known & FROZEN == 0 && known < sequence {
            match self.word.compare_exchange_weak(known, sequence, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return,
                Err(now) => known = now,
            }
        }
    }

    /// No more ends are observed, because of `error`; the first one stays, as a fault.
    pub(crate) fn fail(&self, error: &DeviceError) {
        self.failure.get_or_init(|| error.clone().of_unknown_end());
        self.word.fetch_or(FROZEN, Ordering::AcqRel);
    }
}

#[cfg(all(test, estafette_loom))]
mod models {
    use std::sync::Arc;

    use estafette_sync::cell::UnsafeCell;
    use estafette_sync::thread;

    use super::*;
    use crate::DeviceErrorKind;

    /// A device that does two pieces of work and counts them in memory of the host.
    struct ProgressModel {
        /// The value that the device writes, as into pinned memory.
        value: AtomicU64,
        completed: Completed,
        work: [UnsafeCell<u32>; 2],
        /// Written by the thread that finds the failure.
        found: UnsafeCell<u32>,
    }

    // SAFETY: loom checks the accesses to the cells.
    unsafe impl Sync for ProgressModel {}

    impl ProgressModel {
        fn new() -> Arc<Self> {
            let work = [UnsafeCell::new(0), UnsafeCell::new(0)];
            Arc::new(Self {
                value: AtomicU64::new(0),
                completed: Completed::new(),
                work,
                found: UnsafeCell::new(0),
            })
        }

        fn run(&self) {
            for (number, work) in (1..).zip(&self.work) {
                // SAFETY: loom checks this.
                work.with_mut(|work| unsafe { *work = 1 });
                self.value.store(number, Ordering::Release);
            }
        }

        fn poll(&self) {
            self.completed.reach(self.value.load(Ordering::Acquire));
        }

        fn break_down(&self) {
            // SAFETY: loom checks this.
            self.found.with_mut(|found| unsafe { *found = 1 });
            self.completed.fail(&DeviceError::new(DeviceErrorKind::Fault, "gone"));
        }

        /// Reads what the number stands for.
        fn check(&self) -> u64 {
            let number = self.completed.number();
            for work in &self.work[..number as usize] {
                // SAFETY: loom checks this.
                assert_eq!(work.with(|work| unsafe { *work }), 1);
            }
            number
        }
    }

    fn beside(model: &Arc<ProgressModel>, act: fn(&ProgressModel)) -> thread::JoinHandle<()> {
        let model = Arc::clone(model);
        thread::spawn(move || act(&model))
    }

    #[test]
    fn who_sees_a_number_sees_the_work_of_all_up_to_it() {
        loom::model(|| {
            let model = ProgressModel::new();
            let threads = [beside(&model, ProgressModel::run), beside(&model, ProgressModel::poll)];
            let seen = model.check();
            model.poll();
            assert!(model.check() >= seen, "it only goes up");
            threads.into_iter().for_each(|thread| thread.join().expect("it does not panic"));
        });
    }

    #[test]
    fn a_number_that_another_thread_learned_of_brings_its_work_with_it() {
        loom::model(|| {
            let model = ProgressModel::new();
            // Each piece is done by a thread of its own, as on a queue without a value.
            let second = beside(&model, |model| {
                if model.completed.number() == 1 {
                    // SAFETY: loom checks this.
                    model.work[1].with_mut(|work| unsafe { *work = 1 });
                    model.completed.reach(2);
                }
            });
            let reader = beside(&model, |model| _ = model.check());
            // SAFETY: loom checks this.
            model.work[0].with_mut(|work| unsafe { *work = 1 });
            model.completed.reach(1);
            [second, reader].into_iter().for_each(|thread| thread.join().expect("it does not panic"));
        });
    }

    #[test]
    fn a_failure_is_there_with_what_came_before_it_and_freezes_the_number() {
        loom::model(|| {
            let model = ProgressModel::new();
            let threads =
                [beside(&model, |model| model.completed.reach(1)), beside(&model, ProgressModel::break_down)];
            if let Some(error) = model.completed.failure() {
                assert_eq!(error.kind(), DeviceErrorKind::Fault);
                // SAFETY: loom checks this.
                assert_eq!(model.found.with(|found| unsafe { *found }), 1);
                let last = model.completed.number();
                model.completed.reach(2);
                threads.into_iter().for_each(|thread| thread.join().expect("it does not panic"));
                assert_eq!(model.completed.number(), last);
            }
        });
    }
}
