//! Sleep of workers, and their wake-ups. Knows nothing of deques: a queue of jobs is "whatever `has_work`
//! says".
//!
//! # Aim
//! Waking a thread costs the waker several microseconds, so it happens only when it must: never when a worker
//! is already searching (that thread will find the job), and once for a whole batch (the woken thread wakes
//! the next one when it finds that there is more).
//!
//! # States of a worker
//! *busy* (runs a job or takes one from its own deque) → *searching* (looks everywhere, for a bounded while)
//! → *sleeping* (parked, in the idle list). One word counts the searching and the sleeping workers; a lock
//! guards the idle list, and a worker is in the list exactly while it is counted as sleeping.
//!
//! # Steps
//! *Post work*
//! 1. PushJob: make the job visible in some queue.
//! 2. PushFence: the light side of a barrier.
//! 3. ReadCounters: if a worker is searching or none sleeps, stop here.
//! 4. Under the lock: if still no worker is searching, take a sleeper out of the idle list, count it as
//!    searching, and wake it.
//!
//! *Fall asleep* (a searching worker that found nothing)
//! 1. Under the lock: enter the idle list, and count as sleeping instead of searching (IncSleepers).
//! 2. SleepFence: the heavy side of the barrier.
//! 3. ReadJob: look at every queue once more. If there is work, leave the idle list again, unless another
//!    thread has removed this worker already.
//! 4. Park until another thread removes this worker from the list.
//!
//! *Stop searching* (found a job)
//! 1. Count as searching no more (DecSearching). Not the last one, or no worker sleeps: done.
//! 2. The heavy side of the barrier, then look whether there is more work. If so, *post work* from step 3:
//!    wake the next one.
//!
//! If jobs are left to the threads that wait for them (`waiters.rs`), a worker omits ReadJob and sleeps for a
//! limited time instead.
//!
//! Pushing happens for every job, the others only when work runs out, so pushing gets the light side
//! ([`estafette_sync::barrier`]).
//!
//! # The excluded race
//! A job in a queue while every worker sleeps, or is about to. Suppose PushJob went unnoticed: the pusher
//! read in ReadCounters a searching worker *W*, or no sleeper.
//! - *W* later either finds this job, or falls asleep, or stops searching as the last one (else another
//!   searching worker takes its part). In the latter two cases it looks at the queues after a change of the
//!   word that the pusher did not see. With both fences, either the pusher saw that change or *W* sees the
//!   job: whichever fence comes first in the single order of SeqCst fences makes what precedes it visible to
//!   what follows the other.
//! - *No sleeper and no searcher*: then every worker is busy, or its change of the word came later than the
//!   read and it looks at the queues after that. A busy worker searches before it sleeps.
//!
//! The models at the end of this file check this with loom. Each of the three fences, the second look before
//! parking and the chain of wake-ups has been taken out once; each time a model failed.

use std::sync::Arc;

use estafette_sync::barrier;
use estafette_sync::sync::atomic::{AtomicUsize, Ordering};
use estafette_sync::sync::{Condvar, Mutex};
use estafette_sync::time::Duration;

#[derive(Debug, Default)]
pub(super) struct Sleep {
    /// Searching workers in the low half, sleeping ones in the high half.
    counters: AtomicUsize,
    /// The sleepers, the one that fell asleep last on top: its cache is the warmest.
    idle: Mutex<Vec<Arc<Parker>>>,
}

/// One searching worker in [`Sleep::counters`].
const SEARCHING: usize = 1;
/// One sleeping worker in [`Sleep::counters`].
const SLEEPING: usize = 1 << (usize::BITS / 2);
/// The most workers (with spare ones) of a pool: far more than any machine has cores, and few enough that
/// what is kept for each is no burden. The counters can hold them.
pub(super) const WORKERS_MAX: usize = 1 << 14;
const _: () = assert!(WORKERS_MAX < 1 << (usize::BITS / 2 - 1));

/// The parking place of one thread. Not `thread::park`, whose one token jobs may use as well.
#[derive(Debug, Default)]
pub(super) struct Parker {
    /// Set by the thread that removed this worker from the idle list.
    taken: Mutex<bool>,
    woken: Condvar,
}

impl Parker {
    fn wake(&self) {
        *self.taken.lock() = true;
        self.woken.notify_one();
    }

    fn park(&self) {
        let mut taken = self.taken.lock();
        while !*taken {
            taken = self.woken.wait(taken);
        }
        *taken = false;
    }

    /// As [`park`](Self::park), for `timeout` at most; false if it passed.
    fn park_for(&self, timeout: Duration) -> bool {
        let mut taken = self.taken.lock();
        // In a model the timeout passes at once, before or after other threads have done something.
        if !*taken && !cfg!(estafette_loom) {
            taken = self.woken.wait_timeout(taken, timeout).0;
        }
        std::mem::take(&mut *taken)
    }
}

impl Sleep {
    /// Work has been posted: makes sure that a worker will look. Steps 2 to 4 of *post work*.
    pub(super) fn notify(&self) {
        barrier::light();
        if !wants_waking(self.counters.load(Ordering::SeqCst)) {
            return;
        }
        let parker = {
            let mut idle = self.idle.lock();
            if !wants_waking(self.counters.load(Ordering::SeqCst)) {
                return;
            }
            let Some(parker) = idle.pop() else { return };
            self.one_sleeper_searches();
            parker
        };
        parker.wake();
    }

    /// The conditions under which workers sleep have changed: wakes all workers, so that each looks.
    pub(super) fn notify_all(&self) {
        // The lock orders: a worker that enters the list later sees the change.
        let parkers = {
            let mut idle = self.idle.lock();
            idle.iter().for_each(|_| self.one_sleeper_searches());
            std::mem::take(&mut *idle)
        };
        parkers.iter().for_each(|parker| parker.wake());
    }

    pub(super) fn start_searching(&self) {
        self.counters.fetch_add(SEARCHING, Ordering::SeqCst);
    }

    /// The calling worker stops searching, because it found a job or leaves. Wakes another one if there is
    /// more.
    pub(super) fn stop_searching(&self, has_work: impl FnOnce() -> bool) {
        let before = self.counters.fetch_sub(SEARCHING, Ordering::SeqCst);
        debug_assert!(searching(before) > 0, "stop_searching comes after start_searching");
        if searching(before) == 1 && sleeping(before) > 0 {
            barrier::heavy();
            if has_work() {
                self.notify();
            }
        }
    }

    /// The calling worker, which is searching, sleeps until it is notified, or returns at once if
    /// `stay_awake` says so after it was counted as sleeping. It is searching again when this returns.
    pub(super) fn sleep(&self, parker: &Arc<Parker>, stay_awake: impl FnOnce() -> bool) {
        if self.lie_down(parker, stay_awake) {
            parker.park();
        }
    }

    /// As [`sleep`](Self::sleep), for `timeout` at most. True if it passed.
    pub(super) fn sleep_for(
        &self,
        parker: &Arc<Parker>,
        timeout: Duration,
        stay_awake: impl FnOnce() -> bool,
    ) -> bool {
        if !self.lie_down(parker, stay_awake) || parker.park_for(timeout) {
            return false;
        }
        let has_passed = self.get_up(parker);
        if !has_passed {
            // Another thread has removed this worker already and wakes it.
            parker.park();
        }
        has_passed
    }

    /// Enters the idle list. False if `stay_awake` says so after the worker was counted as sleeping.
    fn lie_down(&self, parker: &Arc<Parker>, stay_awake: impl FnOnce() -> bool) -> bool {
        {
            let mut idle = self.idle.lock();
            idle.push(parker.clone());
            // Wrapping: adds one sleeper and takes one searcher away in a single step.
            self.counters.fetch_add(SLEEPING.wrapping_sub(SEARCHING), Ordering::SeqCst);
        }
        barrier::heavy();
        // If another thread has removed this worker already, its wake-up has to be consumed.
        !(stay_awake() && self.get_up(parker))
    }

    /// Leaves the idle list, unless another thread has removed this worker already.
    fn get_up(&self, parker: &Arc<Parker>) -> bool {
        let mut idle = self.idle.lock();
        let Some(place) = idle.iter().position(|sleeper| Arc::ptr_eq(sleeper, parker)) else { return false };
        idle.remove(place);
        self.one_sleeper_searches();
        true
    }

    /// One worker that just left the idle list counts as searching. The caller holds the lock of the list.
    fn one_sleeper_searches(&self) {
        self.counters.fetch_sub(SLEEPING.wrapping_sub(SEARCHING), Ordering::SeqCst);
    }
}

fn wants_waking(counters: usize) -> bool {
    searching(counters) == 0 && counters >= SLEEPING
}

fn searching(counters: usize) -> usize {
    counters % SLEEPING
}

fn sleeping(counters: usize) -> usize {
    counters / SLEEPING
}

/// Models: `RUSTFLAGS="--cfg estafette_loom" cargo test -p estafette-devices --lib --release`.
///
/// The queue is a counter that is pushed and looked at with relaxed accesses, so that nothing but this
/// protocol orders them. A wake-up that is lost leaves a worker parked for ever, which loom reports as a
/// deadlock.
#[cfg(all(test, estafette_loom))]
mod models {
    use estafette_sync::sync::atomic::AtomicBool;
    use estafette_sync::thread;
    use loom::model::Builder;

    use super::*;

    #[derive(Default)]
    struct SleepModel {
        sleep: Sleep,
        jobs: AtomicUsize,
        closed: AtomicBool,
    }

    impl SleepModel {
        fn push(&self, jobs: usize) {
            self.jobs.fetch_add(jobs, Ordering::Relaxed);
            self.sleep.notify();
        }

        fn take(&self) -> bool {
            let taken =
                self.jobs.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |jobs| jobs.checked_sub(1));
            taken.is_ok()
        }

        fn has_work(&self) -> bool {
            self.jobs.load(Ordering::Relaxed) > 0
        }

        /// A worker that leaves after its first job, so that no other worker can hide a lost wake-up. False
        /// if it left because of the end.
        fn run_one(&self) -> bool {
            let parker = Arc::default();
            self.sleep.start_searching();
            loop {
                if self.take() {
                    self.sleep.stop_searching(|| self.has_work());
                    return true;
                }
                if self.closed.load(Ordering::SeqCst) {
                    self.sleep.stop_searching(|| self.has_work());
                    return false;
                }
                self.sleep.sleep(&parker, || self.has_work() || self.closed.load(Ordering::SeqCst));
            }
        }

        fn assert_quiet(&self) {
            assert_eq!(self.sleep.counters.load(Ordering::SeqCst), 0, "no thread searches, no thread sleeps");
            assert!(self.sleep.idle.lock().is_empty());
        }
    }

    fn check(preemptions: Option<usize>, model: impl Fn() + Send + Sync + 'static) {
        let mut builder = Builder::new();
        builder.preemption_bound = preemptions;
        builder.check(model);
    }

    fn spawn_worker(model: &Arc<SleepModel>) -> thread::JoinHandle<bool> {
        let model = model.clone();
        thread::spawn(move || model.run_one())
    }

    #[test]
    fn a_job_that_meets_a_worker_falling_asleep_is_run() {
        check(None, || {
            let model = Arc::new(SleepModel::default());
            let worker = spawn_worker(&model);
            model.push(1);
            assert!(worker.join().unwrap());
            model.assert_quiet();
        });
    }

    /// Two workers beside this thread, which does `act`. `runs` says whether each gets a job.
    fn two_workers(runs: bool, act: fn(&SleepModel)) {
        check(Some(3), move || {
            let model = Arc::new(SleepModel::default());
            let workers = [spawn_worker(&model), spawn_worker(&model)];
            act(&model);
            assert!(workers.into_iter().all(|worker| worker.join().unwrap() == runs));
            model.assert_quiet();
        });
    }

    #[test]
    fn two_jobs_pushed_one_by_one_wake_two_workers() {
        two_workers(true, |model| {
            model.push(1);
            model.push(1);
        });
    }

    #[test]
    fn a_batch_with_one_wake_up_reaches_two_workers() {
        two_workers(true, |model| model.push(2));
    }

    #[test]
    fn the_end_wakes_all_workers() {
        two_workers(false, |model| {
            model.closed.store(true, Ordering::SeqCst);
            model.sleep.notify_all();
        });
    }
}
