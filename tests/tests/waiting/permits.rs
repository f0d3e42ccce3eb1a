//! Futures that wait for permits are woken in their order, and the cost of a permit does not grow with their
//! number.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::task::{Context, Wake, Waker};
use std::time::{Duration, Instant};

use estafette::Engine;
use futures::executor::block_on;
use futures::stream::FuturesUnordered;
use futures::{FutureExt, StreamExt};
use tests::gate::Gate;
use tests::nothing_left::assert_nothing_left;
use tests::ops::until;
use tests::watchdog::Watchdog;

fn engine_of(limit: usize) -> Engine {
    // An awaited operation is not looked at within the time of a test.
    Engine::builder()
        .workers(1)
        .in_flight_limit(limit)
        .lease_timeout(Duration::from_secs(3_600))
        .build()
        .unwrap()
}

#[derive(Default)]
struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::SeqCst);
    }
}

impl Woken {
    fn is_set(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }
}

#[test]
fn many_tasks_get_permits_in_their_order_for_a_few_polls_each() {
    const TASKS: usize = 300;
    for limit in [1, 8] {
        let engine = engine_of(limit);
        let watchdog = Watchdog::of(&engine);
        let gates: Vec<_> = (0..limit).map(|_| Gate::on_variable(&engine, &engine.var())).collect();
        let (polls, order) = (Cell::new(0), RefCell::new(Vec::new()));
        let task = async |number| {
            let mut permit = pin!(engine.op("one of many").permit());
            let permit = poll_fn(|cx| {
                polls.set(polls.get() + 1);
                permit.as_mut().poll(cx)
            });
            let op = permit.await.unwrap();
            order.borrow_mut().push(number);
            op.run_detached(|[], []| Ok(())).unwrap();
        };
        // It polls the tasks that were woken.
        let mut all = pin!((0..TASKS).map(task).collect::<FuturesUnordered<_>>().collect::<Vec<()>>());
        assert!(all.as_mut().now_or_never().is_none());
        gates.into_iter().for_each(Gate::open);
        block_on(all);
        assert!(polls.get() <= 4 * TASKS, "{} polls", polls.get());
        // With more permits two ends wake tasks side by side.
        if limit == 1 {
            assert!(order.borrow().is_sorted(), "{:?}", order.borrow());
        }
        engine.wait_all(None).unwrap();
        assert_nothing_left(&[&engine]);
        assert!(watchdog.still_watches());
    }
}

#[test]
fn a_permit_future_that_is_dropped_after_its_wake_up_passes_it_on() {
    let engine = engine_of(1);
    let watchdog = Watchdog::of(&engine);
    let gate = Gate::on_variable(&engine, &engine.var());
    let woken = [(); 2].map(|()| Arc::<Woken>::default());
    let mut waiting = woken.each_ref().map(|woken| {
        let mut permit = engine.op("waits").permit().boxed_local();
        let waker = Waker::from(Arc::clone(woken));
        assert!(permit.poll_unpin(&mut Context::from_waker(&waker)).is_pending());
        Some(permit)
    });
    let opened = Instant::now();
    gate.open();
    until("the first is woken", || woken[0].is_set());
    engine.wait_all(None).unwrap();
    let is_early = woken[1].is_set();
    assert!(!is_early || opened.elapsed() >= Duration::from_millis(100), "there is one permit");
    drop(waiting[0].take());
    assert!(woken[1].is_set());
    block_on(waiting[1].take().unwrap()).unwrap().run(|[], []| Ok(())).unwrap().wait().unwrap();
    assert_nothing_left(&[&engine]);
    assert!(watchdog.still_watches());
}

#[test]
fn a_permit_future_that_is_woken_and_never_polled_keeps_the_permit_from_others_for_a_moment() {
    let engine = engine_of(1);
    let watchdog = Watchdog::of(&engine);
    let gate = Gate::on_variable(&engine, &engine.var());
    let woken = [(); 4].map(|()| Arc::<Woken>::default());
    let mut waiting = woken.each_ref().map(|woken| {
        let mut permit = engine.op("waits").permit().boxed_local();
        let waker = Waker::from(Arc::clone(woken));
        assert!(permit.poll_unpin(&mut Context::from_waker(&waker)).is_pending());
        permit
    });
    gate.open();
    until("all are woken", || woken.iter().all(|woken| woken.is_set()));
    block_on(&mut waiting[3]).unwrap().run(|[], []| Ok(())).unwrap().wait().unwrap();
    drop(waiting);
    assert_nothing_left(&[&engine]);
    assert!(watchdog.still_watches());
}

#[test]
fn permits_that_a_thread_has_in_advance_go_to_those_that_wait_when_the_thread_ends() {
    let engine = engine_of(64);
    let watchdog = Watchdog::of(&engine);
    let ((begins, begun), (ends, end)) = (channel(), channel::<()>());
    let thread = std::thread::spawn({
        let engine = engine.clone();
        move || {
            begins.send(Gate::on_variable(&engine, &engine.var())).unwrap();
            end.recv().unwrap();
        }
    });
    let gate = begun.recv().unwrap();
    let fill = || engine.op("fills").permit().now_or_never().map(Result::unwrap);
    let permits: Vec<_> = std::iter::from_fn(fill).collect();
    assert!(permits.len() < 63, "the thread has some in advance");
    let woken = Arc::<Woken>::default();
    let mut permit = engine.op("waits").permit().boxed_local();
    assert!(permit.poll_unpin(&mut Context::from_waker(&Waker::from(Arc::clone(&woken)))).is_pending());
    ends.send(()).unwrap();
    thread.join().unwrap();
    until("the future is woken", || woken.is_set());
    drop(block_on(permit).unwrap());
    drop(permits);
    gate.open();
    engine.wait_all(None).unwrap();
    assert_nothing_left(&[&engine]);
    assert!(watchdog.still_watches());
}
