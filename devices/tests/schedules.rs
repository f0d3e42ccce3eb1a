//! Whole pools, promises and devices under random schedules:
//! `RUSTFLAGS="--cfg estafette_shuttle" cargo test -p estafette-devices --test schedules --release`.
//!
//! A lost wake-up leaves threads blocked for ever, which shuttle reports as a deadlock.
#![cfg(estafette_shuttle)]

mod jobs;

use std::sync::Arc;

use estafette_devices::sim::{SimDevice, SimNotify, SimOptions, SimPace};
use estafette_devices::{FenceSet, Order, Queue, Reactor, host};
use estafette_sync::sync::atomic::{AtomicUsize, Ordering};
use estafette_sync::sync::mpsc;
use estafette_sync::thread;
use jobs::{Run, pool};

/// Random schedules per situation.
const SCHEDULES: usize = 5_000;

/// Checks `situation` in pools without and with a shared lock. Their timeouts never pass here, so
/// that no wake-up can come from these.
fn check_both_kinds(situation: impl Fn(bool) + Send + Sync + Copy + 'static) {
    for with_lock in [false, true] {
        shuttle::check_random(move || situation(with_lock), SCHEDULES);
    }
}

#[test]
fn jobs_of_two_pushers_all_run_and_the_workers_leave() {
    check_both_kinds(|with_lock| {
        let pool = pool(2, 0, with_lock);
        let ran = Arc::new(AtomicUsize::new(0));
        let pusher = thread::spawn({
            let (pool, ran) = (pool.clone(), ran.clone());
            move || {
                let job = || {
                    let ran = ran.clone();
                    Run(Box::new(move |_| {
                        ran.fetch_add(1, Ordering::SeqCst);
                    }))
                };
                [job(), job()].into_iter().for_each(|job| pool.push_unnoticed(job));
                pool.notice();
            }
        });
        let (done, all_done) = mpsc::channel();
        pool.push(Run(Box::new(move |pool| {
            let inner = done.clone();
            pool.push(Run(Box::new(move |_| inner.send(()).unwrap())));
            done.send(()).unwrap();
        })));
        all_done.recv().unwrap();
        all_done.recv().unwrap();
        pusher.join().unwrap();
        let other = pool.clone();
        drop(pool);
        while other.has_work() {
            thread::yield_now();
        }
        other.shutdown();
        assert!(other.join(None));
        assert_eq!(ran.load(Ordering::SeqCst), 2);
    });
}

#[test]
fn a_blocked_worker_is_covered_whatever_the_schedule() {
    check_both_kinds(|with_lock| {
        let pool = pool(1, 1, with_lock);
        let (release, held) = mpsc::channel::<()>();
        let (done, all_done) = mpsc::channel();
        pool.push(Run(Box::new(move |pool| {
            for _ in 0..2 {
                let _covered = pool.blocking();
                held.recv().unwrap();
            }
        })));
        for _ in 0..2 {
            let (release, done) = (release.clone(), done.clone());
            pool.push(Run(Box::new(move |_| {
                release.send(()).unwrap();
                done.send(()).unwrap();
            })));
        }
        all_done.recv().unwrap();
        all_done.recv().unwrap();
        // Of the worker and its spare thread, whichever goes on.
        let (done, is_done) = mpsc::channel();
        pool.push(Run(Box::new(move |_| done.send(()).unwrap())));
        is_done.recv().unwrap();
        pool.shutdown();
        assert!(pool.join(None));
    });
}

#[test]
fn a_promise_notifies_each_waiter_once_while_it_is_kept() {
    shuttle::check_random(
        || {
            let (completer, fence) = host::promise("shuttle");
            let told = Arc::new(AtomicUsize::new(0));
            let waiters: Vec<_> = (0..2)
                .map(|_| {
                    let (fence, told) = (fence.clone(), told.clone());
                    thread::spawn(move || {
                        Reactor::global().when_settled([&fence], move |outcome| {
                            assert!(outcome.is_ok());
                            told.fetch_add(1, Ordering::SeqCst);
                        });
                        assert!(fence.wait_timeout(None).unwrap().is_ok());
                    })
                })
                .collect();
            completer.complete();
            waiters.into_iter().for_each(|waiter| waiter.join().unwrap());
            assert_eq!(told.load(Ordering::SeqCst), 2);
        },
        SCHEDULES,
    );
}

#[test]
fn a_free_running_device_that_is_polled_settles_everything() {
    shuttle::check_random(
        || {
            let options =
                SimOptions { pace: SimPace::Immediate, notify: SimNotify::Poll, ..SimOptions::default() };
            let device = SimDevice::new(options).unwrap();
            let (first, second) = (device.queue(false), device.queue(false));
            first.launch("one", 1, || ()).unwrap();
            let one = first.record().unwrap();
            assert_ne!(second.order_after(&one).unwrap(), Order::Host);
            second.launch("two", 1, || ()).unwrap();
            let fence_set: FenceSet = [one, second.record().unwrap()].into_iter().collect();
            let (done, all_done) = mpsc::channel();
            Reactor::global().when_settled(&fence_set, move |outcome| done.send(outcome.is_ok()).unwrap());
            drop((first, second, device));
            assert!(all_done.recv().unwrap());
        },
        SCHEDULES,
    );
}
