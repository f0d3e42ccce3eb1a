//! Hard case H10: shutdown, and updates that did not happen.

use std::cell::Cell;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use estafette::bindings::{self, Current, WaitHook};
use estafette::engine::ShutdownReport;
use estafette::tensor::TensorState;
use estafette::{Access, Engine, Error, ExportOptions, FailureKind};
use futures::FutureExt;
use futures::executor::block_on;
use tests::foreign::{self, Deleted};
use tests::gate::Gate;
use tests::ops::{add, engine, fail, get, set, tensor, until, waits};
use tests::watchdog::Watchdog;

#[test]
fn shutdown_drains_what_is_in_flight_and_refuses_what_comes_later() {
    for workers in [0, 2] {
        let engine = engine(workers);
        let watchdog = Watchdog::of(&engine);
        let x = tensor(&engine, 0.0);
        (0..100).for_each(|_| drop(add(&engine, &x, 1.0)));
        let report = block_on(engine.shutdown());
        assert!(report.drained && report.cancelled.is_empty() && report.leases.is_empty(), "{report:?}");
        let refused = engine.op("late").writes([&x]).run(|[], [_x]| Ok(())).unwrap_err();
        assert!(matches!(refused, Error::Shutdown), "{refused:?}");
        let refused = engine.zeros(&[1], estafette::DType::F32).unwrap_err();
        assert!(matches!(refused, Error::Shutdown), "{refused:?}");
        // A tensor imported too late is returned to its owner too.
        let deleted = Deleted::default();
        // SAFETY: a fresh tensor that describes its own memory.
        let refused = unsafe { engine.import(foreign::tensor(&[1.0], &deleted)) }.unwrap_err();
        assert!(matches!(refused, Error::Shutdown), "{refused:?}");
        deleted.settle_at(1);
        // A defined tensor can still be read, and shut down again.
        assert_eq!(get(&x), 100.0);
        assert!(engine.shutdown_timeout(Duration::from_secs(30)).drained);
        assert!(watchdog.still_watches());
    }
}

#[test]
fn operations_may_submit_while_the_engine_drains() {
    let engine = engine(1);
    let watchdog = Watchdog::of(&engine);
    let x = tensor(&engine, 0.0);
    let variable = engine.var();
    let shut = Gate::on_variable(&engine, &variable);
    let (inner, mine) = (engine.clone(), x.clone());
    engine
        .op("last")
        .reads_vars(&[&variable])
        .run(move |[], []| {
            inner.op("very last").writes([&mine]).run(|[], [mut x]| {
                x.as_mut_slice::<f32>()?.fill(7.0);
                Ok(())
            })?;
            Ok(())
        })
        .unwrap();
    let mut shutdown = Box::pin(engine.shutdown());
    assert!((&mut shutdown).now_or_never().is_none());
    shut.open();
    assert!(block_on(shutdown).drained);
    assert_eq!(get(&x), 7.0);
    assert!(watchdog.still_watches());
}

#[test]
fn shutdown_with_a_deadline_cancels_what_only_leases_block_and_reports_it() {
    let engine = engine(2);
    let watchdog = Watchdog::of(&engine);
    let (x, y) = (tensor(&engine, 1.0), tensor(&engine, 1.0));
    let options = ExportOptions { owner: Some("a hoarder".into()), ..ExportOptions::from(Access::Read) };
    let array = x.export_wait(&options).unwrap();
    let held = [set(&engine, &x, 2.0), add(&engine, &x, 1.0)];
    let variable = engine.var();
    let shut = Gate::on_variable(&engine, &variable);
    let busy = engine.op("behind the busy one").reads_vars(&[&variable]).writes([&y]).run(|[], [_y]| Ok(()));
    let report = engine.shutdown_timeout(Duration::from_millis(30));
    assert!(!report.drained, "{report:?}");
    assert_eq!(report.cancelled, ["set", "add"]);
    assert_eq!(report.leases.len(), 1, "{report:?}");
    assert!(report.leases[0].contains("a hoarder"), "{report:?}");
    // A running operation, and operations that wait for it, are not cancelled.
    let mut running = report.running.clone();
    running.sort();
    assert_eq!(running, ["behind the busy one", "gate"]);
    for op in held {
        let error = op.wait().unwrap_err();
        assert!(
            matches!(&error, Error::Cancelled(cause) if cause.kind() == FailureKind::Cancelled),
            "{error:?}"
        );
    }
    shut.open();
    busy.unwrap().wait().unwrap();
    drop(array);
    engine.wait_all(None).unwrap();
    assert!(engine.shutdown_timeout(Duration::ZERO).drained);
    // The memory that the cancelled operations would have changed is as it was.
    assert!(matches!(x.state(), TensorState::Failed(Error::Cancelled(_))));
    x.clear_error().unwrap();
    assert_eq!(get(&x), 1.0);
    assert!(watchdog.still_watches());
}

/// Looking at each operation's whole chain would take minutes.
#[test]
fn a_shutdown_cancels_a_very_long_chain_behind_a_lease() {
    const LENGTH: usize = 50_000;
    let engine = Engine::builder().workers(1).in_flight_limit(2 * LENGTH).build().unwrap();
    let watchdog = Watchdog::of(&engine);
    let first = tensor(&engine, 0.0);
    let array = first.export_wait(&ExportOptions::from(Access::Read)).unwrap();
    set(&engine, &first, 1.0);
    let mut last = first;
    for _ in 1..LENGTH {
        let next = tensor(&engine, 0.0);
        drop(engine.op("link").reads([&last]).writes([&next]).run(|[_last], [_next]| Ok(())).unwrap());
        last = next;
    }
    let report = engine.shutdown_timeout(Duration::ZERO);
    assert_eq!((report.cancelled.len(), report.running.len(), report.leases.len()), (LENGTH, 0, 1));
    drop(array);
    engine.wait_all(None).unwrap();
    assert!(watchdog.still_watches());
}

#[test]
fn a_deadline_beyond_the_clock_is_none() {
    let engine = engine(1);
    let watchdog = Watchdog::of(&engine);
    add(&engine, &tensor(&engine, 0.0), 1.0);
    assert!(engine.shutdown_timeout(Duration::MAX).drained);
    assert!(watchdog.still_watches());
}

#[test]
fn an_engine_dropped_with_work_pending_still_runs_it() {
    for workers in [0, 1, 2] {
        let watchdog = Watchdog::alone();
        let engine = engine(workers);
        let x = tensor(&engine, 0.0);
        let ran = Arc::new(AtomicUsize::new(0));
        let gate = (workers > 0).then(|| Gate::on_tensors(&engine, std::slice::from_ref(&x)));
        for _ in 0..10 {
            let ran = Arc::clone(&ran);
            let op = engine.op("count").updates([&x]).run(move |[], [], [_x]| {
                ran.fetch_add(1, Ordering::SeqCst);
                Ok(())
            });
            drop(op.unwrap());
        }
        drop(engine);
        drop(x);
        if let Some(gate) = gate {
            gate.open();
        }
        until("all have run", || ran.load(Ordering::SeqCst) == 10);
        assert!(watchdog.still_watches());
    }
}

#[test]
fn the_last_handle_may_be_dropped_inside_an_operation() {
    let watchdog = Watchdog::alone();
    let engine = engine(1);
    let (said, heard) = channel();
    let (go, wait) = channel::<()>();
    let last = engine.clone();
    let op = engine.op("last").run(move |[], []| {
        wait.recv()?;
        drop(last);
        Ok(said.send(())?)
    });
    drop(engine);
    go.send(()).unwrap();
    heard.recv().unwrap();
    op.unwrap().wait().unwrap();
    assert!(watchdog.still_watches());
}

#[test]
fn the_last_handle_of_an_engine_without_workers_that_a_body_drops_runs_no_body_inside_of_that_one() {
    thread_local! {
        static INSIDE: Cell<bool> = const { Cell::new(false) };
    }
    let watchdog = Watchdog::alone();
    let engine = engine(0);
    let last = engine.clone();
    let first = engine.op("first").run(move |[], []| {
        INSIDE.set(true);
        drop(last);
        INSIDE.set(false);
        Ok(())
    });
    let (said, heard) = channel();
    engine.op("second").run(move |[], []| Ok(said.send(INSIDE.get())?)).unwrap();
    drop(engine);
    first.unwrap().wait().unwrap();
    assert!(!heard.recv().unwrap(), "the second body ran inside of the first");
    assert!(watchdog.still_watches());
}

#[test]
fn the_last_handle_may_be_dropped_in_asynchronous_code_of_any_runtime() {
    let watchdog = Watchdog::alone();
    let use_and_drop = || async {
        let engine = engine(1);
        let x = tensor(&engine, 1.0);
        let y = engine.op("asynchronous").reads([&x]).produce_future(|[x]| async move {
            tokio::time::sleep(Duration::from_millis(1)).await;
            let value = x.view().as_slice::<f32>()?[0] + 1.0;
            Ok(estafette::Produced::from_vec(vec![value], &[1])?)
        });
        let y = y.unwrap();
        y.ready().await.unwrap();
        assert_eq!(get(&y), 2.0);
        // Its own runtime goes with it, in the middle of asynchronous code.
        drop((engine, x, y));
    };
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(use_and_drop());
    tokio::runtime::Builder::new_multi_thread().worker_threads(1).build().unwrap().block_on(async {
        tokio::spawn(use_and_drop()).await.unwrap();
    });
    block_on(use_and_drop());
    assert!(watchdog.still_watches());
}

#[test]
fn the_last_handle_may_be_dropped_by_an_asynchronous_body_on_the_engines_own_runtime() {
    let watchdog = Watchdog::alone();
    let engine = engine(1);
    let (said, heard) = channel();
    let (go, wait) = tokio::sync::oneshot::channel::<()>();
    let last = engine.clone();
    let op = engine.op("last").run_future(move |[], []| async move {
        wait.await?;
        drop(last);
        tokio::task::yield_now().await;
        Ok(said.send(())?)
    });
    drop(engine);
    go.send(()).unwrap();
    heard.recv().unwrap();
    drop(op.unwrap());
    assert!(watchdog.still_watches());
}

#[test]
fn an_asynchronous_body_whose_runtime_goes_away_fails_its_operation() {
    let watchdog = Watchdog::alone();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).build().unwrap();
    let engine = Engine::builder().workers(1).tokio(runtime.handle().clone()).build().unwrap();
    let x = tensor(&engine, 1.0);
    let (said, heard) = channel();
    let op = engine.op("abandoned").writes([&x]).run_future(move |[], [_x]| async move {
        said.send(())?;
        std::future::pending().await
    });
    let op = op.unwrap();
    heard.recv().unwrap();
    runtime.shutdown_background();
    let error = op.wait().unwrap_err();
    assert_eq!(error.operation().unwrap().operation(), "abandoned");
    assert!(error.to_string().contains("its future was dropped before it had ended"), "{error}");
    // And one that comes when it is gone.
    let late = engine.op("late").writes([&x]).run_future(|[], [_x]| async { Ok(()) }).unwrap();
    let error = late.wait().unwrap_err().to_string();
    assert!(error.contains("its future was dropped before it had ended"), "{error}");
    engine.wait_all(None).unwrap();
    assert!(watchdog.still_watches());
}

#[test]
fn cancelling_or_skipping_an_update_leaves_its_data_intact_but_marks_the_version() {
    let engine = engine(1);
    let watchdog = Watchdog::of(&engine);
    let (x, bad) = (tensor(&engine, 5.0), tensor(&engine, 0.0));
    let variable = engine.var();
    let shut = Gate::on_variable(&engine, &variable);
    let update = engine.op("update").reads_vars(&[&variable]).updates([&x]).run(|[], [], [mut x]| {
        x.as_mut_slice::<f32>()?.fill(-1.0);
        Ok(())
    });
    let update = update.unwrap();
    let version = x.version();
    assert!(update.cancel());
    // There is no version to judge while a write is unfinished.
    assert!(matches!(x.clear_error(), Err(Error::Conflict(_))));
    shut.open();
    until("the cancelled update is through", || x.version() == version + 1);
    assert!(matches!(x.state(), TensorState::Failed(Error::Cancelled(_))));
    assert!(matches!(x.to_vec::<f32>(), Err(Error::Cancelled(_))));
    x.clear_error().unwrap();
    assert!(matches!(x.state(), TensorState::Ready));
    assert_eq!(get(&x), 5.0);
    // Skipped, because another input had failed.
    fail(&engine, &bad, "the root");
    let skipped = engine.op("skipped").reads([&bad]).updates([&x]).run(|[_bad], [], [_x]| Ok(())).unwrap();
    let error = skipped.wait().unwrap_err();
    assert_eq!(error.operation().unwrap().operation(), "fail");
    assert!(x.wait().unwrap_err().to_string().contains("the root"));
    x.clear_error().unwrap();
    assert_eq!((get(&x), x.version()), (5.0, version + 2));
    // The operation's own outcome stands.
    assert!(update.wait().is_err() && skipped.wait().is_err());
    assert!(watchdog.still_watches());
}

#[test]
fn what_has_begun_or_ended_is_not_cancelled() {
    let engine = engine(1);
    let watchdog = Watchdog::of(&engine);
    let x = tensor(&engine, 0.0);
    let shut = Gate::on_tensors(&engine, std::slice::from_ref(&x));
    until("the gate has begun", || {
        !waits(&engine, shut.op()) && engine.diagnose().to_string().contains("running")
    });
    assert!(!shut.op().cancel());
    shut.open();
    let op = set(&engine, &x, 1.0);
    op.wait().unwrap();
    assert!(!op.cancel());
    assert_eq!(get(&x), 1.0);
    assert!(watchdog.still_watches());
}

/// Ends every wait.
struct Interrupts;

impl WaitHook for Interrupts {
    fn concerns(&self) -> bool {
        true
    }

    fn ends(&self, _needs: &dyn Fn(&[Current]) -> Option<usize>) -> bool {
        true
    }
}

#[test]
fn a_shutdown_that_does_not_wait_until_its_deadline_cancels_nothing() {
    const LONG: Duration = Duration::from_secs(3_600);
    let (interrupted, other) = (engine(1), engine(1));
    bindings::engine::on_wait(&interrupted, Interrupts);
    let callback = |engine: &Engine| {
        let (own, (said, heard)) = (engine.clone(), channel());
        // Called at once.
        tensor(&other, 0.0).on_ready(move |_| said.send(own.shutdown_timeout(LONG)).unwrap());
        heard.recv().unwrap()
    };
    let inside = |engine: &Engine| {
        let (own, (said, heard)) = (engine.clone(), channel());
        let variable = engine.var();
        let op = engine.op("inside").writes_vars(&[&variable]);
        op.run(move |[], []| Ok(said.send(own.shutdown_timeout(LONG))?)).unwrap().wait().unwrap();
        heard.recv().unwrap()
    };
    type ShutDown<'a> = Box<dyn Fn(&Engine) -> ShutdownReport + 'a>;
    let ways: [(Engine, ShutDown<'_>, &[&str]); 3] = [
        (interrupted, Box::new(|engine| engine.shutdown_timeout(LONG)), &["set"]),
        (engine(1), Box::new(callback), &["set"]),
        (engine(1), Box::new(inside), &["inside", "set"]),
    ];
    for (engine, shut_down, running) in ways {
        let x = tensor(&engine, 1.0);
        let lease = x.lease(Access::Read, "a reader").try_now().unwrap().unwrap();
        let held = set(&engine, &x, 2.0);
        let mut report = shut_down(&engine);
        report.running.sort();
        assert!(!report.drained && report.cancelled.is_empty() && report.leases.is_empty(), "{report:?}");
        assert_eq!(report.running, running);
        drop(lease);
        held.wait_timeout(Some(LONG)).unwrap_or_else(|error| assert!(matches!(error, Error::Interrupted)));
        until("it has run", || held.is_done());
        assert_eq!(x.version(), 1);
        assert!(matches!(x.state(), TensorState::Ready));
    }
}

#[test]
fn operations_without_operands_and_permits_count_as_in_flight() {
    const SHORT: Duration = Duration::from_millis(5);
    let engine = engine(1);
    let watchdog = Watchdog::of(&engine);
    let (said, heard) = channel();
    engine.op("no operands").run_external(move |completion| said.send(completion).unwrap()).unwrap();
    let completion = heard.recv().unwrap();
    let permit = block_on(engine.op("to come").permit()).unwrap();
    let diagnosis = engine.diagnose();
    assert!(
        !diagnosis.is_idle() && diagnosis.unlisted == 2 && diagnosis.operations.is_empty(),
        "{diagnosis}"
    );
    assert_eq!(diagnosis.to_string(), "2 operations or permits without operands are in flight");
    let report = engine.shutdown_timeout(SHORT);
    assert!(!report.drained && report.unlisted == 2 && report.running.is_empty(), "{report:?}");
    drop(permit);
    completion.complete(Ok(()));
    let report = engine.shutdown_timeout(Duration::from_secs(30));
    assert!(report.drained && report.unlisted == 0, "{report:?}");
    assert_eq!(engine.diagnose().to_string(), "nothing in flight");
    assert!(watchdog.still_watches());
}

#[test]
fn a_shutdown_awaited_inside_an_operation_does_not_wait_for_it() {
    let engine = engine(1);
    let watchdog = Watchdog::of(&engine);
    let (own, (said, heard)) = (engine.clone(), channel());
    let op = engine.op("quits").run_future(move |[], []| async move { Ok(said.send(own.shutdown().await)?) });
    op.unwrap().wait().unwrap();
    let report = heard.recv().unwrap();
    assert!(!report.drained && report.unlisted == 1, "{report:?}");
    assert!(block_on(engine.shutdown()).drained);
    assert!(watchdog.still_watches());
}

#[derive(Default)]
struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::SeqCst);
    }
}

#[test]
fn a_shutdown_ends_awaits_for_room() {
    let poll_once: fn(&Engine) = |engine| assert!(engine.shutdown().now_or_never().is_none());
    let at_once: fn(&Engine) = |engine| assert!(!engine.shutdown_timeout(Duration::ZERO).drained);
    for shut_down in [poll_once, at_once] {
        let engine = Engine::builder().workers(1).in_flight_limit(1).build().unwrap();
        let watchdog = Watchdog::of(&engine);
        let gate = Gate::on_variable(&engine, &engine.var());
        let mut permit = pin!(engine.op("waits for room").permit());
        let woken = Arc::new(Woken::default());
        let waker = Waker::from(woken.clone());
        assert!(permit.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        shut_down(&engine);
        assert!(woken.0.load(Ordering::SeqCst));
        let refused = permit.as_mut().poll(&mut Context::from_waker(&waker));
        assert!(matches!(refused, Poll::Ready(Err(Error::Shutdown))));
        gate.open();
        assert!(watchdog.still_watches());
    }
}
