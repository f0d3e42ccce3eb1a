//! Awaits end as blocking waits do when only leases hold them up, and cost the same with and without a log
//! subscriber.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use estafette::bindings;
use estafette::devices::Device;
use estafette::devices::sim::{SimDevice, SimOptions, SimPace};
use estafette::{Access, Engine, Error, ExportOptions, ManagedTensor, Tensor};
use futures::FutureExt;
use futures::executor::block_on;
use tests::gate::Gate;
use tests::limits::limit;
use tests::nothing_left::assert_nothing_left;
use tests::ops::{get, read, set, tensor};
use tests::watchdog::Watchdog;

const LIMIT: Duration = Duration::from_millis(100);

fn short(workers: usize) -> Engine {
    Engine::builder().workers(workers).lease_timeout(LIMIT).build().unwrap()
}

fn export(tensor: &Tensor) -> ManagedTensor {
    let options = ExportOptions { owner: Some("the holder".into()), ..ExportOptions::from(Access::Read) };
    tensor.export_wait(&options).unwrap()
}

fn assert_held<T: std::fmt::Debug>(outcome: Result<T, Error>) {
    let Err(Error::LeaseHeld(held)) = &outcome else { panic!("{outcome:?}") };
    assert!(
        held.leases.iter().any(|lease| lease.contains("the holder") && lease.ends_with("(by this thread)")),
        "{held}"
    );
}

#[test]
fn an_await_that_only_leases_hold_up_ends_with_their_names() {
    for workers in [0, 1] {
        let engine = short(workers);
        let watchdog = Watchdog::of(&engine);
        let x = tensor(&engine, 1.0);
        let array = export(&x);
        let op = set(&engine, &x, 2.0);
        let began = Instant::now();
        assert_held(block_on(x.ready()));
        let outcome = block_on(op.clone());
        let name = format!("operation `{}` waits only for leases", op.name());
        assert!(outcome.as_ref().unwrap_err().to_string().starts_with(&name), "{outcome:?}");
        assert_held(outcome);
        assert_held(block_on(x.writable()));
        assert_held(block_on(x.export(Access::Read)).map(drop));
        assert_held(block_on(x.lease(Access::Write, "a writer")).map(drop));
        assert_held(block_on(engine.lease_all(&[(x.clone(), Access::Read)], "all")).map(drop));
        // Each await waited for its whole limit.
        assert!(began.elapsed() >= 6 * LIMIT, "{:?}", began.elapsed());
        // The operation was not cancelled.
        drop(array);
        block_on(op).unwrap();
        assert_eq!(get(&x), 2.0);
        assert_nothing_left(&[&engine]);
        assert!(watchdog.still_watches());
    }
}

#[test]
fn many_awaits_at_once_all_end() {
    let engine = short(1);
    let watchdog = Watchdog::of(&engine);
    let x = tensor(&engine, 1.0);
    let array = export(&x);
    let op = set(&engine, &x, 2.0);
    let awaits = (0..500).map(|_| x.ready().boxed()).chain((0..500).map(|_| op.clone().boxed()));
    let outcomes = block_on(futures::future::join_all(awaits));
    outcomes.into_iter().for_each(assert_held);
    drop(array);
    engine.wait_all(None).unwrap();
    assert!(engine.diagnose().is_idle(), "{}", engine.diagnose());
    assert_nothing_left(&[&engine]);
    assert!(watchdog.still_watches());
}

#[test]
fn an_await_behind_a_lease_that_is_returned_in_time_gets_its_result() {
    let engine = Engine::builder().workers(1).lease_timeout(Duration::from_secs(30)).build().unwrap();
    let watchdog = Watchdog::of(&engine);
    let x = tensor(&engine, 1.0);
    let array = export(&x);
    set(&engine, &x, 2.0);
    let mut ready = x.ready();
    assert!((&mut ready).now_or_never().is_none());
    drop(array);
    block_on(ready).unwrap();
    assert_nothing_left(&[&engine]);
    assert!(watchdog.still_watches());
}

#[test]
fn an_await_behind_an_operation_that_runs_is_no_matter_of_leases() {
    let engine = short(1);
    let watchdog = Watchdog::of(&engine);
    let x = tensor(&engine, 1.0);
    // A wait for a lease and a running operation continues.
    let array = export(&x);
    let gate = Gate::on_variable(&engine, &engine.var());
    let (go, wait) = channel::<()>();
    engine
        .op("reads")
        .reads([&x])
        .run(move |[_x], []| {
            let _ = wait.recv();
            Ok(())
        })
        .unwrap();
    set(&engine, &x, 2.0);
    let mut ready = x.ready();
    let (said, heard) = channel();
    let waiter = std::thread::spawn(move || {
        said.send(()).unwrap();
        block_on(&mut ready)
    });
    heard.recv().unwrap();
    // Several times the limit.
    assert!(x.wait_timeout(4 * LIMIT).is_err());
    assert!(!waiter.is_finished());
    drop((go, array));
    waiter.join().unwrap().unwrap();
    gate.open();
    assert_nothing_left(&[&engine]);
    assert!(watchdog.still_watches());
}

#[test]
fn a_callback_waits_for_a_lease_as_long_as_it_takes() {
    let engine = short(1);
    let watchdog = Watchdog::of(&engine);
    let x = tensor(&engine, 1.0);
    let array = export(&x);
    set(&engine, &x, 2.0);
    let (said, heard) = channel();
    x.on_ready(move |outcome| said.send(outcome).unwrap());
    let fence = bindings::tensor::writable_fence(&x);
    assert!(heard.recv_timeout(4 * LIMIT).is_err());
    assert!(fence.state().is_pending());
    drop(array);
    heard.recv().unwrap().unwrap();
    assert_nothing_left(&[&engine]);
    assert!(watchdog.still_watches());
}

#[test]
fn an_await_collects_garbage_before_it_fails() {
    let engine = short(1);
    let watchdog = Watchdog::of(&engine);
    let x = tensor(&engine, 1.0);
    let garbage = Arc::new(Mutex::new(Some(export(&x))));
    let collections = Arc::new(AtomicUsize::new(0));
    let (in_hook, counted) = (Arc::clone(&garbage), Arc::clone(&collections));
    bindings::engine::on_lease_wait(&engine, move || {
        counted.fetch_add(1, Ordering::SeqCst);
        drop(in_hook.lock().unwrap().take());
    });
    set(&engine, &x, 2.0);
    block_on(x.ready()).unwrap();
    assert_eq!(collections.load(Ordering::SeqCst), 1);
    assert_nothing_left(&[&engine]);
    assert!(watchdog.still_watches());
}

/// Finds a field of an event.
struct Finds(&'static str, bool);

impl tracing::field::Visit for Finds {
    fn record_debug(&mut self, _field: &tracing::field::Field, value: &dyn std::fmt::Debug) {
        self.1 |= format!("{value:?}").contains(self.0);
    }
}

/// A subscriber to all events that counts warnings containing these words.
struct Warnings(Arc<AtomicUsize>, &'static str);

impl tracing::Subscriber for Warnings {
    fn enabled(&self, _metadata: &tracing::Metadata<'_>) -> bool {
        true
    }
    fn new_span(&self, _span: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }
    fn record(&self, _span: &tracing::span::Id, _values: &tracing::span::Record<'_>) {}
    fn record_follows_from(&self, _span: &tracing::span::Id, _follows: &tracing::span::Id) {}
    fn event(&self, event: &tracing::Event<'_>) {
        let mut finds = Finds(self.1, false);
        event.record(&mut finds);
        if *event.metadata().level() == tracing::Level::WARN && finds.1 {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }
    fn enter(&self, _span: &tracing::span::Id) {}
    fn exit(&self, _span: &tracing::span::Id) {}
}

#[test]
fn a_submission_that_blocks_the_runtime_of_the_bodies_it_waits_for_says_so() {
    let warnings = Arc::new(AtomicUsize::new(0));
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let engine =
        Engine::builder().workers(1).in_flight_limit(1).tokio(runtime.handle().clone()).build().unwrap();
    let watchdog = Watchdog::of(&engine);
    let (warned, inner) = (Arc::clone(&warnings), engine.clone());
    // Another thread polls the body, but the same code asks.
    let (go, wait) = channel::<()>();
    let body = engine.op("asynchronous").run_future(move |[], []| async move { Ok(wait.recv()?) }).unwrap();
    let blocks = std::thread::spawn({
        let handle = runtime.handle().clone();
        move || {
            let _entered = handle.enter();
            tracing::subscriber::with_default(Warnings(warned, "waits for room"), || {
                inner.op("blocks").run(|[], []| Ok(())).unwrap()
            })
        }
    });
    tests::ops::until("it is said", || warnings.load(Ordering::SeqCst) == 1);
    go.send(()).unwrap();
    runtime.block_on(body).unwrap();
    blocks.join().unwrap().wait().unwrap();
    assert_nothing_left(&[&engine]);
    assert!(watchdog.still_watches());
}

#[test]
fn a_submission_that_blocks_the_one_thread_of_any_tokio_runtime_says_so_once() {
    let warnings = Arc::new(AtomicUsize::new(0));
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let engine = Engine::builder().workers(1).in_flight_limit(1).build().unwrap();
    let watchdog = Watchdog::of(&engine);
    let (warned, inner) = (Arc::clone(&warnings), engine.clone());
    let (go, wait) = channel::<()>();
    let gate = engine.op("gate").run(move |[], []| Ok(wait.recv()?)).unwrap();
    let task = async move {
        tracing::subscriber::with_default(Warnings(warned, "hold up the tasks"), || {
            let blocked = inner.op("blocks").run(|[], []| Ok(()))?;
            blocked.wait()?;
            inner.op("does not").run(|[], []| Ok(()))?.wait()
        })
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            tests::ops::until("a warning is logged", || warnings.load(Ordering::SeqCst) == 1);
            go.send(()).unwrap();
        });
        runtime.block_on(task).unwrap();
    });
    gate.wait().unwrap();
    assert_eq!(warnings.load(Ordering::SeqCst), 1);
    assert_nothing_left(&[&engine]);
    assert!(watchdog.still_watches());
}

#[test]
fn an_export_awaits_a_permit_for_the_copy_that_a_device_makes() {
    let device = SimDevice::new(SimOptions { pace: SimPace::Immediate, ..SimOptions::default() }).unwrap();
    let engine = Engine::builder().workers(1).in_flight_limit(1).device(device.clone()).build().unwrap();
    let watchdog = Watchdog::of(&engine);
    let x = tensor(&engine, 1.0);
    let (go, wait) = channel::<()>();
    let gate = engine.op("gate").run(move |[], []| Ok(wait.recv()?)).unwrap();
    let options = ExportOptions { copy: true, copy_to: device.id(), ..ExportOptions::from(Access::Read) };
    let mut export = std::pin::pin!(x.export(options));
    assert!(export.as_mut().now_or_never().is_none());
    go.send(()).unwrap();
    gate.wait().unwrap();
    drop(block_on(export).unwrap());
    assert_nothing_left(&[&engine]);
    assert!(watchdog.still_watches());
}

#[test]
fn an_export_with_a_timeout_keeps_it_where_it_waits_for_a_permit_for_the_copy() {
    let device = SimDevice::new(SimOptions { pace: SimPace::Immediate, ..SimOptions::default() }).unwrap();
    for workers in [0, 1] {
        let engine =
            Engine::builder().workers(workers).in_flight_limit(1).device(device.clone()).build().unwrap();
        let watchdog = Watchdog::of(&engine);
        let x = tensor(&engine, 1.0);
        let gate = Gate::on_tensors(&engine, &[tensor(&engine, 1.0)]).begun();
        let timeout = Some(Duration::from_millis(20));
        let options = ExportOptions { copy: true, copy_to: device.id(), timeout, ..Access::Read.into() };
        let error = x.export_wait(&options).unwrap_err();
        assert!(matches!(error, Error::Timeout(limit) if Some(limit) == timeout), "{error:?}");
        gate.complete(Ok(()));
        drop(x.export_wait(&ExportOptions { timeout: Some(Duration::from_secs(20)), ..options }).unwrap());
        assert_nothing_left(&[&engine]);
        assert!(watchdog.still_watches());
    }
}

#[test]
fn an_await_gets_its_result_where_the_system_refuses_a_thread_at_first() {
    let stack = 1 << 34;
    let engine = Engine::builder().workers(0).stack_size(stack).build().unwrap();
    let watchdog = Watchdog::of(&engine);
    let x = tensor(&engine, 1.0);
    let mut written = set(&engine, &x, 2.0);
    // Without room for such a stack.
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: u64 = pages.split(' ').next().unwrap().parse().unwrap();
    let before = limit(libc::RLIMIT_AS, pages * 4096 + (stack as u64) / 2);
    assert!((&mut written).now_or_never().is_none());
    limit(libc::RLIMIT_AS, before);
    tests::ops::until("the operation has run", || written.is_done());
    block_on(written).unwrap();
    assert_nothing_left(&[&engine]);
    assert!(watchdog.still_watches());
}

#[test]
fn a_first_poll_takes_no_picture_of_the_graph_for_the_log() {
    let warnings = Arc::new(AtomicUsize::new(0));
    tracing::subscriber::set_global_default(Warnings(Arc::clone(&warnings), "own thread has taken")).unwrap();
    // A check would happen now, and would find the lease of this thread.
    let engine = Engine::builder().workers(1).lease_timeout(Duration::from_secs(2)).build().unwrap();
    let watchdog = Watchdog::of(&engine);
    let x = tensor(&engine, 1.0);
    let array = export(&x);
    set(&engine, &x, 2.0);
    let mut ready = x.ready();
    // Other tests may be warned meanwhile, but not on this thread.
    let early = Arc::new(AtomicUsize::new(0));
    let polled =
        tracing::subscriber::with_default(Warnings(Arc::clone(&early), "own thread has taken"), || {
            (&mut ready).now_or_never()
        });
    assert!(polled.is_none());
    assert_eq!(early.load(Ordering::SeqCst), 0, "it was looked at in the first poll");
    // Once the await has lasted, the log says why; then it fails.
    assert_held(block_on(ready));
    assert!(warnings.load(Ordering::SeqCst) >= 1);
    drop(array);
    read(&engine, &x).wait().unwrap();
    assert_nothing_left(&[&engine]);
    assert!(watchdog.still_watches());
}

fn full(workers: usize) -> Engine {
    Engine::builder().workers(workers).in_flight_limit(1).lease_timeout(LIMIT).build().unwrap()
}

#[test]
fn an_await_for_room_in_an_engine_that_only_leases_fill_ends_with_their_names() {
    for workers in [0, 1] {
        let engine = full(workers);
        let watchdog = Watchdog::of(&engine);
        let x = tensor(&engine, 1.0);
        let array = export(&x);
        let op = set(&engine, &x, 2.0);
        let began = Instant::now();
        assert_held(block_on(engine.op("next").permit()).map(drop));
        assert!(began.elapsed() >= LIMIT, "{:?}", began.elapsed());
        drop(array);
        op.wait().unwrap();
        assert_nothing_left(&[&engine]);
        assert!(watchdog.still_watches());
    }
}

#[test]
fn an_await_for_room_that_all_of_the_engine_waits_for_is_refused() {
    fn nested(engine: Engine, depth: usize) -> futures::future::BoxFuture<'static, estafette::BodyResult> {
        async move {
            if depth > 0 {
                let own = engine.clone();
                let op = engine.op("nested").permit().await?;
                op.run_future(move |[], []| nested(own, depth - 1))?.await?;
            }
            Ok(())
        }
        .boxed()
    }
    let engine = full(1);
    let watchdog = Watchdog::of(&engine);
    // More of them than operations may submit beyond the limit.
    let own = engine.clone();
    let op = engine.op("root").run_future(move |[], []| nested(own, 8)).unwrap();
    let refused = op.wait().unwrap_err().to_string();
    assert!(refused.contains("operations in flight wait for the submitting operation"), "{refused}");
    assert!(refused.contains("in-flight limit"), "{refused}");
    assert_nothing_left(&[&engine]);
    assert!(watchdog.still_watches());
}

#[test]
fn an_await_for_room_continues_while_something_may_make_room() {
    let engine = full(1);
    let watchdog = Watchdog::of(&engine);
    let x = tensor(&engine, 1.0);
    let array = export(&x);
    // A permit that a task holds, an operation that runs elsewhere, and a body that awaits something else.
    let (end, over) = futures::channel::oneshot::channel::<()>();
    let permit = block_on(engine.op("permit").permit()).unwrap();
    let room = || {
        let mut room = engine.op("room").permit().boxed();
        assert!((&mut room).now_or_never().is_none());
        std::thread::sleep(4 * LIMIT);
        assert!((&mut room).now_or_never().is_none());
        room
    };
    let waits = room();
    drop(permit);
    drop(block_on(waits).unwrap());
    let gate = Gate::on_variable(&engine, &engine.var());
    let waits = room();
    gate.open();
    drop(block_on(waits).unwrap());
    let op = engine.op("awaits").run_future(move |[], []| async move { Ok(over.await?) }).unwrap();
    let waits = room();
    end.send(()).unwrap();
    drop(block_on(waits).unwrap());
    op.wait().unwrap();
    drop(array);
    assert_nothing_left(&[&engine]);
    assert!(watchdog.still_watches());
}

#[test]
fn what_is_in_flight_in_one_engine_holds_up_no_await_in_another() {
    let (huge, other) = (
        Engine::builder().workers(1).lease_timeout(LIMIT).in_flight_limit(200_000).build().unwrap(),
        Engine::builder().workers(1).lease_timeout(4 * LIMIT).build().unwrap(),
    );
    let watchdog = Watchdog::of(&huge);
    let (x, y) = (tensor(&huge, 1.0), tensor(&other, 1.0));
    let held = [export(&x), export(&y)];
    let last = (0..100_000).map(|_| set(&huge, &x, 2.0)).reduce(|_, last| last).unwrap();
    let mut first = last.clone();
    assert!((&mut first).now_or_never().is_none(), "it waits for a lease");
    set(&other, &y, 2.0);
    let began = Instant::now();
    assert_held(block_on(y.ready()));
    // An inspection of that many takes a tenth of a second, and the next one follows a hundred times later.
    assert!(began.elapsed() < Duration::from_secs(4), "{:?}", began.elapsed());
    drop(held);
    last.wait().unwrap();
    assert!(watchdog.still_watches());
}
