//! An event keeps one waker per waiting future, and none of a dropped future.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Wake, Waker};

use estafette::devices::host;
use estafette::{Access, Engine, Error, Op, Tensor};
use futures::FutureExt;
use futures::executor::block_on;
use tests::gate::Gate;
use tests::nothing_left::assert_nothing_left;
use tests::ops::{engine, read, set, tensor, until};
use tests::watchdog::Watchdog;

fn gate(engine: &Engine, x: &Tensor) -> Gate {
    Gate::on_tensors(engine, std::slice::from_ref(x))
}

/// Counts the tasks that are kept and how often they were woken.
#[derive(Default)]
struct Counts {
    kept: AtomicUsize,
    woken: AtomicUsize,
}

impl Counts {
    fn kept(&self) -> usize {
        self.kept.load(Ordering::SeqCst)
    }

    /// Waits until `kept` tasks are left: another thread may be about to wake one.
    fn settle_at(&self, kept: usize) {
        until("tasks are released", || self.kept() == kept);
    }
}

struct Task(Arc<Counts>);

impl Wake for Task {
    fn wake(self: Arc<Self>) {
        self.0.woken.fetch_add(1, Ordering::SeqCst);
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        self.0.kept.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Polls `future` in a task of its own, of which only wakers are left.
fn poll_in_a_task(counts: &Arc<Counts>, future: &mut (impl Future + Unpin)) {
    counts.kept.fetch_add(1, Ordering::SeqCst);
    let waker = Waker::from(Arc::new(Task(Arc::clone(counts))));
    assert!(future.poll_unpin(&mut Context::from_waker(&waker)).is_pending());
}

#[test]
fn a_million_dropped_awaits_of_a_pending_operation_keep_no_task() {
    let engine = engine(1);
    let watchdog = Watchdog::of(&engine);
    let x = tensor(&engine, 1.0);
    let write = gate(&engine, &x);
    let op = read(&engine, &x);
    let counts = Arc::<Counts>::default();
    // A future that stays, before the others.
    let mut first = op.clone();
    poll_in_a_task(&counts, &mut first);
    for _ in 0..1_000_000 {
        poll_in_a_task(&counts, &mut op.clone());
    }
    assert_eq!(counts.kept(), 1, "the first one's");
    // Many at once, which are dropped in the order of their polls.
    let mut many = vec![op.clone(); 10_000];
    many.iter_mut().for_each(|op| poll_in_a_task(&counts, op));
    assert_eq!(counts.kept(), 10_001);
    drop(many);
    assert_eq!(counts.kept(), 1, "the first one's");
    write.open();
    block_on(op).unwrap();
    assert_eq!(counts.kept(), 1, "of a future that was not polled again");
    drop(first);
    counts.settle_at(0);
    assert_nothing_left(&[&engine]);
    assert!(watchdog.still_watches());
}

/// By an operation, by a cancelled one, by a lease, and by device work.
#[test]
fn dropped_futures_of_a_tensor_that_is_in_use_keep_no_task() {
    let engine = engine(1);
    let watchdog = Watchdog::of(&engine);
    let counts = Arc::<Counts>::default();
    let many = |tensor: &Tensor| {
        for _ in 0..1_000 {
            poll_in_a_task(&counts, &mut tensor.writable());
        }
        counts.settle_at(0);
    };
    let x = tensor(&engine, 1.0);
    let write = gate(&engine, &x);
    many(&x);
    let cancelled = set(&engine, &x, 2.0);
    assert!(cancelled.cancel());
    many(&x);
    write.open();
    assert!(matches!(x.wait(), Err(Error::Cancelled(_))));
    let y = tensor(&engine, 1.0);
    let lease = y.lease(Access::Read, "a reader").try_now().unwrap().unwrap();
    many(&y);
    drop(lease);
    let (completer, fence) = host::promise("device work that reads y");
    y.used_until(&fence).unwrap();
    many(&y);
    completer.settle(Ok(()));
    block_on(y.writable()).unwrap();
    assert_nothing_left(&[&engine]);
    assert!(watchdog.still_watches());
}

#[test]
fn dropped_futures_that_wait_for_room_or_for_the_end_of_everything_keep_no_task() {
    let engine = Engine::builder().workers(1).in_flight_limit(1).build().unwrap();
    let watchdog = Watchdog::of(&engine);
    let x = tensor(&engine, 1.0);
    let write = gate(&engine, &x);
    let counts = Arc::<Counts>::default();
    for _ in 0..1_000 {
        poll_in_a_task(
            &counts,
            &mut async { engine.op("waits for room").permit().await?.run(|[], []| Ok(())) }.boxed_local(),
        );
    }
    for _ in 0..1_000 {
        poll_in_a_task(&counts, &mut engine.shutdown().boxed_local());
    }
    counts.settle_at(0);
    write.open();
    assert!(block_on(engine.shutdown()).drained);
    assert_nothing_left(&[&engine]);
    assert!(watchdog.still_watches());
}

#[test]
fn a_shared_operation_keeps_the_last_waker_of_each_future() {
    let engine = engine(1);
    let watchdog = Watchdog::of(&engine);
    let x = tensor(&engine, 1.0);
    let write = gate(&engine, &x);
    let mut first = read(&engine, &x);
    let mut second = first.clone();
    let mut writable = x.writable();
    let counts: [Arc<Counts>; 3] = Default::default();
    for _ in 0..100 {
        poll_in_a_task(&counts[0], &mut first);
        poll_in_a_task(&counts[1], &mut second);
        poll_in_a_task(&counts[2], &mut writable);
    }
    assert!(counts.iter().all(|counts| counts.kept() == 1), "one of each future");
    write.open();
    until("all are woken", || counts.iter().all(|counts| counts.woken.load(Ordering::SeqCst) > 0));
    block_on(first).unwrap();
    block_on(second).unwrap();
    block_on(writable).unwrap();
    counts.iter().for_each(|counts| counts.settle_at(0));
    assert_nothing_left(&[&engine]);
    assert!(watchdog.still_watches());
}

/// A task whose destructor uses what the task waited for, and panics.
struct Hostile {
    op: Op,
    dropped: Arc<AtomicUsize>,
}

impl Wake for Hostile {
    fn wake(self: Arc<Self>) {}
}

impl Drop for Hostile {
    fn drop(&mut self) {
        assert!((&mut self.op).now_or_never().is_none());
        assert!(self.op.clone().now_or_never().is_none());
        self.dropped.fetch_add(1, Ordering::SeqCst);
        panic!("planned");
    }
}

#[test]
fn a_task_uses_the_operation_and_panics_when_it_is_dropped() {
    let engine = engine(1);
    let watchdog = Watchdog::of(&engine);
    let x = tensor(&engine, 1.0);
    let write = gate(&engine, &x);
    let op = read(&engine, &x);
    let dropped = Arc::new(AtomicUsize::new(0));
    let futures = [op.clone().boxed(), x.writable().boxed(), engine.shutdown().map(|_| Ok(())).boxed()];
    for mut future in futures {
        let before = dropped.load(Ordering::SeqCst);
        for _ in 0..3 {
            let task = Hostile { op: op.clone(), dropped: Arc::clone(&dropped) };
            let waker = Waker::from(Arc::new(task));
            assert!(future.poll_unpin(&mut Context::from_waker(&waker)).is_pending());
        }
        until("two are replaced", || dropped.load(Ordering::SeqCst) == before + 2);
        drop(future);
        until("the last one is dropped", || dropped.load(Ordering::SeqCst) == before + 3);
    }
    write.open();
    op.wait().unwrap();
    engine.wait_all(None).unwrap();
    assert_nothing_left(&[&engine]);
    assert!(watchdog.still_watches());
}
