use std::sync::Arc;

use estafette_sync::sync::Mutex;
use estafette_sync::sync::atomic::{AtomicUsize, Ordering};

use crate::fence::source::{Outcome, Subscriber};
use crate::{DeviceError, DeviceErrorKind};

/// Waits for several fences and calls a closure once. One allocation for all of them.
pub(super) struct Gather<F, W> {
    /// Fences that have not settled, plus one while fences are being added.
    missing: AtomicUsize,
    rest: Mutex<Rest<F>>,
    wanted: W,
}

struct Rest<F> {
    failure: Option<DeviceError>,
    callback: Option<F>,
}

impl<F, W> Gather<F, W> {
    pub(super) fn new(callback: F, wanted: W) -> Self {
        let rest = Rest { failure: None, callback: Some(callback) };
        Self { missing: AtomicUsize::new(1), rest: Mutex::new(rest), wanted }
    }

    pub(super) fn expect_one(&self) {
        self.missing.fetch_add(1, Ordering::Relaxed);
    }
}

impl<F: FnOnce(Outcome) + Send, W: Fn() -> bool + Send + Sync> Subscriber for Gather<F, W> {
    fn abandoned(&self) -> bool {
        !(self.wanted)()
    }

    fn settled(self: Arc<Self>, outcome: Outcome) {
        if let Err(error) = outcome {
            let failure = &mut self.rest.lock().failure;
            // After a fault memory may be in use for ever, which no other failure may hide.
            let is_fault = |error: &DeviceError| error.kind() == DeviceErrorKind::Fault;
            if failure.as_ref().is_none_or(|known| is_fault(&error) && !is_fault(known)) {
                *failure = Some(error);
            }
        }
        // AcqRel: the effects of every fence happen before the callback, whichever thread observed them.
        if self.missing.fetch_sub(1, Ordering::AcqRel) != 1 {
            return;
        }
        let (callback, failure) = {
            let mut rest = self.rest.lock();
            (rest.callback.take(), rest.failure.take())
        };
        if let Some(callback) = callback {
            callback(failure.map_or(Ok(()), Err));
        }
    }
}

#[cfg(all(test, not(any(estafette_loom, estafette_shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn a_fault_is_the_failure_of_all_whatever_else_has_failed_first() {
        use DeviceErrorKind::{Cancelled, Fault, Other};
        for kinds in [[Other, Fault, Cancelled], [Fault, Other, Cancelled], [Cancelled, Other, Fault]] {
            let found = Arc::<Mutex<Option<DeviceErrorKind>>>::default();
            let place = Arc::clone(&found);
            let gather = Arc::new(Gather::new(
                move |outcome: Outcome| *place.lock() = outcome.err().map(|error| error.kind()),
                || true,
            ));
            for kind in kinds {
                gather.expect_one();
                gather.clone().settled(Err(DeviceError::new(kind, "scripted")));
            }
            gather.settled(Ok(()));
            assert_eq!(*found.lock(), Some(Fault), "{kinds:?}");
        }
    }
}

#[cfg(all(test, estafette_loom))]
mod models {
    use estafette_sync::cell::UnsafeCell;
    use estafette_sync::thread;

    use super::*;

    /// The work that two fences stand for. Loom reports a read that a write does not happen before.
    struct GatheredWork([UnsafeCell<u32>; 2]);

    // SAFETY: loom checks the accesses.
    unsafe impl Sync for GatheredWork {}
    // SAFETY: as above.
    unsafe impl Send for GatheredWork {}

    #[test]
    fn the_callback_runs_once_and_sees_the_work_of_every_fence() {
        loom::model(|| {
            let work = Arc::new(GatheredWork([UnsafeCell::new(0), UnsafeCell::new(0)]));
            let calls = Arc::new(AtomicUsize::new(0));
            let (seen, counted) = (Arc::clone(&work), Arc::clone(&calls));
            let callback = move |_: Outcome| {
                // SAFETY: loom checks this.
                let sum: u32 = seen.0.iter().map(|part| part.with(|part| unsafe { *part })).sum();
                assert_eq!(sum, 2);
                counted.fetch_add(1, Ordering::Relaxed);
            };
            let gather = Arc::new(Gather::new(callback, || true));
            let settling = [0, 1].map(|part| {
                gather.expect_one();
                let (work, gather) = (Arc::clone(&work), Arc::clone(&gather));
                thread::spawn(move || {
                    // SAFETY: loom checks this.
                    work.0[part].with_mut(|part| unsafe { *part = 1 });
                    gather.settled(Ok(()));
                })
            });
            gather.settled(Ok(()));
            settling.into_iter().for_each(|thread| thread.join().expect("it does not panic"));
            assert_eq!(calls.load(Ordering::Relaxed), 1);
        });
    }
}
