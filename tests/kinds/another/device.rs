//! The device of a kind that only tests know: queues are threads that run closures, and the host must not
//! touch the memory. The kind has DLPack's number for ROCm.

use std::alloc::{Layout as Block, alloc, dealloc};
use std::any::Any;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use estafette::devices::{
    Allocation, Clock, DLDevice, Device, DeviceError, DeviceErrorKind, DeviceType, Fence, Order, Queue,
    QueueClock, QueueId, Subscriber, Timeline, Watch,
};

pub const ID: DLDevice = DLDevice::new(DeviceType::ROCM, 0);

type Work = Box<dyn FnOnce() + Send>;

/// A device whose queues are threads and whose memory the host must not touch.
#[derive(Debug)]
pub struct Accelerator {
    default_queue: Arc<Stream>,
    /// True while no queue can mark its work.
    pub records_fail: Arc<AtomicBool>,
    /// The number of blocks of memory that were freed.
    pub freed: Arc<AtomicUsize>,
    pub hold: Arc<Hold>,
}

/// Holds copies up.
#[derive(Debug, Default)]
pub struct Hold {
    pub is_on: AtomicBool,
    /// A copy waits.
    pub is_met: AtomicBool,
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
pub struct Stream {
    /// The stream itself, whose address is its native handle.
    this: Weak<Self>,
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

/// The number of pieces of work of a queue that have completed.
#[derive(Debug)]
struct Progress {
    queue: QueueId,
    completed: AtomicU64,
}

impl Accelerator {
    pub fn new() -> Arc<Self> {
        let records_fail = Arc::<AtomicBool>::default();
        let default_queue = Stream::new(Arc::clone(&records_fail));
        Arc::new(Self { default_queue, records_fail, freed: Arc::default(), hold: Arc::default() })
    }
}

impl Stream {
    pub fn new(records_fail: Arc<AtomicBool>) -> Arc<Self> {
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
        let submitted = Mutex::new(submitted);
        Arc::new_cyclic(|this| Self { this: this.clone(), progress, submitted, records_fail })
    }

    pub fn of(queue: &dyn Queue) -> Result<&Self, DeviceError> {
        queue.as_any().downcast_ref().ok_or_else(|| {
            DeviceError::new(DeviceErrorKind::Invalid, format!("{} is no queue of {ID}", queue.id()))
        })
    }

    pub fn submit(&self, work: impl FnOnce() + Send + 'static) {
        self.submitted().submit(Box::new(work));
    }

    fn submitted(&self) -> MutexGuard<'_, Submitted> {
        self.submitted.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Submitted {
    fn submit(&mut self, work: Work) {
        self.work.send(work).expect("the thread runs until the stream is dropped");
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

    unsafe fn foreign_queue(&self, handle: usize) -> Result<Arc<dyn Queue>, DeviceError> {
        let stream = std::ptr::with_exposed_provenance::<Stream>(handle);
        // SAFETY: by contract the handle is of a live stream, whose address in its `Arc` it is. The count
        // that is added is the result's.
        let stream = unsafe {
            Arc::increment_strong_count(stream);
            Arc::from_raw(stream)
        };
        // A stream counts all that is enqueued, so it needs no other identity.
        Ok(stream)
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
        let mut submitted = self.submitted();
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
        let submitted = self.submitted();
        let seen: Clock = submitted.clock.snapshot();
        Ok(Fence::point(Arc::clone(&self.progress) as _, submitted.count, seen))
    }

    fn native(&self) -> usize {
        self.this.as_ptr().expose_provenance()
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
