//! The recorder's record of an operation, in each form that its entries have, against a clock that the tests
//! set.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, MutexGuard, mpsc};
use std::time::Duration;
use tests::ops::{exclusive, until};

use estafette::bindings::{self, copy_begins, wait_any};
use estafette::trace::{Recorder, TraceOptions};
use estafette::{Access, DType, Engine, Error, Variable};
use estafette_report::Trace;
use estafette_report::model::{AccessMode, Blocker, Cause, Nanos, Operation, OperationKind, Outcome};
use futures::FutureExt;
use futures::executor::block_on;

#[derive(Clone)]
struct Clock(Arc<AtomicU64>);

impl Clock {
    fn set(&self, ns: u64) {
        self.0.store(ns, Ordering::Relaxed);
    }
}

fn open() -> (Clock, Recorder, MutexGuard<'static, ()>) {
    let alone = exclusive();
    let clock = Clock(Arc::default());
    let its = clock.clone();
    let options = TraceOptions {
        clock: Some(Arc::new(move || its.0.load(Ordering::Relaxed))),
        ..TraceOptions::default()
    };
    (clock, Recorder::open(options).unwrap(), alone)
}

fn operation<'a>(trace: &'a Trace, name: &str) -> &'a Operation {
    trace.operations.iter().find(|operation| operation.name == name).unwrap()
}

fn times(operation: &Operation) -> (Nanos, Option<Nanos>, Option<Nanos>) {
    (operation.submitted, operation.began, operation.done)
}

/// Runs one body from 100 for `took`, submitted at 40.
fn one_that_takes(took: u64) -> Trace {
    let (clock, recorder, _alone) = open();
    let engine = Engine::builder().workers(0).build().unwrap();
    clock.set(40);
    let its = clock.clone();
    let op = engine.op("body").run(move |[], []| {
        its.set(100 + took);
        Ok(())
    });
    clock.set(100);
    op.unwrap().wait().unwrap();
    clock.set(2 * (100 + took));
    recorder.finish()
}

#[test]
fn a_body_has_its_beginning_and_its_end_however_long_it_took() {
    // The narrow form has 24 bits for it.
    for took in [0, 60, (1 << 24) - 1, 1 << 24, 1 << 40] {
        let trace = one_that_takes(took);
        let body = operation(&trace, "body");
        assert_eq!(times(body), (40, Some(100), Some(100 + took)), "{took}");
        assert_eq!(body.outcome, Outcome::Ok);
    }
}

#[test]
fn a_body_that_fails_has_them_too() {
    let (clock, recorder, _alone) = open();
    let engine = Engine::builder().workers(0).build().unwrap();
    let its = clock.clone();
    let op = engine.op("body").run(move |[], []| {
        its.set(70);
        Err("no".into())
    });
    clock.set(30);
    op.unwrap().wait().unwrap_err();
    clock.set(100);
    let trace = recorder.finish();
    let body = operation(&trace, "body");
    assert_eq!(times(body), (0, Some(30), Some(70)));
    assert!(matches!(&body.outcome, Outcome::Failed(why) if why.contains("no")), "{:?}", body.outcome);
}

#[test]
fn what_runs_when_the_journal_is_finished_has_begun_and_not_ended() {
    let (clock, recorder, _alone) = open();
    let engine = Engine::builder().workers(1).build().unwrap();
    let (began, has_begun) = mpsc::channel();
    let (resume, may_go_on) = mpsc::channel::<()>();
    clock.set(50);
    let op = engine.op("body").run(move |[], []| {
        began.send(()).unwrap();
        may_go_on.recv()?;
        Ok(())
    });
    has_begun.recv().unwrap();
    clock.set(80);
    let trace = recorder.finish();
    resume.send(()).unwrap();
    op.unwrap().wait().unwrap();
    let body = operation(&trace, "body");
    assert_eq!(times(body), (50, Some(50), None));
    assert_eq!(body.outcome, Outcome::Unfinished);
    assert!(body.track.is_some(), "a worker runs it");
}

#[test]
fn a_body_within_a_body_leaves_the_outer_one_its_times() {
    let (clock, recorder, _alone) = open();
    // A thread without workers that waits in a body runs others there.
    let engine = Engine::builder().workers(0).build().unwrap();
    let (own, its, inner) = (engine.clone(), clock.clone(), clock.clone());
    let op = engine.op("outer").run(move |[], []| {
        its.set(20);
        let op = own.op("inner").run(move |[], []| {
            inner.set(50);
            Ok(())
        })?;
        its.set(30);
        op.wait()?;
        its.set(90);
        Ok(())
    });
    clock.set(10);
    op.unwrap().wait().unwrap();
    clock.set(100);
    let trace = recorder.finish();
    assert_eq!(times(operation(&trace, "outer")), (0, Some(10), Some(90)));
    assert_eq!(times(operation(&trace, "inner")), (20, Some(30), Some(50)));
}

#[test]
fn any_number_of_accesses_is_kept() {
    let (_clock, recorder, _alone) = open();
    let engine = Engine::builder().workers(0).build().unwrap();
    // Up to eight are in the narrow form; one entry in the wide form has room for 124.
    let counts = [0, 1, 2, 7, 8, 9, 123, 124, 125, 300];
    let vars: Vec<Variable> = (0..300).map(|_| engine.var()).collect();
    for count in counts {
        let reads: Vec<&Variable> = vars[..count].iter().collect();
        engine.op(format!("uses {count}")).reads_vars(&reads).run(|[], []| Ok(())).unwrap().wait().unwrap();
    }
    let trace = recorder.finish();
    for count in counts {
        let mut kept: Vec<(u64, AccessMode)> = operation(&trace, &format!("uses {count}"))
            .accesses
            .iter()
            .map(|access| (access.variable, access.mode))
            .collect();
        kept.sort_unstable_by_key(|(variable, _)| *variable);
        let mut wanted: Vec<(u64, AccessMode)> = vars[..count]
            .iter()
            .map(|var| (bindings::operation::variable_id(var), AccessMode::Read))
            .collect();
        wanted.sort_unstable_by_key(|(variable, _)| *variable);
        assert_eq!(kept, wanted, "{count}");
    }
}

#[test]
fn more_than_one_page_is_kept_by_each_thread() {
    let (_clock, recorder, _alone) = open();
    let engine = Engine::builder().workers(2).build().unwrap();
    // 64 KiB of a page hold 1,638 of these at most.
    const OPERATIONS: usize = 20_000;
    for _ in 0..OPERATIONS {
        engine.op("step").run_detached(|[], []| Ok(())).unwrap();
    }
    engine.wait_all(None).unwrap();
    let trace = recorder.finish();
    assert!(trace.losses.is_empty(), "{:?}", trace.losses);
    let steps = trace.operations.iter().filter(|operation| operation.name == "step");
    assert_eq!(steps.clone().count(), OPERATIONS);
    assert!(steps.clone().all(|step| step.began.is_some() && step.done.is_some()));
}

#[test]
fn a_lease_that_is_granted_at_once_is_reported_with_its_owner_and_blocks_writers() -> Result<(), Error> {
    let (clock, recorder, _alone) = open();
    let engine = Engine::builder().workers(0).build()?;
    let x = engine.zeros(&[4], DType::F32)?;
    clock.set(10);
    let exported = bindings::tensor::export_at_once(&x, || "a reader".into())?.expect("nothing uses it");
    clock.set(20);
    let write = engine.op("write").updates([&x]).run(|[], [], [_x]| Ok(()))?;
    clock.set(60);
    drop(exported);
    clock.set(70);
    write.wait()?;
    clock.set(80);
    let trace = recorder.finish();
    let [lease] = &trace.leases[..] else { panic!("{:?}", trace.leases) };
    assert_eq!((lease.opened, lease.closed, lease.access), (10, Some(60), AccessMode::Read));
    assert_eq!(lease.owner, "a reader");
    assert_eq!(trace.operations.iter().find(|op| op.id == lease.id).map(|op| op.submitted), Some(10));
    let write = operation(&trace, "write");
    assert_eq!((write.submitted, write.ready), (20, Some(60)));
    let stalls: Vec<_> = trace.stalls.iter().filter(|stall| stall.waiter == write.id).collect();
    assert!(
        stalls.iter().any(|stall| (stall.from, stall.to) == (20, 60)),
        "forty nanoseconds for the lease: {stalls:?}"
    );
    Ok(())
}

#[test]
fn what_is_given_up_has_an_end() {
    let (clock, recorder, _alone) = open();
    let engine = Engine::builder().workers(0).build().unwrap();
    let x = engine.zeros(&[1], DType::F32).unwrap();
    let reader = x.lease(Access::Read, "a reader").try_now().unwrap().unwrap();
    let write = engine.op("write").writes([&x]).run(|[], [_]| Ok(())).unwrap();
    clock.set(10);
    let (ready, lease) = (x.ready(), x.lease(Access::Write, "a writer").boxed());
    let lease = lease.map(drop);
    let mut lease = Box::pin(lease);
    assert!((&mut lease).now_or_never().is_none());
    let look = engine.op("look").reads([&x]).run(|[_], []| Ok(())).unwrap();
    clock.set(50);
    drop((ready, lease));
    assert!(look.cancel());
    clock.set(90);
    drop(reader);
    write.wait().unwrap();
    let trace = recorder.finish();
    for name in ["ready", "look"] {
        let given_up = operation(&trace, name);
        assert_eq!((given_up.began, given_up.done), (None, Some(50)), "{name}");
        assert_eq!(given_up.outcome, Outcome::Cancelled, "{name}");
    }
    assert!(trace.operations.iter().all(|operation| operation.outcome != Outcome::Unfinished));
}

#[test]
fn a_wait_that_is_given_up_was_for_its_writer() {
    let (clock, recorder, _alone) = open();
    let engine = Engine::builder().workers(0).build().unwrap();
    let x = engine.zeros(&[1], DType::F32).unwrap();
    let reader = x.lease(Access::Read, "a reader").try_now().unwrap().unwrap();
    clock.set(10);
    let write = engine.op("write").writes([&x]).run(|[], [_]| Ok(())).unwrap();
    clock.set(20);
    let ready = x.ready();
    clock.set(60);
    drop(ready);
    clock.set(70);
    x.wait_timeout(Duration::from_millis(1)).unwrap_err();
    clock.set(90);
    drop(reader);
    write.wait().unwrap();
    // After the waits in the queue, and granted before the end of the trace.
    engine.op("later").writes([&x]).run(|[], [_]| Ok(())).unwrap().wait().unwrap();
    clock.set(200);
    let trace = recorder.finish();
    let write = operation(&trace, "write").id;
    let waits: Vec<_> = trace.operations.iter().filter(|operation| operation.name == "ready").collect();
    let stalls = |wait: &Operation| -> Vec<_> {
        let own = trace.stalls.iter().filter(|stall| stall.waiter == wait.id);
        own.map(|stall| (stall.from, stall.to, stall.blocker)).collect()
    };
    assert_eq!(stalls(waits[0]), [(20, 60, Blocker::Operation(write))]);
    let [dropped, late] = [0, 1].map(|at| (waits[at].resumed, waits[at].granted, waits[at].outcome.clone()));
    assert_eq!(dropped, (None, None, Outcome::Cancelled));
    assert_eq!(late, (Some(70), None, Outcome::Cancelled));
    let before = |wait: &Operation| {
        trace.edges.iter().filter(|edge| edge.to == wait.id).map(|edge| edge.from).collect::<Vec<_>>()
    };
    assert_eq!(waits.into_iter().map(before).collect::<Vec<_>>(), [[write], [write]]);
}

#[test]
fn a_callback_ends_the_wait_that_it_was_asked_for() {
    let (clock, recorder, _alone) = open();
    let engine = Engine::builder().workers(0).build().unwrap();
    let x = engine.zeros(&[1], DType::F32).unwrap();
    let reader = x.lease(Access::Read, "a reader").try_now().unwrap().unwrap();
    let write = engine.op("write").writes([&x]).run(|[], [_]| Ok(())).unwrap();
    clock.set(10);
    let (called, is_called) = mpsc::channel();
    bindings::tensor::on_end(&x, move |_| called.send(()).unwrap());
    clock.set(50);
    drop(reader);
    write.wait().unwrap();
    is_called.recv().unwrap();
    clock.set(90);
    let trace = recorder.finish();
    let wait = operation(&trace, "ready");
    assert_eq!((wait.submitted, wait.resumed), (10, Some(50)));
}

#[test]
fn a_wait_for_one_of_several_ends_with_the_first() {
    let (clock, recorder, _alone) = open();
    let engine = Engine::builder().workers(0).build().unwrap();
    let [first, second] = [(); 2].map(|()| engine.zeros(&[1], DType::F32).unwrap());
    let reader = second.lease(Access::Read, "a reader").try_now().unwrap().unwrap();
    let its = clock.clone();
    let op = engine.op("first").writes([&first]).run(move |[], [_]| {
        its.set(50);
        Ok(())
    });
    let late = engine.op("second").writes([&second]).run(|[], [_]| Ok(())).unwrap();
    clock.set(10);
    wait_any(&[], &[first.clone(), second.clone()], None).unwrap();
    clock.set(90);
    drop(reader);
    op.unwrap().wait().unwrap();
    late.wait().unwrap();
    let trace = recorder.finish();
    let waits = trace.operations.iter().filter(|operation| operation.name == "ready");
    let told: Vec<_> = waits.map(|wait| (wait.submitted, wait.resumed, wait.outcome.clone())).collect();
    assert_eq!(told, [(10, Some(50), Outcome::Ok), (10, Some(50), Outcome::Cancelled)]);
}

#[test]
fn a_copy_that_a_library_was_asked_for_and_did_not_make_took_no_time() {
    let (clock, recorder, _alone) = open();
    let engine = Engine::builder().workers(0).build().unwrap();
    let x = engine.zeros(&[1], DType::F32).unwrap();
    for (from, library) in [(10, "one"), (30, "another")] {
        clock.set(from);
        let copying = copy_begins(library).unwrap();
        clock.set(from + 10);
        if library == "one" {
            copying.made(&x);
        }
    }
    let trace = recorder.finish();
    let told = ["copy by one", "copy by another"].map(|name| {
        let copy = operation(&trace, name);
        (copy.began, copy.done, copy.outcome.clone())
    });
    assert_eq!(told, [(Some(10), Some(20), Outcome::Ok), (None, Some(30), Outcome::Cancelled)]);
    assert!(trace.stalls.is_empty(), "{:?}", trace.stalls);
}

#[test]
fn a_wait_of_a_thread_that_lasts_is_no_await() {
    let (_clock, recorder, _alone) = open();
    let engine = Engine::builder().workers(1).build().unwrap();
    let x = engine.zeros(&[1], DType::F32).unwrap();
    let (begun, has_begun) = mpsc::channel();
    let op = engine.op("lasts").writes([&x]).run_external(move |completion| begun.send(completion).unwrap());
    let (op, completion) = (op.unwrap(), has_begun.recv().unwrap());
    let waits = std::thread::spawn(move || x.wait().unwrap());
    until("it waits", || engine.diagnose().operations.iter().any(|op| op.name == "ready"));
    std::thread::sleep(Duration::from_millis(20));
    let trace = recorder.finish();
    let wait = trace.operations.iter().find(|operation| operation.name == "ready").unwrap();
    assert_eq!((wait.kind, wait.resumed), (OperationKind::Wait, None));
    completion.complete(Ok(()));
    waits.join().unwrap();
    op.wait().unwrap();
}

#[test]
fn a_wait_for_room_is_for_what_makes_room() {
    let (clock, recorder, _alone) = open();
    let engine = Engine::builder().workers(1).in_flight_limit(1).build().unwrap();
    let x = engine.zeros(&[1], DType::F32).unwrap();
    clock.set(10);
    engine.op("early").writes([&x]).run(|[], [_]| Ok(())).unwrap().wait().unwrap();
    let reader = x.lease(Access::Read, "a reader").try_now().unwrap().unwrap();
    clock.set(15);
    let write = engine.op("write").writes([&x]).run(|[], [_]| Ok(())).unwrap();
    clock.set(20);
    let mut given_up = Box::pin(engine.op("refused").reads([&x]).permit());
    assert!((&mut given_up).now_or_never().is_none());
    clock.set(30);
    let mut late = Box::pin(engine.op("late").reads([&x]).permit());
    assert!((&mut late).now_or_never().is_none());
    clock.set(40);
    drop(given_up);
    clock.set(50);
    drop(reader);
    write.wait().unwrap();
    clock.set(60);
    let late = block_on(late).unwrap();
    clock.set(70);
    late.run(|[_], []| Ok(())).unwrap().wait().unwrap();
    let trace = recorder.finish();
    let write = operation(&trace, "write").id;
    let waits = trace.operations.iter().filter(|operation| operation.name == "in-flight limit");
    let told: Vec<_> = waits.map(|wait| (wait.kind, wait.submitted, wait.resumed, wait.waits_for)).collect();
    let row = |from, to| (OperationKind::Await, from, Some(to), Some(write));
    assert_eq!(told, [row(20, 40), row(30, 60)]);
}

#[test]
fn a_wait_for_an_operation_is_noted_in_each_of_its_forms() {
    let (clock, recorder, _alone) = open();
    let engine = Engine::builder().workers(1).build().unwrap();
    let (begun, has_begun) = mpsc::channel();
    let slow = engine.op("slow").run_external(move |completion| begun.send(completion).unwrap()).unwrap();
    let completion = has_begun.recv().unwrap();
    clock.set(10);
    let mut awaited = Box::pin(slow.clone());
    assert!((&mut awaited).now_or_never().is_none());
    clock.set(20);
    let (called, is_called) = mpsc::channel();
    bindings::operation::on_end(&slow, move |_| called.send(()).unwrap());
    // As a fence it is for another scheduler.
    let fence = slow.fence();
    clock.set(30);
    let timed_out = wait_any(std::slice::from_ref(&slow), &[], Some(Duration::from_millis(1)));
    assert!(matches!(timed_out, Err(Error::Timeout(_))), "{timed_out:?}");
    clock.set(40);
    completion.complete(Ok(()));
    is_called.recv().unwrap();
    clock.set(50);
    block_on(awaited).unwrap();
    drop(fence);
    // An ended operation is not waited for.
    block_on(slow).unwrap();
    let trace = recorder.finish();
    let slow = operation(&trace, "slow").id;
    let waits = trace.operations.iter().filter(|operation| operation.waits_for == Some(slow));
    let told: Vec<_> = waits.map(|wait| (wait.kind, wait.submitted, wait.resumed)).collect();
    let row = |kind, from, to| (kind, from, Some(to));
    let expected = [
        row(OperationKind::Await, 10, 50),
        row(OperationKind::Await, 20, 40),
        row(OperationKind::Wait, 30, 30),
    ];
    assert_eq!(told, expected);
}

#[test]
fn a_wait_for_room_is_for_an_operation_of_its_own_engine() {
    let (clock, recorder, _alone) = open();
    let other = Engine::builder().workers(1).build().unwrap();
    let engine = Engine::builder().workers(1).in_flight_limit(1).build().unwrap();
    let (begun, has_begun) = mpsc::channel();
    let own = engine.op("own").run_external(move |completion| begun.send(completion).unwrap()).unwrap();
    clock.set(20);
    let mut late = Box::pin(engine.op("late").permit());
    assert!((&mut late).now_or_never().is_none());
    clock.set(30);
    has_begun.recv().unwrap().complete(Ok(()));
    own.wait().unwrap();
    clock.set(40);
    other.op("of the other engine").run(|[], []| Ok(())).unwrap().wait().unwrap();
    clock.set(50);
    let late = block_on(late).unwrap();
    clock.set(60);
    late.run(|[], []| Ok(())).unwrap().wait().unwrap();
    let trace = recorder.finish();
    let wait = trace.operations.iter().find(|operation| operation.name == "in-flight limit").unwrap();
    assert_eq!(wait.waits_for, Some(operation(&trace, "own").id));
}

#[test]
fn an_asynchronous_body_lacks_a_worker_of_its_own_engine_beside_another_one() {
    let (clock, recorder, _alone) = open();
    let [engine, other] = [(); 2].map(|()| Engine::builder().workers(1).build().unwrap());
    bindings::operation::worker_only(other.op("of the other engine"))
        .run(|[], []| Ok(()))
        .unwrap()
        .wait()
        .unwrap();
    let x = engine.zeros(&[1], DType::F32).unwrap();
    let ((begun, has_begun), (resume, may_go_on)) = (mpsc::channel(), mpsc::channel::<()>());
    let busy = engine.op("busy").run(move |[], []| {
        begun.send(()).unwrap();
        let _ = may_go_on.recv();
        Ok(())
    });
    has_begun.recv().unwrap();
    let fetch = engine.op("fetch").writes([&x]).run_future(|[], [_x]| async { Ok(()) }).unwrap();
    clock.set(50_000_000);
    drop(resume);
    fetch.wait().unwrap();
    busy.unwrap().wait().unwrap();
    let trace = recorder.finish();
    let fetch = operation(&trace, "fetch").id;
    let stalls = trace.stalls.iter().filter(|stall| stall.waiter == fetch);
    let told: Vec<_> = stalls.map(|stall| (stall.duration(), stall.cause, stall.blocker)).collect();
    assert_eq!(told, [(50_000_000, Cause::NoWorker, Blocker::Pool)]);
}

#[test]
fn a_worker_that_runs_something_older_is_not_one_that_sleeps() {
    let alone = exclusive();
    let engine = Engine::builder().workers(1).build().unwrap();
    let [x, y] = [(); 2].map(|()| engine.zeros(&[1], DType::F32).unwrap());
    let ((begun, has_begun), (resume, may_go_on)) = (mpsc::channel(), mpsc::channel::<()>());
    let older = engine.op("older").writes([&x]).run(move |[], [_]| {
        begun.send(()).unwrap();
        let _ = may_go_on.recv();
        Ok(())
    });
    has_begun.recv().unwrap();
    drop(alone);
    let (clock, recorder, _alone) = open();
    let op =
        bindings::operation::worker_only(engine.op("behind")).writes([&y]).run(|[], [_]| Ok(())).unwrap();
    clock.set(50_000_000);
    drop(resume);
    older.unwrap().wait().unwrap();
    op.wait().unwrap();
    let trace = recorder.finish();
    let behind = operation(&trace, "behind").id;
    let stalls = trace.stalls.iter().filter(|stall| stall.waiter == behind);
    let told: Vec<_> = stalls.map(|stall| (stall.from, stall.to, stall.cause, stall.blocker)).collect();
    assert_eq!(told, [(0, 50_000_000, Cause::Queued, Blocker::None)]);
}
