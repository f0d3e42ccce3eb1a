//! Futures of the engine need no particular runtime: the same program runs under several executors.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use estafette::{Access, Engine, Error, Produced};
use futures::FutureExt;
use futures::executor::{LocalPool, block_on};
use futures::future::join_all;
use tests::gate::Gate;
use tests::ops::{add, engine, fail, get, set, tensor};
use tests::watchdog::Watchdog;

/// Awaits everything that can be awaited.
async fn story(engine: Engine) -> Result<(), Error> {
    let (x, y) = (tensor(&engine, 1.0), tensor(&engine, 0.0));
    let op = engine.op("copy").reads([&x]).writes([&y]).permit().await?.run(|[x], [mut y]| {
        y.as_mut_slice::<f32>()?.copy_from_slice(x.as_slice()?);
        Ok(())
    })?;
    op.await?;
    y.ready().await?;
    let z = engine.op("late").reads([&y]).produce_future(|[y]| async move {
        Ok(Produced::from_vec(vec![y.view().as_slice::<f32>()?[0] * 3.0], &[1])?)
    })?;
    let chained =
        engine.op("chained").reads([&z]).produce(|[z]| Ok(Produced::from_vec(z.to_vec::<f32>()?, &[1])?))?;
    let exported = chained.export(Access::Read).await?;
    let write = set(&engine, &chained, 5.0);
    drop(exported);
    write.await?;
    chained.writable().await?;
    let lease = chained.lease(Access::Write, "the story").await?;
    let behind = add(&engine, &chained, 1.0);
    drop(lease);
    behind.await?;
    let leases =
        engine.lease_all(&[(x.clone(), Access::Read), (y.clone(), Access::Write)], "the story").await?;
    assert_eq!(leases.len(), 2);
    drop(leases);
    // Many waiters of one event: all are notified.
    let waits = (0..20).map(|_| chained.ready());
    add(&engine, &chained, 1.0);
    assert!(join_all(waits).await.iter().all(Result::is_ok));
    let failed = fail(&engine, &chained, "the end").await.unwrap_err();
    assert_eq!(failed.operation().unwrap().message(), "the end");
    assert!(chained.ready().await.is_err());
    assert!(engine.shutdown().await.drained);
    Ok(())
}

#[test]
fn under_tokio_on_one_thread() {
    for workers in [0, 1] {
        let watchdog = Watchdog::alone();
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(story(engine(workers))).unwrap();
        assert!(watchdog.still_watches());
    }
}

#[test]
fn under_tokio_on_many_threads_spawned() {
    for workers in [0, 2] {
        let watchdog = Watchdog::alone();
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().unwrap();
        let stories: Vec<_> = (0..4).map(|_| runtime.spawn(story(engine(workers)))).collect();
        for told in stories {
            runtime.block_on(told).unwrap().unwrap();
        }
        assert!(watchdog.still_watches());
    }
}

#[test]
fn on_the_callers_own_tokio_runtime() {
    let watchdog = Watchdog::alone();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).build().unwrap();
    let engine = Engine::builder().workers(1).tokio(runtime.handle().clone()).build().unwrap();
    runtime.block_on(story(engine)).unwrap();
    assert!(watchdog.still_watches());
}

#[test]
fn under_a_second_executor() {
    for workers in [0, 1] {
        let watchdog = Watchdog::alone();
        block_on(story(engine(workers))).unwrap();
        let mut pool = LocalPool::new();
        pool.run_until(join_all((0..3).map(|_| story(engine(workers)))))
            .into_iter()
            .for_each(|told| told.unwrap());
        assert!(watchdog.still_watches());
    }
}

/// A waker that counts.
#[derive(Default)]
struct Count(AtomicUsize);

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

#[test]
fn polled_by_hand_a_future_wakes_the_last_waker_and_stays_pending_until_then() {
    let engine = engine(1);
    let watchdog = Watchdog::of(&engine);
    let x = tensor(&engine, 1.0);
    let gate = Gate::on_tensors(&engine, std::slice::from_ref(&x));
    let (first, second) = (Arc::new(Count::default()), Arc::new(Count::default()));
    let mut ready = pin!(x.ready());
    let poll = |ready: std::pin::Pin<&mut estafette::wait::Ready>, count: &Arc<Count>| {
        ready.poll(&mut Context::from_waker(&Waker::from(Arc::clone(count))))
    };
    assert!(poll(ready.as_mut(), &first).is_pending());
    assert!(poll(ready.as_mut(), &first).is_pending());
    // The task has moved: its newest waker counts.
    assert!(poll(ready.as_mut(), &second).is_pending());
    assert_eq!(second.0.load(Ordering::SeqCst), 0);
    gate.open();
    x.wait().unwrap();
    tests::ops::until("it is woken", || second.0.load(Ordering::SeqCst) == 1);
    assert!(matches!(poll(ready.as_mut(), &second), Poll::Ready(Ok(()))));
    assert!(watchdog.still_watches());
}

/// A waker that uses the engine: it would hang if it were called under a lock of the engine.
struct Nosy(Engine, estafette::Tensor);

impl Wake for Nosy {
    fn wake(self: Arc<Self>) {
        let Self(engine, tensor) = &*self;
        assert!(!engine.diagnose().to_string().is_empty());
        drop(tensor.ready().now_or_never());
        drop(add(engine, tensor, 1.0));
    }
}

#[test]
fn wakers_are_called_under_no_lock() {
    let engine = engine(1);
    let watchdog = Watchdog::of(&engine);
    let x = tensor(&engine, 1.0);
    let gate = Gate::on_tensors(&engine, std::slice::from_ref(&x));
    let waker = Waker::from(Arc::new(Nosy(engine.clone(), tensor(&engine, 0.0))));
    let mut context = Context::from_waker(&waker);
    let (mut ready, mut writable) = (pin!(x.ready()), pin!(x.writable()));
    let mut export = pin!(x.export(Access::Write));
    assert!(ready.as_mut().poll(&mut context).is_pending());
    assert!(writable.as_mut().poll(&mut context).is_pending());
    assert!(export.as_mut().poll(&mut context).is_pending());
    gate.open();
    let exported = block_on(export).unwrap();
    block_on(ready).unwrap();
    drop(exported);
    block_on(writable).unwrap();
    assert!(watchdog.still_watches());
}

/// A waker that panics, as one of a broken executor might.
struct Broken;

impl Wake for Broken {
    fn wake(self: Arc<Self>) {
        panic!("a broken executor");
    }
}

#[test]
fn a_waker_that_panics_harms_nobody_else() {
    let engine = engine(1);
    let watchdog = Watchdog::of(&engine);
    let x = tensor(&engine, 1.0);
    let gate = Gate::on_tensors(&engine, std::slice::from_ref(&x));
    let waker = Waker::from(Arc::new(Broken));
    let mut context = Context::from_waker(&waker);
    let op = add(&engine, &x, 1.0);
    let (mut ready, mut shutdown, mut ended) = (pin!(x.ready()), pin!(engine.shutdown()), pin!(op));
    assert!(ready.as_mut().poll(&mut context).is_pending());
    assert!(ended.as_mut().poll(&mut context).is_pending());
    assert!(shutdown.as_mut().poll(&mut context).is_pending());
    let second = x.ready();
    gate.open();
    block_on(second).unwrap();
    engine.wait_all(None).unwrap();
    assert_eq!(get(&x), 2.0);
    assert!(watchdog.still_watches());
}

#[test]
fn an_await_that_is_given_up_by_a_timer_leaves_everything_as_it_was() {
    let watchdog = Watchdog::alone();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    runtime.block_on(async {
        let engine = engine(1);
        let x = tensor(&engine, 1.0);
        let gate = Gate::on_tensors(&engine, std::slice::from_ref(&x));
        let short = Duration::from_millis(5);
        assert!(tokio::time::timeout(short, x.ready()).await.is_err());
        assert!(tokio::time::timeout(short, x.export(Access::Write)).await.is_err());
        assert!(
            tokio::time::timeout(short, engine.lease_all(&[(x.clone(), Access::Read)], "a waiter"))
                .await
                .is_err()
        );
        let op = add(&engine, &x, 1.0);
        gate.open();
        op.await.unwrap();
        assert_eq!(get(&x), 2.0);
        assert!(engine.diagnose().is_idle(), "{}", engine.diagnose());
    });
    assert!(watchdog.still_watches());
}

#[test]
fn the_function_that_makes_a_future_is_called_where_the_runtime_is_the_current_one() {
    let given = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_time().build().unwrap();
    let engines = [
        Engine::builder().workers(1).build().unwrap(),
        Engine::builder().workers(0).build().unwrap(),
        Engine::builder().workers(1).tokio(given.handle().clone()).build().unwrap(),
    ];
    for engine in engines {
        let watchdog = Watchdog::of(&engine);
        // tokio panics where a timer is made outside of a runtime.
        let made = engine.op("late").produce_future(|[]| {
            tokio::time::timeout(Duration::from_secs(60), async {
                Ok(Produced::from_vec(vec![1.0_f32], &[1])?)
            })
            .map(|in_time| in_time?)
        });
        assert_eq!(get(&made.unwrap()), 1.0);
        assert!(watchdog.still_watches());
    }
}

#[test]
fn a_future_that_a_body_makes_for_what_follows_the_body_is_awaited_by_another_task() {
    let engine = engine(1);
    let watchdog = Watchdog::of(&engine);
    let x = tensor(&engine, 1.0);
    let (sender, futures) = std::sync::mpsc::channel();
    let body = engine.op("body").writes([&x]).run({
        let (engine, x) = (engine.clone(), x.clone());
        move |[], [mut of_x]| {
            of_x.as_mut_slice::<f32>()?[0] = 2.0;
            let next = add(&engine, &x, 1.0);
            sender.send(x.ready())?;
            drop(next);
            Ok(())
        }
    });
    block_on(futures.recv().unwrap()).unwrap();
    body.unwrap().wait().unwrap();
    assert_eq!(get(&x), 3.0);
    assert!(watchdog.still_watches());
}
