//! Many submissions with one wake-up.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use estafette::{Engine, bindings};
use tests::ops::{engine, tensor};
use tests::watchdog::Watchdog;

/// Submits `count` operations that each count once, on variables of their own.
fn count(engine: &Engine, count: usize) -> Arc<AtomicUsize> {
    let counter = Arc::new(AtomicUsize::new(0));
    for _ in 0..count {
        let (variable, counted) = (engine.var(), Arc::clone(&counter));
        let op = engine.op("count").writes_vars(&[&variable]).run(move |[], []| {
            counted.fetch_add(1, Ordering::Relaxed);
            Ok(())
        });
        op.unwrap();
    }
    counter
}

#[test]
fn sleeping_workers_run_everything_after_the_end() {
    let engine = engine(3);
    let watchdog = Watchdog::of(&engine);
    for _ in 0..200 {
        let counter = engine.submit_many(|| count(&engine, 20));
        engine.wait_all(None).unwrap();
        assert_eq!(counter.load(Ordering::Relaxed), 20);
    }
    assert!(watchdog.still_watches());
}

#[test]
fn a_wait_inside_wakes_the_workers_first() {
    let engine = engine(1);
    let watchdog = Watchdog::of(&engine);
    for _ in 0..50 {
        // The worker sleeps; only the worker may run this operation.
        std::thread::sleep(std::time::Duration::from_micros(300));
        engine.submit_many(|| {
            let x = tensor(&engine, 1.0);
            bindings::operation::worker_only(engine.op("worker_only"))
                .updates([&x])
                .run(|[], [], [_x]| Ok(()))
                .unwrap();
            x.wait().unwrap();
        });
    }
    assert!(watchdog.still_watches());
}

#[test]
fn a_reached_in_flight_limit_inside_drains() {
    let engine = Engine::builder().workers(1).in_flight_limit(4).build().unwrap();
    let watchdog = Watchdog::of(&engine);
    let counter = engine.submit_many(|| count(&engine, 1_000));
    engine.wait_all(None).unwrap();
    assert_eq!(counter.load(Ordering::Relaxed), 1_000);
    assert!(watchdog.still_watches());
}

#[test]
fn a_panic_inside_leaves_nothing_asleep_and_nesting_is_allowed() {
    let engine = engine(1);
    let watchdog = Watchdog::of(&engine);
    let counter = Arc::new(AtomicUsize::new(0));
    let panics = catch_unwind(AssertUnwindSafe(|| {
        engine.submit_many(|| {
            engine.submit_many(|| count(&engine, 1));
            let counted = Arc::clone(&counter);
            engine
                .op("count")
                .run(move |[], []| {
                    counted.fetch_add(1, Ordering::Relaxed);
                    Ok(())
                })
                .unwrap();
            panic!("planned");
        });
    }));
    assert!(panics.is_err());
    engine.wait_all(None).unwrap();
    assert_eq!(counter.load(Ordering::Relaxed), 1);
    assert!(watchdog.still_watches());
}
