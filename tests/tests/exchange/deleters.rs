//! Guarantee 3: a deleter runs exactly once, after the last use on whatever device, under no lock.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::time::Duration;

use estafette::devices::sim::{SimDevice, SimOptions, SimQueue};
use estafette::devices::{DLDevice, Device, DeviceError, DeviceErrorKind, DeviceType, Queue, host};
use estafette::exchange::{Abi, ExportFlags, export, flush_deleters};
use estafette::{
    Access, Completion, DType, Engine, ExportOptions, ImportOptions, Layout, ManagedTensor, Tensor,
};
use tests::foreign::{Deleted, Memory, tensor};
use tests::ops::{engine, like, set};
use tests::watchdog::Watchdog;

/// Long enough for everything that is on its way to the reaper.
const FLUSH: Duration = Duration::from_secs(20);

fn import(engine: &Engine, managed: ManagedTensor) -> Tensor {
    // SAFETY: the tests' tensors describe their own memory.
    unsafe { engine.import(managed) }.expect("a good tensor")
}

/// Calls `visit` with every order of the numbers below `count` (Heap's algorithm).
fn each_order(count: usize, mut visit: impl FnMut(&[usize])) {
    let mut order: Vec<usize> = (0..count).collect();
    let mut turns = vec![0; count];
    visit(&order);
    let mut at = 1;
    while at < count {
        if turns[at] < at {
            order.swap(if at % 2 == 0 { 0 } else { turns[at] }, at);
            visit(&order);
            turns[at] += 1;
            at = 1;
        } else {
            turns[at] = 0;
            at += 1;
        }
    }
}

/// A value that keeps the memory in use until it is dropped.
type Use = Box<dyn FnOnce()>;

fn keep<T: 'static>(what: T) -> Use {
    Box::new(move || drop(what))
}

/// Every way to use imported memory, each on its own: two handles, an operation that runs, two exports, and
/// an import that is derived from a third.
fn uses(engine: &Engine, deleted: &Deleted) -> Vec<Use> {
    let x = import(engine, tensor(&[1.0, 2.0], deleted));
    let export = |access| x.export_wait(&ExportOptions::from(access)).expect("no thread writes");
    let (exported, alias) = (export(Access::Read), export(Access::Alias));
    let derived = import(engine, export(Access::Read));
    let (started, begun) = channel();
    let pending = engine.op("pending").reads([&x]).run_external(move |end| {
        started.send(end).expect("the test listens");
    });
    let pending = pending.expect("accepted");
    let end = begun.recv().expect("it begins");
    let finish = Box::new(move || {
        end.complete(Ok(()));
        pending.wait().expect("it ended well");
    });
    vec![keep(x.clone()), keep(x), finish, keep(exported), keep(derived), keep(alias)]
}

#[test]
fn the_deleter_runs_once_and_last_in_each_of_the_720_orders_in_which_six_uses_end() {
    let engine = engine(1);
    let watchdog = Watchdog::of(&engine);
    let mut orders = 0;
    each_order(6, |order| {
        let deleted = Deleted::default();
        let mut uses: Vec<Option<Use>> = uses(&engine, &deleted).into_iter().map(Some).collect();
        for &next in order {
            assert_eq!(deleted.count(), 0, "in order {order:?}, before {next}");
            uses[next].take().expect("each once")();
        }
        deleted.settle_at(1);
        orders += 1;
    });
    assert_eq!(orders, 720);
    assert!(engine.diagnose().is_idle(), "{}", engine.diagnose());
    assert!(watchdog.still_watches());
}

#[test]
fn a_flush_after_the_end_of_an_operation_waits_for_the_operands_that_its_thread_still_drops() {
    let engine = engine(2);
    let _watchdog = Watchdog::of(&engine);
    let finish = |end: Completion| drop(std::thread::spawn(|| end.complete(Ok(()))));
    for round in 0..600 {
        let deleted = Deleted::default();
        let x = import(&engine, tensor(&[1.0, 2.0], &deleted));
        let op = match round % 3 {
            0 => engine.op("on a worker").reads([&x]).run(|_, []| Ok(())),
            1 => engine.op("elsewhere").reads([&x]).run_external(finish),
            _ => engine.op("future").reads([&x]).run_future(|_, []| async { Ok(()) }),
        };
        let op = op.expect("accepted");
        if round % 2 == 0 {
            op.wait().expect("it ends well");
            drop(x);
        } else {
            drop((x, op));
            engine.wait_all(None).expect("all ends well");
        }
        assert!(flush_deleters(FLUSH));
        assert_eq!(deleted.count(), 1, "in round {round}");
    }
}

#[test]
fn a_write_that_waits_for_leases_keeps_the_memory_whichever_lease_ends_last() {
    let engine = engine(1);
    let watchdog = Watchdog::of(&engine);
    for (cancelled, order) in [(false, [0, 1]), (false, [1, 0]), (true, [0, 1]), (true, [1, 0])] {
        let deleted = Deleted::default();
        let x = import(&engine, tensor(&[1.0], &deleted));
        let leases = [0, 1].map(|_| x.export_wait(&ExportOptions::from(Access::Read)).unwrap());
        let write = set(&engine, &x, 2.0);
        drop(x);
        assert!(!cancelled || write.cancel());
        let mut leases = leases.map(Some);
        for next in order {
            assert!(flush_deleters(FLUSH));
            assert_eq!(deleted.count(), 0);
            drop(leases[next].take());
        }
        drop(write);
        deleted.settle_at(1);
    }
    assert!(watchdog.still_watches());
}

/// One element of host memory whose owner runs `owner` when its deleter is called.
fn owned_by(owner: impl FnOnce() + Send + 'static) -> ManagedTensor {
    let values = Memory::of(&[1.0]);
    let layout = Layout::contiguous(DType::F32, DLDevice::CPU, &[1]).expect("a layout of one element");
    let data = values.address().cast();
    let flags = ExportFlags { read_only: false, is_copied: false };
    let owner = move || {
        owner();
        drop(values);
    };
    // SAFETY: the layout describes the memory, which lives until the owner drops it.
    unsafe { export(&layout, data, flags, Abi::Versioned, owner) }
}

#[test]
fn a_deleter_that_panics_harms_nobody() {
    let engine = engine(1);
    let watchdog = Watchdog::of(&engine);
    let deleted = Deleted::default();
    let ran = Arc::new(AtomicUsize::new(0));
    for _ in 0..3 {
        let ran = Arc::clone(&ran);
        drop(import(
            &engine,
            owned_by(move || {
                ran.fetch_add(1, Ordering::SeqCst);
                panic!("this deleter is broken on purpose");
            }),
        ));
        drop(import(&engine, tensor(&[1.0], &deleted)));
    }
    deleted.settle_at(3);
    assert_eq!(ran.load(Ordering::SeqCst), 3);
    assert!(watchdog.still_watches());
}

#[test]
fn a_produced_tensor_releases_its_memory_once_whether_it_was_taken_copied_or_refused() {
    let engine = engine(2);
    let watchdog = Watchdog::of(&engine);
    let deleted = Deleted::default();
    // Taken.
    let taken = deleted.clone();
    let x = engine.op("make").produce(move |[]| Ok(tensor(&[1.0], &taken))).unwrap();
    x.wait().unwrap();
    assert_eq!(deleted.count(), 0);
    // Copied: it overlaps what is known.
    let memory = Memory::of(&[1.0, 2.0]);
    let known = import(&engine, memory.tensor(0, 2, &deleted));
    let copied = deleted.clone();
    let overlapping = memory.clone();
    let y = engine.op("view").produce(move |[]| Ok(overlapping.tensor(1, 1, &copied))).unwrap();
    assert_eq!(y.to_vec::<f32>().unwrap(), [2.0]);
    deleted.settle_at(1);
    // Refused: it is not what was declared.
    let refused = deleted.clone();
    let z = engine
        .op("other")
        .result(like(DType::F32, &[2]))
        .produce(move |[]| Ok(tensor(&[1.0], &refused)))
        .unwrap();
    z.wait().unwrap_err();
    deleted.settle_at(2);
    // Never made: the operation was skipped, its body dropped.
    tests::ops::fail(&engine, &known, "no");
    let never = tensor(&[1.0], &deleted);
    let w = engine.op("never").reads([&known]).produce(move |[_known]| Ok(never)).unwrap();
    w.wait().unwrap_err();
    deleted.settle_at(3);
    drop((x, y, z, w, known));
    deleted.settle_at(5);
    assert!(watchdog.still_watches());
}

/// A device that moves when the test says so, an engine that has it, and one of its queues.
fn sim() -> (Arc<SimDevice>, Engine, Arc<dyn Queue>) {
    let device = SimDevice::new(SimOptions::default()).expect("a device that needs no thread");
    let engine = Engine::builder().workers(1).device(device.clone()).build().expect("an engine starts");
    let queue: Arc<dyn Queue> = device.queue(false);
    (device, engine, queue)
}

/// A foreign tensor in the device's memory.
fn foreign_on(device: &SimDevice, deleted: &Deleted) -> ManagedTensor {
    let managed = Memory::of(&[1.0]).versioned(0, 1, deleted, |managed| {
        managed.tensor.device_type = DeviceType::EXT_DEV.0;
        managed.tensor.device_id = device.id().device_id;
    });
    // SAFETY: a fresh tensor that describes its own memory.
    unsafe { ManagedTensor::from_raw(managed, Abi::Versioned) }.expect("version 1.1 is known")
}

/// Work on the device that uses `x`, by an operation that reads or writes it.
fn use_on(engine: &Engine, queue: &Arc<dyn Queue>, x: &Tensor, name: &'static str, write: bool) {
    let body = move |queue: &dyn Queue| {
        SimQueue::from_queue(queue).expect("a simulated queue").launch(name, 10, || ())
    };
    let op = if write {
        engine.op(name).writes([x]).on(queue).run_on(move |queue, [], [_x]| Ok(body(queue)?))
    } else {
        engine.op(name).reads([x]).on(queue).run_on(move |queue, [_x], []| Ok(body(queue)?))
    };
    op.expect("accepted").wait().expect("issued");
}

#[test]
fn memory_comes_back_only_after_the_last_reader_and_writer_on_the_device_are_done() {
    for write in [false, true] {
        let (device, engine, queue) = sim();
        let watchdog = Watchdog::of(&engine);
        let deleted = Deleted::default();
        let x = import(&engine, foreign_on(&device, &deleted));
        let second: Arc<dyn Queue> = device.queue(false);
        device.pause("slow");
        use_on(&engine, &queue, &x, "fast", write);
        use_on(&engine, &second, &x, "slow", false);
        // The operations have ended for the engine, and the last handle goes.
        drop(x);
        engine.wait_all(None).unwrap();
        device.run_until_idle();
        assert_eq!(device.completed(), ["fast"]);
        // Other memory is freed meanwhile: waiting memory holds up no other memory.
        let others = Deleted::default();
        (0..10).for_each(|_| drop(import(&engine, tensor(&[1.0], &others))));
        tests::ops::until("the others are released", || others.count() == 10);
        assert_eq!(deleted.count(), 0, "the device still reads");
        device.release("slow");
        device.run_until_idle();
        deleted.settle_at(1);
        assert!(watchdog.still_watches());
    }
}

#[test]
fn memory_whose_last_use_can_never_be_known_is_leaked_and_counted_and_never_freed() {
    let (device, engine, queue) = sim();
    let watchdog = Watchdog::of(&engine);
    let leaked = engine.stats().leaked;
    let deleted = Deleted::default();
    // A tensor that only a broken reader used, one that a later write has healed, and one that was not used.
    let [read, healed, sound] = [(); 3].map(|()| import(&engine, foreign_on(&device, &deleted)));
    device.fail_named("broken", DeviceError::new(DeviceErrorKind::Fault, "illegal address"));
    use_on(&engine, &queue, &read, "broken", false);
    use_on(&engine, &queue, &healed, "behind it", true);
    device.run_until_idle();
    set(&engine, &healed, 2.0).wait().unwrap();
    assert_eq!(healed.to_vec::<f32>().unwrap(), [2.0]);
    drop((read, healed, sound));
    deleted.settle_at(1);
    tests::ops::until("what may be in use is leaked", || engine.stats().leaked == leaked + 2);
    assert_eq!(deleted.count(), 1);
    assert!(watchdog.still_watches());
}

#[test]
fn memory_whose_producer_fails_by_a_fault_of_its_device_goes_back_to_the_producer() {
    let engine = engine(1);
    for uses in [false, true] {
        let deleted = Deleted::default();
        let (completer, ready) = host::promise("their work");
        let options = ImportOptions { ready: ready.into(), ..ImportOptions::default() };
        // SAFETY: the tests' tensors describe their own memory.
        let x = unsafe { engine.import_with(tensor(&[1.0], &deleted), options) }.expect("a good tensor");
        if uses {
            engine.op("reads").reads([&x]).run(|_, []| Ok(())).expect("accepted");
        }
        completer.fail(DeviceError::new(DeviceErrorKind::Fault, "their device fell off"));
        x.wait().expect_err("it has failed");
        drop(x);
        engine.wait_all(None).expect("all ends");
        deleted.settle_at(1);
    }
}

#[test]
fn a_result_that_is_refused_releases_its_memory_when_the_work_of_its_operation_is_done() {
    for is_promised in [true, false] {
        let (device, engine, queue) = sim();
        let deleted = Deleted::default();
        let refused = foreign_on(&device, &deleted);
        let body = move |end: Completion| {
            let queue = end.scope().queue().expect("it is on one");
            SimQueue::from_queue(&*queue)
                .expect("a simulated queue")
                .launch("fill", 10, || ())
                .expect("accepted");
            end.produce(Ok(refused.into()));
        };
        let op = engine.op("other").on(&queue);
        let failed = if is_promised {
            op.result(like(DType::F32, &[2])).produce_external(body).expect("accepted").wait().is_err()
        } else {
            op.run_external(body).expect("accepted").wait().is_err()
        };
        assert!(failed, "it is not what was declared, or nothing was");
        let _ = flush_deleters(Duration::from_millis(50));
        assert_eq!(deleted.count(), 0, "the device may be using the memory");
        device.run_until_idle();
        deleted.settle_at(1);
    }
}
