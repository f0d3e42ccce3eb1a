//! Programs with nodes on devices, and with nodes that other threads complete, on the simulated device, whose
//! time passes when a test says so.
//!
//! `ESTAFETTE_SEED` sets the first seed of the random programs and `ESTAFETTE_SEEDS` how many follow; a
//! failure names its own.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use estafette::bindings;
use estafette::devices::sim::{SimDevice, SimOptions, SimPace};
use estafette::devices::{DLDevice, DeviceError, Fence, FenceState, Order, Queue, QueueId, host};
use estafette::program::ProgramBuilder;
use estafette::tensor::TensorState;
use estafette::wait::without_helping;
use estafette::{Access, Completion, Engine, Error, ExportOptions, Tensor, Variable};
use futures::executor::block_on;
use tests::dice::{self, Dice, mix};
use tests::gate::Gate;
use tests::on_device::{Element, copy_on, fault, launch, on_device, queue, read_on, sim, started, write_on};
use tests::ops::{add, get, read, until};

/// A node on `queue` that sets `to` to one more than `from`.
fn copies(
    builder: &mut ProgramBuilder,
    queue: &Arc<dyn Queue>,
    name: &'static str,
    from: &Tensor,
    to: &Tensor,
) {
    let (source, target) = (Element::of(from), Element::of(to));
    let node = builder.op(name).reads([from]).writes([to]).on(queue);
    node.run_on(move |queue, [_from], [_to]| {
        Ok(launch(queue, name, 10, move || target.set(source.get() + 1.0))?)
    })
    .unwrap();
}

/// A node on the host that adds to `tensor`.
fn adds(builder: &mut ProgramBuilder, name: &'static str, tensor: &Tensor, value: f32) {
    let element = Element::of(tensor);
    let node = builder.op(name).updates([tensor]);
    node.run(move |[], [], [_tensor]| {
        element.set(element.get() + value);
        Ok(())
    })
    .unwrap();
}

fn three(device: &SimDevice, engine: &Engine) -> [Tensor; 3] {
    [(); 3].map(|()| on_device(device, engine))
}

#[test]
fn nodes_on_one_queue_need_no_wait_and_the_replay_ends_when_they_are_issued() {
    let (device, engine, watchdog) = sim(1, SimOptions::default());
    let [x, y, z] = three(&device, &engine);
    let queue = queue(&device);
    let mut builder = engine.program("step");
    copies(&mut builder, &queue, "one", &x, &y);
    copies(&mut builder, &queue, "two", &y, &z);
    copies(&mut builder, &queue, "three", &z, &x);
    let program = builder.finish().unwrap();
    let replays = [(); 4].map(|()| program.replay().unwrap());
    let after = read_on(&engine, &queue, "after", &x);
    for op in replays.iter().chain([&after]) {
        until("it is issued", || op.is_done());
        op.wait().unwrap();
    }
    assert_eq!(device.unfinished(), 13, "nothing has run");
    assert!(matches!(x.state(), TensorState::Pending));
    assert_eq!((device.driver_calls().waits, device.driver_calls().records), (0, 0));
    device.run_until_idle();
    assert_eq!((get(&x), x.version()), (12.0, 5));
    assert!(watchdog.still_watches());
}

#[test]
fn between_queues_the_device_waits_and_the_ends_of_all_branches_are_waited_for() {
    for held in ["left", "right"] {
        let (device, engine, watchdog) = sim(1, SimOptions::default());
        let [x, y, z] = three(&device, &engine);
        let [first, second] = [(); 2].map(|()| queue(&device));
        let mut builder = engine.program("fork");
        copies(&mut builder, &first, "root", &x, &y);
        copies(&mut builder, &first, "left", &y, &x);
        copies(&mut builder, &second, "right", &y, &z);
        let program = builder.finish().unwrap();
        device.pause(held);
        let replay = program.replay().unwrap();
        until("it is issued", || replay.is_done());
        assert_eq!(device.driver_calls().waits, 1, "the second queue waits for the root");
        device.run_until_idle();
        assert_eq!(started(&device), ["root", "left", "right"]);
        // A use of either tensor that the replay wrote comes after both ends of the replay.
        assert!(!x.is_ready() && !z.is_ready(), "{held} is still under way");
        let used = copy_on(&engine, &second, "used", &z, &y);
        until("it is issued", || used.is_done());
        device.run_until_idle();
        assert_eq!(started(&device).len(), 3);
        device.release(held);
        device.run_until_idle();
        assert_eq!([get(&x), get(&y), get(&z)], [2.0, 3.0, 2.0]);
        assert!(watchdog.still_watches());
    }
}

/// One worker: if a node that waits for the device blocked it, nothing else could run.
#[test]
fn a_node_on_the_host_waits_for_the_device_and_blocks_no_thread() {
    for workers in [0, 1, 2] {
        let (device, engine, watchdog) = sim(workers, SimOptions::default());
        let [x, y, z] = three(&device, &engine);
        let queue = queue(&device);
        let mut builder = engine.program("step");
        copies(&mut builder, &queue, "up", &x, &y);
        adds(&mut builder, "host", &y, 10.0);
        copies(&mut builder, &queue, "down", &y, &x);
        // This node is independent of the others, which do not hold it up.
        adds(&mut builder, "beside", &z, 1.0);
        let program = builder.finish().unwrap();
        let variable = engine.var();
        let replay = program.replay().unwrap();
        let other = engine.op("other").writes_vars(&[&variable]).run(|[], []| Ok(())).unwrap();
        other.wait().unwrap();
        until("the node beside has run", || {
            let _ = replay.wait_timeout(Some(Duration::from_millis(1)));
            Element::of(&z).get() == 1.0
        });
        assert!(!replay.is_done());
        assert_eq!(Element::of(&y).get(), 0.0);
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let moves = scope.spawn(|| {
                until("the test has seen it all", || {
                    device.run_until_idle();
                    stop.load(Ordering::SeqCst)
                });
            });
            replay.wait().unwrap();
            assert_eq!([get(&x), get(&y), get(&z)], [12.0, 11.0, 1.0]);
            stop.store(true, Ordering::SeqCst);
            moves.join().unwrap();
        });
        assert!(watchdog.still_watches());
    }
}

#[test]
fn a_replay_waits_for_its_inputs_on_the_device_and_on_the_host_where_it_must() {
    let (device, engine, watchdog) = sim(1, SimOptions::default());
    let [x, y, z] = three(&device, &engine);
    let queue = queue(&device);
    let mut builder = engine.program("host first");
    adds(&mut builder, "host", &y, 1.0);
    copies(&mut builder, &queue, "copy", &y, &z);
    let program = builder.finish().unwrap();
    until("it is issued", {
        let earlier = copy_on(&engine, &queue, "earlier", &x, &y);
        move || earlier.is_done()
    });
    let replay = program.replay().unwrap();
    assert!(!replay.is_done(), "its first node reads on the host what the device has not written");
    device.run_until_idle();
    until("it is issued", || replay.is_done());
    device.run_until_idle();
    assert_eq!([get(&y), get(&z)], [2.0, 3.0]);
    assert!(watchdog.still_watches());
}

/// ```text
/// bad ──y──► reads y on the device ──x──► reads x on the host
/// beside
/// ```
#[test]
fn a_body_that_fails_leaves_out_what_reads_from_it_and_its_work_is_in_the_way_still() {
    for panics in [false, true] {
        let (device, engine, watchdog) = sim(1, SimOptions::default());
        let [x, y, z] = three(&device, &engine);
        let [first, second] = [(); 2].map(|()| queue(&device));
        let mut builder = engine.program("step");
        let node = builder.op("bad").writes([&y]).on(&first);
        let element = Element::of(&y);
        node.run_on(move |queue, [], [_y]| {
            launch(queue, "half", 10, move || element.set(7.0))?;
            if panics { panic!("fate of bad") } else { Err("fate of bad".into()) }
        })
        .unwrap();
        copies(&mut builder, &first, "reads", &y, &x);
        adds(&mut builder, "on the host", &x, 1.0);
        copies(&mut builder, &second, "beside", &z, &z_of(&engine, &device));
        let program = builder.finish().unwrap();
        device.pause("half");
        let replay = program.replay().unwrap();
        let error = replay.wait().unwrap_err();
        let cause = error.operation().unwrap();
        assert_eq!((cause.operation(), cause.message()), ("bad", "fate of bad"));
        device.run_until_idle();
        assert_eq!(started(&device), ["half", "beside"]);
        // The next writer, on another queue, comes after what the failed node has enqueued.
        let heal = copy_on(&engine, &second, "heal", &z, &y);
        until("it is issued", || heal.is_done());
        device.run_until_idle();
        assert_eq!(started(&device).len(), 2);
        device.release("half");
        device.run_until_idle();
        assert_eq!(get(&y), 1.0);
        assert!(x.wait().is_err() && watchdog.still_watches());
    }
}

fn z_of(engine: &Engine, device: &SimDevice) -> Tensor {
    on_device(device, engine)
}

#[test]
fn work_that_fails_after_it_was_issued_is_the_failure_of_its_node() {
    let (device, engine, watchdog) = sim(1, SimOptions::default());
    let [x, y, z] = three(&device, &engine);
    let [first, second] = [(); 2].map(|()| queue(&device));
    let mut builder = engine.program("step");
    copies(&mut builder, &first, "breaks", &x, &y);
    adds(&mut builder, "looks", &y, 1.0);
    copies(&mut builder, &second, "beside", &x, &z);
    let program = builder.finish().unwrap();
    device.fail_named("breaks", fault("the device broke"));
    let replay = program.replay().unwrap();
    until("all is issued", || device.unfinished() == 2);
    device.run_until_idle();
    let error = replay.wait().unwrap_err();
    let cause = error.operation().unwrap();
    assert_eq!(cause.operation(), "breaks", "{error}");
    assert!(cause.message().contains("the device broke"), "{error}");
    assert_eq!(Element::of(&y).get(), 0.0, "what reads from it on the host was left out");
    assert_eq!(Element::of(&z).get(), 1.0);
    // Issued without a predecessor: the failure shows when it is observed.
    let (device, engine, _watchdog) = sim(1, SimOptions::default());
    let [x, y, _] = three(&device, &engine);
    let only = queue(&device);
    let mut builder = engine.program("only");
    copies(&mut builder, &only, "breaks", &x, &y);
    let program = builder.finish().unwrap();
    device.fail_named("breaks", fault("the device broke"));
    let replay = program.replay().unwrap();
    until("it is issued", || replay.is_done());
    replay.wait().unwrap();
    device.run_until_idle();
    let error = y.wait().unwrap_err();
    assert_eq!(error.operation().unwrap().operation(), "only");
    assert!(watchdog.still_watches());
}

#[test]
fn what_a_device_body_needs_is_asked_for_when_it_is_recorded() {
    let (device, engine, _watchdog) = sim(1, SimOptions::default());
    let [x, ..] = three(&device, &engine);
    let queue = queue(&device);
    let mut builder = engine.program("step");
    let error = builder.op("no queue").writes([&x]).run_on(|_, [], [_x]| Ok(())).unwrap_err();
    assert!(error.to_string().contains("name one with `on`"), "{error}");
    let error = builder.op("both").writes([&x]).on(&queue).run(|[], [_x]| Ok(())).unwrap_err();
    assert!(error.to_string().contains("node `both`") && error.to_string().contains("run_on"), "{error}");
    copies(&mut builder, &queue, "on a device without graphs", &x, &z_of(&engine, &device));
    let described = format!("{builder:?}");
    assert!(described.ends_with("nodes: 1 }"), "a refused node is not recorded: {described}");
    let error = builder.finish_as_graph().unwrap_err().to_string();
    assert!(error.contains("node 0 `on a device without graphs`") && error.contains("no graphs"), "{error}");
    let mut builder = engine.program("step");
    builder.op("host").run(|[], []| Ok(())).unwrap();
    let error = builder.finish_as_graph().unwrap_err().to_string();
    assert!(error.contains("node 0 `host` works on the host"), "{error}");
    let error = engine.program("nothing").finish_as_graph().unwrap_err().to_string();
    assert!(error.contains("no nodes"), "{error}");
}

/// Nodes that another thread completes, in the order in which they began.
#[derive(Default, Clone)]
struct Begun(Arc<Mutex<Vec<Completion>>>);

impl Begun {
    fn node(
        &self,
        builder: &mut ProgramBuilder,
        name: &'static str,
        reads: &[&Variable],
        writes: &[&Variable],
    ) {
        let begun = self.clone();
        let node = builder.op(name).reads_vars(reads).writes_vars(writes);
        node.run_external(move |completion| begun.0.lock().unwrap().push(completion)).unwrap();
    }

    fn take(&self) -> Completion {
        until("a node has begun", || !self.0.lock().unwrap().is_empty());
        self.0.lock().unwrap().remove(0)
    }
}

#[test]
fn nodes_that_end_elsewhere_hold_up_what_comes_after_them_and_nothing_else() {
    for workers in [1, 2] {
        let engine = tests::ops::engine(workers);
        let watchdog = tests::watchdog::Watchdog::of(&engine);
        let [x, y, z] = std::array::from_fn(|_| engine.var());
        let begun = Begun::default();
        let ran = Arc::new(AtomicUsize::new(0));
        let mut builder = engine.program("step");
        begun.node(&mut builder, "first", &[], &[&x]);
        begun.node(&mut builder, "second", &[&x], &[&y]);
        for (number, variable) in [(1, &z), (10, &y)] {
            let ran = Arc::clone(&ran);
            let node = builder.op("counts").reads_vars(&[variable]).writes_vars(&[variable]);
            node.run(move |[], []| {
                ran.fetch_add(number, Ordering::SeqCst);
                Ok(())
            })
            .unwrap();
        }
        let program = builder.finish().unwrap();
        for round in 1..=3 {
            let replay = program.replay().unwrap();
            let first = begun.take();
            assert_eq!(first.scope().id(), replay.id());
            until("the node beside has run", || ran.load(Ordering::SeqCst) % 10 == round);
            std::thread::spawn(move || first.complete(Ok(()))).join().unwrap();
            let second = begun.take();
            assert_eq!(ran.load(Ordering::SeqCst), 11 * (round - 1) + 1);
            assert!(!replay.is_done());
            second.complete(Ok(()));
            replay.wait().unwrap();
            assert_eq!(ran.load(Ordering::SeqCst), 11 * round);
        }
        // A completion that fails, and one that is forgotten.
        for forgotten in [false, true] {
            engine.op("heals").writes_vars(&[&z]).run(|[], []| Ok(())).unwrap();
            let replay = program.replay().unwrap();
            let first = begun.take();
            if forgotten {
                drop(first)
            } else {
                first.complete(Err("fate of first".into()))
            }
            let error = replay.wait().unwrap_err();
            assert_eq!(error.operation().unwrap().operation(), "first", "{error}");
            assert!(error.to_string().contains(if forgotten { "dropped" } else { "fate" }), "{error}");
            assert!(begun.0.lock().unwrap().is_empty(), "what reads from it is left out");
        }
        assert!(watchdog.still_watches());
    }
}

#[test]
fn a_node_lends_its_own_operands_in_its_own_mode_and_a_kept_view_becomes_a_lease_at_the_end() {
    let engine = tests::ops::engine(1);
    let watchdog = tests::watchdog::Watchdog::of(&engine);
    let (x, y) = (tests::ops::tensor(&engine, 1.0), tests::ops::tensor(&engine, 2.0));
    let kept = Arc::new(Mutex::new(None));
    let mut builder = engine.program("step");
    let (own, other, keep) = (x.clone(), y.clone(), Arc::clone(&kept));
    let node = builder.op("reads").reads([&x]);
    node.run_external(move |completion| {
        let scope = completion.scope();
        assert_eq!(
            bindings::scope::access_of(scope, &own),
            Some(Access::Read),
            "the program writes it, and this node reads it"
        );
        assert_eq!(
            bindings::scope::access_of(scope, &other),
            None,
            "an operand of the program, and not of this node"
        );
        assert!(scope.export(&other, &ExportOptions::from(Access::Read)).is_err());
        *keep.lock().unwrap() = Some(scope.export(&own, &ExportOptions::from(Access::Read)).unwrap());
        completion.complete(Ok(()));
    })
    .unwrap();
    let node = builder.op("writes").updates([&x]).writes([&y]);
    node.run(|[], [_y], [mut x]| {
        x.as_mut_slice::<f32>()?[0] += 1.0;
        Ok(())
    })
    .unwrap();
    let program = builder.finish().unwrap();
    program.replay().unwrap().wait().unwrap();
    assert_eq!(get(&x), 2.0, "reading beside a read lease");
    let write = add(&engine, &x, 1.0);
    assert!(tests::ops::waits(&engine, &write), "the view is a lease");
    drop(kept.lock().unwrap().take());
    write.wait().unwrap();
    assert_eq!(get(&x), 3.0);
    assert!(watchdog.still_watches());
}

#[test]
fn an_external_node_on_a_queue_leaves_what_it_has_enqueued_there() {
    let (device, engine, watchdog) = sim(1, SimOptions::default());
    let [x, y, _] = three(&device, &engine);
    let [first, second] = [(); 2].map(|()| queue(&device));
    let mut builder = engine.program("step");
    let element = Element::of(&x);
    let node = builder.op("fill").writes([&x]).on(&first);
    node.run_external(move |completion| {
        let queue = completion.scope().queue().unwrap();
        launch(&*queue, "fill", 10, move || element.set(5.0)).unwrap();
        completion.complete(Ok(()));
    })
    .unwrap();
    copies(&mut builder, &second, "copy", &x, &y);
    let program = builder.finish().unwrap();
    let replay = program.replay().unwrap();
    until("it is issued", || replay.is_done());
    assert_eq!((device.unfinished(), device.driver_calls().waits), (2, 1));
    device.run_until_idle();
    assert_eq!(get(&y), 6.0);
    // Dropped and shut down while a replay is under way.
    let gate = Gate::on_tensors(&engine, std::slice::from_ref(&x));
    let last = program.replay().unwrap();
    drop(program);
    gate.open();
    until("it is issued", || last.is_done());
    device.run_until_idle();
    assert!(engine.shutdown_timeout(Duration::from_secs(30)).drained);
    assert!(watchdog.still_watches());
}

/// A queue that no thread can enter.
#[derive(Debug)]
struct Closed {
    queue: Arc<dyn Queue>,
    records: bool,
}

impl Queue for Closed {
    fn id(&self) -> QueueId {
        self.queue.id()
    }

    fn device(&self) -> DLDevice {
        self.queue.device()
    }

    fn in_order(&self) -> bool {
        self.queue.in_order()
    }

    fn order_after(&self, fence: &Fence) -> Result<Order, DeviceError> {
        self.queue.order_after(fence)
    }

    fn record(&self) -> Result<Fence, DeviceError> {
        if self.records { self.queue.record() } else { Err(fault("it records nothing")) }
    }

    fn make_current(&self) -> Result<bool, DeviceError> {
        Err(fault("it cannot be entered"))
    }

    fn as_any(&self) -> &dyn std::any::Any {
        self.queue.as_any()
    }
}

/// Three nodes that write one tensor: one on a device, the one that `middle` records, and one on the host.
/// What the last one does must wait for the first one's work, whatever becomes of the second. Returns how the
/// replay ended.
fn the_host_waits_for_the_device(
    middle: impl FnOnce(&mut ProgramBuilder, &Tensor, &SimDevice),
) -> Result<(), Error> {
    let (device, engine, watchdog) = sim(1, SimOptions::default());
    let x = on_device(&device, &engine);
    let (element, seen) = (Element::of(&x), Arc::new(Mutex::new(Vec::new())));
    let mut builder = engine.program("step");
    let first = queue(&device);
    let node = builder.op("first").writes([&x]).on(&first);
    node.run_on(move |queue, [], [_x]| Ok(launch(queue, "first", 10, move || element.set(1.0))?)).unwrap();
    middle(&mut builder, &x, &device);
    let log = Arc::clone(&seen);
    let node = builder.op("last").writes([&x]);
    node.run(move |[], [_x]| {
        log.lock().unwrap().push(element.get());
        Ok(())
    })
    .unwrap();
    let replay = builder.finish().unwrap().replay().unwrap();
    until("the first node has enqueued", || device.unfinished() == 1);
    // The only worker comes to this when it has left the replay.
    without_helping(|| engine.op("after").run(|[], []| Ok(())).unwrap().wait()).unwrap();
    assert_eq!(*seen.lock().unwrap(), [0.0; 0], "the device has not moved");
    device.run_until_idle();
    let outcome = replay.wait();
    assert_eq!(*seen.lock().unwrap(), [1.0]);
    assert!(watchdog.still_watches());
    outcome
}

#[test]
fn a_node_that_cannot_enter_its_queue_leaves_its_successors_what_is_before_it() {
    for records in [true, false] {
        let closed =
            |device: &SimDevice| -> Arc<dyn Queue> { Arc::new(Closed { queue: queue(device), records }) };
        let enqueued = the_host_waits_for_the_device(|builder, x, device| {
            let node = builder.op("second").writes([x]).on(&closed(device));
            node.run_on(|_, [], [_x]| unreachable!("it cannot be entered")).unwrap();
        });
        let reported = the_host_waits_for_the_device(|builder, x, device| {
            let node = builder.op("second").writes([x]).on(&closed(device));
            node.run_external(|_| unreachable!("it cannot be entered")).unwrap();
        });
        for outcome in [enqueued, reported] {
            let error = outcome.unwrap_err().to_string();
            assert!(error.contains("`second`") && error.contains("cannot be entered"), "{error}");
        }
    }
}

/// A queue that is ordered after every fence, as one whose device waits for the fences of another library.
#[derive(Debug)]
struct Patient(Arc<dyn Queue>);

impl Queue for Patient {
    fn id(&self) -> QueueId {
        self.0.id()
    }

    fn device(&self) -> DLDevice {
        self.0.device()
    }

    fn in_order(&self) -> bool {
        self.0.in_order()
    }

    fn order_after(&self, _fence: &Fence) -> Result<Order, DeviceError> {
        Ok(Order::Device)
    }

    fn record(&self) -> Result<Fence, DeviceError> {
        self.0.record()
    }

    fn as_any(&self) -> &dyn std::any::Any {
        self.0.as_any()
    }
}

#[test]
fn a_replay_ends_with_the_fence_of_a_node_that_a_queue_was_ordered_after() {
    for succeeds in [true, false] {
        let (device, engine, watchdog) = sim(1, SimOptions::default());
        let [x, y, _] = three(&device, &engine);
        let (completer, fence) = host::promise("elsewhere");
        let mut builder = engine.program("step");
        let node = builder.op("first").writes([&x]);
        node.run_external(move |completion| completion.complete_after(&fence, Ok(()))).unwrap();
        let behind: Arc<dyn Queue> = Arc::new(Patient(queue(&device)));
        copies(&mut builder, &behind, "behind", &x, &y);
        let replay = builder.finish().unwrap().replay().unwrap();
        replay.wait().unwrap();
        device.run_until_idle();
        assert!(bindings::operation::left(&replay).state().is_pending() && !y.is_ready());
        completer.settle(if succeeds { Ok(()) } else { Err(fault("the other library broke")) });
        assert_eq!(matches!(bindings::operation::left(&replay).state(), FenceState::Done), succeeds);
        for tensor in [&x, &y] {
            assert_eq!(tensor.wait().is_ok(), succeeds);
        }
        assert!(watchdog.still_watches());
    }
}

/// A node on a queue of its own that ends with a fence that is none of this queue.
fn ends_elsewhere(builder: &mut ProgramBuilder, x: &Tensor, device: &SimDevice) {
    let node = builder.op("second").writes([x]).on(&queue(device));
    node.run_external(|completion| {
        let (completer, fence) = host::promise("elsewhere");
        completer.settle(Ok(()));
        completion.complete_after(&fence, Ok(()));
    })
    .unwrap();
}

#[test]
fn a_node_that_ends_with_a_fence_of_its_own_leaves_its_successors_what_its_queue_waits_for() {
    the_host_waits_for_the_device(ends_elsewhere).unwrap();
}

#[test]
fn work_that_fails_is_the_failure_of_its_node_and_not_of_one_that_has_passed_its_fence_on() {
    let (device, engine, watchdog) = sim(1, SimOptions::default());
    let x = on_device(&device, &engine);
    let first = queue(&device);
    let mut builder = engine.program("step");
    let node = builder.op("first").writes([&x]).on(&first);
    node.run_on(|queue, [], [_x]| Ok(launch(queue, "first", 10, || ())?)).unwrap();
    ends_elsewhere(&mut builder, &x, &device);
    let ran = Arc::new(AtomicBool::new(false));
    let runs = Arc::clone(&ran);
    let node = builder.op("last").updates([&x]);
    node.run(move |[], [], [_x]| {
        runs.store(true, Ordering::Relaxed);
        Ok(())
    })
    .unwrap();
    device.fail_named("first", fault("the device broke"));
    let replay = builder.finish().unwrap().replay().unwrap();
    until("the first node has enqueued", || device.unfinished() == 1);
    device.run_until_idle();
    let error = replay.wait().unwrap_err();
    assert_eq!(error.operation().unwrap().operation(), "first", "{error}");
    assert!(
        !ran.load(Ordering::Relaxed),
        "it would read what the second node has made behind the first one's work"
    );
    assert!(watchdog.still_watches());
}

#[test]
fn the_work_of_an_earlier_reader_is_no_failure_of_what_a_replay_has_written() {
    let (device, engine, watchdog) = sim(1, SimOptions::default());
    let x = on_device(&device, &engine);
    read_on(&engine, &queue(&device), "reads", &x);
    until("the reader has enqueued", || device.unfinished() == 1);
    let mut builder = engine.program("step");
    ends_elsewhere(&mut builder, &x, &device);
    builder.finish().unwrap().replay().unwrap().wait().unwrap();
    device.fail_named("reads", fault("the reader broke"));
    device.run_until_idle();
    x.wait().unwrap();
    assert!(watchdog.still_watches());
}

/// Both are on one queue, of which the newer fence alone is passed on.
#[test]
fn a_failed_input_fails_what_a_replay_makes_of_it_also_behind_a_later_reader() {
    for (fails, on_host) in [("writes", false), ("writes", true), ("reads", false), ("reads", true)] {
        let (device, engine, watchdog) = sim(1, SimOptions::default());
        let [x, y, _] = three(&device, &engine);
        let first = queue(&device);
        write_on(&engine, &first, "writes", &x, 1.0);
        read_on(&engine, &first, "reads", &x);
        let mut builder = engine.program("step");
        let began = Arc::new(AtomicBool::new(false));
        let begins = Arc::clone(&began);
        let node = builder.op("passes on").updates([&x]).writes([&y]).on(&queue(&device));
        node.run_external(move |completion| {
            let (completer, fence) = host::promise("elsewhere");
            completer.settle(Ok(()));
            begins.store(true, Ordering::SeqCst);
            completion.complete_after(&fence, Ok(()));
        })
        .unwrap();
        if on_host {
            adds(&mut builder, "last", &y, 1.0);
        }
        device.fail_named(fails, fault("the device broke"));
        let replay = builder.finish().unwrap().replay().unwrap();
        until("the node has begun", || began.load(Ordering::SeqCst));
        device.run_until_idle();
        let is_input = fails == "writes";
        assert_eq!(y.wait().is_err(), is_input, "{fails}, {on_host}");
        assert_eq!(replay.wait().is_err(), is_input && on_host);
        assert_eq!(Element::of(&y).get() == 1.0, on_host && !is_input);
        assert!(watchdog.still_watches());
    }
}

#[test]
fn a_node_that_enqueues_nothing_leaves_its_successors_what_its_queue_waits_for() {
    for out_of_order in [false, true] {
        the_host_waits_for_the_device(|builder, x, device| {
            let queue: Arc<dyn Queue> = device.queue(out_of_order);
            let node = builder.op("second").writes([x]).on(&queue);
            node.run_on(|_, [], [_x]| Ok(())).unwrap();
        })
        .unwrap();
    }
}

#[test]
fn an_operation_that_cannot_enter_its_queue_leaves_its_successors_what_is_before_it() {
    let (device, engine, watchdog) = sim(1, SimOptions::default());
    let x = on_device(&device, &engine);
    let first = write_on(&engine, &queue(&device), "first", &x, 1.0);
    let closed: Arc<dyn Queue> = Arc::new(Closed { queue: queue(&device), records: true });
    let second = engine.op("second").writes([&x]).on(&closed);
    let second = second.run_external(|_| unreachable!("it cannot be entered")).unwrap();
    let element = Element::of(&x);
    let last = engine.op("last").writes([&x]).run(move |[], [_x]| {
        assert_eq!(element.get(), 1.0);
        Ok(())
    });
    let last = last.unwrap();
    until("the first two have ended", || first.is_done() && second.is_done());
    without_helping(|| engine.op("after").run(|[], []| Ok(())).unwrap().wait()).unwrap();
    assert!(!last.is_done());
    device.run_until_idle();
    last.wait().unwrap();
    assert!(second.wait().unwrap_err().to_string().contains("cannot be entered"));
    assert!(watchdog.still_watches());
}

/// Place of a step of a random program.
#[derive(Clone, Copy, Debug)]
enum Place {
    Host,
    Queue(usize),
    /// On the host, completed by another thread.
    Elsewhere,
}

/// Nodes here and there keep the order that they would have one at a time: plain loads and stores, so two
/// that overlap and should not lose each other's values.
#[test]
fn random_programs_on_several_queues_and_the_host_keep_their_order() {
    let first = dice::from_environment("ESTAFETTE_SEED", 1);
    for seed in first..first + dice::from_environment("ESTAFETTE_SEEDS", 25) {
        println!("ESTAFETTE_SEED={seed}");
        let mut dice = Dice::new(mix(seed) ^ 0xde71);
        let options = SimOptions { pace: SimPace::Immediate, seed, ..SimOptions::default() };
        let workers = 1 + dice.roll(2);
        let (device, engine, watchdog) = sim(workers, options);
        let queues = [device.queue(false), device.queue(false), device.queue(true)];
        let queues = queues.map(|queue| queue as Arc<dyn Queue>);
        let cells: Arc<[AtomicU64]> = (0..6).map(|_| AtomicU64::new(0)).collect();
        let expected: Vec<AtomicU64> = (0..6).map(|_| AtomicU64::new(0)).collect();
        let vars: Vec<Variable> = (0..6).map(|_| engine.var()).collect();
        let mut builder = engine.program("random");
        let mut steps = Vec::new();
        for id in 0..1 + dice.roll(60) {
            let (read, write) = (dice.roll(6), dice.roll(6));
            let step = move |cells: &[AtomicU64]| {
                let seen = cells[read].load(Ordering::Relaxed) ^ cells[write].load(Ordering::Relaxed);
                cells[write].store(mix(seen ^ id as u64), Ordering::Relaxed);
            };
            steps.push(step);
            let node = builder.op(format!("node {id}")).reads_vars(&[&vars[read], &vars[write]]);
            let node = node.writes_vars(&[&vars[write]]);
            let cells = Arc::clone(&cells);
            let place = match dice.roll(6) {
                0 | 1 => Place::Host,
                5 => Place::Elsewhere,
                queue => Place::Queue(queue - 2),
            };
            match place {
                Place::Host => node.run(move |[], []| {
                    step(&cells);
                    Ok(())
                }),
                Place::Queue(number) => node.on(&queues[number]).run_on(move |queue, [], []| {
                    let cells = Arc::clone(&cells);
                    Ok(launch(queue, "piece", 5, move || step(&cells))?)
                }),
                Place::Elsewhere => node.run_external(move |completion| {
                    let cells = Arc::clone(&cells);
                    std::thread::spawn(move || {
                        step(&cells);
                        completion.complete(Ok(()));
                    });
                }),
            }
            .unwrap();
        }
        let program = builder.finish().unwrap();
        for _ in 0..5 {
            program.replay().unwrap();
            steps.iter().for_each(|step| step(&expected));
        }
        for variable in &vars {
            engine.op("settles").reads_vars(&[variable]).run(|[], []| Ok(())).unwrap().wait().unwrap();
        }
        let values = |cells: &[AtomicU64]| -> Vec<u64> {
            cells.iter().map(|cell| cell.load(Ordering::Relaxed)).collect()
        };
        assert_eq!(
            values(&cells),
            values(&expected),
            "seed {seed}: {workers} workers, {} nodes",
            steps.len()
        );
        assert!(watchdog.still_watches());
    }
}

#[test]
fn many_replays_leave_nothing_behind() {
    let options = SimOptions { pace: SimPace::Immediate, ..SimOptions::default() };
    let (device, engine, watchdog) = sim(1, options);
    let [x, y, _] = three(&device, &engine);
    let queue = queue(&device);
    let mut builder = engine.program("step");
    copies(&mut builder, &queue, "up", &x, &y);
    adds(&mut builder, "host", &y, 0.0);
    copies(&mut builder, &queue, "down", &y, &x);
    let program = builder.finish().unwrap();
    for _ in 0..2_000 {
        block_on(block_on(program.replay_async()).unwrap()).unwrap();
    }
    read(&engine, &x).wait().unwrap();
    assert_eq!(get(&x), 4_000.0);
    drop(program);
    engine.wait_all(None).unwrap();
    assert_eq!(engine.stats().in_flight, 0);
    assert!(watchdog.still_watches());
}

#[test]
fn a_node_on_a_queue_sees_on_the_host_what_has_settled_and_nothing_that_earlier_nodes_still_use() {
    let (device, engine, watchdog) = sim(1, SimOptions::default());
    let [step, constant, work] = three(&device, &engine);
    let queues = [queue(&device), queue(&device)];
    let mut builder = engine.program("peeks");
    adds(&mut builder, "count", &step, 1.0);
    let node = builder.op("work").reads([&constant]).writes([&work]).on(&queues[0]);
    node.run_on(|queue, [_constant], [_work]| Ok(launch(queue, "work", 10, || ())?)).unwrap();
    let looks = Arc::new(AtomicUsize::new(0));
    let looked = Arc::clone(&looks);
    let node = builder.op("peek").reads([&step, &constant, &work]).on(&queues[1]);
    node.run_on(move |_, [step, constant, work], []| {
        assert_eq!((step.to_vec::<f32>()?, constant.to_vec::<f32>()?), (vec![1.0], vec![0.0]));
        assert!(work.as_slice::<f32>().unwrap_err().to_string().contains("pending"));
        looked.fetch_add(1, Ordering::SeqCst);
        Ok(())
    })
    .unwrap();
    let node = builder.op("overwrite").writes([&constant]).on(&queues[1]);
    node.run_on(|_, [], [mut constant]| {
        assert!(constant.as_mut_slice::<f32>().is_err(), "the device reads it");
        Ok(())
    })
    .unwrap();
    builder.finish().unwrap().replay().unwrap().wait().unwrap();
    assert_eq!(looks.load(Ordering::SeqCst), 1);
    device.run_until_idle();
    assert!(watchdog.still_watches());
}
