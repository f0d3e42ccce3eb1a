//! Guarantees about order: readers, writers, priorities, versions.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Barrier, Mutex};

use estafette::{DType, Engine, Variable, bindings};
use futures::FutureExt;
use futures::executor::block_on;
use tests::gate::Gate;
use tests::ops::{add, engine, get, read, set, tensor, until, waits};
use tests::watchdog::Watchdog;

#[test]
fn many_readers_run_at_once() {
    let engine = engine(4);
    let watchdog = Watchdog::of(&engine);
    let x = tensor(&engine, 1.0);
    let all = Arc::new(Barrier::new(4));
    // Each waits in its body until all four are in theirs.
    let ops: Vec<_> = (0..4)
        .map(|_| {
            let all = Arc::clone(&all);
            let op = engine.op("read").reads([&x]).run(move |[_x], []| {
                all.wait();
                Ok(())
            });
            op.unwrap()
        })
        .collect();
    ops.iter().for_each(|op| op.wait().unwrap());
    assert!(watchdog.still_watches());
}

#[test]
fn a_writer_is_alone() {
    let engine = engine(4);
    let watchdog = Watchdog::of(&engine);
    let x = tensor(&engine, 0.0);
    let inside = Arc::new(AtomicUsize::new(0));
    for round in 0..400 {
        let inside = Arc::clone(&inside);
        if round % 3 == 0 {
            let op = engine.op("write").updates([&x]).run(move |[], [], [_x]| {
                assert_eq!(inside.fetch_add(1000, Ordering::SeqCst), 0);
                std::thread::yield_now();
                inside.fetch_sub(1000, Ordering::SeqCst);
                Ok(())
            });
            drop(op.unwrap());
        } else {
            let op = engine.op("read").reads([&x]).run(move |[_x], []| {
                assert!(inside.fetch_add(1, Ordering::SeqCst) < 1000);
                std::thread::yield_now();
                inside.fetch_sub(1, Ordering::SeqCst);
                Ok(())
            });
            drop(op.unwrap());
        }
    }
    x.wait().unwrap();
    engine.wait_all(None).unwrap();
    assert!(watchdog.still_watches());
}

#[test]
fn a_stream_of_readers_does_not_starve_a_writer_nor_a_stream_of_writers_a_reader() {
    let engine = engine(2);
    let watchdog = Watchdog::of(&engine);
    let x = tensor(&engine, 0.0);
    // Readers that never end, each beginning before the one before ends: a writer that could be overtaken
    // waits for ever.
    let (first, second) = (hold(&engine, &x), None);
    let writer = add(&engine, &x, 1.0);
    let mut chain = (first, second);
    for _ in 0..100 {
        let next = read(&engine, &x);
        assert!(
            waits(&engine, &next) || chain.1.is_some(),
            "a reader overtook the writer: {}",
            engine.diagnose()
        );
        chain.1 = Some(next);
    }
    let (go, done) = chain.0;
    go.send(()).unwrap();
    done.wait().unwrap();
    writer.wait().unwrap();
    let reader = read(&engine, &x);
    (0..100).for_each(|_| drop(add(&engine, &x, 1.0)));
    reader.wait().unwrap();
    engine.wait_all(None).unwrap();
    assert_eq!(get(&x), 101.0);
    assert!(watchdog.still_watches());
}

/// A reader that runs until the test ends it.
fn hold(engine: &Engine, x: &estafette::Tensor) -> (std::sync::mpsc::Sender<()>, estafette::Op) {
    let (go, wait) = channel::<()>();
    let (said, heard) = channel();
    let op = engine.op("hold").reads([x]).run(move |[_x], []| {
        said.send(())?;
        Ok(wait.recv()?)
    });
    heard.recv().expect("the reader begins");
    (go, op.expect("accepted"))
}

#[test]
fn a_long_chain_does_not_starve_what_is_ready_beside_it() {
    let engine = Engine::builder().workers(1).in_flight_limit(1 << 16).build().unwrap();
    let watchdog = Watchdog::of(&engine);
    let (x, y) = (tensor(&engine, 0.0), tensor(&engine, 0.0));
    let shut = Gate::on_tensors(&engine, &[x.clone(), y.clone()]);
    let chain = 20_000;
    // Two threads would run both side by side, and one may lose the processor for as long as the chain lasts.
    for _ in 0..chain {
        bindings::operation::worker_only(engine.op("link")).updates([&x]).run(|[], [], [_x]| Ok(())).unwrap();
    }
    let before = Arc::new(AtomicUsize::new(0));
    let (seen, counted) = (x.clone(), Arc::clone(&before));
    bindings::operation::worker_only(engine.op("beside"))
        .updates([&y])
        .run(move |[], [], [_y]| {
            counted.store(seen.version() as usize, Ordering::SeqCst);
            Ok(())
        })
        .unwrap();
    shut.open();
    engine.wait_all(None).unwrap();
    assert!(before.load(Ordering::SeqCst) < chain / 2, "it ran after {before:?} of {chain}");
    assert!(watchdog.still_watches());
}

#[test]
fn crossed_submitters_do_not_deadlock() {
    let engine = engine(2);
    let watchdog = Watchdog::of(&engine);
    let (x, y) = (tensor(&engine, 0.0), tensor(&engine, 0.0));
    let start = Barrier::new(2);
    std::thread::scope(|scope| {
        for (from, to) in [(&x, &y), (&y, &x)] {
            let (engine, start) = (&engine, &start);
            scope.spawn(move || {
                start.wait();
                for _ in 0..2_000 {
                    engine.op("cross").reads([from]).writes([to]).run(|[_from], [_to]| Ok(())).unwrap();
                }
            });
        }
    });
    engine.wait_all(None).unwrap();
    assert!(watchdog.still_watches());
}

#[test]
fn duplicates_and_read_with_write_of_plain_variables_are_merged() {
    let engine = engine(2);
    let watchdog = Watchdog::of(&engine);
    let (a, b) = (engine.var(), engine.var());
    for _ in 0..10 {
        let op = engine.op("many").reads_vars(&[&a, &b, &a, &a]).writes_vars(&[&a, &a, &a]);
        op.run(|[], []| Ok(())).unwrap();
    }
    engine.wait_all(None).unwrap();
    assert_eq!((a.version(), b.version()), (10, 0));
    assert!(watchdog.still_watches());
}

#[test]
fn plain_variables_order_what_has_no_memory() {
    let engine = engine(4);
    let watchdog = Watchdog::of(&engine);
    let file = engine.var();
    let lines = Arc::new(Mutex::new(Vec::new()));
    for line in 0..200 {
        let lines = Arc::clone(&lines);
        let append = engine.op("append").writes_vars(&[&file]).run(move |[], []| {
            lines.lock().unwrap().push(line);
            Ok(())
        });
        drop(append.unwrap());
    }
    engine.wait_all(None).unwrap();
    assert_eq!(*lines.lock().unwrap(), (0..200).collect::<Vec<_>>());
    assert!(watchdog.still_watches());
}

/// Runs operations of the given priorities, all of them ready at the same moment, on one worker (the thread
/// that waits does not help with them); gives the order.
fn order_of(priorities: &[i32]) -> Vec<i32> {
    let engine = engine(1);
    let gate: Variable = engine.var();
    let shut = Gate::on_variable(&engine, &gate);
    let order = Arc::new(Mutex::new(Vec::new()));
    for &priority in priorities {
        let order = Arc::clone(&order);
        let op = bindings::operation::worker_only(engine.op("prioritized"))
            .reads_vars(&[&gate])
            .priority(priority)
            .run(move |[], []| {
                order.lock().unwrap().push(priority);
                Ok(())
            });
        drop(op.unwrap());
    }
    // The worker itself opens the gate, so that nothing begins before everything is ready.
    let (go, wait) = channel::<()>();
    let completion = shut.begun();
    bindings::operation::worker_only(engine.op("opener"))
        .priority(i32::MAX)
        .run(move |[], []| {
            wait.recv()?;
            completion.complete(Ok(()));
            Ok(())
        })
        .unwrap();
    go.send(()).unwrap();
    engine.wait_all(None).unwrap();
    order.lock().unwrap().clone()
}

#[test]
fn among_ready_operations_higher_priorities_start_first() {
    let watchdog = Watchdog::alone();
    assert_eq!(order_of(&[-1, 1, 5, -7, 3]), [5, 3, 1, -1, -7]);
    let mixed = order_of(&[0, 2, 0, -3, 0, 9, 0]);
    assert_eq!((&mixed[..2], mixed[6]), (&[9, 2][..], -3), "{mixed:?}");
    assert!(watchdog.still_watches());
}

#[test]
fn what_is_granted_together_starts_by_priority_also_on_the_worker_that_granted_it() {
    let engine = engine(1);
    let watchdog = Watchdog::of(&engine);
    let x = tensor(&engine, 0.0);
    for _ in 0..50 {
        let (go, wait) = channel::<()>();
        let order = Arc::new(Mutex::new(Vec::new()));
        bindings::operation::worker_only(engine.op("grants"))
            .writes([&x])
            .run(move |[], [_x]| Ok(wait.recv()?))
            .unwrap();
        for priority in [0, 0, 7] {
            let order = Arc::clone(&order);
            let op = bindings::operation::worker_only(engine.op("granted"))
                .reads([&x])
                .priority(priority)
                .run(move |[_x], []| {
                    order.lock().unwrap().push(priority);
                    Ok(())
                });
            drop(op.unwrap());
        }
        go.send(()).unwrap();
        engine.wait_all(None).unwrap();
        assert_eq!(*order.lock().unwrap(), [7, 0, 0]);
    }
    assert!(watchdog.still_watches());
}

#[test]
fn readiness_is_of_the_version_current_at_the_call() {
    let engine = engine(1);
    let watchdog = Watchdog::of(&engine);
    let x = tensor(&engine, 1.0);
    let first = Gate::on_tensors(&engine, std::slice::from_ref(&x));
    let ready = x.ready();
    // Another write is submitted; it does not change which version the earlier request waits for.
    let held = hold_write(&engine, &x);
    first.open();
    block_on(ready).unwrap();
    assert!(!x.is_ready(), "the newest write counts for a query now");
    let mut later = x.ready();
    assert!((&mut later).now_or_never().is_none());
    held.send(()).unwrap();
    block_on(later).unwrap();
    assert!(x.is_ready());
    assert!(watchdog.still_watches());
}

fn hold_write(engine: &Engine, x: &estafette::Tensor) -> std::sync::mpsc::Sender<()> {
    let (go, wait) = channel::<()>();
    engine.op("held write").updates([x]).run(move |[], [], [_x]| Ok(wait.recv()?)).expect("accepted");
    go
}

#[test]
fn a_future_made_before_a_failing_write_is_not_failed_by_it() {
    let engine = engine(1);
    let watchdog = Watchdog::of(&engine);
    let x = tensor(&engine, 1.0);
    let gate = Gate::on_tensors(&engine, std::slice::from_ref(&x));
    let good = x.ready();
    tests::ops::fail(&engine, &x, "too late to matter");
    let bad = x.ready();
    set(&engine, &x, 3.0);
    let healed = x.ready();
    gate.open();
    assert!(block_on(good).is_ok());
    assert!(block_on(bad).unwrap_err().to_string().contains("too late to matter"));
    assert!(block_on(healed).is_ok());
    assert!(watchdog.still_watches());
}

#[test]
fn versions_count_finished_writes() {
    let engine = engine(2);
    let watchdog = Watchdog::of(&engine);
    let x = engine.zeros(&[4], DType::F32).unwrap();
    assert_eq!(x.version(), 0);
    for write in 1..=5 {
        add(&engine, &x, 1.0).wait().unwrap();
        read(&engine, &x).wait().unwrap();
        assert_eq!(x.version(), write);
    }
    assert!(watchdog.still_watches());
}

#[test]
fn writable_waits_for_readers_but_holds_nobody_up() {
    let engine = engine(2);
    let watchdog = Watchdog::of(&engine);
    let x = tensor(&engine, 1.0);
    let (go, reader) = hold(&engine, &x);
    let mut writable = Box::pin(x.writable());
    assert!((&mut writable).now_or_never().is_none());
    // A later reader is neither waited for nor held up.
    read(&engine, &x).wait().unwrap();
    let (later, second) = hold(&engine, &x);
    go.send(()).unwrap();
    reader.wait().unwrap();
    block_on(writable).unwrap();
    later.send(()).unwrap();
    second.wait().unwrap();
    until("idle", || engine.diagnose().is_idle());
    assert!(watchdog.still_watches());
}
