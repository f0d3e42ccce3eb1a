//! Situations of the simulated device, with exact counts of what a driver would have been asked.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::mpsc::channel;

use estafette_devices::host::HostDevice;
use estafette_devices::sim::{
    DriverCalls, SimDevice, SimNotify, SimOptions, SimPace, SimQueue, TraceEvent, TraceKind,
};
use estafette_devices::{Device, DeviceError, DeviceErrorKind, FenceState, Order, Queue, Reactor};

fn device(options: SimOptions) -> Arc<SimDevice> {
    SimDevice::new(options).expect("a thread can be started")
}

fn fault(message: &str) -> DeviceError {
    DeviceError::new(DeviceErrorKind::Fault, message)
}

fn launch(queue: &SimQueue, name: &'static str, duration_ns: u64) {
    queue.launch(name, duration_ns, || ()).expect("the queue takes work");
}

#[test]
fn a_chain_on_one_queue_needs_no_wait_and_no_native_event() {
    let device = device(SimOptions::default());
    let queue = device.queue(false);
    let mut previous = queue.record().unwrap();
    for _ in 0..100 {
        assert_eq!(queue.order_after(&previous).unwrap(), Order::Nothing);
        launch(&queue, "link", 10);
        previous = queue.record().unwrap();
    }
    device.run_until_idle();
    assert!(previous.observed_done());
    assert_eq!(device.driver_calls(), DriverCalls { launches: 100, waits: 0, records: 0, queries: 0 });
    assert_eq!(device.now_ns(), 1_000);
}

#[test]
fn many_waiters_for_one_fence_share_one_wait_and_one_native_event() {
    let device = device(SimOptions::default());
    let (producer, consumer) = (device.queue(false), device.queue(false));
    launch(&producer, "produce", 10);
    let fence = producer.record().unwrap();
    for attempt in 0..10 {
        let order = consumer.order_after(&fence).unwrap();
        assert_eq!(order, if attempt == 0 { Order::Device } else { Order::Nothing });
    }
    let (told, telling) = channel();
    for _ in 0..10 {
        let told = told.clone();
        Reactor::global().when_settled([&fence], move |_| told.send(()).unwrap());
    }
    device.run_until_idle();
    assert_eq!(telling.try_iter().count(), 10);
    // Each of the ten subscriptions asked once where the fence stands.
    assert_eq!(device.driver_calls(), DriverCalls { launches: 1, waits: 1, records: 1, queries: 10 });
}

#[test]
fn a_ring_of_queues_waits_only_for_its_neighbour() {
    // Round r on queue q follows round r on queue q-1; everything older is implied.
    const QUEUES: usize = 6;
    let device = device(SimOptions::default());
    let queues: Vec<_> = (0..QUEUES).map(|_| device.queue(false)).collect();
    let mut fences = Vec::new();
    for step in 0..30 {
        let queue = &queues[step % QUEUES];
        for fence in fences.iter().rev() {
            queue.order_after(fence).unwrap();
        }
        launch(queue, "step", 5);
        fences.push(queue.record().unwrap());
    }
    // One wait for each step but the first, although all the steps before are asked for.
    assert_eq!(device.driver_calls().waits, 29);
    device.run_until_idle();
    assert_eq!(device.now_ns(), 150, "one after the other");
}

#[test]
fn a_missing_wait_shows_as_a_wrong_value() {
    let read_with = |ordered: bool| {
        let device = device(SimOptions::default());
        let (producer, consumer) = (device.queue(false), device.queue(false));
        let (value, seen) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
        let write = value.clone();
        producer.launch("write", 1_000, move || write.store(7, Ordering::SeqCst)).unwrap();
        if ordered {
            consumer.order_after(&producer.record().unwrap()).unwrap();
        }
        let result = seen.clone();
        consumer
            .launch("read", 1, move || result.store(value.load(Ordering::SeqCst), Ordering::SeqCst))
            .unwrap();
        device.run_until_idle();
        seen.load(Ordering::SeqCst)
    };
    assert_eq!(read_with(true), 7);
    assert_eq!(read_with(false), 0);
}

#[test]
fn the_same_seed_gives_the_same_trace_and_another_seed_another_order() {
    let completed = |seed| {
        let device = device(SimOptions { seed, jitter_ns: 100, out_of_order: true, ..SimOptions::default() });
        let queue = device.queue(true);
        for name in ["a", "b", "c", "d", "e", "f", "g", "h"] {
            launch(&queue, name, 50);
        }
        device.run_until_idle();
        device.completed()
    };
    assert_eq!(completed(1), completed(1));
    let orders: std::collections::HashSet<_> = (0..20).map(completed).collect();
    assert!(orders.len() > 15, "only {} different orders", orders.len());
    for order in orders {
        let mut sorted = order.clone();
        sorted.sort();
        assert_eq!(sorted.concat(), "abcdefgh", "each exactly once");
    }
}

#[test]
fn the_trace_tells_what_happened_when() {
    let device = device(SimOptions { latency_ns: 5, ..SimOptions::default() });
    let (first, second) = (device.queue(false), device.queue(false));
    launch(&first, "one", 10);
    let fence = first.record().unwrap();
    second.order_after(&fence).unwrap();
    launch(&second, "two", 20);
    device.run_until_idle();
    let event = |at_ns, queue, kind| TraceEvent { at_ns, queue, kind };
    let (on, queue) = (first.id(), second.id());
    assert_eq!(
        device.trace(),
        [
            event(0, on, TraceKind::Launched("one".into())),
            event(0, on, TraceKind::Started("one".into())),
            event(0, queue, TraceKind::Waited { on, sequence: 1 }),
            event(0, queue, TraceKind::Launched("two".into())),
            event(15, on, TraceKind::Completed("one".into())),
            event(15, queue, TraceKind::Started("two".into())),
            event(40, queue, TraceKind::Completed("two".into())),
        ]
    );
}

#[test]
fn time_moves_only_as_far_as_it_is_advanced() {
    let device = device(SimOptions::default());
    let queue = device.queue(false);
    launch(&queue, "one", 100);
    launch(&queue, "two", 100);
    let fence = queue.record().unwrap();
    device.advance(150);
    assert_eq!(device.completed(), ["one"]);
    assert_eq!(device.now_ns(), 150);
    assert!(fence.state().is_pending());
    assert!(device.step());
    assert_eq!(device.now_ns(), 200);
    assert!(fence.is_done());
    assert!(!device.step());
}

#[test]
fn held_tasks_complete_only_when_released() {
    let device = device(SimOptions::default());
    let (slow, fast) = (device.queue(false), device.queue(false));
    device.pause("slow");
    launch(&slow, "slow", 10);
    launch(&slow, "behind it", 10);
    launch(&fast, "fast", 1_000);
    device.run_until_idle();
    assert_eq!(device.completed(), ["fast"]);
    assert_eq!(device.unfinished(), 2);
    assert!(!device.release("another"));
    assert!(device.release("slow"));
    device.run_until_idle();
    assert_eq!(device.completed(), ["fast", "slow", "behind it"]);
    assert_eq!(device.now_ns(), 1_010);
}

#[test]
fn a_fault_poisons_its_queue_and_those_that_wait_for_it_but_no_other() {
    let device = device(SimOptions::default());
    let [broken, waiting, other] = std::array::from_fn(|_| device.queue(false));
    let ran = Arc::new(AtomicUsize::new(0));
    let count = |queue: &SimQueue, name: &'static str| {
        let ran = ran.clone();
        queue.launch(name, 10, move || drop(ran.fetch_add(1, Ordering::SeqCst).to_string())).unwrap();
        queue.record().unwrap()
    };
    let before = count(&broken, "before");
    let bad = count(&broken, "bad");
    let behind = count(&broken, "behind");
    waiting.order_after(&bad).unwrap();
    let dependent = count(&waiting, "dependent");
    let unrelated = count(&other, "unrelated");
    device.fail_named("bad", fault("illegal address").with_code(700));
    device.run_until_idle();

    assert!(before.is_done() && unrelated.is_done());
    assert_eq!(ran.load(Ordering::SeqCst), 2);
    let roots: Vec<_> = [&bad, &behind, &dependent]
        .map(|fence| match fence.state() {
            FenceState::Failed(error) => error,
            state => panic!("{fence:?} is {state:?}"),
        })
        .into();
    assert!(roots.iter().all(|error| error.same_root(&roots[0])));
    assert_eq!(roots[0].code(), Some(700));
    assert_eq!(roots[0].queue(), Some(broken.id()));
    assert!(broken.launch("late", 1, || ()).unwrap_err().same_root(&roots[0]));
    assert!(waiting.record().unwrap_err().same_root(&roots[0]));
    other.record().unwrap();
    assert_eq!(device.unfinished(), 0);
}

#[test]
fn work_that_never_runs_is_dropped_exactly_once_under_no_lock() {
    let device = device(SimOptions::default());
    let queue = device.queue(false);
    struct AsksTheDevice(Arc<SimDevice>, Arc<AtomicUsize>);
    impl Drop for AsksTheDevice {
        fn drop(&mut self) {
            // Would hang if the lock of the device were held.
            self.0.unfinished();
            self.1.fetch_add(1, Ordering::SeqCst);
        }
    }
    let drops = Arc::new(AtomicUsize::new(0));
    for _ in 0..3 {
        let token = AsksTheDevice(device.clone(), drops.clone());
        queue.launch("doomed", 1, move || drop(token)).unwrap();
    }
    device.fail_next(fault("first"));
    device.run_until_idle();
    assert_eq!(drops.load(Ordering::SeqCst), 3);
    let token = AsksTheDevice(device.clone(), drops.clone());
    queue.launch("late", 1, move || drop(token)).unwrap_err();
    assert_eq!(drops.load(Ordering::SeqCst), 4);
}

#[test]
fn work_that_panics_is_a_fault_of_its_queue() {
    let device = device(SimOptions::default());
    let queue = device.queue(false);
    queue.launch("bad", 1, || panic!("this work is broken on purpose")).unwrap();
    let fence = queue.record().unwrap();
    device.run_until_idle();
    assert!(matches!(fence.state(), FenceState::Failed(error) if error.kind() == DeviceErrorKind::Fault));
}

#[test]
fn work_may_launch_more_work_and_wait_for_fences() {
    let device = device(SimOptions::default());
    let queue = device.queue(false);
    let (told, telling) = channel();
    let again = Arc::downgrade(&queue);
    queue
        .launch("outer", 1, move || {
            let queue = again.upgrade().unwrap();
            queue.launch("inner", 1, || ()).unwrap();
            let fence = queue.record().unwrap();
            Reactor::global().when_settled([fence], move |outcome| told.send(outcome.is_ok()).unwrap());
        })
        .unwrap();
    device.run_until_idle();
    assert_eq!(device.completed(), ["outer", "inner"]);
    assert!(telling.try_recv().unwrap());
}

#[test]
fn memory_is_limited_and_comes_back() {
    let device = device(SimOptions { memory_bytes: 1_000, ..SimOptions::default() });
    let most = device.allocate(900, 64).unwrap();
    let refused = device.allocate(200, 64).unwrap_err();
    assert_eq!(refused.kind(), DeviceErrorKind::OutOfMemory);
    assert_eq!(refused.message(), "out of memory: 200 bytes asked for, 100 free");
    assert_eq!(device.free_bytes(), 100);
    drop(most);
    device.allocate(1_000, 64).unwrap();
    assert_eq!(device.free_bytes(), 1_000);
    assert!(device.allocate(10, 3).is_err());
    assert_eq!(device.free_bytes(), 1_000, "a refused request takes nothing");
}

#[test]
fn another_simulated_device_is_another_runtime() {
    let (one, two) = (device(SimOptions::default()), device(SimOptions::default()));
    let (producer, consumer) = (one.queue(false), two.queue(false));
    launch(&producer, "produce", 10);
    let fence = producer.record().unwrap();
    assert_eq!(consumer.order_after(&fence).unwrap(), Order::Host);
    one.run_until_idle();
    assert_eq!(consumer.order_after(&fence).unwrap(), Order::Nothing);
    assert_eq!(two.driver_calls(), DriverCalls::default());
}

#[test]
fn an_out_of_order_queue_runs_side_by_side_what_no_wait_holds_back() {
    let device = device(SimOptions::default());
    let queue = device.queue(true);
    launch(&queue, "long", 100);
    let long = queue.record().unwrap();
    launch(&queue, "short", 10);
    assert_eq!(queue.order_after(&long).unwrap(), Order::Device, "its own earlier work is not before");
    assert_eq!(queue.order_after(&long).unwrap(), Order::Nothing);
    launch(&queue, "behind", 10);
    let all = queue.record().unwrap();
    assert!(all.same_or_later_on_queue(&long));
    device.run_until_idle();
    assert_eq!(device.completed(), ["short", "long", "behind"]);
    assert_eq!(device.now_ns(), 110);
    assert!(all.is_done());
}

#[test]
fn dropping_a_device_that_nobody_moves_fails_what_is_unfinished() {
    for out_of_order in [false, true] {
        let device = device(SimOptions::default());
        let queue = device.queue(out_of_order);
        launch(&queue, "never", 10);
        let fence = queue.record().unwrap();
        drop(device);
        assert!(fence.state().is_pending(), "the queue keeps it");
        drop(queue);
        assert!(
            matches!(fence.state(), FenceState::Failed(error) if error.kind() == DeviceErrorKind::Cancelled)
        );
    }
}

#[test]
fn a_free_running_device_finishes_its_work_after_it_was_dropped() {
    for pace in [SimPace::Immediate, SimPace::RealTime] {
        let device = device(SimOptions { pace, ..SimOptions::default() });
        let queue = device.queue(false);
        let ran = Arc::new(AtomicUsize::new(0));
        for _ in 0..100 {
            let ran = ran.clone();
            queue
                .launch("work", 1_000, move || drop(ran.fetch_add(1, Ordering::SeqCst).to_string()))
                .unwrap();
        }
        let fence = queue.record().unwrap();
        drop((device, queue));
        assert!(fence.wait_timeout(None).unwrap().is_ok());
        assert_eq!(ran.load(Ordering::SeqCst), 100);
    }
}

#[test]
fn the_reactor_asks_a_queue_that_must_be_polled_and_only_while_somebody_waits() {
    let device = device(SimOptions { notify: SimNotify::Poll, ..SimOptions::default() });
    let queue = device.queue(false);
    let (told, telling) = channel();
    for _ in 0..50 {
        launch(&queue, "work", 10);
        let told = told.clone();
        Reactor::global()
            .when_settled([queue.record().unwrap()], move |outcome| told.send(outcome.is_ok()).unwrap());
    }
    assert!(telling.try_recv().is_err());
    device.run_until_idle();
    for _ in 0..50 {
        assert!(telling.recv().unwrap());
    }
    assert_eq!(device.driver_calls().records, 50);
    // The last fence has been delivered, so the reactor has nothing armed on this queue any more.
    let queries = device.driver_calls().queries;
    let fence = queue.record().unwrap();
    assert!(fence.observed_done());
    assert_eq!(device.driver_calls().queries, queries);
}

#[test]
fn a_native_event_is_a_fence_of_its_own_device() {
    let (device, stranger) =
        (device(SimOptions::default()), device(SimOptions { device_id: 1, ..SimOptions::default() }));
    let queue = device.queue(false);
    launch(&queue, "work", 10);
    let event = device.event_of_fence(&queue.record().unwrap()).unwrap();
    // SAFETY: the event is of a simulated device, and alive.
    let (fence, refused) =
        unsafe { (device.fence_of_event(event.pointer()), stranger.fence_of_event(event.pointer())) };
    let fence = fence.unwrap();
    assert_eq!(refused.unwrap_err().kind(), DeviceErrorKind::Invalid);
    // The fence needs the event no more.
    drop(event);
    assert!(!fence.is_done());
    device.run_until_idle();
    assert!(fence.is_done());
    assert!(stranger.event_of_fence(&fence).is_err());
}

#[test]
fn a_device_without_events_says_so() {
    let fence = device(SimOptions::default()).queue(false).record().unwrap();
    let error = HostDevice::new().event_of_fence(&fence).unwrap_err();
    assert!(error.to_string().contains("device cpu:0 exchanges no events"), "{error}");
}

#[test]
fn a_queue_of_somebody_else_is_waited_on_and_marked_at_once_and_by_no_number() {
    let device = device(SimOptions::default());
    let (ours, theirs) = (device.queue(false), device.queue(false));
    launch(&ours, "produce", 10);
    let produced = ours.record().unwrap();
    // SAFETY: the queue lives.
    let acquire = || unsafe { device.foreign_queue(theirs.native()) }.unwrap();
    let (first, second) = (acquire(), acquire());
    assert_ne!(first.id(), second.id(), "an import has an identity of its own");
    // Nothing is known of what its owner does in between, so nothing is elided.
    assert_eq!(first.order_after(&produced).unwrap(), Order::Device);
    assert_eq!(second.order_after(&produced).unwrap(), Order::Device);
    launch(&theirs, "consume", 5);
    let consumed = second.record().unwrap();
    assert!(consumed.queue().is_none());
    assert_eq!(ours.order_after(&consumed).unwrap(), Order::Device);
    drop((first, second));
    launch(&ours, "overwrite", 1);
    device.run_until_idle();
    assert_eq!(device.completed(), ["produce", "consume", "overwrite"]);
    let number = theirs.native();
    drop(theirs);
    // SAFETY: numbers that stand for nothing are found out here.
    assert_eq!(unsafe { device.foreign_queue(number) }.unwrap_err().kind(), DeviceErrorKind::Invalid);
    // SAFETY: refused without a look.
    assert!(unsafe { HostDevice::new().foreign_queue(1) }.unwrap_err().message().contains("takes no queues"));
}

#[test]
fn a_barrier_covers_every_queue_of_the_device_and_nothing_that_comes_later() {
    let device = device(SimOptions::default());
    let (one, other) = (device.queue(false), device.queue(true));
    launch(&one, "short", 10);
    launch(&other, "long", 100);
    let barrier = device.barrier().unwrap();
    launch(&one, "later", 1_000);
    device.advance(99);
    assert!(barrier.state().is_pending());
    device.advance(1);
    assert!(barrier.is_done());
    assert_eq!(device.completed(), ["short", "long"]);
    assert_eq!(HostDevice::new().barrier().unwrap_err().kind(), DeviceErrorKind::Invalid);
}
