//! An event count: waiters check a condition again after each notification.
//!
//! A notification costs a light fence and a load while there are no waiters. Waiters are threads, and futures
//! whose wakers the caller keeps in the event count.
//!
//! # Steps
//! *Wait* (thread or future)
//! 1. Register: raise `waiters`; a future leaves its waker under the lock.
//! 2. WaitFence: the heavy side of a [`barrier`].
//! 3. Check the condition. If it does not hold, sleep until the next notification, and check again.
//!
//! *Notify*
//! 1. Change the condition.
//! 2. NotifyFence: the light side of the barrier.
//! 3. Read `waiters`: with 0 stop here.
//! 4. Under the lock: raise the number of notifications and take the wakers. After it: wake threads and
//!    futures.
//!
//! # The excluded race
//! A waiter that sleeps through the last notification. Suppose a notifier read `waiters` as 0. Then its read
//! came before step 1 of the waiter in the order of that variable, so NotifyFence comes before WaitFence in
//! the single order of SeqCst fences, and the check in step 3 sees the change. Otherwise the notifier takes
//! the lock. A thread that reads the number of notifications before the notifier raises it sleeps only until
//! it is raised. A thread that reads it afterwards sees the change, which was made before the lock was taken.
//!
//! A future that is registered already, and leaves another waker, needs no fence: either its earlier
//! WaitFence serves, or a notifier has taken the earlier waker, and the future is registered anew.
//!
//! The models at the end of this file check this with loom. Each of the fences has been taken out once, and
//! each time a model failed.

use crate::barrier;
use crate::sync::atomic::{AtomicUsize, Ordering};
use crate::sync::{Condvar, Mutex};
use crate::time::Instant;

/// The wakers of the futures that wait. Under the lock of an event count no waker is cloned, dropped or
/// woken.
pub trait Wakers {
    /// The number of registered futures.
    fn count(&self) -> usize;
}

/// See the module.
#[derive(Debug, Default)]
pub struct EventCount<W> {
    /// Threads and futures that wait.
    waiters: AtomicUsize,
    inner: Mutex<WaiterList<W>>,
    notified: Condvar,
}

#[derive(Debug, Default)]
struct WaiterList<W> {
    /// Notifications so far that met a waiter.
    count: u64,
    wakers: W,
}

impl<W: Wakers> EventCount<W> {
    /// True if there are waiters. The answer is reliable after a fence of this thread, such as that of
    /// [`notify`](Self::notify) of another event count.
    #[inline]
    pub fn has_waiters(&self) -> bool {
        self.waiters.load(Ordering::Relaxed) != 0
    }

    /// Makes every waiter check its condition. With waiters, calls `take` under the lock and returns its
    /// result: the wakers, for the caller to wake.
    #[inline(always)]
    #[must_use = "futures wait to be woken"]
    pub fn notify<T>(&self, take: impl FnOnce(&mut W) -> T) -> Option<T> {
        barrier::light();
        self.has_waiters().then(|| self.notify_waiters(take))
    }

    #[cold]
    fn notify_waiters<T>(&self, take: impl FnOnce(&mut W) -> T) -> T {
        let mut inner = self.inner.lock();
        inner.count += 1;
        let taken = self.change(&mut inner.wakers, take);
        drop(inner);
        self.notified.notify_all();
        taken
    }

    /// Registers the calling thread. The caller checks its condition between this and
    /// [`Waiter::wait_until`].
    pub fn listen(&self) -> Waiter<'_, W> {
        self.waiters.fetch_add(1, Ordering::SeqCst);
        barrier::heavy();
        let seen = self.inner.lock().count;
        Waiter { events: self, seen }
    }

    /// Calls `change` on the wakers, under the lock. After it has registered a future, the caller checks
    /// its condition.
    pub fn with_wakers<T>(&self, change: impl FnOnce(&mut W) -> T) -> T {
        self.change(&mut self.inner.lock().wakers, change)
    }

    /// Counts the futures that `change` registers or removes as waiters.
    fn change<T>(&self, wakers: &mut W, change: impl FnOnce(&mut W) -> T) -> T {
        let before = wakers.count();
        let result = change(wakers);
        let after = wakers.count();
        if after > before {
            self.waiters.fetch_add(after - before, Ordering::SeqCst);
            barrier::heavy();
        } else if after < before {
            self.waiters.fetch_sub(before - after, Ordering::SeqCst);
        }
        result
    }
}

/// A registered thread.
#[derive(Debug)]
pub struct Waiter<'a, W> {
    events: &'a EventCount<W>,
    /// The number of notifications at the last check.
    seen: u64,
}

impl<W: Wakers> Waiter<'_, W> {
    /// Blocks until a notification that came after the last check, or until `deadline`, if there is one.
    pub fn wait_until(&mut self, deadline: Option<Instant>) {
        let EventCount { inner, notified, .. } = self.events;
        let (inner, _) = notified.wait_while(inner.lock(), deadline, |inner| inner.count == self.seen);
        self.seen = inner.count;
    }
}

impl<W> Drop for Waiter<'_, W> {
    fn drop(&mut self) {
        self.events.waiters.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Models: `RUSTFLAGS="--cfg estafette_loom" cargo test -p estafette-sync --lib --release`.
///
/// The condition is accessed relaxed, so that this protocol alone orders the accesses. Loom lets no timeout
/// end a wait: a notification that is lost is a deadlock, which loom reports.
#[cfg(all(test, estafette_loom))]
#[allow(clippy::unwrap_used, reason = "in a test, an unwrap is an assertion")]
mod models {
    // Loom's own does not survive the panic that a deadlock is.
    use std::sync::Arc;

    use loom::model::Builder;

    use super::*;
    use crate::sync::atomic::AtomicBool;
    use crate::thread;

    /// Stands for a task: what its waker sets.
    #[derive(Default)]
    struct Task {
        is_woken: Mutex<bool>,
        woken: Condvar,
    }

    impl Task {
        fn wake(&self) {
            *self.is_woken.lock() = true;
            self.woken.notify_one();
        }

        fn sleep(&self) {
            let mut is_woken = self.is_woken.lock();
            while !std::mem::take(&mut *is_woken) {
                is_woken = self.woken.wait(is_woken);
            }
        }
    }

    impl Wakers for Vec<Arc<Task>> {
        fn count(&self) -> usize {
            self.len()
        }
    }

    #[derive(Default)]
    struct EventCountModel {
        events: EventCount<Vec<Arc<Task>>>,
        condition: AtomicBool,
    }

    impl EventCountModel {
        fn holds(&self) -> bool {
            self.condition.load(Ordering::Relaxed)
        }

        fn notify(&self) {
            for task in self.events.notify(std::mem::take).into_iter().flatten() {
                task.wake();
            }
        }

        fn make_true(&self) {
            self.condition.store(true, Ordering::Relaxed);
            self.notify();
        }

        fn wait(&self) {
            let mut waiter = self.events.listen();
            while !self.holds() {
                waiter.wait_until(None);
            }
        }

        fn register(&self, task: &Arc<Task>) {
            self.events.with_wakers(|tasks| {
                if !tasks.iter().any(|known| Arc::ptr_eq(known, task)) {
                    tasks.push(task.clone());
                }
            });
        }

        fn forget(&self, task: &Arc<Task>) {
            self.events.with_wakers(|tasks| tasks.retain(|known| !Arc::ptr_eq(known, task)));
        }

        fn wait_as_future(&self) {
            let task = Arc::default();
            self.register(&task);
            while !self.holds() {
                task.sleep();
                self.register(&task);
            }
            self.forget(&task);
        }
    }

    /// Runs `others` on a thread each, and `last` on this one. In the end nothing is registered.
    fn check<const N: usize>(
        preemptions: Option<usize>,
        others: [fn(&EventCountModel); N],
        last: fn(&EventCountModel),
    ) {
        let mut builder = Builder::new();
        builder.preemption_bound = preemptions;
        builder.check(move || {
            let model = Arc::new(EventCountModel::default());
            let threads = others.map(|other| {
                let model = model.clone();
                thread::spawn(move || other(&model))
            });
            last(&model);
            threads.into_iter().for_each(|thread| thread.join().unwrap());
            assert_eq!(model.events.waiters.load(Ordering::SeqCst), 0);
        });
    }

    #[test]
    fn a_thread_that_starts_to_wait_sees_the_change_or_is_notified() {
        check(None, [EventCountModel::wait], EventCountModel::make_true);
    }

    #[test]
    fn a_future_that_starts_to_wait_sees_the_change_or_is_woken() {
        check(None, [EventCountModel::wait_as_future], EventCountModel::make_true);
    }

    /// A future that leaves its waker after its only look sleeps for ever.
    #[test]
    #[should_panic(expected = "deadlock")]
    fn a_future_that_does_not_look_again_is_lost() {
        let careless = |model: &EventCountModel| {
            if !model.holds() {
                let task = Arc::default();
                model.register(&task);
                task.sleep();
            }
        };
        check(None, [careless], EventCountModel::make_true);
    }

    /// The first notification changes nothing, so whatever it takes is registered again.
    #[test]
    fn notifications_that_change_nothing_lose_nothing() {
        let twice = |model: &EventCountModel| {
            model.notify();
            model.make_true();
        };
        check(Some(3), [EventCountModel::wait_as_future], twice);
        check(Some(3), [EventCountModel::wait], twice);
    }

    #[test]
    fn a_thread_and_a_future_are_both_notified() {
        check(Some(2), [EventCountModel::wait, EventCountModel::wait_as_future], EventCountModel::make_true);
    }

    #[test]
    fn a_future_that_is_dropped_while_it_is_woken_is_counted_once() {
        let dropped = |model: &EventCountModel| {
            let task = Arc::default();
            model.register(&task);
            model.forget(&task);
        };
        check(None, [dropped], EventCountModel::notify);
    }

    /// One fence serves for several event counts.
    #[test]
    fn the_notification_of_another_event_count_orders_the_look_for_waiters() {
        loom::model(|| {
            let other = EventCount::<Vec<Arc<Task>>>::default();
            let model = Arc::new(EventCountModel::default());
            let waiter = thread::spawn({
                let model = model.clone();
                move || model.wait()
            });
            model.condition.store(true, Ordering::Relaxed);
            assert!(other.notify(|_| ()).is_none());
            if model.events.has_waiters() {
                model.notify();
            }
            waiter.join().unwrap();
        });
    }
}
