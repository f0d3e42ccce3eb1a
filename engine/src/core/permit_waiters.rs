//! Futures that wait for a permit, and threads that do while futures wait. The first that comes is served first.
//!
//! # Steps
//! *Wait*: a waiter that finds no permit leaves its waker, and then [wakes](PermitWaiters::wake) the waiters that there are permits for,
//! itself perhaps.
//!
//! *Release*: the thread that ends an operation counts the end, and wakes as many waiters as there are permits.
//!
//! A woken waiter has a *claim*: for all others the permit that it was woken for is not free, until the waiter acquires it, waits again, or
//! is dropped. After the last two the next waiter is woken.
//!
//! # The excluded race
//! A waiter that sleeps while a permit is free that no waiter has a claim to. Permits, claims and waiters are compared under the lock, after
//! each step that makes a permit free or gives a claim up. A release that finds no waiter came before the waiter left its waker: that is the
//! race which the [event count](estafette_sync::event_count) excludes, and the waiter itself compares after that. Woken waiters are counted
//! by the event count as well, so a release beside one that is about to wait again takes the lock.
//!
//! A claim whose future is not polled would keep a permit for ever. So the [watcher](crate::wait::awaits) wakes waiters for permits that
//! stay free, whatever the claims: see [`wake_despite_claims`](PermitWaiters::wake_despite_claims).

use std::collections::{BTreeMap, BTreeSet};
use std::task::Waker;

use estafette_sync::event_count::{EventCount, Wakers};
use estafette_sync::process::Generation;
use smallvec::SmallVec;

use crate::core::contained::Contained;
use crate::core::one_shot::wake;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct PermitWaiters(EventCount<Waiters>, Generation);

/// By the order in which they came.
#[derive(Debug, Default)]
struct Waiters {
    asleep: BTreeMap<u64, Waker>,
    /// Waiters with a claim.
    woken: BTreeSet<u64>,
    /// The last number that was given.
    last: u64,
}

/// The number of a waiter; 0 while it does not wait.
#[derive(Debug, Default)]
pub(crate) struct WaiterNumber(u64);

impl WaiterNumber {
    pub(crate) fn is_waiting(&self) -> bool {
        self.0 != 0
    }
}

impl Wakers for Waiters {
    fn count(&self) -> usize {
        self.asleep.len() + self.woken.len()
    }
}

impl Waiters {
    fn put(&mut self, number: &mut WaiterNumber, waker: Waker) -> Option<Waker> {
        if !number.is_waiting() {
            self.last += 1;
            number.0 = self.last;
        }
        self.woken.remove(&number.0);
        self.asleep.insert(number.0, waker)
    }

    fn remove(&mut self, number: &mut WaiterNumber) -> Option<Waker> {
        let WaiterNumber(number) = std::mem::take(number);
        self.woken.remove(&number);
        self.asleep.remove(&number)
    }

    /// Gives the first waiters claims, as long as there are fewer claims than `permits`.
    fn claim(&mut self, permits: usize) -> SmallVec<[Waker; 4]> {
        let mut wakers = SmallVec::new();
        while self.woken.len() < permits
            && let Some((number, waker)) = self.asleep.pop_first()
        {
            self.woken.insert(number);
            wakers.push(waker);
        }
        wakers
    }
}

impl PermitWaiters {
    /// Whether there are waiters, as far as this thread knows: after a notification of an event count at the latest.
    #[inline(always)]
    pub(crate) fn has_waiters(&self) -> bool {
        self.0.has_waiters()
    }

    /// Acquires a permit by `begin`, which leaves as many permits as it is given. A waiter that has acquired one waits no more.
    ///
    /// # Errors
    /// Those of `begin`. It is given `usize::MAX` where others come first.
    pub(crate) fn acquire<E>(
        &self,
        number: &mut WaiterNumber,
        begin: impl FnOnce(usize) -> Result<(), E>,
    ) -> Result<(), E> {
        let waker = self.0.with_wakers(|waiters| {
            let is_first = || waiters.asleep.first_key_value().is_none_or(|(first, _)| *first == number.0);
            begin(match waiters.woken.contains(&number.0) {
                true => 0,
                false if is_first() => waiters.woken.len(),
                false => usize::MAX,
            })?;
            Ok(waiters.remove(number))
        })?;
        drop(waker.map(Contained::new));
        Ok(())
    }

    /// Waits, in the place that the waiter has if it has waited before. `waker` is woken when the waiter has a claim to one of the
    /// `permits` that are free.
    pub(crate) fn wait(&self, number: &mut WaiterNumber, waker: &Waker, permits: impl FnOnce() -> usize) {
        let is_known =
            |waiters: &mut Waiters| waiters.asleep.get(&number.0).is_some_and(|known| known.will_wake(waker));
        if self.0.with_wakers(is_known) {
            return;
        }
        // Cloning and dropping a waker is foreign code.
        let waker = waker.clone();
        let replaced = self.0.with_wakers(|waiters| waiters.put(number, waker));
        drop(replaced.map(Contained::new));
        self.wake(permits);
    }

    /// Waits no more.
    pub(crate) fn leave(&self, number: &mut WaiterNumber, permits: impl FnOnce() -> usize) {
        if !number.is_waiting() || self.1.is_inherited() {
            return;
        }
        let waker = self.0.with_wakers(|waiters| waiters.remove(number));
        drop(waker.map(Contained::new));
        self.wake(permits);
    }

    /// Wakes the first waiters, if there are more `permits` than claims. The number of permits is asked for under the lock.
    pub(crate) fn wake(&self, permits: impl FnOnce() -> usize) {
        let wakers = self.0.notify(|waiters| waiters.claim(permits()));
        wakers.into_iter().flatten().for_each(wake);
    }

    /// As [`wake`](Self::wake), as if there were no claims.
    pub(crate) fn wake_despite_claims(&self, permits: impl FnOnce() -> usize) {
        let wakers = self.0.notify(|waiters| waiters.claim(permits().saturating_add(waiters.woken.len())));
        wakers.into_iter().flatten().for_each(wake);
    }
}

/// Models: `RUSTFLAGS="--cfg estafette_loom" cargo test -p estafette --profile model --lib models::`.
///
/// The permits are counted relaxed, so that this protocol alone orders the accesses. Loom lets no timeout end a wait: a wake-up that is lost
/// is a deadlock, which loom reports.
#[cfg(all(test, estafette_loom))]
mod models {
    use std::sync::Arc;
    use std::task::Wake;

    use estafette_sync::sync::atomic::{AtomicUsize, Ordering};
    use estafette_sync::thread;

    use super::*;
    use crate::core::one_shot::OneShot;

    struct Woken(OneShot<()>);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.set(());
        }
    }

    #[derive(Default)]
    struct Model {
        waiters: PermitWaiters,
        free: AtomicUsize,
    }

    impl Model {
        fn free(&self) -> usize {
            self.free.load(Ordering::Relaxed)
        }

        fn release(&self) {
            self.free.fetch_add(1, Ordering::Relaxed);
            self.waiters.wake(|| self.free());
        }

        fn try_acquire(&self, number: &mut WaiterNumber) -> bool {
            let acquire = |left: usize| {
                self.free
                    .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |free| {
                        if free > left { Some(free - 1) } else { None }
                    })
                    .map(drop)
            };
            self.waiters.acquire(number, acquire).is_ok()
        }

        fn wait(&self, number: &mut WaiterNumber) -> Arc<Woken> {
            let woken = Arc::new(Woken(OneShot::new()));
            self.waiters.wait(number, &Waker::from(Arc::clone(&woken)), || self.free());
            woken
        }

        fn acquire(&self) {
            let mut number = WaiterNumber::default();
            while !self.try_acquire(&mut number) {
                self.wait(&mut number).0.wait_until(None);
            }
        }
    }

    #[test]
    fn a_waiter_sees_the_release_or_is_woken() {
        loom::model(|| {
            let model = Arc::new(Model::default());
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
        loom::model(|| {
            let model = Arc::new(Model::default());
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
        loom::model(|| {
            let model = Arc::new(Model::default());
            let mut dropped = WaiterNumber::default();
            let _woken = model.wait(&mut dropped);
            let releases = thread::spawn({
                let model = Arc::clone(&model);
                move || model.release()
            });
            let drops = thread::spawn({
                let model = Arc::clone(&model);
                move || model.waiters.leave(&mut dropped, || model.free())
            });
            model.acquire();
            releases.join().expect("it does not panic");
            drops.join().expect("it does not panic");
            assert_eq!((model.free(), model.waiters.has_waiters()), (0, false));
        });
    }
}
