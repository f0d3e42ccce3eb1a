//! The engine on CUDA devices, on the driver simulator, without a GPU. The simulator finds uses of memory
//! that nothing orders, whether they went well or not; so each test that expects it to be silent has one
//! beside it in which the order is taken out, and it must speak.

use std::ffi::{CStr, c_void};
use std::ptr;
use std::sync::{Arc, MutexGuard};
use std::time::{Duration, Instant};

use estafette::bindings::{self, ImportStream};
use estafette::devices::cuda::{CudaDevice, CudaGraph, CudaQueue, CudaRuntime};
use estafette::devices::sim::{SimDevice, SimOptions, SimPace, SimQueue};
use estafette::devices::{Allocation, DLDevice, Device, DeviceType, LaunchGraph, Queue};
use estafette::exchange::{Abi, ExportFlags, Layout, export, flush_deleters};
use estafette::lease::{Consumer, Keeper};
use estafette::operators::{Attributes, Closure, operators};
use estafette::{Access, DType, Engine, ExportOptions, ImportOptions, Lease, Op, Tensor, View, ViewMut};
use estafette_c::estafette_status::{ESTAFETTE_INVALID, ESTAFETTE_OK, ESTAFETTE_PENDING, ESTAFETTE_TIMEOUT};
use estafette_c::*;
use estafette_cuda_sim_client::Simulator;
use tests::ops::{get, tensor, until, waits};
use tests::watchdog::Watchdog;

const BYTES: i64 = 64;

struct Bench {
    simulator: &'static Simulator,
    device: Arc<CudaDevice>,
    engine: Engine,
    ours: Arc<dyn Queue>,
    _watchdog: Watchdog,
    _alone: MutexGuard<'static, ()>,
}

fn bench() -> Bench {
    let (alone, simulator) = crate::simulator();
    let device = Arc::clone(&CudaRuntime::get().expect("a simulated driver").devices()[0]);
    let engine = Engine::builder().workers(2).build().unwrap();
    let watchdog = Watchdog::of(&engine);
    let ours = device.create_queue().unwrap();
    until("nothing of an earlier test is left", || {
        let stats = engine.stats();
        stats.quarantine.waiting == 0 && stats.releasing == 0
    });
    simulator.forget_violations();
    simulator.forget_calls();
    Bench { simulator, device, engine, ours, _watchdog: watchdog, _alone: alone }
}

impl Bench {
    fn bytes(&self) -> Tensor {
        self.engine.empty(&[BYTES], DType::U8, self.device.id()).unwrap()
    }

    fn fill(&self, queue: &Arc<dyn Queue>, x: &Tensor, value: u8) -> Op {
        let op = self.engine.op("fill").writes([x]).on(queue);
        op.run_on(move |queue, [], [mut x]| {
            let queue = CudaQueue::from_queue(queue).expect("a CUDA queue");
            // SAFETY: the engine keeps the tensor, and all other uses away from it, until the work is done.
            Ok(unsafe { queue.fill(x.data_mut_ptr(), value, BYTES as usize) }?)
        })
        .unwrap()
    }

    /// The tensor's value, read by a copy to the host.
    fn first(&self, x: &Tensor) -> u8 {
        let host = self.engine.from_vec(vec![0_u8; BYTES as usize], &[BYTES]).unwrap();
        let device = Arc::clone(&self.device);
        let op = self.engine.op("read back").reads([x]).writes([&host]).on(&self.ours);
        op.run_on(move |queue, [x], [mut host]| {
            // SAFETY: the engine keeps both tensors until the work is done.
            Ok(unsafe { device.copy(queue, x.data_ptr(), host.data_mut_ptr(), BYTES as usize) }?)
        })
        .unwrap();
        host.to_vec::<u8>().unwrap()[0]
    }

    /// A foreign library with its own stream and memory.
    fn theirs(&self) -> Theirs {
        let memory = self.device.allocate(BYTES as usize, 64).unwrap();
        Theirs { device: Arc::clone(&self.device), queue: self.device.queue().unwrap(), memory }
    }

    fn lease(&self, x: &Tensor, access: Access, consumer: &Consumer) -> Lease {
        // The host has no time to wait: the stream must do all waiting.
        x.lease(access, "a consumer").for_consumer(consumer).wait(Some(Duration::ZERO)).unwrap()
    }

    fn silent(&self) {
        let found = self.simulator.violations();
        assert!(found.is_empty(), "{found:#?}");
        for call in ["cuCtxSynchronize", "cuEventSynchronize"] {
            assert_eq!(self.simulator.calls(call), 0, "{call}");
        }
    }

    fn speaks(&self, theirs: &Theirs) {
        until("the race was found", || !self.simulator.violations().is_empty());
        // The planted fault ends before the next test begins.
        theirs.read();
    }
}

struct Theirs {
    device: Arc<CudaDevice>,
    queue: Arc<CudaQueue>,
    memory: Allocation,
}

impl Theirs {
    fn stream(&self) -> usize {
        self.queue.native()
    }

    fn consumer(&self, x: &Tensor) -> Consumer {
        // SAFETY: the stream lives.
        unsafe { bindings::tensor::consumer_on(&x, self.device.id(), self.stream()) }.unwrap()
    }

    fn copies(&self, x: &Tensor) {
        let (from, to) = (x.data_ptr().unwrap(), self.memory.ptr().as_ptr());
        // SAFETY: the lease keeps the tensor, and the memory is the library's own.
        unsafe { self.device.copy(&*self.queue, from, to, BYTES as usize) }.unwrap();
    }

    /// The value that the library has read.
    fn read(&self) -> u8 {
        let mut bytes = [0_u8; BYTES as usize];
        let from = self.memory.ptr().as_ptr();
        // SAFETY: the array stays until the copy is done.
        unsafe { self.device.copy(&*self.queue, from, bytes.as_mut_ptr(), BYTES as usize) }.unwrap();
        self.queue.record().unwrap().wait_timeout(None).unwrap().unwrap();
        assert!(bytes.iter().all(|byte| *byte == bytes[0]), "{bytes:?}");
        bytes[0]
    }
}

#[test]
fn a_consumer_on_a_stream_sees_the_producer_and_the_host_is_free() {
    let bench = bench();
    let theirs = bench.theirs();
    let x = bench.bytes();
    bench.simulator.block(bench.ours.native());
    bench.fill(&bench.ours, &x, 5).wait().unwrap();
    let options = ExportOptions {
        consumer: theirs.consumer(&x),
        timeout: Some(Duration::ZERO),
        ..ExportOptions::from(Access::Read)
    };
    let exported = x.export_wait(&options).unwrap();
    drop(options);
    theirs.copies(&x);
    assert!(bench.simulator.pending(bench.ours.native()) > 0, "the host waited for a blocked stream");
    bench.simulator.unblock(bench.ours.native());
    assert_eq!(theirs.read(), 5);
    drop(exported);
    bench.silent();
}

#[test]
fn without_the_wait_the_simulator_finds_the_race_of_consumer_and_producer() {
    let bench = bench();
    let theirs = bench.theirs();
    let x = bench.bytes();
    bench.simulator.block(bench.ours.native());
    bench.fill(&bench.ours, &x, 5).wait().unwrap();
    let lease = bench.lease(&x, Access::Read, &Consumer::Unordered);
    theirs.copies(&x);
    drop(lease);
    bench.simulator.unblock(bench.ours.native());
    bench.speaks(&theirs);
}

#[test]
fn a_write_after_release_while_the_consumer_runs_waits_for_him() {
    let bench = bench();
    let theirs = bench.theirs();
    let x = bench.bytes();
    bench.fill(&bench.ours, &x, 5).wait().unwrap();
    let before = bench.engine.stats().quarantine;
    let lease = bench.lease(&x, Access::Read, &theirs.consumer(&x));
    bench.simulator.block(theirs.stream());
    theirs.copies(&x);
    drop(lease);
    let overwrite = bench.fill(&bench.ours, &x, 6);
    let elsewhere = bench.bytes();
    bench.fill(&bench.ours, &elsewhere, 1).wait().unwrap();
    until("a barrier was asked for", || bench.engine.stats().quarantine.barriers > before.barriers);
    assert!(!overwrite.is_done(), "it is not known that the consumer is done");
    bench.simulator.unblock(theirs.stream());
    overwrite.wait().unwrap();
    assert_eq!((theirs.read(), bench.first(&x)), (5, 6));
    assert_eq!(bench.engine.stats().quarantine.released, before.released + 1);
    bench.silent();
}

/// Pinned memory is of no device in particular, and its consumer may work on any.
#[test]
fn a_write_after_release_waits_for_a_consumer_on_another_device_than_the_first() {
    let bench = bench();
    let other = Arc::clone(&CudaRuntime::get().unwrap().devices()[1]);
    let theirs = other.queue().unwrap();
    let target = other.allocate(BYTES as usize, 64).unwrap();
    let x = bench.engine.empty(&[BYTES], DType::U8, DLDevice::new(DeviceType::CUDA_HOST, 0)).unwrap();
    bench.fill(&bench.ours, &x, 5).wait().unwrap();
    // SAFETY: the stream lives.
    let consumer = unsafe { bindings::tensor::consumer_on(&x, other.id(), theirs.native()) }.unwrap();
    let before = bench.engine.stats().quarantine;
    let lease = bench.lease(&x, Access::Read, &consumer);
    bench.simulator.block(theirs.native());
    // SAFETY: both live until the copy is done.
    unsafe { other.copy(&*theirs, x.data_ptr().unwrap(), target.ptr().as_ptr(), BYTES as usize) }.unwrap();
    drop((lease, consumer));
    let overwrite = bench.fill(&bench.ours, &x, 6);
    until("a barrier was asked for", || bench.engine.stats().quarantine.barriers > before.barriers);
    std::thread::sleep(Duration::from_millis(30));
    assert!(!overwrite.is_done(), "the consumer works");
    bench.simulator.unblock(theirs.native());
    overwrite.wait().unwrap();
    theirs.record().unwrap().wait_timeout(None).unwrap().unwrap();
    bench.silent();
}

/// Kernels on a queue of another device use lent memory there, and find no way through the host as copies do.
#[test]
fn an_operation_on_another_device_reaches_memory_that_was_never_copied_there() {
    let bench = bench();
    let other = Arc::clone(&CudaRuntime::get().unwrap().devices()[1]);
    let theirs = other.create_queue().unwrap();
    let [x, y] = [(); 2].map(|()| bench.bytes());
    let device = Arc::clone(&other);
    let op = bench.engine.op("kernel").reads([&x]).writes([&y]).on(&theirs);
    op.run_on(move |_, [x], [mut y]| {
        assert!(device.can_access(x.data_ptr()) && device.can_access(y.data_mut_ptr()));
        Ok(())
    })
    .unwrap()
    .wait()
    .unwrap();
    bench.silent();
}

#[test]
fn without_the_quarantine_the_simulator_finds_the_race_of_consumer_and_writer() {
    let bench = bench();
    let theirs = bench.theirs();
    let x = bench.bytes();
    bench.fill(&bench.ours, &x, 5).wait().unwrap();
    let lease = bench.lease(&x, Access::Read, &theirs.consumer(&x));
    bench.simulator.block(theirs.stream());
    theirs.copies(&x);
    // A consumer that reports its end too early.
    lease.release_after(bench.device.queue().unwrap().record().unwrap());
    bench.fill(&bench.ours, &x, 6).wait().unwrap();
    bench.simulator.unblock(theirs.stream());
    bench.speaks(&theirs);
}

#[test]
fn a_lease_on_a_stream_that_is_kept_ends_behind_an_event_and_needs_no_barrier() {
    let bench = bench();
    let theirs = bench.theirs();
    let x = bench.bytes();
    bench.fill(&bench.ours, &x, 5).wait().unwrap();
    let before = bench.engine.stats().quarantine;
    let keeper: Keeper = Arc::new(());
    // SAFETY: the stream lives to the end of the test.
    let consumer = unsafe {
        bindings::tensor::consumer_on_kept(&x, bench.device.id(), theirs.stream(), Arc::clone(&keeper))
    };
    let lease = bench.lease(&x, Access::Read, &consumer.unwrap());
    bench.simulator.block(theirs.stream());
    theirs.copies(&x);
    assert_eq!(Arc::strong_count(&keeper), 2, "the lease has the other");
    drop(lease);
    assert_eq!(Arc::strong_count(&keeper), 1);
    // Issued at once: its queue waits.
    bench.fill(&bench.ours, &x, 6).wait().unwrap();
    assert!(!x.is_ready());
    bench.simulator.unblock(theirs.stream());
    assert_eq!((theirs.read(), bench.first(&x)), (5, 6));
    assert_eq!(bench.engine.stats().quarantine, before);
    // SAFETY: the default stream is always there.
    let refused = unsafe { bindings::tensor::consumer_on_kept(&x, bench.device.id(), 2, keeper) };
    assert!(refused.is_err_and(|error| error.to_string().contains("another stream on other threads")));
    bench.silent();
}

/// A lease for a queue of the engine that the consumer uses on a stream of its own as well; `tells` says
/// whether it names that stream.
fn used_on_another_stream(tells: bool) -> (Bench, Theirs) {
    let bench = bench();
    let theirs = bench.theirs();
    let x = bench.bytes();
    bench.fill(&bench.ours, &x, 5).wait().unwrap();
    x.wait().unwrap();
    let before = bench.engine.stats().quarantine;
    let lease = bench.lease(&x, Access::Read, &Consumer::Queue(Arc::clone(&bench.ours)));
    bench.simulator.block(theirs.stream());
    theirs.copies(&x);
    if tells {
        // SAFETY: the stream lives to the end of the test.
        let other = unsafe { bench.device.foreign_queue(theirs.stream()) }.unwrap();
        lease.used_on(&other).unwrap();
    }
    drop(lease);
    bench.fill(&bench.ours, &x, 6).wait().unwrap();
    bench.simulator.unblock(theirs.stream());
    x.wait().unwrap();
    assert_eq!(bench.engine.stats().quarantine, before);
    (bench, theirs)
}

#[test]
fn a_lease_ends_after_work_on_the_streams_that_it_was_used_on() {
    let (bench, theirs) = used_on_another_stream(true);
    assert_eq!(theirs.read(), 5);
    bench.silent();
}

#[test]
fn a_lease_may_be_given_uses_without_end() {
    let bench = bench();
    let theirs = bench.theirs();
    let x = bench.bytes();
    bench.fill(&bench.ours, &x, 5).wait().unwrap();
    x.wait().unwrap();
    let lease = bench.lease(&x, Access::Read, &Consumer::Queue(Arc::clone(&bench.ours)));
    bench.simulator.block(theirs.stream());
    theirs.copies(&x);
    // As many as the blocked stream takes.
    let (_, depth) = bench.simulator.limits();
    for _ in 0..depth.map_or(1_000, |depth| 1_000.min(depth - 4)) {
        // SAFETY: the stream lives to the end of the test.
        lease.used_on(&unsafe { bench.device.foreign_queue(theirs.stream()) }.unwrap()).unwrap();
    }
    drop(lease);
    let overwrite = bench.fill(&bench.ours, &x, 6);
    bench.simulator.unblock(theirs.stream());
    overwrite.wait().unwrap();
    assert_eq!((theirs.read(), bench.first(&x)), (5, 6));
    bench.silent();
}

#[test]
fn without_its_word_the_simulator_finds_the_race_of_another_stream_and_the_writer() {
    let (bench, theirs) = used_on_another_stream(false);
    bench.speaks(&theirs);
}

#[test]
fn a_queue_that_records_a_graph_is_no_further_stream_of_a_lease() {
    let bench = bench();
    let x = bench.bytes();
    bench.fill(&bench.ours, &x, 5).wait().unwrap();
    let lease = bench.lease(&x, Access::Read, &Consumer::Queue(Arc::clone(&bench.ours)));
    let queue = bench.device.queue().unwrap();
    let recording = Arc::clone(&queue) as Arc<dyn Queue>;
    let mut refused = None;
    let _graph = queue.capture(&[], |_| {
        refused = lease.used_on(&recording).err();
        Ok(())
    });
    assert!(refused.is_some_and(|error| error.to_string().contains("a graph is being captured")));
    drop(lease);
    bench.silent();
}

#[test]
fn the_legacy_stream_is_looked_at_again_when_the_lease_ends() {
    let bench = bench();
    let x = bench.bytes();
    bench.fill(&bench.ours, &x, 5).wait().unwrap();
    let before = bench.engine.stats().quarantine;
    // SAFETY: the default stream is always there.
    let consumer = unsafe { bindings::tensor::consumer_on(&x, bench.device.id(), 1) }.unwrap();
    let Consumer::Queue(legacy) = consumer.clone() else { panic!("a stream") };
    let theirs = bench.theirs();
    let lease = bench.lease(&x, Access::Read, &consumer);
    // SAFETY: the lease keeps the tensor, and the memory is the library's own.
    unsafe {
        let (from, to) = (x.data_ptr().unwrap(), theirs.memory.ptr().as_ptr());
        bench.device.copy(&*legacy, from, to, BYTES as usize).unwrap();
    }
    drop(lease);
    bench.fill(&bench.ours, &x, 6).wait().unwrap();
    assert_eq!(bench.first(&x), 6);
    assert_eq!(bench.engine.stats().quarantine, before);
    bench.silent();
}

#[test]
fn memory_is_freed_after_a_consumer_whose_stream_we_may_not_touch() {
    let bench = bench();
    let theirs = bench.theirs();
    let x = bench.bytes();
    bench.fill(&bench.ours, &x, 5).wait().unwrap();
    let options = ExportOptions { consumer: theirs.consumer(&x), ..ExportOptions::from(Access::Read) };
    let exported = x.export_wait(&options).unwrap();
    bench.simulator.block(theirs.stream());
    theirs.copies(&x);
    let before = bench.engine.stats();
    drop((options, exported, x));
    until("a barrier was asked for", || {
        bench.engine.stats().quarantine.barriers > before.quarantine.barriers
    });
    bench.simulator.unblock(theirs.stream());
    assert_eq!(theirs.read(), 5);
    until("it was released", || bench.engine.stats().quarantine.waiting == 0);
    assert_eq!(bench.engine.stats().leaked, before.leaked);
    bench.silent();
}

#[test]
fn a_plain_export_of_device_memory_is_followed_by_a_quarantine_too() {
    let bench = bench();
    let theirs = bench.theirs();
    let x = bench.bytes();
    bench.fill(&bench.ours, &x, 5).wait().unwrap();
    let before = bench.engine.stats().quarantine;
    // Host-ordered: the consumer may use any stream.
    let exported = x.export_wait(&ExportOptions::from(Access::Read)).unwrap();
    theirs.copies(&x);
    drop(exported);
    bench.fill(&bench.ours, &x, 6).wait().unwrap();
    assert_eq!(theirs.read(), 5);
    assert_eq!(bench.engine.stats().quarantine.released, before.released + 1);
    bench.silent();
}

#[test]
fn a_write_that_fails_before_it_touches_the_device_leaves_earlier_readers_in_the_way() {
    let bench = bench();
    let (x, y) = (bench.bytes(), bench.bytes());
    let reader = bench.device.create_queue().unwrap();
    bench.fill(&bench.ours, &x, 5).wait().unwrap();
    bench.simulator.block(reader.native());
    let device = Arc::clone(&bench.device);
    let read = bench.engine.op("read").reads([&x]).writes([&y]).on(&reader);
    read.run_on(move |queue, [x], [mut y]| {
        // SAFETY: the engine keeps both tensors until the work is done.
        Ok(unsafe { device.copy(queue, x.data_ptr(), y.data_mut_ptr(), BYTES as usize) }?)
    })
    .unwrap()
    .wait()
    .unwrap();
    let failed = bench.engine.op("fails").writes([&x]).run(|[], [_x]| Err("on the host".into()));
    let skipped = bench.engine.op("skipped").updates([&x]).run(|[], [], [_x]| Ok(()));
    let last = bench.device.create_queue().unwrap();
    bench.fill(&last, &x, 6);
    bench.simulator.unblock(reader.native());
    assert!(failed.unwrap().wait().is_err() && skipped.unwrap().wait().is_err());
    assert_eq!((bench.first(&y), bench.first(&x)), (5, 6));
    bench.silent();
}

#[test]
fn what_a_producer_orders_before_our_stream_is_waited_for_on_the_device() {
    let bench = bench();
    let theirs = bench.theirs();
    bench.simulator.block(theirs.stream());
    // SAFETY: the library's memory, on its own stream.
    unsafe { theirs.queue.fill(theirs.memory.ptr().as_ptr(), 9, BYTES as usize) }.unwrap();
    let import_stream = ImportStream::on(bench.device.clone()).unwrap();
    // As `__dlpack__(stream=...)` at the producer's.
    let produced = theirs.queue.record().unwrap();
    // SAFETY: the import stream keeps the stream.
    let given = unsafe { bench.device.foreign(import_stream.stream()) }.unwrap();
    given.order_after(&produced).unwrap();
    drop(given);
    let ready = import_stream.fence().unwrap();
    let layout = Layout::contiguous(DType::U8, bench.device.id(), &[BYTES]).unwrap();
    let data = theirs.memory.ptr().as_ptr();
    // SAFETY: the memory outlives the tensor.
    let managed = unsafe { export(&layout, data, ExportFlags::default(), Abi::Versioned, || ()) };
    // SAFETY: as above.
    let x = unsafe {
        bench.engine.import_with(managed, ImportOptions { ready: ready.into(), ..ImportOptions::default() })
    }
    .unwrap();
    // This import does not hold up another import.
    let another = ImportStream::on(bench.device.clone()).unwrap().fence().unwrap();
    assert!(another.wait_timeout(Some(Duration::from_secs(10))).is_some());
    let y = bench.bytes();
    let device = Arc::clone(&bench.device);
    let copy = bench.engine.op("copy").reads([&x]).writes([&y]).on(&bench.ours);
    copy.run_on(move |queue, [x], [mut y]| {
        // SAFETY: the engine keeps both tensors until the work is done.
        Ok(unsafe { device.copy(queue, x.data_ptr(), y.data_mut_ptr(), BYTES as usize) }?)
    })
    .unwrap()
    .wait()
    .unwrap();
    bench.simulator.unblock(theirs.stream());
    assert_eq!(bench.first(&y), 9);
    bench.silent();
}

#[test]
fn asking_whether_a_pending_tensor_is_ready_asks_the_driver_hardly_ever() {
    const CALLS: [&str; 7] = [
        "cuStreamQuery",
        "cuEventQuery",
        "cuEventRecord",
        "cuStreamWriteValue64_v2",
        "cuStreamIsCapturing",
        "cuCtxGetCurrent",
        "cuThreadExchangeStreamCaptureMode",
    ];
    let bench = bench();
    let x = bench.bytes();
    bench.simulator.block(bench.ours.native());
    bench.fill(&bench.ours, &x, 5).wait().unwrap();
    assert!(!x.is_ready());
    bench.simulator.forget_calls();
    let begin = Instant::now();
    for _ in 0..10_000 {
        assert!(!x.is_ready());
    }
    // A look whether the stream still works, every 200 us at most, is a query between two changes of mode.
    let looks = begin.elapsed().as_micros() as u64 / 200 + 1;
    let calls: u64 = CALLS.iter().map(|call| bench.simulator.calls(call)).sum();
    assert!(calls <= 6 * looks, "{calls} calls in {looks} times 200 us");
    bench.simulator.unblock(bench.ours.native());
    x.wait().unwrap();
    assert!(x.is_ready());
    bench.silent();
}

#[test]
fn an_export_into_a_capture_is_a_wait_and_never_a_query_and_its_lease_stays() {
    let bench = bench();
    let theirs = bench.theirs();
    let x = bench.bytes();
    bench.simulator.block(bench.ours.native());
    bench.fill(&bench.ours, &x, 5).wait().unwrap();
    let graph: CudaGraph = theirs
        .queue
        .capture(&[], |_stream| {
            let options = ExportOptions {
                consumer: theirs.consumer(&x),
                timeout: Some(Duration::ZERO),
                ..ExportOptions::from(Access::Read)
            };
            let exported = x.export_wait(&options).unwrap();
            theirs.copies(&x);
            drop((options, exported));
            Ok(())
        })
        .unwrap();
    let overwrite = bench.fill(&bench.ours, &x, 6);
    for _ in 0..2 {
        graph.launch(&*theirs.queue).unwrap();
        // The first launch comes before the producer has run, and waits for it.
        bench.simulator.unblock(bench.ours.native());
        assert_eq!(theirs.read(), 5);
    }
    assert!(waits(&bench.engine, &overwrite), "another launch would read it again");
    assert_eq!(bindings::lease::end_captures(&x), 1);
    overwrite.wait().unwrap();
    assert_eq!(bench.first(&x), 6);
    let found = bench.simulator.violations();
    assert!(found.is_empty(), "{found:#?}");
}

#[test]
fn the_c_interface_orders_a_cuda_stream() {
    let bench = bench();
    let theirs = bench.theirs();
    let x = bench.bytes();
    bench.simulator.block(bench.ours.native());
    bench.fill(&bench.ours, &x, 5).wait().unwrap();
    let handle = tensor_handle(x.clone()).unwrap();
    let mut lease: *mut estafette_lease = ptr::null_mut();
    let stream: *mut c_void = ptr::with_exposed_provenance_mut(theirs.stream());
    // SAFETY: a live tensor, a live stream, and a place.
    let taken = unsafe { estafette_order_on(handle, 0, bench.device.id(), stream, &mut lease) };
    assert_eq!(taken, ESTAFETTE_OK);
    theirs.copies(&x);
    // SAFETY: a live lease, given up once.
    assert_eq!(unsafe { estafette_lease_release(lease, ptr::null()) }, ESTAFETTE_OK);
    let overwrite = bench.fill(&bench.ours, &x, 6);
    bench.simulator.unblock(bench.ours.native());
    overwrite.wait().unwrap();
    assert_eq!((theirs.read(), bench.first(&x)), (5, 6));
    for device in [DLDevice::CPU, DLDevice::new(DeviceType::CUDA, 1)] {
        // SAFETY: a stream, if of another device.
        let refused = unsafe { estafette_order_on(handle, 0, device, stream, &mut lease) };
        assert_ne!(refused, ESTAFETTE_OK);
    }
    assert_eq!(estafette_tensor_release(handle), ESTAFETTE_OK);
    bench.silent();
}

#[test]
fn leases_for_one_stream_are_of_one_device() {
    let bench = bench();
    let elsewhere = CudaRuntime::get().unwrap().devices()[1].id();
    let y = bench.engine.empty(&[BYTES], DType::U8, elsewhere).unwrap();
    let both = [tensor_handle(bench.bytes()).unwrap(), tensor_handle(y).unwrap()];
    let mut options = estafette_export_options {
        size: size_of::<estafette_export_options>() as u32,
        access: 0,
        device: DLDevice::new(DeviceType(0), 0),
        // Each device has a legacy stream, and its handle is that of all of them.
        stream: ptr::without_provenance_mut(1),
        copy: 0,
        nonblocking: 0,
        timeout_ns: 0,
        any_thread: 0,
    };
    let (mut engine, mut leases) = (ptr::null_mut(), [ptr::null_mut(); 2]);
    // SAFETY: live tensors, streams that are never gone, and places.
    unsafe {
        assert_eq!(estafette_engine_create(ptr::null(), &mut engine), ESTAFETTE_OK);
        let mut take = |options: &estafette_export_options| {
            estafette_lease_all(engine, both.as_ptr(), ptr::null(), 2, options, leases.as_mut_ptr())
        };
        assert_eq!(take(&options), ESTAFETTE_INVALID);
        let text = CStr::from_ptr(estafette_last_error()).to_str().unwrap();
        assert!(
            [bench.device.id(), elsewhere].iter().all(|device| text.contains(&device.to_string())),
            "{text}"
        );
        // Without a stream the host waits for both.
        options.stream = ptr::null_mut();
        assert_eq!(take(&options), ESTAFETTE_OK);
        for lease in leases {
            assert_eq!(estafette_lease_release(lease, ptr::null()), ESTAFETTE_OK);
        }
    }
    for handle in both {
        assert_eq!(estafette_tensor_release(handle), ESTAFETTE_OK);
    }
    assert_eq!(estafette_engine_destroy(engine), ESTAFETTE_OK);
    bench.silent();
}

fn submit_options() -> estafette_submit_options {
    estafette_submit_options {
        size: size_of::<estafette_submit_options>() as u32,
        priority: 0,
        name: c"fills".as_ptr(),
        nonblocking: 0,
        reserved: 0,
        on: DLDevice::new(DeviceType(0), 0),
        on_skip: None,
    }
}

/// The body of an operation in C: it fills the memory behind its context on the stream that it is given.
unsafe extern "C" fn fills_nine(context: *mut c_void, op: *mut estafette_op) {
    let mut stream = ptr::null_mut();
    // SAFETY: what the library gave, and a place.
    assert_eq!(unsafe { estafette_op_stream(op, &mut stream) }, ESTAFETTE_OK);
    let device = &CudaRuntime::get().unwrap().devices()[0];
    // SAFETY: a live stream; the operation has the memory to itself.
    unsafe {
        let queue = device.foreign(stream.expose_provenance()).unwrap();
        queue.fill(context.cast(), 9, BYTES as usize).unwrap();
        assert_eq!(estafette_op_complete(op, 0, ptr::null()), ESTAFETTE_OK);
    }
}

#[test]
fn a_c_function_gets_the_stream_and_what_it_enqueues_is_the_operation() {
    let bench = bench();
    let theirs = bench.theirs();
    let (x, y) = (bench.bytes(), bench.bytes());
    bench.simulator.block(bench.ours.native());
    bench.fill(&bench.ours, &x, 5).wait().unwrap();
    let mut engine: *mut estafette_engine = ptr::null_mut();
    let handle = tensor_handle(x.clone()).unwrap();
    // SAFETY: live objects and places; the memory is the tensor's.
    unsafe {
        assert_eq!(estafette_engine_create(ptr::null(), &mut engine), ESTAFETTE_OK);
        let on = estafette_submit_options { on: bench.device.id(), ..submit_options() };
        let mut op = ptr::null_mut();
        let writes = [handle];
        let memory = x.data_ptr().unwrap().cast_mut().cast();
        let submitted = estafette_submit_with(
            engine,
            &on,
            Some(fills_nine),
            memory,
            None,
            ptr::null(),
            0,
            writes.as_ptr(),
            1,
            &mut op,
        );
        assert_eq!(submitted, ESTAFETTE_OK);
        // Issued behind what has not run, it has not ended; its fence is that of the work.
        op_of(op).unwrap().wait().unwrap();
        assert_eq!(estafette_op_query(op), ESTAFETTE_PENDING);
        assert_eq!(estafette_op_wait(op, 0), ESTAFETTE_TIMEOUT);
        let mut place = 0;
        assert_eq!(estafette_wait_any(&op, 1, ptr::null(), 0, 0, &mut place), ESTAFETTE_TIMEOUT);
        let mut end = std::mem::MaybeUninit::uninit();
        assert_eq!(estafette_op_fence(op, end.as_mut_ptr()), ESTAFETTE_OK);
        let end: DLFence = end.assume_init();
        let stream = ptr::with_exposed_provenance_mut(theirs.stream());
        assert_eq!(end.order_on.unwrap()(end.context, bench.device.id(), stream), 0, "the wait stays there");
        end.release.unwrap()(end.context);
        theirs.copies(&x);
        let device = Arc::clone(&bench.device);
        let other = bench.device.create_queue().unwrap();
        let copy = bench.engine.op("copy").reads([&x]).writes([&y]).on(&other);
        copy.run_on(move |queue, [x], [mut y]| {
            // The engine keeps both tensors until the work is done.
            Ok(device.copy(queue, x.data_ptr(), y.data_mut_ptr(), BYTES as usize)?)
        })
        .unwrap();
        bench.simulator.unblock(bench.ours.native());
        assert_eq!(estafette_op_wait(op, u64::MAX), ESTAFETTE_OK);
        assert!(x.is_ready());
        assert_eq!(estafette_op_query(op), ESTAFETTE_OK);
        assert_eq!(estafette_wait_any(&op, 1, ptr::null(), 0, u64::MAX, &mut place), ESTAFETTE_OK);
        assert_eq!(estafette_op_release(op), ESTAFETTE_OK);
    }
    assert_eq!((bench.first(&x), bench.first(&y), theirs.read()), (9, 9, 9));
    assert_eq!(estafette_tensor_release(handle), ESTAFETTE_OK);
    assert_eq!(estafette_engine_destroy(engine), ESTAFETTE_OK);
    bench.silent();
}

#[test]
fn a_replay_in_c_ends_with_what_its_nodes_have_enqueued() {
    let bench = bench();
    let x = bench.bytes();
    bench.simulator.block(bench.ours.native());
    bench.fill(&bench.ours, &x, 5).wait().unwrap();
    let mut engine: *mut estafette_engine = ptr::null_mut();
    let handle = tensor_handle(x.clone()).unwrap();
    // SAFETY: live objects and places; the memory is the tensor's.
    unsafe {
        assert_eq!(estafette_engine_create(ptr::null(), &mut engine), ESTAFETTE_OK);
        let on = estafette_submit_options { on: bench.device.id(), ..submit_options() };
        let (mut program, mut op) = (ptr::null_mut(), ptr::null_mut());
        let memory = x.data_ptr().unwrap().cast_mut().cast();
        assert_eq!(estafette_program_begin(engine, ptr::null(), &mut program), ESTAFETTE_OK);
        let writes = [handle];
        let added = estafette_program_add(
            program,
            &on,
            Some(fills_nine),
            memory,
            None,
            ptr::null(),
            0,
            writes.as_ptr(),
            1,
        );
        assert_eq!((added, estafette_program_finish(program, 0)), (ESTAFETTE_OK, ESTAFETTE_OK));
        assert_eq!(estafette_program_replay(program, 0, &mut op), ESTAFETTE_OK);
        op_of(op).unwrap().wait().unwrap();
        assert_eq!(estafette_op_query(op), ESTAFETTE_PENDING);
        bench.simulator.unblock(bench.ours.native());
        assert_eq!(estafette_op_wait(op, u64::MAX), ESTAFETTE_OK);
        assert_eq!((x.is_ready(), bench.first(&x)), (true, 9));
        assert_eq!(estafette_op_release(op), ESTAFETTE_OK);
        assert_eq!(estafette_program_destroy(program), ESTAFETTE_OK);
    }
    assert_eq!(estafette_tensor_release(handle), ESTAFETTE_OK);
    assert_eq!(estafette_engine_destroy(engine), ESTAFETTE_OK);
    bench.silent();
}

#[test]
fn another_scheduler_orders_its_stream_after_our_fence() {
    let bench = bench();
    let theirs = bench.theirs();
    let x = bench.bytes();
    bench.simulator.block(bench.ours.native());
    bench.fill(&bench.ours, &x, 5).wait().unwrap();
    let fence = bindings::tensor::export_ready_fence(&x);
    let stream = ptr::with_exposed_provenance_mut(theirs.stream());
    // SAFETY: the struct's own function with its own context, on a live stream.
    let status = unsafe { fence.order_on.unwrap()(fence.context, bench.device.id(), stream) };
    assert_eq!(status, 0, "the wait stays on the device");
    theirs.copies(&x);
    bench.simulator.unblock(bench.ours.native());
    assert_eq!(theirs.read(), 5);
    // SAFETY: this code owns one count.
    unsafe { fence.release.unwrap()(fence.context) };
    bench.silent();
}

#[test]
fn our_fence_leaves_a_stream_that_captures_a_graph_as_it_is() {
    let bench = bench();
    let theirs = bench.theirs();
    let x = bench.bytes();
    bench.simulator.block(bench.ours.native());
    bench.fill(&bench.ours, &x, 5).wait().unwrap();
    let fence = bindings::tensor::export_ready_fence(&x);
    let stream = ptr::with_exposed_provenance_mut(theirs.stream());
    // SAFETY: the struct's own function with its own context, on a live stream.
    let order = || unsafe { fence.order_on.unwrap()(fence.context, bench.device.id(), stream) };
    let waits = || bench.simulator.calls("cuStreamWaitEvent");
    let _graph: CudaGraph = theirs
        .queue
        .capture(&[], |_stream| {
            let before = waits();
            assert_eq!((order(), waits()), (1, before), "the host must wait");
            theirs.copies(&x);
            Ok(())
        })
        .unwrap();
    assert_eq!(order(), 0, "the capture is over");
    bench.simulator.unblock(bench.ours.native());
    x.wait().unwrap();
    // SAFETY: this code owns one count.
    unsafe { fence.release.unwrap()(fence.context) };
    bench.silent();
}

#[test]
fn host_readers_of_pinned_and_managed_memory_wait_for_the_device() {
    let bench = bench();
    for kind in [DeviceType::CUDA_HOST, DeviceType::CUDA_MANAGED] {
        let x = bench.engine.empty(&[BYTES], DType::U8, DLDevice::new(kind, 0)).unwrap();
        bench.simulator.block(bench.ours.native());
        bench.fill(&bench.ours, &x, 5).wait().unwrap();
        let late = x.export_wait(&ExportOptions {
            timeout: Some(Duration::from_millis(5)),
            ..ExportOptions::from(Access::Read)
        });
        assert!(late.is_err(), "a host consumer reads at once");
        let theirs = bench.theirs();
        let lease = bench.lease(&x, Access::Read, &theirs.consumer(&x));
        theirs.copies(&x);
        drop(lease);
        bench.simulator.unblock(bench.ours.native());
        assert_eq!((theirs.read(), bench.first(&x)), (5, 5));
    }
    bench.silent();
}

#[test]
fn pinned_and_managed_memory_that_nothing_has_written_is_zero() {
    let bench = bench();
    let zero = |name: &'static str, x: &Tensor| {
        let op = bench.engine.op(name).reads([x]).run(|[x], []| {
            if x.as_slice::<u8>()?.iter().all(|byte| *byte == 0) { Ok(()) } else { Err("not zero".into()) }
        });
        op.unwrap().wait().unwrap();
    };
    let infer =
        |inputs: &[View<'_>], _: &Attributes| Ok(vec![(DType::U8, inputs[0].layout().shape().to_vec())]);
    let writes_nothing = |_: &[View<'_>], outputs: &mut [ViewMut<'_>], _: &Attributes| {
        // A slice is made, of memory that nothing has written.
        outputs[0].as_mut_slice::<u8>().map(drop)?;
        Ok(())
    };
    operators()
        .register_closure(
            "cuda.unwritten",
            1,
            1,
            Closure::Inferred(Box::new(infer), Box::new(writes_nothing)),
        )
        .unwrap();
    for kind in [DeviceType::CUDA_HOST, DeviceType::CUDA_MANAGED] {
        let device = DLDevice::new(kind, 0);
        // Memory that the driver gives out again is not zero by itself.
        let dirty = bench.engine.empty(&[BYTES], DType::U8, device).unwrap();
        let op = bench.engine.op("dirty").writes([&dirty]).run(|[], [mut x]| {
            x.as_mut_slice::<u8>()?.fill(0xAB);
            Ok(())
        });
        op.unwrap().wait().unwrap();
        drop(dirty);
        assert!(flush_deleters(Duration::from_secs(30)));
        let x = bench.engine.empty(&[BYTES], DType::U8, device).unwrap();
        zero("reads", &x);
        let call = bench.engine.operator("cuda.unwritten").unwrap().inputs(&[&x]);
        let y = call.produce().unwrap().pop().unwrap();
        y.wait().unwrap();
        assert_eq!(y.device().unwrap(), device);
        zero("reads the result", &y);
    }
    operators().unregister("cuda.unwritten").unwrap();
    bench.silent();
}

#[test]
fn between_the_host_cuda_and_another_runtime_the_reactor_carries_over() {
    let bench = bench();
    let other = SimDevice::new(SimOptions { pace: SimPace::Immediate, ..SimOptions::default() }).unwrap();
    let engine = Engine::builder().workers(2).device(other.clone()).build().unwrap();
    let foreign = other.create_queue().unwrap();
    let host = tensor(&engine, 0.0);
    let on_cuda = engine.empty(&[1], DType::F32, bench.device.id()).unwrap();
    let (on_sim, back) = (engine.empty(&[1], DType::F32, other.id()).unwrap(), tensor(&engine, 0.0));
    let copy = |name: &'static str, from: &Tensor, to: &Tensor| {
        let device = Arc::clone(&bench.device);
        let op = engine.op(name).reads([from]).writes([to]).on(&bench.ours);
        op.run_on(move |queue, [x], [mut y]| {
            // SAFETY: the engine keeps both tensors until the work is done.
            Ok(unsafe { device.copy(queue, x.data_ptr(), y.data_mut_ptr(), 4) }?)
        })
        .unwrap();
    };
    for round in 1..=10 {
        tests::ops::set(&engine, &host, round as f32);
        copy("up", &host, &on_cuda);
        copy("down", &on_cuda, &back);
        let across = engine.op("across").reads([&back]).writes([&on_sim]).on(&foreign);
        across
            .run_on(move |queue, [x], [mut y]| {
                let (from, to) = (x.data_ptr().expose_provenance(), y.data_mut_ptr().expose_provenance());
                let work = move || {
                    let from = ptr::with_exposed_provenance::<f32>(from);
                    // SAFETY: the engine keeps both tensors until the work is done.
                    unsafe { ptr::with_exposed_provenance_mut::<f32>(to).write(*from * 2.0) };
                };
                Ok(SimQueue::from_queue(queue).expect("simulated").launch("across", 1_000, work)?)
            })
            .unwrap();
        assert_eq!(get(&on_sim), round as f32 * 2.0);
    }
    bench.silent();
}

#[test]
fn streams_that_are_none_and_streams_of_other_devices_are_refused() {
    let bench = bench();
    let x = bench.bytes();
    let other = Arc::clone(&CudaRuntime::get().unwrap().devices()[1]);
    let queue = other.create_queue().unwrap();
    // SAFETY: what is no stream of the device is found out.
    let refused = |device, handle| {
        unsafe { bindings::tensor::consumer_on(&x, device, handle) }.unwrap_err().to_string()
    };
    assert!(refused(bench.device.id(), 0).contains("1 for the legacy one"));
    assert!(refused(bench.device.id(), queue.native()).contains("another context"));
    assert!(refused(other.id(), queue.native()).contains("the memory is on"));
    bench.silent();
}
