//! Situations of the worker pool.
#![allow(clippy::unwrap_used, reason = "the functions are tests, by a macro")]

mod jobs;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Barrier, Mutex};
use std::time::{Duration, Instant};

use estafette_devices::cpu::{Job, Pool, PoolOptions};
use jobs::{Run, pool};

fn run(f: impl FnOnce() + Send + 'static) -> Run {
    Run(Box::new(move |_| f()))
}

/// Queues several jobs with one wake-up: the worker that wakes up wakes the next one if there is more.
fn push_batch<J: Job>(pool: &Pool<J>, jobs: impl IntoIterator<Item = J>) {
    jobs.into_iter().for_each(|job| pool.push_unnoticed(job));
    pool.notice();
}

/// Tests for pools without and with a shared lock.
macro_rules! both_kinds {
    ($($test:ident),* $(,)?) => {
        mod every_worker {
            $(#[test] fn $test() { super::$test(false); })*
        }
        mod with_lock {
            $(#[test] fn $test() { super::$test(true); })*
        }
    };
}

both_kinds!(
    every_job_pushed_from_several_threads_runs_exactly_once,
    jobs_pushed_by_a_job_run_on_its_worker_and_are_stolen_when_it_blocks,
    higher_priorities_go_first_and_negative_ones_last_in_order_of_arrival,
    a_panicking_job_leaves_its_worker_alive,
    without_workers_jobs_run_only_where_they_are_taken,
    a_worker_that_looks_for_a_job_keeps_its_own_jobs_in_order,
    a_batch_with_one_wake_up_reaches_as_many_workers_as_it_needs,
    a_spare_thread_covers_a_blocked_worker_up_to_the_limit,
    blocking_again_and_again_reuses_the_spare_thread,
    blocking_outside_of_the_pool_does_nothing,
    dropping_the_last_handle_lets_workers_drain_and_leave,
    the_last_handle_may_be_dropped_on_a_worker,
    shutdown_leaves_what_is_queued_for_others,
    sleeping_workers_are_woken_again_and_again,
    a_worker_that_feeds_itself_still_serves_the_others,
);

/// Long enough for a slow machine; a test that waits this long has failed.
const PATIENCE: Duration = Duration::from_secs(30);

fn receive<T>(receiver: &Receiver<T>) -> T {
    receiver.recv_timeout(PATIENCE).expect("a job should have reported by now")
}

/// Counts drops, to see that nothing is lost or kept.
struct Dropped(Arc<AtomicUsize>);

impl Drop for Dropped {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

fn every_job_pushed_from_several_threads_runs_exactly_once(with_lock: bool) {
    const EACH: usize = 5_000;
    let pool = pool(3, 0, with_lock);
    let ran: Arc<Vec<AtomicUsize>> = Arc::new((0..4 * EACH).map(|_| AtomicUsize::new(0)).collect());
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (pool, ran) = (pool.clone(), ran.clone());
            scope.spawn(move || {
                for index in thread * EACH..(thread + 1) * EACH {
                    let ran = ran.clone();
                    let job = run(move || {
                        ran[index].fetch_add(1, Ordering::SeqCst);
                    });
                    match index % 4 {
                        0 => push_batch(&pool, [job]),
                        1 => pool.push_priority(job, index as i32 % 7 - 3),
                        _ => pool.push(job),
                    }
                }
            });
        }
    });
    let has_run = |count: &AtomicUsize| count.load(Ordering::SeqCst) > 0;
    let deadline = Instant::now() + PATIENCE;
    while !ran.iter().all(has_run) && Instant::now() < deadline {
        std::thread::yield_now();
    }
    pool.shutdown();
    assert!(pool.join(Some(PATIENCE)));
    assert!(ran.iter().all(|count| count.load(Ordering::SeqCst) == 1));
}

fn jobs_pushed_by_a_job_run_on_its_worker_and_are_stolen_when_it_blocks(with_lock: bool) {
    let pool = pool(2, 0, with_lock);
    let (report, reports) = channel();
    let outer = report.clone();
    pool.push(Run(Box::new(move |pool| {
        assert!(pool.is_worker());
        let (inner, done) = channel();
        pool.push(run(move || inner.send(()).unwrap()));
        // This worker is busy here: only the other one can run the inner job.
        receive(&done);
        outer.send("stolen").unwrap();
    })));
    assert_eq!(receive(&reports), "stolen");
    assert!(!pool.is_worker());
}

fn higher_priorities_go_first_and_negative_ones_last_in_order_of_arrival(with_lock: bool) {
    let pool = pool(1, 0, with_lock);
    let (open, gate) = channel::<()>();
    let (started, start) = channel();
    pool.push(run(move || {
        started.send(()).unwrap();
        receive(&gate);
    }));
    receive(&start);
    let (report, reports) = channel();
    for (name, priority) in
        [("n1", 0), ("low", -1), ("hi a", 5), ("n2", 0), ("lowest", -9), ("top", 6), ("hi b", 5)]
    {
        let report = report.clone();
        pool.push_priority(run(move || report.send(name).unwrap()), priority);
    }
    open.send(()).unwrap();
    let order: Vec<_> = (0..7).map(|_| receive(&reports)).collect();
    assert_eq!(order, ["top", "hi a", "hi b", "n1", "n2", "low", "lowest"]);
}

fn a_panicking_job_leaves_its_worker_alive(with_lock: bool) {
    let pool = pool(1, 0, with_lock);
    let (report, reports) = channel();
    pool.push(run(|| panic!("this job is broken on purpose")));
    pool.push(run(move || report.send(()).unwrap()));
    receive(&reports);
}

fn without_workers_jobs_run_only_where_they_are_taken(with_lock: bool) {
    let pool = pool(0, 4, with_lock);
    let (report, reports) = channel();
    for number in 0..3 {
        let report = report.clone();
        pool.push(run(move || report.send(number).unwrap()));
    }
    assert!(pool.has_work());
    assert!(reports.try_recv().is_err());
    while let Some(job) = pool.try_take() {
        job.run(&pool);
    }
    assert!(!pool.has_work());
    assert_eq!(reports.try_iter().collect::<Vec<_>>(), [0, 1, 2]);
}

/// A job that is only a number, for looking at queues.
struct Number(i32);

fn without_workers() -> Pool<Number> {
    let name = "numbers".to_owned();
    Pool::new(PoolOptions { workers: 0, name, spare_limit: 0, ..PoolOptions::default() }).unwrap()
}

impl Job for Number {
    fn run(self, _pool: &Pool<Self>) {}
}

#[test]
fn taking_a_matching_job_leaves_the_others_in_order() {
    let pool = without_workers();
    (0..10).for_each(|number| pool.push(Number(number)));
    pool.push_priority(Number(100), 3);
    pool.push_priority(Number(-100), -3);
    assert_eq!(pool.take_matching(|job| job.0 == 4).map(|job| job.0), Some(4));
    assert_eq!(pool.take_matching(|job| job.0 == 7).map(|job| job.0), Some(7));
    assert!(pool.take_matching(|job| job.0 == 4).is_none());
    assert_eq!(pool.take_matching(|job| job.0 < 2).map(|job| job.0), Some(0), "ordinary before negative");
    assert_eq!(pool.take_matching(|job| job.0 >= 9).map(|job| job.0), Some(100), "positive before ordinary");
    let rest: Vec<_> = std::iter::from_fn(|| pool.try_take()).map(|job| job.0).collect();
    assert_eq!(rest, [1, 2, 3, 5, 6, 8, 9, -100]);
}

fn a_worker_that_looks_for_a_job_keeps_its_own_jobs_in_order(with_lock: bool) {
    let pool = pool(1, 0, with_lock);
    let (report, reports) = channel();
    let order = Arc::new(Mutex::new(Vec::new()));
    let seen = order.clone();
    pool.push(Run(Box::new(move |pool| {
        for number in 0..4 {
            let (seen, report) = (seen.clone(), report.clone());
            pool.push(run(move || {
                seen.lock().unwrap().push(number);
                report.send(()).unwrap();
            }));
        }
        let mut looked = 0;
        let third = pool.take_matching(|_| {
            looked += 1;
            looked == 3
        });
        third.unwrap().run(pool);
    })));
    (0..4).for_each(|_| receive(&reports));
    // Newest first, but for number 1, which was taken out of the middle. Short jobs that share a lock run
    // oldest first, once one was measured.
    let order = order.lock().unwrap();
    assert!(*order == [1, 3, 2, 0] || (with_lock && *order == [1, 0, 2, 3]), "{order:?}");
}

#[test]
fn a_panic_while_looking_loses_no_job() {
    let pool = without_workers();
    (0..5).for_each(|number| pool.push(Number(number)));
    pool.push_priority(Number(9), 1);
    let looking = std::panic::AssertUnwindSafe(|| {
        pool.take_matching(|job| if job.0 == 3 { panic!("three") } else { false }).is_some()
    });
    assert!(std::panic::catch_unwind(looking).is_err());
    let rest: Vec<_> = std::iter::from_fn(|| pool.try_take()).map(|job| job.0).collect();
    assert_eq!(rest, [9, 0, 1, 2, 3, 4]);
}

#[test]
fn two_helpers_never_both_miss_the_job_that_the_other_one_wants() {
    // Each helper wants one number and takes nothing else; a helper that finds nothing gives up. With jobs in
    // the hands of the other scan, "nothing" would be wrong.
    for _ in 0..2_000 {
        let pool = without_workers();
        push_batch(&pool, [Number(1), Number(2)]);
        let together = Barrier::new(2);
        std::thread::scope(|scope| {
            for wanted in [2, 1] {
                let (pool, together) = (&pool, &together);
                scope.spawn(move || {
                    together.wait();
                    assert!(pool.take_matching(|job| job.0 == wanted).is_some());
                });
            }
        });
    }
}

#[test]
fn somebody_who_finds_nothing_waits_for_jobs_in_the_hands_of_a_scan() {
    for _ in 0..40 {
        let pool = without_workers();
        pool.push(Number(1));
        let (begin, began) = channel();
        std::thread::scope(|scope| {
            let receiver = scope.spawn({
                let pool = &pool;
                move || {
                    receive(&began);
                    pool.try_take().map(|job| job.0)
                }
            });
            let nothing = pool.take_matching(|_| {
                begin.send(()).unwrap();
                // Gives the other thread time to look while the job is in hand here.
                (0..100).for_each(|_| std::thread::yield_now());
                false
            });
            assert!(nothing.is_none());
            assert_eq!(receiver.join().unwrap(), Some(1));
        });
    }
}

fn a_batch_with_one_wake_up_reaches_as_many_workers_as_it_needs(with_lock: bool) {
    let pool = pool(3, 0, with_lock);
    for round in 0..500 {
        let (report, reports) = channel();
        // Three jobs that need each other at the same time.
        let together = Arc::new(Barrier::new(3));
        push_batch(
            &pool,
            (0..3).map(|_| {
                let (report, together) = (report.clone(), together.clone());
                run(move || {
                    together.wait();
                    report.send(()).unwrap();
                })
            }),
        );
        (0..3).for_each(|_| receive(&reports));
        // Workers are at a different point on their way to sleep each time.
        (0..(round % 64) * 200).for_each(|_| std::hint::spin_loop());
    }
}

fn a_spare_thread_covers_a_blocked_worker_up_to_the_limit(with_lock: bool) {
    let pool = pool(1, 1, with_lock);
    let (release, held) = channel::<()>();
    let (started, start) = channel();
    let (report, reports) = channel();
    let inner = report.clone();
    pool.push(Run(Box::new(move |pool| {
        // Pushed before blocking: it must not be stranded in this worker's deque.
        pool.push(run(move || inner.send("its own job").unwrap()));
        let _covered = pool.blocking();
        let _nested = pool.blocking();
        started.send(()).unwrap();
        receive(&held);
    })));
    receive(&start);
    assert_eq!(receive(&reports), "its own job");

    // The spare thread blocks as well: the limit is reached, and the next job has to wait.
    let (release_spare, held_spare) = channel::<()>();
    let (spare_started, spare_start) = channel();
    pool.push(Run(Box::new(move |pool| {
        let _uncovered = pool.blocking();
        spare_started.send(()).unwrap();
        receive(&held_spare);
    })));
    receive(&spare_start);
    let late = report.clone();
    pool.push(run(move || late.send("late").unwrap()));
    assert!(reports.try_recv().is_err());
    assert!(pool.has_work());
    release.send(()).unwrap();
    assert_eq!(receive(&reports), "late");
    release_spare.send(()).unwrap();
}

fn blocking_again_and_again_reuses_the_spare_thread(with_lock: bool) {
    let pool = pool(1, 1, with_lock);
    let threads: Arc<Mutex<Vec<_>>> = Arc::default();
    for _ in 0..50 {
        let (report, reports) = channel();
        let threads = threads.clone();
        pool.push(Run(Box::new(move |pool| {
            let (inner, done) = channel();
            let _covered = pool.blocking();
            pool.push(run(move || inner.send(std::thread::current().id()).unwrap()));
            threads.lock().unwrap().push(receive(&done));
            report.send(()).unwrap();
        })));
        receive(&reports);
    }
    let mut threads = threads.lock().unwrap().clone();
    threads.sort_by_key(|id| format!("{id:?}"));
    threads.dedup();
    assert!(threads.len() <= 2, "the worker and its spare take turns: {threads:?}");
}

fn blocking_outside_of_the_pool_does_nothing(with_lock: bool) {
    let pool = pool(1, 1, with_lock);
    drop(pool.blocking());
    let (report, reports) = channel();
    pool.push(run(move || report.send(()).unwrap()));
    receive(&reports);
}

fn dropping_the_last_handle_lets_workers_drain_and_leave(with_lock: bool) {
    let dropped = Arc::new(AtomicUsize::new(0));
    let ran = Arc::new(AtomicUsize::new(0));
    let (gone, all_gone): (Sender<()>, _) = channel();
    let pool = pool(2, 2, with_lock);
    for _ in 0..1_000 {
        let (token, ran, gone) = (Dropped(dropped.clone()), ran.clone(), gone.clone());
        let own = gone.clone();
        pool.push(Run(Box::new(move |pool| {
            // Dropped after the token.
            let _own = own;
            let _token = token;
            // Jobs pushed while draining run as well.
            pool.push(run(move || {
                ran.fetch_add(1, Ordering::SeqCst);
                drop(gone);
            }));
        })));
    }
    drop(pool);
    drop(gone);
    // Disconnected once every job has been dropped.
    assert!(
        all_gone
            .recv_timeout(PATIENCE)
            .is_err_and(|error| error == std::sync::mpsc::RecvTimeoutError::Disconnected)
    );
    assert_eq!(dropped.load(Ordering::SeqCst), 1_000);
    assert_eq!(ran.load(Ordering::SeqCst), 1_000);
}

fn the_last_handle_may_be_dropped_on_a_worker(with_lock: bool) {
    let (report, reports) = channel();
    let pool = pool(1, 0, with_lock);
    let last = pool.clone();
    pool.push(run(move || {
        assert!(!last.join(Some(PATIENCE)), "a worker cannot wait for itself");
        drop(last);
        report.send(()).unwrap();
    }));
    drop(pool);
    receive(&reports);
}

fn shutdown_leaves_what_is_queued_for_others(with_lock: bool) {
    let pool = pool(1, 0, with_lock);
    let (open, gate) = channel::<()>();
    let (started, start) = channel();
    pool.push(run(move || {
        started.send(()).unwrap();
        receive(&gate);
    }));
    receive(&start);
    pool.push(run(|| ()));
    pool.shutdown();
    assert!(!pool.join(Some(Duration::from_millis(1))), "the current job is still running");
    open.send(()).unwrap();
    assert!(pool.join(Some(PATIENCE)));
    assert!(pool.try_take().is_some());
    assert!(pool.try_take().is_none());
}

fn sleeping_workers_are_woken_again_and_again(with_lock: bool) {
    let pool = pool(2, 0, with_lock);
    for round in 0..2_000 {
        let (report, reports) = channel();
        // A pause of changing length lets workers get to a different point on their way to sleep each time.
        (0..(round % 64) * 200).for_each(|_| std::hint::spin_loop());
        pool.push(run(move || report.send(()).unwrap()));
        receive(&reports);
    }
}

fn a_worker_that_feeds_itself_still_serves_the_others(with_lock: bool) {
    let pool = pool(1, 0, with_lock);
    let stop = Arc::new(AtomicUsize::new(0));
    fn forever(stop: Arc<AtomicUsize>) -> Run {
        Run(Box::new(move |pool| {
            if stop.load(Ordering::SeqCst) == 0 {
                let again = forever(stop);
                pool.push(again);
            }
        }))
    }
    pool.push(forever(stop.clone()));
    let (report, reports) = channel();
    pool.push(run(move || report.send(()).unwrap()));
    receive(&reports);
    stop.store(1, Ordering::SeqCst);
}

#[test]
fn a_helper_that_wants_most_jobs_leaves_the_others_in_their_place() {
    let pool = without_workers();
    push_batch(&pool, (1..=4).map(Number));
    let even = || pool.take_next_matching(|job| job.0 % 2 == 0).map(|job| job.0);
    assert_eq!([even(), even(), even()], [Some(2), Some(4), None]);
    assert_eq!([pool.try_take(), pool.try_take()].map(|job| job.map(|job| job.0)), [Some(1), Some(3)]);
    assert!(!pool.has_work());
}
