//! Protocols of the engine under random schedules: `cargo xtask test --suite shuttle`. Only a build for
//! shuttle has them.
//!
//! Nothing moves the clock here, so no timeout ends a wait: a wake-up that is lost is a deadlock, which
//! shuttle reports, even where the engine would have looked again some milliseconds later. So is a thread
//! that does not leave with its engine. A clock moves where a time belongs to the protocol: in the
//! quarantine, beside staging, which needs a device, and where a fence is overdue.
//!
//! | part | what it has |
//! |---|---|
//! | `device` | a device whose barriers and copies the models watch |
//! | `foreign_fences` | each subscription is answered once |
//! | `imports` | imports of overlapping memory |
//! | `leases` | leases that are given up while they are granted |
//! | `quarantine` | memory whose last use is unknown |
//! | `staging` | copies that share few staging chunks |
#![cfg(estafette_shuttle)]
#![allow(clippy::unwrap_used, reason = "in a test, an unwrap is an assertion")]

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use estafette::devices::{FenceSet, host};
use estafette::{Access, DType, Engine, Error, ImportOptions};
use estafette_sync::thread;
use tests::foreign;
use tests::simulation::explore;

mod device;
mod foreign_fences;
mod imports;
mod leases;
mod quarantine;
mod staging;

/// Schedules per protocol.
const SCHEDULES: u64 = 3_000;

fn engine(workers: usize) -> Engine {
    Engine::builder().workers(workers).build().unwrap()
}

/// ```text
/// worker:  begin ─── run          one of them wins, and both know which
/// program:       cancel
/// ```
#[test]
fn an_operation_is_begun_or_cancelled_and_never_both() {
    explore(SCHEDULES, || {
        let engine = engine(1);
        let tensor = engine.zeros(&[1], DType::U64).unwrap();
        let (ran, dropped) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        struct Dropped(Arc<AtomicUsize>);
        impl Drop for Dropped {
            fn drop(&mut self) {
                self.0.fetch_add(1, Ordering::SeqCst);
            }
        }
        let (body_ran, body) = (ran.clone(), Dropped(dropped.clone()));
        let op = engine.op("op").writes([&tensor]).run(move |[], [_tensor]| {
            let _body = body;
            body_ran.fetch_add(1, Ordering::SeqCst);
            Ok(())
        });
        let op = op.unwrap();
        let cancelled = thread::scope(|scope| {
            let canceller = scope.spawn(|| op.cancel());
            let waited = op.wait();
            let cancelled = canceller.join().unwrap();
            assert_eq!(waited.is_err(), cancelled, "{waited:?}");
            cancelled
        });
        engine.wait_all(None).unwrap();
        assert_eq!(ran.load(Ordering::SeqCst), usize::from(!cancelled));
        assert_eq!(dropped.load(Ordering::SeqCst), 1);
        assert_eq!(tensor.wait().is_err(), cancelled);
    });
}

/// A reader is cancelled, or fails, because of what it reads: a cancel that spreads meets readiness that is
/// asked for.
#[test]
fn a_cancel_that_spreads_reaches_waits_behind_it() {
    explore(SCHEDULES, || {
        let engine = engine(1);
        let [first, second] = [(); 2].map(|()| engine.zeros(&[1], DType::U64).unwrap());
        let one = engine.op("one").writes([&first]).run(|[], [_first]| Ok(())).unwrap();
        let two =
            engine.op("two").reads([&first]).writes([&second]).run(|[_first], [_second]| Ok(())).unwrap();
        thread::scope(|scope| {
            let canceller = scope.spawn(|| one.cancel());
            let ready = second.wait();
            let cancelled = canceller.join().unwrap();
            // The second one may have read before.
            assert!(ready.is_err() <= cancelled, "failed without a cause: {ready:?}");
            assert_eq!(ready.is_err(), two.wait().is_err());
            assert_eq!(cancelled, first.wait().is_err());
        });
    });
}

/// ```text
/// worker:  end ─── ring       waits for everything, and for room, hear of the last end
/// program:     listen ─── sleep
/// ```
#[test]
fn waits_for_room_and_for_the_end_hear_of_it() {
    explore(SCHEDULES, || {
        let engine = Engine::builder().workers(1).in_flight_limit(2).build().unwrap();
        let variable = engine.var();
        thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    for _ in 0..3 {
                        engine.op("op").writes_vars(&[&variable]).run(|[], []| Ok(())).unwrap();
                    }
                });
            }
            engine.wait_all(None).unwrap();
        });
        engine.wait_all(None).unwrap();
        assert_eq!(variable.version(), 6);
    });
}

/// ```text
/// worker:  end ─── wakes the first
/// program:     listens ─── sleeps        a thread, a future, and a future that is dropped
/// ```
#[test]
fn threads_and_futures_that_wait_for_permits_all_get_them() {
    explore(SCHEDULES, || {
        let engine = Engine::builder().workers(1).in_flight_limit(1).build().unwrap();
        thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..2 {
                    engine.op("of a thread").run(|[], []| Ok(())).unwrap();
                }
            });
            scope.spawn(|| {
                for _ in 0..2 {
                    let permit = shuttle::future::block_on(engine.op("of a task").permit());
                    permit.unwrap().run(|[], []| Ok(())).unwrap();
                }
            });
            let mut given_up = Box::pin(engine.op("given up").permit());
            drop(given_up.as_mut().poll(&mut Context::from_waker(Waker::noop())));
        });
        engine.wait_all(None).unwrap();
    });
}

/// ```text
/// worker:  end, grants the lease
/// program:                      drops the future that asked for it
/// ```
#[test]
fn a_lease_that_is_granted_while_it_is_given_up_is_released() {
    explore(SCHEDULES, || {
        let engine = engine(1);
        let tensor = engine.zeros(&[1], DType::U64).unwrap();
        let access = [Access::Read, Access::Write];
        for access in access {
            let write = engine.op("write").writes([&tensor]).run(|[], [_tensor]| Ok(())).unwrap();
            {
                let mut lease = pin!(tensor.lease(access, "a test"));
                if let Poll::Ready(lease) = lease.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
                    drop(lease.unwrap());
                }
            }
            let after = engine.op("after").writes([&tensor]).run(|[], [_tensor]| Ok(())).unwrap();
            after.wait().unwrap();
            write.wait().unwrap();
        }
        assert!(tensor.lease(Access::Write, "a test").try_now().unwrap().is_some());
    });
}

/// Handles of an engine on two threads are dropped while its last operation ends: its worker leaves, on
/// whatever thread the last one is dropped.
#[test]
fn the_worker_leaves_with_the_last_use_of_its_engine() {
    explore(SCHEDULES, || {
        let engine = engine(1);
        let other = engine.clone();
        let tensor = engine.zeros(&[1], DType::U64).unwrap();
        let op = engine.op("op").writes([&tensor]).run(|[], [_tensor]| Ok(())).unwrap();
        thread::scope(|scope| {
            scope.spawn(move || drop(other));
            scope.spawn(move || drop(op));
            drop(engine);
        });
        drop(tensor);
    });
}

/// Two threads drop tensors of another library, some with work under way: each deleter runs once, and a flush
/// waits for all of them.
#[test]
fn each_deleter_runs_once_and_a_flush_waits_for_it() {
    explore(SCHEDULES, || {
        let engine = engine(1);
        let deleted = foreign::Deleted::default();
        let (completer, pending) = host::promise("work of another library");
        let fences = [FenceSet::default(), [pending].into_iter().collect()];
        thread::scope(|scope| {
            for ready in fences {
                let (engine, deleted) = (&engine, &deleted);
                scope.spawn(move || {
                    // SAFETY: a true description; nothing uses the memory.
                    let tensor = unsafe {
                        engine.import_with(
                            foreign::tensor(&[1.0], deleted),
                            ImportOptions { ready, ..ImportOptions::default() },
                        )
                    };
                    drop(tensor.unwrap());
                });
            }
            scope.spawn(move || completer.complete());
        });
        assert!(estafette::exchange::flush_deleters(Duration::from_secs(1)));
        assert_eq!(deleted.count(), 2);
    });
}

/// ```text
/// other library:  done ─── tell those who have subscribed
/// reactor:            subscribe ─── look
/// ```
#[test]
fn a_foreign_fence_that_settles_while_it_is_subscribed_to_is_heard_of() {
    explore(SCHEDULES, || {
        let engine = engine(1);
        let deleted = foreign::Deleted::default();
        let (completer, pending) = host::promise("work of another library");
        let done = Arc::new(AtomicUsize::new(0));
        let ready: FenceSet = [pending].into_iter().collect();
        // SAFETY: a true description; the memory is used by operations alone.
        let tensor = unsafe {
            engine.import_with(
                foreign::tensor(&[1.0], &deleted),
                ImportOptions { ready, ..ImportOptions::default() },
            )
        }
        .unwrap();
        thread::scope(|scope| {
            let (seen, told) = (done.clone(), done.clone());
            scope.spawn(move || {
                told.store(1, Ordering::SeqCst);
                completer.complete();
            });
            let read = engine.op("read").reads([&tensor]).run(move |[_tensor], []| {
                assert_eq!(seen.load(Ordering::SeqCst), 1, "read before it was ready");
                Ok(())
            });
            read.unwrap().wait().unwrap();
        });
    });
}

/// A wait that begins while the operation fails gets the failure; a wait that begins after the healing write
/// does not.
#[test]
fn a_failure_is_seen_between_it_and_its_cure() {
    explore(SCHEDULES, || {
        let engine = engine(2);
        let tensor = engine.zeros(&[1], DType::U64).unwrap();
        let fails =
            engine.op("fails").writes([&tensor]).run(|[], [_tensor]| Err("on purpose".into())).unwrap();
        thread::scope(|scope| {
            let asks = scope.spawn(|| tensor.wait());
            let asked: Result<(), Error> = asks.join().unwrap();
            assert!(asked.is_err());
        });
        engine.op("heals").writes([&tensor]).run(|[], [_tensor]| Ok(())).unwrap();
        tensor.wait().unwrap();
        assert!(fails.wait().is_err());
    });
}
