//! Guarantees 5, 7, 8 and 9: readiness is of the version at the call, futures run anywhere, in-flight limits
//! are bounded.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::{Duration, Instant};

use estafette::bindings;
use estafette::devices::host;
use estafette::tensor::TensorState;
use estafette::{Access, DType, Engine, Error, Produced, Tensor};
use futures::FutureExt;
use futures::executor::block_on;
use tests::foreign::{Deleted, Memory};
use tests::gate::Gate;
use tests::ops::{add, alias_of, engine, fail, get, like, read, set, tensor, until, waits};
use tests::watchdog::Watchdog;

fn gate(engine: &Engine, x: &Tensor) -> Gate {
    Gate::on_tensors(engine, std::slice::from_ref(x))
}

#[test]
fn readiness_is_of_the_version_at_the_call_and_does_not_move_when_another_write_is_submitted() {
    for workers in [0, 1, 2] {
        let engine = engine(workers);
        let watchdog = Watchdog::of(&engine);
        let x = tensor(&engine, 1.0);
        let zeroth = x.ready();
        let first_write = gate(&engine, &x);
        let mut first = x.ready();
        let second_write = gate(&engine, &x);
        let mut second = x.ready();
        assert!(!x.is_ready() && matches!(x.state(), TensorState::Pending));
        assert!(matches!(zeroth.now_or_never(), Some(Ok(()))));
        assert!((&mut first).now_or_never().is_none() && (&mut second).now_or_never().is_none());
        first_write.fail("the first");
        // The second is still open.
        let error = block_on(first).unwrap_err();
        assert_eq!(error.operation().unwrap().message(), "the first");
        assert!((&mut second).now_or_never().is_none() && !x.is_ready());
        second_write.open();
        block_on(second).unwrap();
        assert!(x.is_ready() && matches!(x.state(), TensorState::Ready));
        assert_eq!(x.version(), 2);
        assert!(watchdog.still_watches());
    }
}

#[test]
fn a_future_that_waits_holds_up_no_writer_and_dropping_it_cancels_only_the_waiting() {
    let engine = engine(1);
    let watchdog = Watchdog::of(&engine);
    let x = tensor(&engine, 1.0);
    let write = gate(&engine, &x);
    let mut kept: Vec<_> = (0..10).map(|_| x.ready()).collect();
    let dropped: Vec<_> = (0..10).map(|_| x.ready()).collect();
    let writable = x.writable();
    let later = add(&engine, &x, 1.0);
    assert!(kept.iter_mut().all(|ready| ready.now_or_never().is_none()));
    drop((dropped, writable));
    write.open();
    // The kept futures are never polled.
    later.wait().unwrap();
    kept.into_iter().for_each(|ready| block_on(ready).unwrap());
    assert_eq!(get(&x), 2.0);
    assert!(engine.diagnose().is_idle(), "{}", engine.diagnose());
    assert!(watchdog.still_watches());
}

#[test]
fn a_future_of_the_uses_waits_for_no_device_work_of_later_ones() {
    let engine = engine(1);
    let watchdog = Watchdog::of(&engine);
    let x = tensor(&engine, 1.0);
    let (earlier, fence) = host::promise("an earlier use");
    x.used_until(&fence).unwrap();
    let mut writable = pin!(x.writable());
    let (later, fence) = host::promise("a later use");
    x.used_until(&fence).unwrap();
    assert!(writable.as_mut().now_or_never().is_none());
    earlier.complete();
    block_on(writable).unwrap();
    assert!(x.writable().now_or_never().is_none());
    later.complete();
    block_on(x.writable()).unwrap();
    assert!(watchdog.still_watches());
}

#[test]
fn waits_with_a_timeout_say_so_leave_the_work_alone_and_may_be_repeated() {
    let engine = engine(1);
    let watchdog = Watchdog::of(&engine);
    let x = tensor(&engine, 1.0);
    let write = gate(&engine, &x);
    let op = write.op().clone();
    let short = Duration::from_millis(2);
    for _ in 0..3 {
        let began = Instant::now();
        for outcome in [x.wait_timeout(short), op.wait_timeout(Some(short)), engine.wait_all(Some(short))] {
            assert!(matches!(outcome, Err(Error::Timeout(limit)) if limit == short), "{outcome:?}");
        }
        assert!(began.elapsed() >= 3 * short);
    }
    assert!(matches!(x.wait_timeout(Duration::ZERO), Err(Error::Timeout(_))));
    write.open();
    x.wait_timeout(Duration::from_secs(30)).unwrap();
    op.wait_timeout(None).unwrap();
    engine.wait_all(Some(Duration::from_secs(30))).unwrap();
    assert!(watchdog.still_watches());
}

#[test]
fn an_operation_tells_its_outcome_by_name_and_waiting_for_all_does_not() {
    let engine = engine(2);
    let watchdog = Watchdog::of(&engine);
    let x = tensor(&engine, 1.0);
    let (good, bad) = (set(&engine, &x, 2.0), fail(&engine, &x, "broken"));
    engine.wait_all(None).unwrap();
    assert!(good.is_done() && bad.is_done());
    good.wait().unwrap();
    assert_eq!(bad.wait().unwrap_err().operation().unwrap().id(), bad.id());
    block_on(good).unwrap();
    block_on(bad).unwrap_err();
    assert!(watchdog.still_watches());
}

#[test]
fn a_reached_in_flight_limit_refuses_waits_or_is_awaited_and_is_never_exceeded() {
    let engine = Engine::builder().workers(1).in_flight_limit(2).build().unwrap();
    let watchdog = Watchdog::of(&engine);
    let x = tensor(&engine, 1.0);
    let write = gate(&engine, &x);
    read(&engine, &x);
    let refused = engine.op("third").reads([&x]).without_waiting().run(|[_x], []| Ok(())).unwrap_err();
    assert!(matches!(refused, Error::InFlightLimit { in_flight: 2, limit: 2 }), "{refused:?}");
    let ran = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&ran);
    let mut waiting = Box::pin(async {
        engine.op("third").reads([&x]).permit().await?.run(move |[_x], []| {
            count.fetch_add(1, Ordering::SeqCst);
            Ok(())
        })
    });
    // This thread goes on while it waits, and a waiting submission that is dropped was never made.
    assert!((&mut waiting).now_or_never().is_none());
    let dropped =
        async { engine.op("dropped").reads([&x]).permit().await?.run(|[_x], []| panic!("never submitted")) };
    drop(dropped.now_or_never());
    assert_eq!(engine.stats().in_flight, 2);
    write.open();
    block_on(async { waiting.await.unwrap().await }).unwrap();
    engine.wait_all(None).unwrap();
    assert_eq!((ran.load(Ordering::SeqCst), engine.stats().in_flight), (1, 0));
    x.wait().unwrap();
    assert!(watchdog.still_watches());
}

#[test]
fn an_asynchronous_submission_leaves_its_thread_to_whoever_makes_room() {
    let engine = Engine::builder().workers(1).in_flight_limit(1).build().unwrap();
    let watchdog = Watchdog::of(&engine);
    let x = tensor(&engine, 1.0);
    let write = gate(&engine, &x);
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    // One thread for both: if the submission blocked it, the gate would never open.
    runtime.block_on(async {
        let submit = async {
            engine.op("after").updates([&x]).permit().await?.run_external(|end| end.complete(Ok(())))
        };
        let (op, ()) = tokio::join!(submit, async { write.open() });
        op.unwrap().await.unwrap();
    });
    assert_eq!(x.version(), 2);
    assert!(watchdog.still_watches());
}

#[test]
fn submissions_inside_operations_bypass_the_in_flight_limit_up_to_a_hard_cap() {
    let engine = Engine::builder().workers(1).in_flight_limit(1).build().unwrap();
    let watchdog = Watchdog::of(&engine);
    let x = tensor(&engine, 0.0);
    let (inside, inner) = (engine.clone(), x.clone());
    let outer = engine.op("outer").run(move |[], []| {
        for _ in 0..3 {
            let op = inside.op("inner").updates([&inner]).run_external(|end| end.complete(Ok(())));
            op.expect("beyond the in-flight limit");
        }
        let refused =
            inside.op("inner").writes([&inner]).without_waiting().run(|[], [_x]| Ok(())).unwrap_err();
        assert!(matches!(refused, Error::InFlightLimit { in_flight: 4, limit: 4 }), "{refused:?}");
        Ok(())
    });
    // A wait with a timeout does not run it on this thread, while the worker would run the others.
    outer.unwrap().wait_timeout(Some(Duration::from_secs(60))).unwrap();
    engine.wait_all(None).unwrap();
    assert_eq!(x.version(), 3);
    assert!(watchdog.still_watches());
}

/// An executor of one thread, with no runtime behind it: tasks in a queue, and a waker that unparks.
#[derive(Default)]
struct OneThread {
    tasks: VecDeque<Pin<Box<dyn Future<Output = ()>>>>,
}

struct Unpark {
    thread: Thread,
    woken: AtomicBool,
}

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.woken.store(true, Ordering::SeqCst);
        self.thread.unpark();
    }
}

impl OneThread {
    fn spawn(&mut self, task: impl Future<Output = ()> + 'static) {
        self.tasks.push_back(Box::pin(task));
    }

    fn run(mut self) {
        let unpark = Arc::new(Unpark { thread: std::thread::current(), woken: AtomicBool::new(true) });
        let waker = Waker::from(Arc::clone(&unpark));
        while !self.tasks.is_empty() {
            // Only a wake-up makes it look again: a lost one would hang.
            while !unpark.woken.swap(false, Ordering::SeqCst) {
                std::thread::park();
            }
            let mut context = Context::from_waker(&waker);
            self.tasks.retain_mut(|task| task.as_mut().poll(&mut context).is_pending());
        }
    }
}

/// Every future of the engine, once pending and once ready.
async fn every_future(engine: Engine) -> Result<(), Error> {
    let x = tensor(&engine, 1.0);
    for _ in 0..3 {
        let op = add(&engine, &x, 1.0);
        x.ready().await?;
        x.ready().await?;
        op.clone().await?;
        op.await?;
        x.writable().await?;
    }
    let failed = fail(&engine, &x, "broken");
    assert_eq!(x.ready().await.expect_err("it failed").operation().expect("its cause").message(), "broken");
    failed.await.expect_err("it failed");
    set(&engine, &x, 4.0);
    let exported = x.export(Access::Read).await?;
    let write = set(&engine, &x, 5.0);
    let (mut writable, mut ready) = (pin!(x.writable()), x.ready());
    // Both wait for the lease, which another task would return.
    std::future::poll_fn(|cx| {
        assert!(writable.as_mut().poll(cx).is_pending() && Pin::new(&mut ready).poll(cx).is_pending());
        Poll::Ready(())
    })
    .await;
    drop(exported);
    writable.await?;
    ready.await?;
    write.await?;
    let y = engine.op("double").reads([&x]).produce_future(|[x]| async move {
        tokio::task::yield_now().await;
        Ok(Produced::from_vec(vec![2.0 * x.view().as_slice::<f32>()?[0]], &[1])?)
    });
    let y = y?;
    y.ready().await?;
    let leases = engine.lease_all(&[(x.clone(), Access::Write), (y.clone(), Access::Read)], "all").await?;
    assert_eq!(leases.len(), 2);
    drop(leases);
    let op = engine.op("room").updates([&y]).permit().await?.run_external(|end| end.complete(Ok(())))?;
    op.await?;
    assert_eq!(y.version(), 2);
    let op = engine.op("more room").reads([&x, &y]).permit().await?.run(|[x, y], []| {
        assert_eq!((x.as_slice::<f32>()?, y.as_slice::<f32>()?), (&[5.0][..], &[10.0][..]));
        Ok(())
    })?;
    op.await?;
    Ok(())
}

#[test]
fn the_same_futures_run_under_any_executor() {
    const TASKS: usize = 8;
    for workers in [0, 1, 2] {
        let engine = Engine::builder().workers(workers).in_flight_limit(16).build().unwrap();
        let watchdog = Watchdog::of(&engine);
        block_on(every_future(engine.clone())).unwrap();
        let mut one_thread = OneThread::default();
        (0..TASKS).for_each(|_| one_thread.spawn(every_future(engine.clone()).map(Result::unwrap)));
        one_thread.run();
        let runtimes = [
            tokio::runtime::Builder::new_current_thread().build().unwrap(),
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().unwrap(),
        ];
        for runtime in runtimes {
            runtime.block_on(async {
                let tasks: Vec<_> = (0..TASKS).map(|_| tokio::spawn(every_future(engine.clone()))).collect();
                for task in tasks {
                    task.await.unwrap().unwrap();
                }
            });
        }
        engine.wait_all(None).unwrap();
        assert!(engine.diagnose().is_idle(), "{}", engine.diagnose());
        assert!(watchdog.still_watches());
    }
}

#[test]
fn a_result_is_a_tensor_at_once_and_has_memory_later() {
    let engine = engine(1);
    let watchdog = Watchdog::of(&engine);
    let x = tensor(&engine, 3.0);
    let write = gate(&engine, &x);
    let y = engine
        .op("make")
        .reads([&x])
        .produce(|[x]| Ok(Produced::from_vec(vec![x.as_slice::<f32>()?[0]; 4], &[2, 2])?));
    let y = y.unwrap();
    let z = engine.op("sum").reads([&y]).result(like(DType::F32, &[1])).produce_future(|[y]| async move {
        Ok(Produced::from_vec(vec![y.view().as_slice::<f32>()?.iter().sum::<f32>()], &[1])?)
    });
    let z = z.unwrap();
    assert!(!bindings::tensor::is_defined(&y) && matches!(y.state(), TensorState::Undefined));
    for unknown in [y.shape().map(drop), y.dtype().map(drop), y.device().map(drop), y.data_ptr().map(drop)] {
        assert!(matches!(&unknown, Err(Error::NotDefined(why)) if why.contains("`make`")), "{unknown:?}");
    }
    // A declared description is known before.
    assert_eq!((z.shape().unwrap().as_slice(), z.dtype().unwrap()), (&[1][..], DType::F32));
    assert!(matches!(z.device(), Err(Error::NotDefined(_))));
    write.open();
    assert_eq!(z.to_vec::<f32>().unwrap(), [12.0]);
    assert_eq!(y.shape().unwrap().as_slice(), [2, 2]);
    assert!(watchdog.still_watches());
}

#[test]
fn a_result_declared_an_alias_shares_memory_and_order_with_what_it_views() {
    let engine = engine(2);
    let watchdog = Watchdog::of(&engine);
    let deleted = Deleted::default();
    let memory = Memory::of(&[1.0, 2.0, 3.0]);
    // SAFETY: a fresh tensor that describes its own memory.
    let x = unsafe { engine.import(memory.tensor(0, 3, &deleted)) }.unwrap();
    let (view, count) = (memory.clone(), deleted.clone());
    let tail = engine
        .op("tail")
        .reads([&x])
        .result(alias_of(&[&x]))
        .produce(move |[_x]| Ok(view.tensor(1, 2, &count)));
    let tail = tail.unwrap();
    tail.wait().unwrap();
    assert_eq!(tail.data_ptr().unwrap(), memory.address().wrapping_add(1).cast_const().cast());
    // A write of either is a write of both.
    let write = gate(&engine, &x);
    let read = read(&engine, &tail);
    assert!(!tail.is_ready() && waits(&engine, &read));
    write.open();
    read.wait().unwrap();
    let write = gate(&engine, &tail);
    assert!(!x.is_ready());
    write.open();
    set(&engine, &tail, 7.0);
    assert_eq!(x.to_vec::<f32>().unwrap(), [1.0, 7.0, 7.0]);
    drop((x, read, tail));
    deleted.settle_at(2);
    assert!(watchdog.still_watches());
}

#[test]
fn work_of_an_engine_without_workers_is_run_by_whoever_waits() {
    let engine = engine(0);
    let watchdog = Watchdog::of(&engine);
    let here = std::thread::current().id();
    let threads = Arc::new(Mutex::new(Vec::new()));
    let x = tensor(&engine, 1.0);
    for _ in 0..10 {
        let threads = Arc::clone(&threads);
        let op = engine.op("where").updates([&x]).run(move |[], [], [_x]| {
            threads.lock().unwrap().push(std::thread::current().id());
            Ok(())
        });
        op.unwrap();
    }
    assert!(threads.lock().unwrap().is_empty());
    x.wait().unwrap();
    assert_eq!(*threads.lock().unwrap(), [here; 10]);
    until("nothing is in flight", || engine.stats().in_flight == 0);
    assert!(watchdog.still_watches());
}

#[test]
fn what_is_called_at_the_end_of_its_own_operation_waits_for_nothing() {
    for workers in [0, 1] {
        let engine = engine(workers);
        let watchdog = Watchdog::of(&engine);
        let x = tensor(&engine, 0.0);
        let (said, heard) = channel();
        let (called, calls) = channel();
        let (mine, inner) = (x.clone(), engine.clone());
        let op = engine.op("asks").writes([&x]).run(move |[], [_x]| {
            let ended = called.clone();
            mine.on_ready(move |outcome| ended.send(outcome).unwrap());
            said.send(mine.ready_fence())?;
            // The same of an operation behind.
            add(&inner, &mine, 1.0);
            mine.on_ready(move |outcome| called.send(outcome).unwrap());
            said.send(mine.ready_fence())?;
            Ok(())
        });
        op.unwrap().wait().unwrap();
        x.wait().unwrap();
        for fence in heard {
            fence.wait_timeout(None).unwrap().unwrap();
        }
        let outcomes: Vec<_> = calls.iter().collect();
        assert!(outcomes.len() == 2 && outcomes.iter().all(Result::is_ok), "{outcomes:?}");
        assert!(watchdog.still_watches());
    }
}
