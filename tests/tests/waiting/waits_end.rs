//! Waits that end: timeouts are kept, engines help across each other, nesting has a floor.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::ThreadId;
use std::time::Duration;

use estafette::bindings::{self, exchange::export};
use estafette::bindings::{wait_any, wait_any_work};
use estafette::devices::{DLDevice, Event, Fence, FenceState, QueueId, Subscriber, Watch, host};
use estafette::engine::SharedLock;
use estafette::exchange::foreign_fence::{OK, RawFence};
use estafette::wait::without_helping;
use estafette::{Access, Engine, Error, ExportOptions, ImportOptions, Op, Produced, Tensor};
use futures::FutureExt;
use futures::executor::block_on;
use tests::foreign::{self, Deleted};
use tests::gate::Gate;
use tests::nothing_left::assert_nothing_left;
use tests::ops::{add, engine, get, read, set, tensor};
use tests::watchdog::Watchdog;

/// Far more than a wait of some milliseconds takes on a busy machine, and far less than for ever.
const SOON: Duration = Duration::from_secs(20);

/// An operation that writes `tensor` and runs until the sender is used or dropped, and whether it has begun.
fn held(engine: &Engine, tensor: &Tensor) -> (Sender<()>, Arc<AtomicBool>, Op) {
    let (go, wait) = channel::<()>();
    let begun = Arc::new(AtomicBool::new(false));
    let began = Arc::clone(&begun);
    let op = engine.op("held").writes([tensor]).run(move |[], [_x]| {
        began.store(true, Ordering::SeqCst);
        let _ = wait.recv();
        Ok(())
    });
    (go, begun, op.unwrap())
}

fn timed_out<T: std::fmt::Debug>(outcome: Result<T, Error>) {
    assert!(matches!(outcome, Err(Error::Timeout(_))), "{outcome:?}");
}

#[test]
fn a_wait_with_a_timeout_runs_no_body_that_waits_for_the_waiter() {
    for workers in [0, 1, 2] {
        let engine = engine(workers);
        let watchdog = Watchdog::of(&engine);
        let x = tensor(&engine, 0.0);
        // The only worker may be busy, and then only waiting threads could run the next one.
        let busy: Vec<_> = (0..workers).map(|_| held(&engine, &tensor(&engine, 0.0))).collect();
        let (go, _begun, op) = held(&engine, &x);
        let short = Duration::from_millis(5);
        // Each body ends only after these waits have: one that ran it would never return.
        timed_out(x.wait_timeout(short));
        timed_out(op.wait_timeout(Some(short)));
        timed_out(engine.wait_all(Some(short)));
        timed_out(x.lease(Access::Read, "a reader").wait(Some(short)));
        assert!(!engine.shutdown_timeout(short).drained);
        drop((go, busy));
        engine.wait_all(None).unwrap();
        assert_nothing_left(&[&engine]);
        assert!(watchdog.still_watches());
    }
}

#[test]
fn a_wait_of_no_time_is_a_look_and_leaves_nothing_behind() {
    for workers in [0, 1] {
        let engine = engine(workers);
        let watchdog = Watchdog::of(&engine);
        let x = tensor(&engine, 0.0);
        let (go, begun, op) = held(&engine, &x);
        for _ in 0..100 {
            timed_out(x.wait_timeout(Duration::ZERO));
            timed_out(op.wait_timeout(Some(Duration::ZERO)));
        }
        assert_eq!(engine.diagnose().operations.len(), 1, "{}", engine.diagnose());
        assert!(workers > 0 || !begun.load(Ordering::SeqCst), "a look ran the body");
        drop(go);
        op.wait().unwrap();
        x.wait_timeout(Duration::ZERO).unwrap();
        assert_nothing_left(&[&engine]);
        assert!(watchdog.still_watches());
    }
}

#[test]
fn without_workers_a_wait_with_a_timeout_still_gets_its_result() {
    let engine = engine(0);
    let watchdog = Watchdog::of(&engine);
    let x = tensor(&engine, 0.0);
    for round in 1..=100 {
        let op = add(&engine, &x, 1.0);
        match round % 4 {
            0 => x.wait_timeout(SOON).unwrap(),
            1 => op.wait_timeout(Some(SOON)).unwrap(),
            2 => engine.wait_all(Some(SOON)).unwrap(),
            _ => drop(x.lease(Access::Read, "a reader").wait(Some(SOON)).unwrap()),
        }
    }
    assert_eq!(get(&x), 100.0);
    assert_nothing_left(&[&engine]);
    assert!(watchdog.still_watches());
}

#[test]
fn polling_a_future_runs_no_body_on_the_executor() {
    for workers in [0, 1] {
        let engine = engine(workers);
        let watchdog = Watchdog::of(&engine);
        let x = tensor(&engine, 0.0);
        let busy: Vec<_> = (0..workers).map(|_| held(&engine, &tensor(&engine, 0.0))).collect();
        let (go, _begun, op) = held(&engine, &x);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            // The bodies end after these waits have.
            let short = Duration::from_millis(5);
            assert!(tokio::time::timeout(short, x.ready()).await.is_err());
            assert!(tokio::time::timeout(short, op.clone()).await.is_err());
            assert!(tokio::time::timeout(short, x.writable()).await.is_err());
            assert!(tokio::time::timeout(short, x.export(Access::Read)).await.is_err());
            drop((go, busy));
            op.await.unwrap();
            x.ready().await.unwrap();
        });
        engine.wait_all(None).unwrap();
        assert_nothing_left(&[&engine]);
        assert!(watchdog.still_watches());
    }
}

#[test]
fn a_callback_and_a_fence_run_no_body_where_they_are_notified() {
    let engine = engine(0);
    let watchdog = Watchdog::of(&engine);
    let x = tensor(&engine, 0.0);
    let lease = x.export_wait(&ExportOptions::from(Access::Read)).unwrap();
    let ran_on: Arc<Mutex<Vec<ThreadId>>> = Arc::default();
    let here = Arc::clone(&ran_on);
    let op = engine.op("where").writes([&x]).run(move |[], [_x]| {
        here.lock().unwrap().push(std::thread::current().id());
        Ok(())
    });
    let (said, heard) = channel();
    x.on_ready(move |outcome| said.send(outcome).unwrap());
    let fence = bindings::tensor::writable_fence(&x);
    // A consumer's deleter: what it makes ready is not run inside of it.
    let library = std::thread::spawn(move || {
        drop(lease);
        std::thread::current().id()
    });
    let library = library.join().unwrap();
    heard.recv_timeout(SOON).unwrap().unwrap();
    assert!(fence.wait_timeout(Some(SOON)).is_some_and(|outcome| outcome.is_ok()));
    op.unwrap().wait().unwrap();
    let ran_on = ran_on.lock().unwrap();
    assert!(
        ran_on.len() == 1 && ran_on[0] != library && ran_on[0] != std::thread::current().id(),
        "{ran_on:?}"
    );
    assert_nothing_left(&[&engine]);
    assert!(watchdog.still_watches());
}

/// Asks for the next callback of `x` in each, `left` times.
fn ask_again(x: &Tensor, left: usize, last: Sender<()>) {
    let own = x.clone();
    x.on_ready(move |_| if left == 0 { last.send(()).unwrap() } else { ask_again(&own, left - 1, last) });
}

#[test]
fn callbacks_that_each_ask_for_the_next_one_need_no_deeper_stack() {
    let engine = engine(0);
    let x = tensor(&engine, 0.0);
    let (last, called) = channel();
    ask_again(&x, 200_000, last);
    called.try_recv().unwrap();
    // A callback's own requests are called when it has returned, in order, and before the outermost call
    // returns.
    let (told, tells) = channel();
    let own = x.clone();
    x.on_ready(move |_| {
        for n in 1..=2 {
            let told = told.clone();
            own.on_ready(move |_| told.send(n).unwrap());
        }
        told.send(0).unwrap();
    });
    assert_eq!(tells.try_iter().collect::<Vec<_>>(), [0, 1, 2]);
    assert_nothing_left(&[&engine]);
}

#[test]
fn a_body_that_a_callback_runs_gets_its_own_callbacks_at_once() {
    let engine = engine(0);
    let (x, y) = (tensor(&engine, 0.0), tensor(&engine, 0.0));
    let (told, tells) = channel();
    let (own, there) = (x.clone(), engine.clone());
    x.on_ready(move |_| {
        let body = move || {
            let (called, calls) = channel();
            ask_again(&own, 3, called);
            calls.try_recv()
        };
        let op = there.op("in a callback").writes([&y]).run(move |[], [_y]| Ok(body()?)).unwrap();
        while there.run_ready() {}
        told.send(op.wait_timeout(Some(Duration::ZERO))).unwrap();
    });
    tells.try_recv().unwrap().unwrap();
    assert_nothing_left(&[&engine]);
}

/// `idle` has no workers and a source of `x`; `busy` has a low in-flight limit and readers of `x`.
fn across(busy_workers: usize) -> (Engine, Engine, Tensor) {
    let idle = engine(0);
    let busy = Engine::builder().workers(busy_workers).in_flight_limit(2).build().unwrap();
    let x = tensor(&idle, 0.0);
    set(&idle, &x, 1.0);
    (idle, busy, x)
}

#[test]
fn an_engine_without_workers_holds_up_no_submission_of_another_one() {
    for workers in [0, 1, 2] {
        let (idle, busy, x) = across(workers);
        let watchdog = Watchdog::of(&busy);
        for _ in 0..10 {
            read(&busy, &x);
        }
        block_on(async {
            set(&idle, &x, 2.0);
            for _ in 0..10 {
                busy.op("look").reads([&x]).permit().await.unwrap().run(|[_x], []| Ok(())).unwrap();
            }
        });
        busy.wait_all(None).unwrap();
        assert_eq!(get(&x), 2.0);
        assert_nothing_left(&[&idle, &busy]);
        assert!(watchdog.still_watches());
    }
}

#[test]
fn an_engine_without_workers_holds_up_no_wait_for_all_of_another_one() {
    for workers in [0, 1, 2] {
        for kind in 0..6 {
            let (idle, busy, x) = across(workers);
            let watchdog = Watchdog::of(&busy);
            let y = tensor(&busy, 0.0);
            busy.op("sink").reads([&x]).writes([&y]).run(|[_x], [_y]| Ok(())).unwrap();
            match kind {
                0 => busy.wait_all(None).unwrap(),
                1 => busy.wait_all(Some(SOON)).unwrap(),
                2 => assert!(busy.shutdown_timeout(SOON).drained),
                3 => assert!(block_on(busy.shutdown()).drained),
                4 => y.wait_timeout(SOON).unwrap(),
                _ => block_on(y.ready()).unwrap(),
            }
            drop(idle);
            assert_nothing_left(&[&busy]);
            assert!(watchdog.still_watches());
        }
    }
}

/// Waits inside waits: an operation that makes the next one and waits for it, `depth` times.
fn nest(
    engine: &Engine,
    depth: usize,
    worker_only: bool,
    timeout: Option<Duration>,
) -> Result<Tensor, Error> {
    let op =
        if worker_only { bindings::operation::worker_only(engine.op("nest")) } else { engine.op("nest") };
    let inner = engine.clone();
    op.produce(move |[]| {
        let mut below = 0.0;
        if depth > 0 {
            let result = nest(&inner, depth - 1, worker_only, timeout)?;
            match timeout {
                Some(timeout) => result.wait_timeout(timeout)?,
                None => result.wait()?,
            }
            below = result.to_vec::<f32>()?[0];
        }
        Ok(Produced::from_vec(vec![below + 1.0], &[1])?)
    })
}

#[test]
fn waits_nested_two_hundred_deep_end() {
    for (workers, worker_only) in [(0, false), (1, false), (1, true), (2, true)] {
        let engine = engine(workers);
        let watchdog = Watchdog::of(&engine);
        assert_eq!(get(&nest(&engine, 200, worker_only, None).unwrap()), 201.0);
        assert_nothing_left(&[&engine]);
        assert!(watchdog.still_watches());
    }
}

#[test]
fn waits_nested_without_end_say_so_and_leave_nothing_that_runs_on() {
    for workers in [0, 1, 2] {
        let engine = engine(workers);
        let watchdog = Watchdog::of(&engine);
        let error = nest(&engine, usize::MAX, false, None).unwrap().wait().unwrap_err();
        assert!(error.to_string().contains("1000 operations wait inside each other"), "{error}");
        engine.wait_all(None).unwrap();
        assert_nothing_left(&[&engine]);
        assert!(watchdog.still_watches());
    }
}

#[test]
fn waits_with_timeouts_nested_deeper_than_there_may_be_threads_say_so() {
    for workers in [0, 1] {
        let engine = engine(workers);
        let watchdog = Watchdog::of(&engine);
        assert_eq!(get(&nest(&engine, 30, false, Some(SOON)).unwrap()), 31.0);
        let error = nest(&engine, 150, false, Some(3 * SOON)).unwrap().wait().unwrap_err();
        assert!(error.to_string().contains("every thread that could run it is blocked"), "{error}");
        engine.wait_all(None).unwrap();
        assert_nothing_left(&[&engine]);
        assert!(watchdog.still_watches());
    }
}

#[test]
fn a_reached_in_flight_limit_runs_no_body_on_the_submitter_while_there_is_a_worker() {
    let engine = Engine::builder().workers(1).in_flight_limit(4).build().unwrap();
    let watchdog = Watchdog::of(&engine);
    let lock = Arc::new(Mutex::new(0));
    let me = std::thread::current().id();
    let elsewhere = Arc::new(AtomicUsize::new(0));
    for _ in 0..200 {
        // A body that ran here would wait for this thread.
        let (taken, counted) = (Arc::clone(&lock), Arc::clone(&elsewhere));
        let body = move || {
            assert_ne!(std::thread::current().id(), me);
            drop(taken.try_lock());
            counted.fetch_add(1, Ordering::SeqCst);
        };
        let held = lock.lock().unwrap();
        engine
            .op("locks")
            .run(move |[], []| {
                body();
                Ok(())
            })
            .unwrap();
        drop(held);
    }
    engine.wait_all(Some(SOON)).unwrap();
    assert_eq!(elsewhere.load(Ordering::SeqCst), 200);
    assert_nothing_left(&[&engine]);
    assert!(watchdog.still_watches());
}

#[test]
fn without_helping_nothing_is_run_on_the_thread_that_waits_or_submits() {
    for workers in [0, 1] {
        let engine = Engine::builder().workers(workers).in_flight_limit(8).build().unwrap();
        let watchdog = Watchdog::of(&engine);
        let x = tensor(&engine, 0.0);
        let lock = Arc::new(Mutex::new(()));
        let submit = || {
            let lock = Arc::clone(&lock);
            let op = engine.op("locks").updates([&x]).run(move |[], [], [_x]| {
                drop(lock.lock());
                Ok(())
            });
            op.unwrap()
        };
        let held = Some(lock.lock().unwrap());
        without_helping(|| {
            let submitted: Vec<_> = (0..6).map(|_| submit()).collect();
            let last = &submitted[5];
            timed_out(last.wait_timeout(Some(Duration::from_millis(5))));
            drop(held);
            // More than the in-flight limit.
            (0..100).for_each(|_| drop(submit()));
            last.wait().unwrap();
            x.wait().unwrap();
            submit();
            engine.wait_all(None).unwrap();
            submit();
        });
        drop(engine);
        // The last handle is the watchdog's.
        x.wait().unwrap();
        assert!(watchdog.still_watches());
    }
}

#[test]
fn what_helping_was_said_to_be_is_restored() {
    assert!(estafette::bindings::set_helping(true));
    without_helping(|| {
        assert!(!estafette::bindings::set_helping(false));
        without_helping(|| ());
        assert!(!estafette::bindings::set_helping(false));
    });
    let panicked = std::panic::catch_unwind(|| without_helping(|| panic!("planned")));
    assert!(panicked.is_err() && estafette::bindings::set_helping(true));
}

#[test]
fn what_becomes_ready_after_the_last_handle_of_an_engine_without_workers_is_gone_runs() {
    let _watchdog = Watchdog::alone();
    let idle = engine(0);
    let x = tensor(&idle, 0.0);
    let lease = x.export_wait(&ExportOptions::from(Access::Read)).unwrap();
    let (said, heard) = channel();
    idle.op("late").writes([&x]).run_detached(move |[], [_x]| Ok(said.send(())?)).unwrap();
    drop(idle);
    drop(lease);
    heard.recv_timeout(SOON).unwrap();
}

#[test]
fn many_submissions_with_one_wake_up_and_a_wait_by_other_means() {
    let engine = engine(1);
    let watchdog = Watchdog::of(&engine);
    for _ in 0..20 {
        // The worker has fallen asleep.
        std::thread::sleep(Duration::from_millis(1));
        let heard: Receiver<()> = engine.submit_many(|| {
            let (said, heard) = channel();
            engine.op("answers").run_detached(move |[], []| Ok(said.send(())?)).unwrap();
            heard.recv_timeout(SOON).unwrap();
            heard
        });
        drop(heard);
    }
    assert_nothing_left(&[&engine]);
    assert!(watchdog.still_watches());
}

/// A tensor that is ready when `fence` is.
fn ready_after(engine: &Engine, fence: Fence) -> Tensor {
    let options = ImportOptions { ready: fence.into(), ..ImportOptions::default() };
    // SAFETY: a fresh tensor that describes its memory truly.
    unsafe { engine.import_with(foreign::tensor(&[1.0], &Deleted::default()), options) }.unwrap()
}

/// An operation that settles what the completer is of, and that no wait knows to be needed.
fn settle(engine: &Engine, completer: host::Completer) -> Op {
    let settles = engine.op("settles").run(move |[], []| {
        completer.complete();
        Ok(())
    });
    settles.unwrap()
}

#[test]
fn without_workers_a_wait_runs_what_settles_the_fence_that_it_waits_for() {
    let waits: [fn(&Engine, &Tensor); 5] = [
        |_engine, x| x.wait().unwrap(),
        |_engine, x| assert_eq!(get(x), 1.0),
        |_engine, x| drop(x.lease(Access::Write, "a writer").wait(None).unwrap()),
        |engine, x| read(engine, x).wait().unwrap(),
        |engine, x| drop(engine.lease_all(&[(x.clone(), Access::Read)], "a reader").wait(None).unwrap()),
    ];
    for wait in waits {
        let engine = engine(0);
        let watchdog = Watchdog::of(&engine);
        let (completer, fence) = host::promise("settled by an operation");
        let x = ready_after(&engine, fence);
        settle(&engine, completer);
        wait(&engine, &x);
        // Submitted while this thread waits, or before.
        let (completer, fence) = host::promise("settled by an operation of another thread");
        let y = ready_after(&engine, fence);
        let other = engine.clone();
        let submits = std::thread::spawn(move || drop(settle(&other, completer)));
        wait(&engine, &y);
        submits.join().unwrap();
        assert_nothing_left(&[&engine]);
        assert!(watchdog.still_watches());
    }
}

#[test]
fn without_workers_a_wait_in_vain_fails_no_operation_by_the_leases_of_its_thread() {
    let engine = engine(0);
    let watchdog = Watchdog::of(&engine);
    let (completer, fence) = host::promise("settled when the other operation has begun");
    let (x, y) = (ready_after(&engine, fence), tensor(&engine, 0.0));
    let lease = y.lease(Access::Write, "the thread that waits").wait(None).unwrap();
    let read = y.clone();
    let reads = engine.op("reads").run(move |[], []| {
        completer.complete();
        Ok(read.wait()?)
    });
    x.wait().unwrap();
    drop(lease);
    reads.unwrap().wait().unwrap();
    assert_nothing_left(&[&engine]);
    assert!(watchdog.still_watches());
}

#[test]
fn without_workers_a_wait_in_an_operation_runs_nothing_that_waits_for_the_operation() {
    let waits: [fn(&Tensor, &Op, &Fence); 2] = [
        |x, _op, _fence| x.wait().unwrap(),
        |_x, op, fence| bindings::operation::wait_for_fence(op, fence, None).unwrap(),
    ];
    for wait in waits {
        let engine = engine(0);
        let watchdog = Watchdog::of(&engine);
        let (completer, fence) = host::promise("settled by an operation");
        let (x, y) = (ready_after(&engine, fence.clone()), tensor(&engine, 0.0));
        let (own, written) = (engine.clone(), y.clone());
        let waits = engine.op("waits").writes([&y]).run(move |[], [_y]| {
            let behind = own.op("waits for the end of the other").run(move |[], []| Ok(written.wait()?))?;
            settle(&own, completer);
            wait(&x, &behind, &fence);
            Ok(())
        });
        waits.unwrap().wait().unwrap();
        engine.wait_all(None).unwrap();
        assert_nothing_left(&[&engine]);
        assert!(watchdog.still_watches());
    }
}

#[test]
fn without_workers_a_submission_at_the_hard_cap_runs_nothing_that_waits_for_the_submitter() {
    let engine = Engine::builder().workers(0).in_flight_limit(1).build().unwrap();
    let watchdog = Watchdog::of(&engine);
    let y = tensor(&engine, 0.0);
    let (own, written) = (engine.clone(), y.clone());
    let submits = engine.op("submits").writes([&y]).run(move |[], [_y]| {
        own.op("waits for the end of the other").run(move |[], []| Ok(written.wait()?))?;
        for _ in 0..4 {
            own.op("short").run(|[], []| Ok(()))?;
        }
        Ok(())
    });
    submits.unwrap().wait().unwrap();
    engine.wait_all(None).unwrap();
    assert_nothing_left(&[&engine]);
    assert!(watchdog.still_watches());
}

/// Operations inside each other, each of which has submitted one that waits for its end, and waits for the
/// fence. The innermost has submitted what settles that.
fn wait_inside(engine: &Engine, fence: &Fence, depth: usize, completer: host::Completer) -> Op {
    let (own, fence, y) = (engine.clone(), fence.clone(), tensor(engine, 0.0));
    let written = y.clone();
    let waits = engine.op("waits").writes([&y]).run(move |[], [_y]| {
        own.op("waits for the end of the other").run(move |[], []| Ok(written.wait()?))?;
        let inner = match depth {
            0 => settle(&own, completer),
            _ => wait_inside(&own, &fence, depth - 1, completer),
        };
        Ok(bindings::operation::wait_for_fence(&inner, &fence, None)?)
    });
    waits.unwrap()
}

#[test]
fn without_workers_waits_for_a_fence_that_are_nested_deeper_than_there_are_threads_for_them_end() {
    let engine = engine(0);
    let watchdog = Watchdog::of(&engine);
    let (completer, fence) = host::promise("settled by an operation");
    // Some waits may fail, as no thread was left for what may settle their fences.
    match wait_inside(&engine, &fence, 100, completer).wait() {
        Ok(()) => {}
        Err(error) => assert!(error.to_string().contains("nest fewer waits"), "{error}"),
    }
    engine.wait_all(None).unwrap();
    assert_nothing_left(&[&engine]);
    assert!(watchdog.still_watches());
}

/// Work of a queue, which is over once it was queried `queries_left` times. Only waits query it.
#[derive(Debug)]
struct OverAfterQueries {
    queue: QueueId,
    queries_left: AtomicUsize,
}

impl Event for OverAfterQueries {
    fn device(&self) -> DLDevice {
        DLDevice::CPU
    }

    fn queue(&self) -> Option<QueueId> {
        Some(self.queue)
    }

    fn state(&self) -> FenceState {
        let left =
            self.queries_left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1));
        if left.is_ok() { FenceState::Pending } else { FenceState::Done }
    }

    fn observed_done(&self) -> bool {
        self.queries_left.load(Ordering::SeqCst) == 0
    }

    fn watch(&self, _subscriber: &Arc<dyn Subscriber>) -> Watch {
        // A wait sleeps for as long as it means to, and queries again.
        Watch::Subscribed
    }
}

#[test]
fn without_workers_more_waits_for_device_work_than_there_are_threads_for_them_end_with_the_work() {
    let engine = engine(0);
    let watchdog = Watchdog::of(&engine);
    // Some ten times as many as the first sleeps of all waits take.
    let queries_left = AtomicUsize::new(5_000);
    let fence = Fence::event(Arc::new(OverAfterQueries { queue: QueueId::next(), queries_left }));
    let over = engine.op("over").run(|[], []| Ok(())).unwrap();
    over.wait().unwrap();
    let over = Arc::new(over);
    // All become ready at once: no submission runs one.
    let x = tensor(&engine, 0.0);
    let gate = Gate::on_tensors(&engine, std::slice::from_ref(&x)).begun();
    let waits = (0..80).map(|_| {
        let (over, fence) = (Arc::clone(&over), fence.clone());
        let op = engine.op("waits for a device").reads([&x]);
        op.run(move |[_x], []| Ok(bindings::operation::wait_for_fence(&over, &fence, None)?)).unwrap()
    });
    let waits: Vec<Op> = waits.collect();
    gate.complete(Ok(()));
    for wait in waits {
        wait.wait().unwrap();
    }
    assert_nothing_left(&[&engine]);
    assert!(watchdog.still_watches());
}

/// Work that has not ended, and how many have asked to be called when it has.
#[derive(Debug, Default)]
struct NeverOver(AtomicUsize);

impl Event for NeverOver {
    fn device(&self) -> DLDevice {
        DLDevice::CPU
    }

    fn state(&self) -> FenceState {
        FenceState::Pending
    }

    fn observed_done(&self) -> bool {
        false
    }

    fn watch(&self, _subscriber: &Arc<dyn Subscriber>) -> Watch {
        self.0.fetch_add(1, Ordering::SeqCst);
        Watch::Subscribed
    }
}

#[test]
fn a_wait_for_any_of_several_that_has_no_time_only_looks() {
    let engine = engine(1);
    let watchdog = Watchdog::of(&engine);
    let (x, work) = (tensor(&engine, 0.0), Arc::new(NeverOver::default()));
    let fence = Fence::event(work.clone());
    let op = engine.op("leaves work").run_external(move |end| end.complete_after(&fence, Ok(()))).unwrap();
    op.wait().unwrap();
    let ops = [op];
    let asked = work.0.load(Ordering::SeqCst);
    timed_out(wait_any_work(&ops, &[], Some(Duration::ZERO)));
    assert_eq!(work.0.load(Ordering::SeqCst), asked);
    assert_eq!(wait_any(&ops, &[], Some(Duration::ZERO)).unwrap(), [0]);
    let (go, _, writes) = held(&engine, &x);
    timed_out(wait_any_work(&ops, std::slice::from_ref(&x), Some(Duration::ZERO)));
    drop(go);
    writes.wait().unwrap();
    let both = [ops[0].clone(), writes];
    assert_eq!(wait_any_work(&both, &[x], Some(Duration::ZERO)).unwrap(), [1, 2]);
    assert!(watchdog.still_watches());
}

#[test]
fn a_wait_for_any_of_several_has_what_it_needs_run_in_an_engine_without_workers() {
    for timeout in [Some(SOON), None] {
        let (engine, idle) = (engine(1), engine(0));
        let watchdog = Watchdog::of(&engine);
        let gate = Gate::on_tensors(&engine, &[tensor(&engine, 0.0)]);
        // This one runs on the other engine, and needs that without workers.
        let x = tensor(&idle, 0.0);
        set(&idle, &x, 1.0);
        let ops = [gate.op().clone(), read(&engine, &x)];
        assert_eq!(wait_any(&ops, &[], timeout).unwrap(), [1]);
        gate.open();
        assert!(watchdog.still_watches());
    }
}

#[test]
fn an_engine_without_workers_that_is_made_later_holds_up_no_shutdown() {
    let engine = engine(1);
    let watchdog = Watchdog::of(&engine);
    let x = tensor(&engine, 0.0);
    let gate = Gate::on_tensors(&engine, std::slice::from_ref(&x)).begun();
    let (own, (said, heard)) = (engine.clone(), channel());
    let later = engine.op("later").reads([&x]).run(move |[_x], []| {
        let idle = Engine::builder().workers(0).build()?;
        let y = tensor(&idle, 0.0);
        set(&idle, &y, 1.0);
        own.op("look").reads([&y]).run(|[_y], []| Ok(()))?;
        Ok(said.send(idle)?)
    });
    drop(later.unwrap());
    let mut shutdown = Box::pin(engine.shutdown());
    assert!((&mut shutdown).now_or_never().is_none(), "the gate is closed");
    gate.complete(Ok(()));
    assert!(block_on(shutdown).drained);
    drop(heard.recv().unwrap());
    assert!(watchdog.still_watches());
}

/// Our fence in the hands of another library.
struct Exported(RawFence);

// SAFETY: its functions may be called by any thread.
unsafe impl Send for Exported {}

impl Exported {
    /// Waits for as long as it takes.
    fn wait(&self) -> i32 {
        let wait = self.0.wait.expect("it has the function");
        // SAFETY: the context is the fence's, which is not released.
        unsafe { wait(self.0.context, u64::MAX) }
    }
}

impl Drop for Exported {
    fn drop(&mut self) {
        let release = self.0.release.expect("it has the function");
        // SAFETY: its only count.
        unsafe { release(self.0.context) };
    }
}

#[test]
fn the_wait_of_another_library_for_our_fence_runs_what_settles_it() {
    let exports: [fn(&Tensor) -> RawFence; 2] = [bindings::tensor::export_ready_fence, |x| {
        bindings::tensor::export_fence(x, bindings::tensor::writable_fence(x))
    }];
    for export in exports {
        let engine = engine(0);
        let watchdog = Watchdog::of(&engine);
        let (completer, fence) = host::promise("settled by an operation");
        let x = ready_after(&engine, fence);
        let exported = Exported(export(&x));
        settle(&engine, completer);
        assert_eq!(exported.wait(), OK);
        assert_nothing_left(&[&engine]);
        assert!(watchdog.still_watches());
    }
}

#[test]
fn the_wait_of_another_library_for_a_promise_of_no_engine_has_the_operation_run_that_settles_it() {
    let engine = engine(0);
    let watchdog = Watchdog::of(&engine);
    for early in [true, false] {
        let (completer, fence) = host::promise("settled by an operation");
        let exported = Exported(export(fence, None));
        if early {
            settle(&engine, completer);
            assert_eq!(exported.wait(), OK);
        } else {
            let other = engine.clone();
            let submits = std::thread::spawn(move || drop(settle(&other, completer)));
            assert_eq!(exported.wait(), OK);
            submits.join().unwrap();
        }
        // The stand-in ends the operation after it has settled the fence.
        engine.wait_all(None).unwrap();
    }
    assert_nothing_left(&[&engine]);
    assert!(watchdog.still_watches());
}

#[test]
fn the_wait_of_another_library_for_our_fence_leaves_the_only_worker_to_what_settles_it() {
    let exports: [fn(&Tensor) -> RawFence; 2] = [bindings::tensor::export_ready_fence, |x| {
        bindings::tensor::export_fence(x, bindings::tensor::writable_fence(x))
    }];
    for export in exports {
        let engine = engine(1);
        let watchdog = Watchdog::of(&engine);
        let (completer, fence) = host::promise("settled by an operation");
        let exported = Exported(export(&ready_after(&engine, fence)));
        let own = engine.clone();
        let waits = engine.op("waits").run(move |[], []| {
            settle(&own, completer);
            assert_eq!({ exported }.wait(), OK);
            Ok(())
        });
        waits.unwrap().wait_timeout(Some(SOON)).unwrap();
        assert_nothing_left(&[&engine]);
        assert!(watchdog.still_watches());
    }
}

/// A lock that bodies share, which counts how often a thread takes it.
#[derive(Debug, Default)]
struct CountedLock(AtomicUsize);

impl SharedLock for CountedLock {
    fn lock_while(&self, next: &mut dyn FnMut() -> bool) {
        self.0.fetch_add(1, Ordering::SeqCst);
        while next() {}
    }
}

#[test]
fn without_workers_a_wait_for_all_keeps_a_shared_lock_from_one_body_to_the_next() {
    let engine = engine(0);
    let lock = Arc::new(CountedLock::default());
    bindings::engine::share_lock(&engine, lock.clone());
    for _ in 0..8 {
        let long = bindings::operation::needs_lock(engine.op("long")).run(|[], []| {
            std::thread::sleep(Duration::from_millis(1));
            Ok(())
        });
        long.unwrap();
    }
    engine.wait_all(None).unwrap();
    assert_eq!(lock.0.load(Ordering::SeqCst), 1);
}
