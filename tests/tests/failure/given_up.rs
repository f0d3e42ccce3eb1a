//! Waits, futures, leases and operations that are given up leave their queues at once: they hold up no other
//! operation and leave nothing behind.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Wake, Waker};
use std::time::Duration;

use estafette::devices::host;
use estafette::wait::{Diagnosis, Status};
use estafette::{Access, Engine, Error, ExportOptions, Tensor};
use futures::FutureExt;
use futures::executor::block_on;
use tests::foreign::{self, Deleted};
use tests::gate::Gate;
use tests::nothing_left::assert_nothing_left;
use tests::ops::{add, engine, get, read, set, tensor, waits};
use tests::watchdog::Watchdog;

/// Short enough to run out within a test on a busy machine.
const SHORT: Duration = Duration::from_millis(1);

fn gate(engine: &Engine, x: &Tensor) -> Gate {
    Gate::on_tensors(engine, std::slice::from_ref(x))
}

/// Names of everything in a queue.
fn queued(diagnosis: &Diagnosis) -> Vec<&str> {
    diagnosis.operations.iter().map(|op| op.name.as_str()).collect()
}

#[test]
fn a_refused_write_lease_does_not_keep_later_readers_out() {
    let engine = engine(1);
    let watchdog = Watchdog::of(&engine);
    let x = tensor(&engine, 1.0);
    let reader = x.lease(Access::Read, "the first reader").try_now().unwrap().unwrap();
    assert!(x.lease(Access::Write, "a writer").try_now().unwrap().is_none());
    let mut writer = x.lease(Access::Write, "an impatient writer").boxed();
    assert!((&mut writer).now_or_never().is_none());
    assert!(
        x.export_wait(&ExportOptions { timeout: Some(SHORT), ..ExportOptions::from(Access::Write) }).is_err()
    );
    drop(writer);
    assert!(x.is_ready(), "nothing writes it");
    drop(x.lease(Access::Read, "another reader").try_now().unwrap().expect("readers share"));
    drop(x.export_wait(&ExportOptions::from(Access::Read)).unwrap());
    read(&engine, &x).wait().unwrap();
    assert_eq!(queued(&engine.diagnose()), ["lease"], "that of the first reader");
    drop(reader);
    assert!(engine.diagnose().is_idle());
    assert_nothing_left(&[&engine]);
    assert!(watchdog.still_watches());
}

#[test]
fn readers_that_wait_behind_a_write_lease_go_on_when_it_is_given_up() {
    for workers in [0, 2] {
        let engine = engine(workers);
        let watchdog = Watchdog::of(&engine);
        let x = tensor(&engine, 1.0);
        let reader = x.lease(Access::Read, "a reader").try_now().unwrap().unwrap();
        let mut writer = x.lease(Access::Write, "a writer").boxed();
        assert!((&mut writer).now_or_never().is_none());
        let op = read(&engine, &x);
        let mut second = x.lease(Access::Read, "a second reader").boxed();
        assert!(waits(&engine, &op) && (&mut second).now_or_never().is_none());
        drop(writer);
        op.wait().unwrap();
        drop(second.now_or_never().expect("granted").unwrap());
        drop(reader);
        assert!(engine.diagnose().is_idle(), "{}", engine.diagnose());
        assert_nothing_left(&[&engine]);
        assert!(watchdog.still_watches());
    }
}

#[test]
fn a_scoped_lease_of_several_tensors_that_is_given_up_frees_all_of_them() {
    let engine = engine(1);
    let watchdog = Watchdog::of(&engine);
    let (x, y) = (tensor(&engine, 1.0), tensor(&engine, 2.0));
    let reader = x.lease(Access::Read, "a reader").try_now().unwrap().unwrap();
    let wanted = [(x.clone(), Access::Write), (y.clone(), Access::Write)];
    let mut both = engine.lease_all(&wanted, "both").boxed();
    assert!((&mut both).now_or_never().is_none());
    assert!(!y.is_ready(), "granted to those who wait for the other");
    drop(both);
    assert!(matches!(
        engine.lease_all(&wanted, "both again").wait(Some(SHORT)),
        Err(Error::LeaseHeld(_) | Error::Timeout(_))
    ));
    assert!(x.is_ready() && y.is_ready());
    set(&engine, &y, 3.0).wait().unwrap();
    drop(reader);
    set(&engine, &x, 4.0).wait().unwrap();
    assert!(engine.diagnose().is_idle(), "{}", engine.diagnose());
    assert_nothing_left(&[&engine]);
    assert!(watchdog.still_watches());
}

/// The lease is granted: the earlier use has ended in the graph, and its fence is pending.
#[test]
fn a_write_lease_that_waits_for_a_fence_does_not_keep_readers_out_once_it_is_given_up() {
    let engine = engine(1);
    let watchdog = Watchdog::of(&engine);
    let x = tensor(&engine, 1.0);
    let (completer, fence) = host::promise("device work that reads x");
    x.used_until(&fence).unwrap();
    let mut writer = x.lease(Access::Write, "a writer").boxed();
    assert!((&mut writer).now_or_never().is_none());
    assert!(!x.is_ready());
    drop(writer);
    assert!(x.is_ready());
    assert_eq!(get(&x), 1.0);
    let write = set(&engine, &x, 2.0);
    assert!(!write.is_done(), "the fence still counts");
    completer.settle(Ok(()));
    write.wait().unwrap();
    assert!(engine.diagnose().is_idle(), "{}", engine.diagnose());
    assert_nothing_left(&[&engine]);
    assert!(watchdog.still_watches());
}

#[test]
fn a_million_dropped_ready_futures_of_a_pending_tensor_leave_nothing_in_its_queue() {
    let engine = engine(1);
    let watchdog = Watchdog::of(&engine);
    let x = tensor(&engine, 1.0);
    let write = gate(&engine, &x);
    for _ in 0..1_000_000 {
        assert!(x.ready().now_or_never().is_none());
    }
    assert_eq!(queued(&engine.diagnose()).len(), 1, "the write");
    for _ in 0..100 {
        assert!(matches!(x.wait_timeout(Duration::ZERO), Err(Error::Timeout(_))));
        assert!(matches!(x.wait_timeout(Duration::from_micros(1)), Err(Error::Timeout(_))));
        assert!(matches!(x.lease(Access::Read, "a try").try_now(), Ok(None)));
        assert!(x.lease(Access::Write, "a short try").wait(Some(Duration::from_micros(1))).is_err());
    }
    assert_eq!(queued(&engine.diagnose()).len(), 1, "the write");
    write.open();
    x.wait().unwrap();
    assert!(engine.diagnose().is_idle());
    assert_nothing_left(&[&engine]);
    assert!(watchdog.still_watches());
}

#[test]
fn whoever_waits_until_a_tensor_is_writable_goes_on_when_a_lease_request_is_given_up() {
    let engine = engine(1);
    let watchdog = Watchdog::of(&engine);
    let x = tensor(&engine, 1.0);
    let reader = x.lease(Access::Read, "a reader").try_now().unwrap().unwrap();
    let mut writer = x.lease(Access::Write, "a writer").boxed();
    assert!((&mut writer).now_or_never().is_none());
    let mut writable = x.writable();
    drop(writer);
    assert!((&mut writable).now_or_never().is_none(), "the reader has it");
    drop(reader);
    block_on(writable).unwrap();
    assert_nothing_left(&[&engine]);
    assert!(watchdog.still_watches());
}

#[test]
fn a_future_of_a_later_version_is_dropped_between_two_writes() {
    let engine = engine(2);
    let watchdog = Watchdog::of(&engine);
    let x = tensor(&engine, 1.0);
    let first = gate(&engine, &x);
    let mut kept = x.ready();
    let dropped = x.ready();
    let second = add(&engine, &x, 1.0);
    assert!((&mut kept).now_or_never().is_none());
    drop(dropped);
    first.open();
    block_on(kept).unwrap();
    second.wait().unwrap();
    assert_eq!(get(&x), 2.0);
    assert_nothing_left(&[&engine]);
    assert!(watchdog.still_watches());
}

/// Sends a message when dropped.
struct Capture(std::sync::mpsc::Sender<()>);

impl Drop for Capture {
    fn drop(&mut self) {
        let _ = self.0.send(());
    }
}

#[test]
fn a_cancelled_operation_drops_its_body_and_its_operands_at_once() {
    let engine = engine(1);
    let watchdog = Watchdog::of(&engine);
    let x = tensor(&engine, 1.0);
    let deleted = Deleted::default();
    // SAFETY: the memory is the tensor's until its deleter runs.
    let other = unsafe { engine.import(foreign::tensor(&[1.0], &deleted)) }.unwrap();
    let write = gate(&engine, &x);
    let (sender, dropped) = std::sync::mpsc::channel();
    let capture = Capture(sender);
    let op = engine
        .op("late")
        .reads([&other])
        .writes([&x])
        .run(move |[_], [_]| {
            drop(capture);
            Ok(())
        })
        .unwrap();
    assert!(op.cancel());
    assert!(dropped.try_recv().is_ok(), "before `cancel` returns");
    drop(other);
    deleted.settle_at(1);
    assert!(waits_cancelled(&engine, "late"), "in its place among the writes of x");
    write.open();
    assert!(matches!(x.wait(), Err(Error::Cancelled(_))));
    engine.wait_all(None).unwrap();
    assert!(engine.diagnose().is_idle());
    assert_nothing_left(&[&engine]);
    assert!(watchdog.still_watches());
}

fn waits_cancelled(engine: &Engine, name: &str) -> bool {
    engine.diagnose().operations.iter().any(|op| op.name == name && op.status == Status::Cancelled)
}

#[test]
fn a_cancelled_reader_leaves_its_queues_and_returns_its_permit_at_once() {
    for workers in [0, 1] {
        let engine = Engine::builder().workers(workers).in_flight_limit(2).build().unwrap();
        let watchdog = Watchdog::of(&engine);
        let (x, y) = (tensor(&engine, 1.0), tensor(&engine, 2.0));
        let write = gate(&engine, &x);
        let reader = engine.op("reader").reads([&x, &y]).run(|[_, _], []| Ok(())).unwrap();
        assert!(y.writable().now_or_never().is_none(), "it reads y");
        assert!(reader.cancel() && reader.is_done());
        assert!(matches!(reader.wait(), Err(Error::Cancelled(_))));
        assert_eq!((queued(&engine.diagnose()).len(), engine.stats().in_flight), (1, 1), "the write");
        set(&engine, &y, 3.0).wait().unwrap();
        write.open();
        x.wait().unwrap();
        assert!(engine.diagnose().is_idle());
        assert_nothing_left(&[&engine]);
        assert!(watchdog.still_watches());
    }
}

#[test]
fn a_cancelled_writer_keeps_nobody_from_what_it_only_reads() {
    let engine = engine(1);
    let watchdog = Watchdog::of(&engine);
    let (x, y) = (tensor(&engine, 1.0), tensor(&engine, 2.0));
    let reader = x.lease(Access::Read, "a reader").try_now().unwrap().unwrap();
    let op = engine.op("late").reads([&y]).writes([&x]).run(|[_], [_]| Ok(())).unwrap();
    let write = set(&engine, &y, 3.0);
    assert!(waits(&engine, &write), "it reads y");
    assert!(op.cancel());
    write.wait().unwrap();
    assert!(waits_cancelled(&engine, "late"), "in its place among the writes of x");
    drop(reader);
    assert!(matches!(x.wait(), Err(Error::Cancelled(_))));
    assert_eq!(get(&y), 3.0);
    assert_nothing_left(&[&engine]);
    assert!(watchdog.still_watches());
}

/// One thread cancels operations that another thread runs or skips.
#[test]
fn operations_are_cancelled_while_they_are_granted() {
    let engine = engine(2);
    let watchdog = Watchdog::of(&engine);
    let x = tensor(&engine, 0.0);
    let (sender, dropped) = std::sync::mpsc::channel();
    let mut ran = 0;
    for round in 0..2_000 {
        let capture = Capture(sender.clone());
        let body = move || {
            drop(capture);
            Ok(())
        };
        let op = if round % 2 == 0 {
            engine.op("writes").writes([&x]).run(move |[], [_]| body()).unwrap()
        } else {
            engine.op("reads").reads([&x]).run(move |[_], []| body()).unwrap()
        };
        let first = add(&engine, &x, 0.0);
        let cancelled = op.cancel();
        assert_eq!(op.wait().is_err(), cancelled);
        ran += usize::from(!cancelled);
        // A write that was cancelled fails what updates its version; this one heals it.
        let _ = first.wait();
        engine.op("heals").writes([&x]).run(|[], [_]| Ok(())).unwrap();
    }
    engine.wait_all(None).unwrap();
    drop(sender);
    assert_eq!(dropped.iter().count(), 2_000, "each body once, {ran} of them run");
    assert!(engine.diagnose().is_idle());
    assert_nothing_left(&[&engine]);
    assert!(watchdog.still_watches());
}

#[test]
fn a_diagnosis_tells_what_a_cancelled_operation_waits_for_and_nothing_of_requests_that_were_given_up() {
    let engine = engine(1);
    let watchdog = Watchdog::of(&engine);
    let x = tensor(&engine, 1.0);
    let holder = x.lease(Access::Read, "the true holder").try_now().unwrap().unwrap();
    let op = set(&engine, &x, 2.0);
    let mut impatient = x.lease(Access::Write, "impatient").boxed();
    assert!((&mut impatient).now_or_never().is_none());
    assert!(op.cancel());
    let wanted = |diagnosis: &Diagnosis| {
        diagnosis
            .operations
            .iter()
            .any(|op| op.lease.as_ref().is_some_and(|lease| lease.owner.to_string().contains("impatient")))
    };
    assert!(wanted(&engine.diagnose()), "it still waits");
    drop(impatient);
    let diagnosis = engine.diagnose();
    assert!(!wanted(&diagnosis), "{diagnosis}");
    let [_, cancelled] = diagnosis.operations.as_slice() else { panic!("{diagnosis}") };
    assert_eq!(cancelled.status, Status::Cancelled);
    assert_eq!(cancelled.blocked_by.len(), 1);
    let told = cancelled.to_string();
    assert!(
        told.contains("is cancelled, and is skipped after") && told.contains("the true holder"),
        "{told}"
    );
    drop(holder);
    engine.wait_all(None).unwrap();
    assert!(matches!(x.wait(), Err(Error::Cancelled(_))));
    assert_nothing_left(&[&engine]);
    assert!(watchdog.still_watches());
}

#[test]
fn dropped_futures_of_a_version_whose_device_work_is_pending_do_not_pile_up() {
    let engine = engine(1);
    let watchdog = Watchdog::of(&engine);
    let x = tensor(&engine, 1.0);
    let (completer, fence) = host::promise("device work that writes x");
    let op = engine
        .op("issues")
        .writes([&x])
        .run_external(move |completion| completion.complete_after(&fence, Ok(())));
    op.unwrap().wait().unwrap();
    assert!(!x.is_ready());
    let before = tests::churn::resident_bytes();
    for _ in 0..500_000 {
        assert!(x.ready().now_or_never().is_none());
        assert!(matches!(x.wait_timeout(Duration::ZERO), Err(Error::Timeout(_))));
    }
    if let (Some(before), Some(after)) = (before, tests::churn::resident_bytes()) {
        // Each future that stayed would cost some hundred bytes.
        assert!(after < before + (32 << 20), "{before} bytes before, {after} after");
    }
    completer.settle(Ok(()));
    x.wait().unwrap();
    assert_nothing_left(&[&engine]);
    assert!(watchdog.still_watches());
}

/// Counts how often tasks are woken.
struct Counted(Arc<AtomicUsize>);

impl Wake for Counted {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

#[test]
fn a_future_that_goes_from_task_to_task_keeps_the_waker_of_the_last_one_only() {
    let engine = engine(1);
    let watchdog = Watchdog::of(&engine);
    let x = tensor(&engine, 1.0);
    let write = gate(&engine, &x);
    let woken = Arc::new(AtomicUsize::new(0));
    let mut ready = x.ready();
    let mut lease = x.lease(Access::Read, "a reader").boxed();
    let tasks: Vec<_> = (0..100).map(|_| Arc::new(Counted(Arc::clone(&woken)))).collect();
    for task in &tasks {
        let waker = Waker::from(Arc::clone(task));
        let mut cx = Context::from_waker(&waker);
        assert!(ready.poll_unpin(&mut cx).is_pending() && lease.poll_unpin(&mut cx).is_pending());
    }
    let kept = tasks.iter().filter(|task| Arc::strong_count(task) > 1).count();
    assert_eq!(kept, 1, "the last one's");
    write.open();
    block_on(ready).unwrap();
    drop(block_on(lease).unwrap());
    assert!((1..=2).contains(&woken.load(Ordering::SeqCst)));
    assert_nothing_left(&[&engine]);
    assert!(watchdog.still_watches());
}
