//! Models of whole pools and of their queues:
//! `RUSTFLAGS="--cfg estafette_loom" cargo test -p estafette-devices --profile model --lib models::`.
//!
//! A job that is lost, or a wake-up, leaves a thread waiting for ever, which loom reports as a deadlock.

use std::sync::Arc;

use estafette_sync::sync::{Condvar, Mutex};
use estafette_sync::thread;
use loom::model::Builder;

use super::queues::Queues;
use super::{Job, Pool, PoolOptions, SharedLock};

/// Numbers of the jobs that have run.
#[derive(Default)]
struct Record {
    ran: Mutex<Vec<u64>>,
    changed: Condvar,
}

impl Record {
    fn wait(&self, count: usize) {
        let mut ran = self.ran.lock();
        while ran.len() < count {
            ran = self.changed.wait(ran);
        }
    }
}

struct NotedJob(u64, Arc<Record>);

impl Job for NotedJob {
    fn run(self, _pool: &Pool<Self>) {
        self.1.ran.lock().push(self.0);
        self.1.changed.notify_one();
    }

    fn needs_lock(&self) -> bool {
        true
    }
}

#[derive(Debug)]
struct Lock;

impl SharedLock for Lock {
    fn lock_while(&self, next: &mut dyn FnMut() -> bool) {
        next();
    }
}

/// The use of a pool, with a source of jobs.
type Use = fn(&Pool<NotedJob>, &dyn Fn(u64) -> NotedJob);

/// Explores a model, with at most that many switches away from a thread that could go on, or as many as
/// `LOOM_MAX_PREEMPTIONS` says if that is less.
fn explore(preemptions: Option<usize>, model: impl Fn() + Send + Sync + 'static) {
    let mut builder = Builder::new();
    builder.preemption_bound = preemptions.into_iter().chain(builder.preemption_bound).min();
    builder.max_branches = 10_000;
    builder.check(model);
}

fn pool(workers: usize, lock: Option<Arc<dyn SharedLock>>) -> Pool<NotedJob> {
    let (name, stack_size) = (String::new(), 1 << 16);
    let pool =
        Pool::new(PoolOptions { workers, spare_limit: 0, stack_size, name }).expect("threads can be started");
    lock.into_iter().for_each(|lock| pool.share_lock(lock));
    pool
}

/// Pools with one worker, in which `count` jobs of `used` run.
fn check(preemptions: Option<usize>, count: usize, used: Use) {
    check_with(|| pool(1, None), preemptions, count, used);
}

/// As [`check`], with pools that `new` makes.
fn check_with(new: fn() -> Pool<NotedJob>, preemptions: Option<usize>, count: usize, used: Use) {
    explore(preemptions, move || {
        let record = Arc::new(Record::default());
        let pool = new();
        used(&pool, &|number| NotedJob(number, record.clone()));
        record.wait(count);
        // The end of a pool has models of its own.
        loom::stop_exploring();
        pool.shutdown();
        assert!(pool.join(None));
        assert_eq!(record.ran.lock().len(), count);
    });
}

#[test]
fn a_job_from_outside_that_meets_a_worker_falling_asleep_is_run() {
    check(Some(3), 1, |pool, job| pool.push(job(1)));
}

#[test]
fn jobs_of_any_priority_that_meet_a_worker_falling_asleep_are_run() {
    check(Some(2), 2, |pool, job| {
        [1, -1].into_iter().for_each(|priority| pool.push_priority(job(1), priority))
    });
}

#[test]
fn jobs_in_order_that_meet_a_worker_falling_asleep_are_run() {
    check(Some(2), 2, |pool, job| {
        for number in [2, 1] {
            pool.push_in_order_unnoticed(job(number), number);
            pool.notice();
        }
    });
}

#[test]
fn jobs_of_two_threads_are_run() {
    check(Some(2), 2, |pool, job| {
        let pusher = thread::spawn({
            let (pool, job) = (pool.clone(), job(1));
            move || pool.push(job)
        });
        pool.push(job(2));
        pusher.join().expect("it does not panic");
    });
}

#[test]
fn a_job_of_a_thread_that_ends_is_run() {
    check(Some(3), 1, |pool, job| {
        let (pool, job) = (pool.clone(), job(1));
        thread::spawn(move || pool.push_unnoticed(job)).join().expect("it does not panic");
    });
}

#[test]
fn a_job_that_a_search_has_in_hand_while_the_worker_falls_asleep_is_run() {
    check(Some(3), 1, |pool, job| {
        pool.push_unnoticed(job(1));
        assert!(pool.take_matching(|_| false).is_none());
    });
}

#[test]
fn a_job_that_is_taken_and_put_back_while_the_worker_falls_asleep_is_run() {
    check(Some(3), 1, |pool, job| {
        pool.push_unnoticed(job(1));
        assert!(pool.take_next_if(|_| false).is_none());
    });
}

#[test]
fn a_job_that_meets_a_lock_that_is_shared_from_now_on_is_run() {
    check(Some(1), 1, |pool, job| {
        let other = thread::spawn({
            let (pool, job) = (pool.clone(), job(1));
            move || pool.push(job)
        });
        pool.share_lock(Arc::new(Lock));
        other.join().expect("it does not panic");
    });
}

#[test]
fn a_job_of_the_thread_that_has_shared_a_lock_is_run() {
    check(Some(3), 1, |pool, job| {
        pool.share_lock(Arc::new(Lock));
        pool.push(job(1));
    });
}

#[test]
fn a_job_that_meets_the_end_of_the_last_slot_is_run() {
    explore(Some(2), || {
        let record = Arc::new(Record::default());
        let pool = pool(1, Some(Arc::new(Lock)));
        let slots = pool.shared.concurrency().expect("the pool has a lock");
        // Another thread runs a job, and a lookout watches it: a push wakes no worker. The thread that pushes
        // goes on, as its end would wake one.
        slots.exceed();
        assert!(slots.begin_watch());
        let other = thread::spawn({
            let pool = pool.clone();
            move || pool.shared.release_slot()
        });
        pool.push(NotedJob(1, record.clone()));
        record.wait(1);
        loom::stop_exploring();
        other.join().expect("it does not panic");
        pool.shutdown();
        assert!(pool.join(None));
    });
}

/// A pool with a lock, whose threads are expected to wait at once: a worker that has nothing to do stands by.
fn expecting() -> Pool<NotedJob> {
    let pool = pool(1, Some(Arc::new(Lock)));
    pool.shared.concurrency().expect("the pool has a lock").waiters.expect_waits();
    pool
}

/// As [`check`], with [`expecting`] pools. No thread that pushes takes a slot.
fn check_left(preemptions: Option<usize>, count: usize, used: Use) {
    check_with(expecting, preemptions, count, used);
}

#[test]
fn a_job_that_meets_a_worker_standing_by_is_run() {
    check_left(Some(2), 1, |pool, job| pool.push(job(1)));
}

#[test]
fn a_job_whose_thread_waits_without_a_turn_is_run() {
    check_left(Some(2), 1, |pool, job| {
        pool.push(job(1));
        pool.release_to_workers();
    });
}

#[test]
fn a_second_job_that_meets_a_worker_standing_by_is_run() {
    check_left(Some(2), 2, |pool, job| [1, 2].into_iter().for_each(|number| pool.push(job(number))));
}

#[test]
fn jobs_of_two_threads_that_meet_a_worker_standing_by_are_run() {
    check_left(Some(1), 2, |pool, job| {
        let other = thread::spawn({
            let (pool, job) = (pool.clone(), job(1));
            move || pool.push(job)
        });
        pool.push(job(2));
        other.join().expect("it does not panic");
    });
}

#[test]
fn a_job_that_meets_the_end_of_a_turn_and_a_worker_standing_by_is_run() {
    check_left(Some(1), 1, |pool, job| {
        pool.shared.concurrency().expect("the pool has a lock").exceed();
        let other = thread::spawn({
            let pool = pool.clone();
            move || pool.shared.release_slot()
        });
        pool.push(job(1));
        other.join().expect("it does not panic");
    });
}

#[test]
fn a_worker_standing_by_leaves_when_the_pool_is_shut_down() {
    explore(Some(2), || {
        let pool = expecting();
        pool.shutdown();
        assert!(pool.join(None));
    });
}

#[test]
fn a_worker_standing_by_runs_what_is_left_when_the_pool_is_given_up() {
    explore(Some(2), || {
        let record = Arc::new(Record::default());
        let pool = expecting();
        pool.push(NotedJob(1, record.clone()));
        drop(pool);
        record.wait(1);
    });
}

#[test]
fn workers_of_a_pool_that_is_given_up_run_what_is_queued_and_leave() {
    explore(Some(3), || {
        let record = Arc::new(Record::default());
        let pool = pool(1, None);
        pool.push(NotedJob(1, record.clone()));
        drop(pool);
        record.wait(1);
    });
}

#[test]
fn workers_that_fall_asleep_leave_when_the_pool_is_shut_down() {
    explore(Some(2), || {
        let pool = pool(2, None);
        pool.shutdown();
        assert!(pool.join(None));
    });
}

/// Looks for a job that a search has in hand meanwhile; `place` says where it waits.
fn look_during_a_search(place: fn(&Queues<u64>, &super::deques::Worker<u64>)) {
    explore(None, move || {
        let (queues, mut owned, _) = Queues::new(1, 0);
        let own = owned.remove(0);
        place(&queues, &own);
        let queues = Arc::new(queues);
        let search = thread::spawn({
            let queues = queues.clone();
            move || assert!(queues.take_matching(Some(&own), |_| false).is_none())
        });
        assert_eq!(queues.take_from_outside(None), Some(1));
        search.join().expect("it does not panic");
        assert!(!queues.has_work());
    });
}

#[test]
fn a_thread_from_outside_finds_a_job_of_a_worker_that_searches() {
    look_during_a_search(|_, own| own.push(1));
}

#[test]
fn a_thread_from_outside_finds_a_shared_job_during_a_search() {
    look_during_a_search(|queues, _| queues.push(1));
}

#[test]
fn a_thread_from_outside_finds_a_job_with_a_priority_during_a_search() {
    look_during_a_search(|queues, _| queues.priorities.push(1, 1));
}

#[test]
fn a_thread_from_outside_finds_a_job_that_was_put_back_during_a_search() {
    look_during_a_search(|queues, _| queues.put_back(1));
}

#[test]
fn a_job_in_order_is_exchanged_once() {
    explore(None, || {
        let queues = Arc::new(Queues::new(1, 0).0);
        let exchange = |number: u64, queues: &Queues<u64>| queues.in_order.exchange(number, number, |_| true);
        let other = thread::spawn({
            let queues = queues.clone();
            move || {
                queues.in_order.push(1, 1);
                exchange(3, &queues)
            }
        });
        let taken = exchange(2, &queues);
        let others = other.join().expect("it does not panic");
        let left = queues.in_order.pop();
        assert!(queues.in_order.is_empty());
        let mut all = [Some(taken), Some(others), left];
        all.sort_unstable();
        assert_eq!(all, [Some(1), Some(2), Some(3)]);
        assert!(others < 3, "the job that was queued before comes first");
    });
}
