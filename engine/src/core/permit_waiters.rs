//! Futures that wait for a permit: those that have waited longest are woken, as many as there are permits.
//!
//! # Steps
//! *Wait*: a future that finds no permit leaves its waker, and looks for a permit once more.
//!
//! *Release*: the thread that ends an operation counts the end, and wakes futures.
//!
//! A future that was woken counts as woken until it has a permit, waits again, or is dropped; after the last
//! the next one is woken. No more futures are woken than there are permits, but one for each release. A woken
//! future that is not polled holds others up: while permits are free and futures asleep, the
//! [watcher](crate::wait::awaits) wakes one more every [tenth of a second](crate::wait::room). Threads, and
//! futures that come at that moment, may take a permit before a woken future does.
//!
//! # The excluded race
//! A future that sleeps while a permit is free for which no future was woken. A release that finds no future
//! came before the future left its waker: that is the race which the [event
//! count](estafette_sync::event_count) excludes. The event count counts woken futures as well, so a release
//! beside one that is about to wait again takes the lock; the second look finds what was released before.

use std::collections::BTreeSet;
use std::task::Waker;

use estafette_sync::event_count::{self, EventCount};
use estafette_sync::process::Generation;
use estafette_sync::sync::Mutex;
use estafette_sync::time::Instant;
use smallvec::SmallVec;

use crate::core::core_ref::CoreAddress;
use crate::core::engine_core::Core;
use crate::core::one_shot::wake;
use crate::core::wakers::{WakerKey, Wakers};

estafette_sync::per_process! {
    /// The engines whose permits the watcher looks at, and when. They have the mark `permits_are_watched`, by
    /// which their drop finds itself here.
    pub(crate) static HELD_UP: Mutex<Vec<(CoreAddress, Instant)>> = Mutex::new(Vec::new());
}

/// `core` is being dropped.
pub(crate) fn forget(core: &Core) {
    HELD_UP.lock().retain(|(known, _)| !known.is_of(core));
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct PermitWaiters(EventCount<Waiters>, Generation);

#[derive(Debug, Default)]
struct Waiters {
    asleep: Wakers,
    woken: BTreeSet<WakerKey>,
}

impl event_count::Wakers for Waiters {
    fn count(&self) -> usize {
        self.asleep.len() + self.woken.len()
    }
}

impl Waiters {
    /// Takes at least so many of those for which there are permits. Returns also whether permits are left for
    /// others, which woken futures keep from them.
    fn take(&mut self, permits: usize, least: usize) -> (SmallVec<[Waker; 4]>, bool) {
        let few = permits.saturating_sub(self.woken.len()).max(permits.min(least));
        let mut wakers = SmallVec::new();
        while wakers.len() < few
            && let Some((key, waker)) = self.asleep.take_first()
        {
            self.woken.insert(key);
            wakers.push(waker);
        }
        (wakers, permits > 0 && self.asleep.len() > 0)
    }
}

impl PermitWaiters {
    /// True if there are futures, as far as this thread knows: after a notification of an event count at the
    /// latest.
    #[inline(always)]
    pub(crate) fn has_waiters(&self) -> bool {
        self.0.has_waiters()
    }

    /// Wakes `waker` when the future should look for a permit, in the place that it has if it has waited
    /// before. The future looks once more after this call.
    pub(crate) fn wait(&self, key: &mut WakerKey, waker: &Waker) {
        if self.0.with_wakers(|waiters| waiters.asleep.has(key, waker)) {
            return;
        }
        // Cloning and dropping a waker is foreign code.
        let waker = waker.clone();
        let replaced = self.0.with_wakers(|waiters| {
            waiters.woken.remove(key);
            waiters.asleep.put(key, waker)
        });
        drop(replaced);
    }

    /// The future waits no more. It may have been woken for one of the `permits` that it does not take.
    pub(crate) fn unregister(&self, key: &mut WakerKey, permits: impl FnOnce() -> usize) {
        let Some(key) = key.take_used(self.1) else { return };
        let waker = self.0.with_wakers(|waiters| {
            waiters.woken.remove(&key);
            waiters.asleep.remove(&key)
        });
        drop(waker);
        self.wake_at_least(0, permits);
    }

    /// Wakes futures for so many `permits`, of which one was released. Returns whether woken futures hold
    /// others up.
    pub(crate) fn wake(&self, permits: impl FnOnce() -> usize) -> bool {
        self.wake_at_least(1, permits)
    }

    fn wake_at_least(&self, least: usize, permits: impl FnOnce() -> usize) -> bool {
        let (wakers, holds_up) = self.0.notify(|waiters| waiters.take(permits(), least)).unwrap_or_default();
        wakers.into_iter().for_each(wake);
        holds_up
    }
}

/// Models: `RUSTFLAGS="--cfg estafette_loom" cargo test -p estafette --profile model --lib models::`.
///
/// The permits are counted relaxed, so that this protocol alone orders the accesses. Loom lets no timeout end
/// a wait: a wake-up that is lost is a deadlock, which loom reports.
#[cfg(all(test, estafette_loom))]
mod models {
    use std::sync::Arc;
    use std::task::Wake;

    use estafette_sync::sync::atomic::{AtomicUsize, Ordering};
    use estafette_sync::thread;

    use super::*;
    use crate::core::one_shot::OneShot;

    /// With two preemptions, or fewer where the environment says so: more take an hour.
    fn check(model: impl Fn() + Send + Sync + 'static) {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = builder.preemption_bound.into_iter().chain([2]).min();
        builder.check(model);
    }

    struct Woken(OneShot<()>);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.set(());
        }
    }

    #[derive(Default)]
    struct PermitModel {
        waiters: PermitWaiters,
        free: AtomicUsize,
    }

    impl PermitModel {
        fn free(&self) -> usize {
            self.free.load(Ordering::Relaxed)
        }

        fn release(&self) {
            self.free.fetch_add(1, Ordering::Relaxed);
            self.waiters.wake(|| self.free());
        }

        fn try_acquire(&self) -> bool {
            let less = |free: usize| free.checked_sub(1);
            self.free.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_ok()
        }

        fn wait(&self, number: &mut WakerKey) -> Arc<Woken> {
            let woken = Arc::new(Woken(OneShot::new()));
            self.waiters.wait(number, &Waker::from(Arc::clone(&woken)));
            woken
        }

        fn unregister(&self, number: &mut WakerKey) {
            self.waiters.unregister(number, || self.free());
        }

        fn acquire(&self) {
            let mut number = WakerKey::default();
            while !self.try_acquire() {
                let woken = self.wait(&mut number);
                if self.try_acquire() {
                    break;
                }
                woken.0.wait_until(None);
            }
            self.unregister(&mut number);
        }
    }

    #[test]
    fn a_waiter_sees_the_release_or_is_woken() {
        check(|| {
            let model = Arc::new(PermitModel::default());
            let releases = thread::spawn({
                let model = Arc::clone(&model);
                move || model.release()
            });
            model.acquire();
            releases.join().expect("it does not panic");
            assert_eq!((model.free(), model.waiters.has_waiters()), (0, false));
        });
    }

    #[test]
    fn two_waiters_get_the_two_permits_of_two_releases() {
        check(|| {
            let model = Arc::new(PermitModel::default());
            let other = thread::spawn({
                let model = Arc::clone(&model);
                move || model.acquire()
            });
            let releases = thread::spawn({
                let model = Arc::clone(&model);
                move || {
                    model.release();
                    model.release();
                }
            });
            model.acquire();
            other.join().expect("it does not panic");
            releases.join().expect("it does not panic");
            assert_eq!((model.free(), model.waiters.has_waiters()), (0, false));
        });
    }

    #[test]
    fn a_waiter_that_is_dropped_passes_on_what_it_was_woken_for() {
        check(|| {
            let model = Arc::new(PermitModel::default());
            let mut dropped = WakerKey::default();
            let _woken = model.wait(&mut dropped);
            let releases = thread::spawn({
                let model = Arc::clone(&model);
                move || model.release()
            });
            let drops = thread::spawn({
                let model = Arc::clone(&model);
                move || model.unregister(&mut dropped)
            });
            model.acquire();
            releases.join().expect("it does not panic");
            drops.join().expect("it does not panic");
            assert_eq!((model.free(), model.waiters.has_waiters()), (0, false));
        });
    }
}
