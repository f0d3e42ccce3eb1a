//! The guarantees on the simulated device, which has its own clock. Time passes only when a test advances it,
//! so these tests are deterministic.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use estafette::devices::sim::{SimDevice, SimNotify, SimOptions, SimPace, SimQueue};
use estafette::devices::{Device, DeviceError, DeviceErrorKind, Fence, FenceSet, Queue, host};
use estafette::tensor::TensorState;
use estafette::{
    Access, DType, Engine, Error, ExportOptions, FailureKind, ImportOptions, Op, Produced, Tensor,
};
use futures::FutureExt;
use futures::executor::block_on;
use tests::foreign::{self, Deleted};
use tests::ops::{get, read, set, status, tensor, until};
use tests::watchdog::Watchdog;

/// An engine with a simulated device and two of its in-order queues.
struct Bench {
    device: Arc<SimDevice>,
    engine: Engine,
    queues: [Arc<dyn Queue>; 2],
    watchdog: Watchdog,
}

fn bench(options: SimOptions) -> Bench {
    let device = SimDevice::new(options).expect("a simulated device starts");
    let engine = Engine::builder().workers(1).device(device.clone()).build().expect("an engine starts");
    let queues = [0, 1].map(|_| device.create_queue().expect("a queue"));
    let watchdog = Watchdog::of(&engine);
    Bench { device, engine, queues, watchdog }
}

impl Bench {
    fn tensor(&self) -> Tensor {
        self.engine.empty(&[1], DType::F32, self.device.id()).expect("device memory")
    }

    /// A device operation that overwrites `y` with `f` of what is in `x` when the device gets there.
    fn launch(&self, name: &'static str, queue: usize, x: &Tensor, y: &Tensor, f: fn(f32) -> f32) -> Op {
        let op = self.engine.op(name).reads([x]).writes([y]).on(&self.queues[queue]);
        op.run_on(move |queue, [x], [mut y]| {
            let (from, to) = (Place(x.data_ptr().cast_mut()), Place(y.data_mut_ptr()));
            // SAFETY: the engine keeps both tensors, and all other uses away from them, until the work is
            // done.
            let work = move || unsafe { to.set(f(from.get())) };
            Ok(SimQueue::from_queue(queue).expect("a queue of the device").launch(name, 1_000, work)?)
        })
        .expect("accepted")
    }

    /// A device operation that overwrites `y`.
    fn fill(&self, name: &'static str, queue: usize, y: &Tensor, value: u32) -> Op {
        let op = self.engine.op(name).writes([y]).on(&self.queues[queue]);
        op.run_on(move |queue, [], [mut y]| {
            let to = Place(y.data_mut_ptr());
            // SAFETY: as in `launch`.
            let work = move || unsafe { to.set(value as f32) };
            Ok(SimQueue::from_queue(queue).expect("a queue of the device").launch(name, 1_000, work)?)
        })
        .expect("accepted")
    }

    /// Waits until the body of `op` has enqueued its work.
    fn issued(&self, op: &Op) {
        until("the operation is issued", || op.is_done());
    }

    fn fault(&self) -> DeviceError {
        DeviceError::new(DeviceErrorKind::Fault, "the device broke")
    }
}

/// A place in device memory.
#[derive(Clone, Copy)]
struct Place(*mut u8);

// SAFETY: used by one piece of device work, which the engine orders.
unsafe impl Send for Place {}

impl Place {
    /// # Safety
    /// `place` holds an `f32` that no code writes.
    unsafe fn get(self) -> f32 {
        // SAFETY: as above.
        unsafe { *self.0.cast::<f32>() }
    }

    /// # Safety
    /// `place` has room for an `f32` that no other code uses.
    unsafe fn set(self, value: f32) {
        // SAFETY: as above.
        unsafe { *self.0.cast::<f32>() = value }
    }
}

#[test]
fn on_the_same_queue_order_needs_no_wait_at_all() {
    let bench = bench(SimOptions::default());
    let (x, y, z) = (bench.tensor(), bench.tensor(), bench.tensor());
    let ops = [
        bench.fill("one", 0, &x, 1),
        bench.launch("two", 0, &x, &y, |x| x + 1.0),
        bench.launch("three", 0, &y, &z, |y| y * 10.0),
        bench.fill("again", 0, &x, 9),
    ];
    // All are issued although nothing has run: the graph orders issue, fences order execution.
    ops.iter().for_each(|op| bench.issued(op));
    assert_eq!(bench.device.unfinished(), 4);
    assert!(!z.is_ready() && matches!(z.state(), TensorState::Pending));
    assert_eq!(bench.device.driver_calls().waits, 0);
    bench.device.run_until_idle();
    assert!(z.is_ready());
    assert_eq!((get(&z), get(&x)), (20.0, 9.0));
    let completed = bench.device.completed();
    // The last two operations are independent.
    assert_eq!((&completed[..2], completed.len()), (&["one".to_string(), "two".to_string()][..], 4));
    assert!(bench.watchdog.still_watches());
}

#[test]
fn between_queues_of_one_device_the_device_waits_and_the_host_does_not() {
    let bench = bench(SimOptions::default());
    let (x, y) = (bench.tensor(), bench.tensor());
    bench.device.pause("slow");
    let ops = [
        bench.fill("slow", 0, &x, 4),
        bench.launch("read", 1, &x, &y, |x| x + 1.0),
        // Write after read, back on the first queue: it waits on the device for the reader.
        bench.fill("overwrite", 0, &x, 7),
    ];
    ops.iter().for_each(|op| bench.issued(op));
    bench.device.run_until_idle();
    assert!(bench.device.completed().is_empty(), "a wait on the device is missing");
    assert!(bench.device.release("slow"));
    bench.device.run_until_idle();
    assert_eq!(bench.device.completed(), ["slow", "read", "overwrite"]);
    assert_eq!(bench.device.driver_calls().waits, 2, "one per crossing");
    assert_eq!((get(&y), get(&x)), (5.0, 7.0));
    assert!(bench.watchdog.still_watches());
}

#[test]
fn a_writer_waits_for_readers_on_all_queues() {
    let bench = bench(SimOptions::default());
    let third = bench.device.create_queue().unwrap();
    let (x, a, b) = (bench.tensor(), bench.tensor(), bench.tensor());
    bench.fill("first", 0, &x, 1);
    bench.device.pause("reader");
    // Two readers on two queues, then a writer on a third: a single "last reader" would lose one of them.
    bench.launch("reader", 0, &x, &a, |x| x);
    bench.launch("reader", 1, &x, &b, |x| x);
    let write = bench.engine.op("write").writes([&x]).on(&third).run_on(|queue, [], [mut x]| {
        let to = Place(x.data_mut_ptr());
        // SAFETY: the engine keeps the tensor, and all other uses away from it, until the work is done.
        let work = move || unsafe { to.set(2.0) };
        Ok(SimQueue::from_queue(queue).expect("a queue of the device").launch("write", 1, work)?)
    });
    bench.issued(&write.unwrap());
    bench.device.run_until_idle();
    assert_eq!(bench.device.completed(), ["first"]);
    bench.device.release("reader");
    bench.device.run_until_idle();
    assert_eq!(bench.device.completed(), ["first", "reader", "reader", "write"]);
    assert_eq!((get(&a), get(&b), get(&x)), (1.0, 1.0, 2.0));
    assert!(bench.watchdog.still_watches());
}

#[test]
fn device_to_host_parks_the_operation_and_no_worker() {
    for notify in [SimNotify::Push, SimNotify::Poll] {
        let bench = bench(SimOptions { notify, ..SimOptions::default() });
        let (x, y) = (bench.tensor(), tensor(&bench.engine, 0.0));
        let filled = bench.fill("slow", 0, &x, 6);
        let copy = bench.engine.op("copy").reads([&x]).writes([&y]).run(|[x], [mut y]| {
            y.as_mut_slice::<f32>()?.copy_from_slice(x.as_slice()?);
            Ok(())
        });
        let copy = copy.unwrap();
        bench.issued(&filled);
        // The only worker is free for others meanwhile.
        let other = tensor(&bench.engine, 0.0);
        set(&bench.engine, &other, 3.0).wait().unwrap();
        assert!(!copy.is_done() && !y.is_ready());
        let mut ready = x.ready();
        assert!((&mut ready).now_or_never().is_none());
        bench.device.run_until_idle();
        copy.wait().unwrap();
        block_on(ready).unwrap();
        assert_eq!(get(&y), 6.0);
        assert!(bench.watchdog.still_watches());
    }
}

#[test]
fn host_to_device_waits_for_a_promise_and_for_nothing_else() {
    let bench = bench(SimOptions::default());
    let (x, y) = (tensor(&bench.engine, 5.0), bench.tensor());
    // Finished host work: issued at once.
    bench.issued(&bench.launch("at once", 0, &x, &y, |x| x));
    assert_eq!(bench.device.driver_calls().waits, 0);
    // A pending promise of the host: the operation is parked until it is kept, since the device cannot wait
    // for it.
    let deleted = Deleted::default();
    let (completer, fence) = host::promise("a frame");
    let mut ready = FenceSet::default();
    ready.insert(fence);
    // SAFETY: a fresh tensor that describes its own memory.
    let promised = unsafe {
        bench.engine.import_with(
            foreign::tensor(&[8.0], &deleted),
            ImportOptions { ready, ..ImportOptions::default() },
        )
    }
    .unwrap();
    let parked = bench.launch("parked", 0, &promised, &y, |x| x);
    let beside = bench.fill("beside", 1, &bench.tensor(), 1);
    bench.issued(&beside);
    assert!(!parked.is_done() && !promised.is_ready());
    completer.complete();
    bench.issued(&parked);
    bench.device.run_until_idle();
    assert_eq!(get(&y), 8.0);
    assert!(promised.is_ready());
    drop((promised, parked));
    deleted.settle_at(1);
    assert!(bench.watchdog.still_watches());
}

#[test]
fn the_failure_of_an_import_names_no_operation() {
    let engine = Engine::builder().workers(1).build().unwrap();
    let (completer, fence) = host::promise("a frame");
    let mut ready = FenceSet::default();
    ready.insert(fence);
    let frame = foreign::tensor(&[8.0], &Deleted::default());
    // SAFETY: a fresh tensor that describes its own memory.
    let x =
        unsafe { engine.import_with(frame, ImportOptions { ready, ..ImportOptions::default() }) }.unwrap();
    completer.fail(DeviceError::new(DeviceErrorKind::Other, "out of film"));
    assert_eq!(x.wait().unwrap_err().to_string(), "the fence of an import failed: out of film");
}

#[test]
fn a_device_fault_poisons_what_it_was_to_write_and_names_its_writer() {
    let bench = bench(SimOptions::default());
    let (x, y, host) = (bench.tensor(), bench.tensor(), tensor(&bench.engine, 0.0));
    bench.device.fail_named("breaks", bench.fault());
    let breaks = bench.fill("breaks", 0, &x, 1);
    let dependant = bench.launch("dependant", 1, &x, &y, |x| x);
    // Already issued on a device: fails when observed. Not issued yet: skipped.
    bench.issued(&dependant);
    let skipped =
        bench.engine.op("skipped").reads([&y]).writes([&host]).run(|[_y], [_host]| panic!("never runs"));
    let early = x.ready();
    bench.device.run_until_idle();
    for error in [x.wait().unwrap_err(), block_on(early).unwrap_err(), x.to_vec::<f32>().unwrap_err()] {
        let cause = error.operation().unwrap_or_else(|| panic!("{error:?}"));
        assert_eq!(
            (cause.operation(), cause.id(), cause.kind()),
            ("breaks", breaks.id(), FailureKind::Device)
        );
        assert!(error.to_string().contains("the device broke"), "{error}");
    }
    assert_eq!(skipped.unwrap().wait().unwrap_err().operation().unwrap().kind(), FailureKind::Device);
    assert!(y.wait().is_err() && host.wait().is_err());
    // The broken queue refuses more work with an error.
    let z = bench.tensor();
    let late = bench.fill("late", 0, &z, 1);
    assert!(late.wait().unwrap_err().to_string().contains("the device broke"));
    bench.engine.wait_all(None).unwrap();
    assert!(bench.watchdog.still_watches());
}

#[test]
fn a_later_pure_write_heals_even_if_an_older_device_write_fails_afterwards() {
    let bench = bench(SimOptions::default());
    let x = bench.tensor();
    bench.device.pause("older");
    bench.device.fail_named("older", bench.fault());
    bench.issued(&bench.fill("older", 0, &x, 1));
    // On the host: it waits for the older one's end, good or bad, and replaces its version.
    let newer = set(&bench.engine, &x, 2.0);
    let after = read(&bench.engine, &x);
    let ready = x.ready();
    bench.device.release("older");
    bench.device.run_until_idle();
    newer.wait().unwrap();
    after.wait().unwrap();
    block_on(ready).unwrap();
    assert_eq!(get(&x), 2.0);
    assert!(bench.watchdog.still_watches());
}

#[test]
fn a_pure_write_on_another_queue_heals_what_a_broken_queue_has_left() {
    let bench = bench(SimOptions::default());
    let (x, y) = (bench.tensor(), bench.tensor());
    bench.device.fail_named("breaks", bench.fault());
    bench.issued(&bench.fill("breaks", 0, &x, 1));
    bench.device.run_until_idle();
    assert!(x.wait().is_err());
    // The failed fence is not ordered before the new one, and must not poison the new version all the same.
    bench.issued(&bench.fill("heals", 1, &x, 2));
    bench.issued(&bench.launch("reads", 1, &x, &y, |x| x + 1.0));
    bench.device.run_until_idle();
    x.wait().unwrap();
    assert!(x.is_ready() && matches!(x.state(), TensorState::Ready));
    assert_eq!((get(&x), get(&y)), (2.0, 3.0));
    assert!(bench.watchdog.still_watches());
}

#[test]
fn clear_error_believes_whoever_looked() {
    let bench = bench(SimOptions::default());
    let x = bench.tensor();
    bench.issued(&bench.fill("good", 1, &x, 7));
    bench.device.run_until_idle();
    bench.device.fail_named("breaks", bench.fault());
    bench.issued(&bench.fill("breaks", 0, &x, 1));
    bench.device.run_until_idle();
    assert!(x.wait().is_err());
    x.clear_error().unwrap();
    assert_eq!(get(&x), 7.0, "the broken write never happened");
    x.wait().unwrap();
    assert!(bench.watchdog.still_watches());
}

#[test]
fn a_failed_reader_does_not_poison_what_it_read() {
    let bench = bench(SimOptions::default());
    let (x, y) = (bench.tensor(), bench.tensor());
    bench.issued(&bench.fill("good", 0, &x, 7));
    bench.device.run_until_idle();
    bench.device.fail_named("breaks", bench.fault());
    bench.issued(&bench.launch("breaks", 1, &x, &y, |x| x));
    // An exclusive lease waits for the reader's end, whatever it is.
    let lease = x.export(Access::Write);
    bench.device.run_until_idle();
    drop(block_on(lease).unwrap());
    assert!(y.wait().is_err());
    assert_eq!(get(&x), 7.0);
    set(&bench.engine, &x, 8.0).wait().unwrap();
    assert_eq!(get(&x), 8.0);
    assert!(bench.watchdog.still_watches());
}

#[test]
fn a_device_body_that_fails_leaves_a_fence_for_what_it_had_enqueued() {
    let bench = bench(SimOptions::default());
    let x = bench.tensor();
    let op = bench.engine.op("half").writes([&x]).on(&bench.queues[0]).run_on(|queue, [], [mut x]| {
        let to = Place(x.data_mut_ptr());
        // SAFETY: the engine keeps the tensor, and all other uses away from it, until the work is done.
        let work = move || unsafe { to.set(1.0) };
        SimQueue::from_queue(queue).expect("a queue of the device").launch("half", 1_000, work)?;
        Err("after the first kernel".into())
    });
    let op = op.unwrap();
    assert!(op.wait().unwrap_err().to_string().contains("after the first kernel"));
    // A host writer must not run into the kernel that is still on its way.
    let write = set(&bench.engine, &x, 5.0);
    until("the write is parked", || {
        matches!(status(&bench.engine, &write), Some(estafette::wait::Status::Fenced(_)))
    });
    bench.device.run_until_idle();
    write.wait().unwrap();
    assert_eq!(get(&x), 5.0);
    assert!(bench.watchdog.still_watches());
}

#[test]
fn a_device_body_without_a_queue_is_refused() {
    let bench = bench(SimOptions::default());
    let x = bench.tensor();
    let refused = bench.engine.op("nowhere").writes([&x]).run_on(|_queue, [], [_x]| Ok(())).unwrap_err();
    assert!(matches!(&refused, Error::Invalid(why) if why.contains("queue")), "{refused:?}");
    assert!(bench.watchdog.still_watches());
}

#[test]
fn memory_is_released_only_after_the_device_is_done_with_it() {
    let bench = bench(SimOptions::default());
    let deleted = Deleted::default();
    let all = bench.device.free_bytes();
    // SAFETY: a fresh tensor that describes its own memory.
    let source = unsafe { bench.engine.import(foreign::tensor(&[3.0], &deleted)) }.unwrap();
    let target = bench.tensor();
    let read = bench.launch("slow", 0, &source, &target, |x| x);
    bench.issued(&read);
    drop((source, target, read));
    bench.engine.wait_all(None).unwrap();
    // The worker may still have its reference to the operands when the operation is over.
    until("the reaper has something to wait for", || {
        !estafette::exchange::flush_deleters(std::time::Duration::from_millis(20))
    });
    assert_eq!(deleted.count(), 0, "the device still reads it");
    assert!(bench.device.free_bytes() < all, "the device still writes it");
    bench.device.run_until_idle();
    deleted.settle_at(1);
    until("the device's memory is back", || bench.device.free_bytes() == all);
    assert!(bench.watchdog.still_watches());
}

#[test]
fn memory_behind_a_fault_is_leaked_and_counted_never_freed_early() {
    let bench = bench(SimOptions::default());
    let deleted = Deleted::default();
    let import = || {
        // SAFETY: a fresh tensor that describes its own memory.
        unsafe { bench.engine.import(foreign::tensor(&[3.0], &deleted)) }.unwrap()
    };
    let (read, written, healed) = (import(), import(), import());
    let before = bench.engine.stats().leaked;
    bench.issued(&bench.launch("earlier", 0, &read, &written, |x| x));
    bench.issued(&bench.fill("breaks", 0, &healed, 1));
    bench.device.fail_everything(bench.fault());
    assert!(written.wait().is_err());
    // Overwriting heals the version; what may still run in a broken context stays unknown.
    set(&bench.engine, &healed, 1.0).wait().unwrap();
    assert_eq!(get(&healed), 1.0);
    drop((read, written, healed));
    bench.engine.wait_all(None).unwrap();
    // The counter belongs to the process, and other tests leak too.
    until("all three are leaked", || bench.engine.stats().leaked >= before + 3);
    assert_eq!(deleted.count(), 0);
    assert!(bench.watchdog.still_watches());
}

#[test]
fn a_lease_waits_for_the_device_and_its_end_may_wait_for_one_too() {
    let bench = bench(SimOptions::default());
    let x = bench.tensor();
    bench.issued(&bench.fill("slow", 0, &x, 2));
    let mut lease = Box::pin(x.lease(Access::Write, "a stream of a library"));
    assert!((&mut lease).now_or_never().is_none());
    bench.device.run_until_idle();
    let lease = block_on(lease).unwrap();
    // Device work of the lease's owner; the engine waits for its end.
    let theirs = bench.device.create_queue().unwrap();
    let done = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&done);
    let queue = SimQueue::from_queue(&*theirs).unwrap();
    queue.launch("theirs", 1_000, move || counted.store(1, Ordering::SeqCst)).unwrap();
    lease.release_after(theirs.record().unwrap());
    let counted = Arc::clone(&done);
    let write = bench.engine.op("after").writes([&x]).run(move |[], [_x]| {
        assert_eq!(counted.load(Ordering::SeqCst), 1);
        Ok(())
    });
    let write = write.unwrap();
    until("the write is parked", || {
        matches!(status(&bench.engine, &write), Some(estafette::wait::Status::Fenced(_)))
    });
    bench.device.run_until_idle();
    write.wait().unwrap();
    assert!(bench.watchdog.still_watches());
}

#[test]
fn a_lease_that_waits_for_a_device_is_not_blamed_for_the_wait() {
    let device = SimDevice::new(SimOptions::default()).unwrap();
    let builder = Engine::builder().workers(1).device(device.clone());
    let engine = builder.lease_timeout(std::time::Duration::ZERO).build().unwrap();
    let bench = Bench {
        queues: [0, 1].map(|_| device.create_queue().unwrap()),
        watchdog: Watchdog::of(&engine),
        device,
        engine,
    };
    let x = bench.tensor();
    bench.issued(&bench.fill("slow", 0, &x, 2));
    let lease = x.export(Access::Write);
    let mut lease = Box::pin(lease);
    assert!((&mut lease).now_or_never().is_none());
    let write = set(&bench.engine, &x, 3.0);
    let error = write.wait_timeout(Some(std::time::Duration::from_millis(30))).unwrap_err();
    assert!(matches!(error, Error::Timeout(_)), "no thread holds it yet: {error:?}");
    bench.device.run_until_idle();
    let held = block_on(lease).unwrap();
    let error = write.wait().unwrap_err();
    assert!(matches!(error, Error::LeaseHeld(_)), "{error:?}");
    drop(held);
    write.wait().unwrap();
    assert!(bench.watchdog.still_watches());
}

#[test]
fn a_completion_may_end_with_a_fence() {
    let bench = bench(SimOptions::default());
    let (x, y) = (bench.tensor(), bench.tensor());
    let queue = Arc::clone(&bench.queues[0]);
    let op = bench.engine.op("elsewhere").writes([&x]).run_external(move |completion| {
        let sim = SimQueue::from_queue(&*queue).expect("a queue of the device");
        sim.launch("elsewhere", 1_000, || ()).expect("the queue is well");
        let fence: Fence = queue.record().expect("the queue is well");
        completion.complete_after(&fence, Ok(()));
    });
    bench.issued(&op.unwrap());
    // A successor on the same queue is issued behind it; one on the host waits.
    bench.issued(&bench.launch("behind", 0, &x, &y, |_| 4.0));
    assert!(!x.is_ready());
    bench.device.run_until_idle();
    assert_eq!(get(&y), 4.0);
    // And with a promise that is broken.
    let (completer, fence) = host::promise("never kept");
    let op = bench
        .engine
        .op("breaks")
        .writes([&x])
        .run_external(move |completion| completion.complete_after(&fence, Ok(())));
    bench.issued(&op.unwrap());
    let waiting = x.ready();
    drop(completer);
    let error = block_on(waiting).unwrap_err();
    assert_eq!(error.operation().unwrap().operation(), "breaks");
    assert!(bench.watchdog.still_watches());
}

#[test]
fn out_of_order_queues_keep_their_results_right() {
    for seed in 0..20 {
        let bench = bench(SimOptions { seed, out_of_order: true, jitter_ns: 500, ..SimOptions::default() });
        let tensors: Vec<Tensor> = (0..6).map(|_| bench.tensor()).collect();
        for (at, x) in tensors.iter().enumerate() {
            bench.fill("fill", at % 2, x, at as u32);
        }
        for round in 0..30 {
            let (from, to) = (round % 6, (round * 5 + 1) % 6);
            if from != to {
                bench.launch("step", round % 2, &tensors[from], &tensors[to], |x| x + 1.0);
            }
        }
        let mut expected: Vec<f32> = (0..6).map(|at| at as f32).collect();
        for round in 0..30 {
            let (from, to) = (round % 6, (round * 5 + 1) % 6);
            if from != to {
                expected[to] = expected[from] + 1.0;
            }
        }
        bench.engine.wait_all(None).unwrap();
        bench.device.run_until_idle();
        assert_eq!(tensors.iter().map(get).collect::<Vec<_>>(), expected, "seed {seed}");
        assert!(bench.watchdog.still_watches());
    }
}

#[test]
fn a_device_that_runs_freely_and_a_host_work_on_one_tensor() {
    for notify in [SimNotify::Push, SimNotify::Poll] {
        let bench = bench(SimOptions { pace: SimPace::Immediate, notify, ..SimOptions::default() });
        let (x, y) = (bench.tensor(), bench.tensor());
        set(&bench.engine, &x, 0.0);
        for round in 0..100 {
            bench.launch("device", round % 2, &x, &y, |x| x + 1.0);
            let op = bench.engine.op("host").reads([&y]).writes([&x]).run(|[y], [mut x]| {
                x.as_mut_slice::<f32>()?[0] = y.as_slice::<f32>()?[0] + 1.0;
                Ok(())
            });
            drop(op.unwrap());
        }
        assert_eq!(get(&x), 200.0);
        // A tensor defined late from device data, without blocking a thread.
        let sum = bench.engine.op("sum").reads([&x, &y]).produce(|[x, y]| {
            Ok(Produced::from_vec(vec![x.as_slice::<f32>()?[0] + y.as_slice::<f32>()?[0]], &[1])?)
        });
        assert_eq!(get(&sum.unwrap()), 399.0);
        let options = ExportOptions::from(Access::Read);
        assert!(x.export_wait(&options).unwrap().flags().read_only);
        assert!(bench.watchdog.still_watches());
    }
}
