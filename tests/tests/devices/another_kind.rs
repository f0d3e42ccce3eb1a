//! A kind of device that no crate of the project knows: a `Device` and a `Queue` in this file, under DLPack's number for ROCm.
//! The kind passes the conformance suite and every form of exchange. Nothing else of the project names the kind.

use std::alloc::{Layout as Block, alloc, dealloc};
use std::any::Any;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};

use estafette::bindings;
use estafette::devices::conformance::{Blocked, Harness, Skip, run};
use estafette::devices::{
    Allocation, Clock, DLDevice, Device, DeviceError, DeviceErrorKind, DeviceType, Fence, Order, Queue,
    QueueClock, QueueId, Subscriber, Timeline, Watch,
};
use estafette::exchange::flush_deleters;
use estafette::{Access, DType, Engine, ExportOptions, Produced, Tensor};
use futures::executor::block_on;
use tests::ops::{tensor, until};
use tests::watchdog::Watchdog;

const ID: DLDevice = DLDevice::new(DeviceType::ROCM, 0);

type Work = Box<dyn FnOnce() + Send>;

/// A device whose queues are threads and whose memory the host must not touch.
#[derive(Debug)]
struct Accelerator {
    default_queue: Arc<Stream>,
    records_fail: Arc<AtomicBool>,
    freed: Arc<AtomicUsize>,
    hold: Arc<Hold>,
}

/// Holds copies up.
#[derive(Debug, Default)]
struct Hold {
    is_on: AtomicBool,
    /// A copy waits.
    is_met: AtomicBool,
}

impl Hold {
    fn meet(&self) {
        while self.is_on.load(Ordering::SeqCst) {
            self.is_met.store(true, Ordering::SeqCst);
            std::thread::yield_now();
        }
    }
}

/// An in-order queue: a thread that runs what is sent.
#[derive(Debug)]
struct Stream {
    progress: Arc<Progress>,
    submitted: Mutex<Submitted>,
    records_fail: Arc<AtomicBool>,
}

#[derive(Debug)]
struct Submitted {
    work: Sender<Work>,
    count: u64,
    clock: QueueClock,
}

/// Number of pieces of work of a queue that have completed.
#[derive(Debug)]
struct Progress {
    queue: QueueId,
    completed: AtomicU64,
}

impl Accelerator {
    fn new() -> Arc<Self> {
        let records_fail = Arc::<AtomicBool>::default();
        let default_queue = Stream::new(Arc::clone(&records_fail));
        Arc::new(Self { default_queue, records_fail, freed: Arc::default(), hold: Arc::default() })
    }
}

impl Stream {
    fn new(records_fail: Arc<AtomicBool>) -> Arc<Self> {
        let (work, jobs) = channel::<Work>();
        let queue = QueueId::next();
        let progress = Arc::new(Progress { queue, completed: AtomicU64::new(0) });
        let thread = Arc::clone(&progress);
        std::thread::spawn(move || {
            for job in jobs {
                job();
                thread.completed.fetch_add(1, Ordering::Release);
            }
        });
        let submitted = Submitted { work, count: 0, clock: QueueClock::new(queue, true) };
        Arc::new(Self { progress, submitted: Mutex::new(submitted), records_fail })
    }

    fn of(queue: &dyn Queue) -> Result<&Self, DeviceError> {
        queue.as_any().downcast_ref().ok_or_else(|| {
            DeviceError::new(DeviceErrorKind::Invalid, format!("{} is no queue of {ID}", queue.id()))
        })
    }

    fn submit(&self, work: impl FnOnce() + Send + 'static) {
        self.submitted.lock().unwrap().submit(Box::new(work));
    }
}

impl Submitted {
    fn submit(&mut self, work: Work) {
        self.work.send(work).unwrap();
        self.count += 1;
    }
}

impl Device for Accelerator {
    fn id(&self) -> DLDevice {
        ID
    }

    fn name(&self) -> &str {
        "another kind"
    }

    fn host_accessible(&self) -> bool {
        false
    }

    fn default_queue(&self) -> Arc<dyn Queue> {
        self.default_queue.clone()
    }

    fn create_queue(&self) -> Result<Arc<dyn Queue>, DeviceError> {
        Ok(Stream::new(Arc::clone(&self.records_fail)))
    }

    fn barrier(&self) -> Result<Fence, DeviceError> {
        self.default_queue.record()
    }

    fn allocate(&self, bytes: usize, align: usize) -> Result<Allocation, DeviceError> {
        let impossible = |what: &str| DeviceError::new(DeviceErrorKind::OutOfMemory, what.to_owned());
        if bytes > 1 << 40 {
            return Err(impossible("more than the device has"));
        }
        let block = Block::from_size_align(bytes.max(1), align)
            .and_then(|block| block.align_to(64))
            .map_err(|error| DeviceError::new(DeviceErrorKind::Invalid, error.to_string()))?;
        // SAFETY: the block has at least one byte.
        let memory = NonNull::new(unsafe { alloc(block) }).ok_or_else(|| impossible("out of memory"))?;
        let freed = Arc::clone(&self.freed);
        let free = move |at: NonNull<u8>, _| {
            freed.fetch_add(1, Ordering::Relaxed);
            // SAFETY: as it was allocated, and once.
            unsafe { dealloc(at.as_ptr(), block) }
        };
        // SAFETY: fresh memory, which `free` frees.
        Ok(unsafe { Allocation::from_raw(memory, bytes, ID, free) })
    }

    unsafe fn copy(
        &self,
        queue: &dyn Queue,
        src: *const u8,
        dst: *mut u8,
        bytes: usize,
    ) -> Result<(), DeviceError> {
        let (src, dst) = (src.expose_provenance(), dst.expose_provenance());
        let hold = Arc::clone(&self.hold);
        Stream::of(queue)?.submit(move || {
            hold.meet();
            let from = std::ptr::with_exposed_provenance::<u8>(src);
            // SAFETY: the caller keeps both ranges, which do not overlap, until the copy is done.
            unsafe { from.copy_to(std::ptr::with_exposed_provenance_mut(dst), bytes) }
        });
        Ok(())
    }
}

impl Queue for Stream {
    fn id(&self) -> QueueId {
        self.progress.queue
    }

    fn device(&self) -> DLDevice {
        ID
    }

    fn in_order(&self) -> bool {
        true
    }

    fn order_after(&self, fence: &Fence) -> Result<Order, DeviceError> {
        if let Some(outcome) = fence.state().outcome() {
            return outcome.map(|()| Order::Nothing);
        }
        let mut submitted = self.submitted.lock().unwrap();
        if submitted.clock.covers(fence) {
            return Ok(Order::Nothing);
        }
        let own = fence.as_point().filter(|(timeline, _)| (&***timeline as &dyn Any).is::<Progress>());
        let Some((timeline, sequence)) = own else { return Ok(Order::Host) };
        let timeline = Arc::clone(timeline);
        submitted.submit(Box::new(move || {
            while timeline.completed() < sequence {
                std::thread::yield_now();
            }
        }));
        submitted.clock.note_wait(fence);
        Ok(Order::Device)
    }

    fn record(&self) -> Result<Fence, DeviceError> {
        if self.records_fail.load(Ordering::Relaxed) {
            return Err(DeviceError::new(DeviceErrorKind::Fault, "no record today"));
        }
        let submitted = self.submitted.lock().unwrap();
        let seen: Clock = submitted.clock.snapshot();
        Ok(Fence::point(Arc::clone(&self.progress) as _, submitted.count, seen))
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl Timeline for Progress {
    fn queue(&self) -> QueueId {
        self.queue
    }

    fn device(&self) -> DLDevice {
        ID
    }

    fn completed(&self) -> u64 {
        self.completed.load(Ordering::Acquire)
    }

    fn failure(&self) -> Option<DeviceError> {
        None
    }

    fn poll(&self) -> u64 {
        self.completed()
    }

    fn watch(&self, sequence: u64, _subscriber: &Arc<dyn Subscriber>) -> Watch {
        if self.completed() >= sequence { Watch::Settled(Ok(())) } else { Watch::MustPoll }
    }
}

struct Suite;

impl Harness for Suite {
    fn device(&self) -> Arc<dyn Device> {
        Accelerator::new()
    }

    fn fill(&self, queue: &dyn Queue, memory: &Allocation, value: u8) -> Result<(), DeviceError> {
        let (at, bytes) = (memory.ptr().as_ptr().expose_provenance(), memory.len());
        Stream::of(queue)?.submit(move || {
            // SAFETY: the suite keeps the memory until the work is done, and orders its uses.
            unsafe { std::ptr::with_exposed_provenance_mut::<u8>(at).write_bytes(value, bytes) }
        });
        Ok(())
    }

    fn block(&self, queue: &dyn Queue) -> Result<Blocked, Skip> {
        let (release, released) = channel::<()>();
        Stream::of(queue).unwrap().submit(move || {
            let _ = released.recv();
        });
        Ok(Blocked::new(move || drop(release)))
    }

    fn can_break(&self) -> Result<(), Skip> {
        Err(Skip::because("a thread that runs closures does not fail"))
    }
}

#[test]
fn a_kind_that_nothing_else_knows_passes_the_conformance_suite() {
    let report = run(&Suite);
    assert!(report.passed.len() > 30, "{report:?}");
    let no_failures = "a thread that runs closures does not fail";
    assert!(report.skipped.iter().all(|(_, why)| why.0 == no_failures), "{report:?}");
}

#[test]
fn a_kind_that_nothing_else_knows_is_exchanged_leased_copied_and_computed_on() {
    let device = Accelerator::new();
    let engine = Engine::builder().workers(2).device(device.clone()).build().unwrap();
    let watchdog = Watchdog::of(&engine);

    // From the host to the device and on from tensor to tensor, by the engine's copies.
    let host = engine.from_vec(vec![1_u8, 2, 3, 4], &[4]).unwrap();
    let x = engine.copy(&host, ID).unwrap();
    let y = engine.copy(&x, ID).unwrap();
    block_on(y.ready()).unwrap();
    assert_eq!((y.device().unwrap(), y.dtype().unwrap()), (ID, DType::U8));

    // An operation on a queue of the device.
    let queue = device.create_queue().unwrap();
    let doubled = engine.op("double").writes([&y]).on(&queue).run_on(|queue, [], [mut y]| {
        let at = y.data_mut_ptr().expose_provenance();
        Stream::of(queue)?.submit(move || {
            // SAFETY: the engine keeps four bytes, and other uses away from them, until the work is done.
            let values =
                unsafe { std::slice::from_raw_parts_mut(std::ptr::with_exposed_provenance_mut::<u8>(at), 4) };
            values.iter_mut().for_each(|value| *value *= 2);
        });
        Ok(())
    });
    doubled.unwrap();

    // Out as a DLPack struct, under a read lease, and in again.
    let exported = block_on(y.export(Access::Read)).unwrap();
    assert_eq!((bindings::exchange::device(&exported), exported.flags().read_only), (ID, true));
    let write = engine.op("write").writes([&y]).run_external(|end| end.complete(Ok(()))).unwrap();
    assert!(!write.is_done(), "the lease is open");
    // SAFETY: the engine's own struct; nothing writes while the lease is open.
    let imported = unsafe { engine.import(exported) }.unwrap();
    let copy = engine.copy(&imported, DLDevice::CPU).unwrap();
    assert_eq!(copy.to_vec::<u8>().unwrap(), [2, 4, 6, 8]);
    drop((imported, copy));
    until("the deleter ends the lease", || write.is_done());

    // A write lease keeps readers away until the consumer is done.
    let exported = y.export_wait(&ExportOptions::from(Access::Write)).unwrap();
    assert!(!y.is_ready());
    drop(exported);
    block_on(y.ready()).unwrap();

    // Memory goes back when the last handle does.
    drop((x, y, host));
    assert!(flush_deleters(std::time::Duration::from_secs(10)));
    assert!(watchdog.still_watches());
}

#[test]
fn a_copy_whose_end_cannot_be_marked_keeps_the_memory_that_it_writes() {
    let device = Accelerator::new();
    let engine = Engine::builder().workers(1).device(device.clone()).build().unwrap();
    let x = engine.empty(&[4], DType::U8, ID).unwrap();
    for copy_to in [ID, DLDevice::CPU] {
        let options = ExportOptions { copy: true, copy_to, ..ExportOptions::from(Access::Read) };
        let lease = block_on(x.lease(Access::Read, "the test")).unwrap();
        device.records_fail.store(true, Ordering::Relaxed);
        let error = lease.export(&options).unwrap_err();
        device.records_fail.store(false, Ordering::Relaxed);
        assert!(error.to_string().contains("no record today"), "{error}");
        drop(lease);
        assert!(flush_deleters(std::time::Duration::from_secs(10)));
        assert_eq!(device.freed.load(Ordering::Relaxed), 0, "a copy may be writing there");
    }
}

/// An engine with the device and the runtime, and a tensor there.
fn with_runtime(device: &Arc<Accelerator>, runtime: &tokio::runtime::Runtime) -> (Engine, Tensor) {
    let engine = Engine::builder().workers(1).device(device.clone()).tokio(runtime.handle().clone());
    let engine = engine.build().unwrap();
    let there = engine.copy(&tensor(&engine, 5.0), ID).unwrap();
    there.wait().unwrap();
    (engine, there)
}

#[test]
fn a_copy_of_a_result_leaves_the_thread_of_its_asynchronous_body_to_other_tasks() {
    let device = Accelerator::new();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).build().unwrap();
    let (engine, there) = with_runtime(&device, &runtime);
    let watchdog = Watchdog::of(&engine);
    device.hold.is_on.store(true, Ordering::SeqCst);
    let result = there.clone();
    let copy =
        engine.op("copies").produce_future(move |[]| async move { Ok(Produced::from(result)) }).unwrap();
    until("the copy is with the device", || device.hold.is_met.load(Ordering::SeqCst));
    let hold = Arc::clone(&device.hold);
    let releases = runtime.spawn(async move { hold.is_on.store(false, Ordering::SeqCst) });
    assert_eq!(copy.to_vec::<f32>().unwrap(), [5.0]);
    runtime.block_on(releases).unwrap();
    assert!(watchdog.still_watches());
}

#[test]
fn copies_go_on_while_the_one_thread_of_the_given_runtime_waits_for_them() {
    let device = Accelerator::new();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let (engine, there) = with_runtime(&device, &runtime);
    let watchdog = Watchdog::of(&engine);
    device.hold.is_on.store(true, Ordering::SeqCst);
    let hold = Arc::clone(&device.hold);
    let releases = std::thread::spawn(move || {
        until("the copy is with the device", || hold.is_met.load(Ordering::SeqCst));
        hold.is_on.store(false, Ordering::SeqCst);
    });
    runtime.block_on(async {
        let back = engine.copy(&there, DLDevice::CPU).unwrap();
        assert_eq!(back.to_vec::<f32>().unwrap(), [5.0]);
    });
    releases.join().unwrap();
    assert!(watchdog.still_watches());
}
