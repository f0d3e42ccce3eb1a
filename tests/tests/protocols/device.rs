//! A simulated device whose memory only it can use, and whose barriers, copies and staging memory the models
//! watch.

use std::collections::VecDeque;
use std::ptr::NonNull;
use std::sync::Arc;

use estafette::devices::sim::{SimDevice, SimOptions, SimPace};
use estafette::devices::{Allocation, DLDevice, Device, DeviceError, DeviceErrorKind, Fence, Queue};
use estafette_sync::sync::Mutex;
use estafette_sync::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// A model's view of its device, which it outlives.
#[derive(Debug, Default)]
pub struct Seen {
    /// Addresses that work of a consumer uses.
    in_use: Mutex<Vec<usize>>,
    /// Allocations that were freed, and how many of them while work used them.
    pub freed: AtomicUsize,
    pub freed_early: AtomicUsize,
    /// Staging memory that there is, and the most that there was at once.
    pub staged: AtomicUsize,
    pub staged_max: AtomicUsize,
    /// Barriers that came while a graph was captured.
    pub capturing: AtomicBool,
    pub spoiled: AtomicUsize,
}

impl Seen {
    pub fn is_in_use(&self, at: usize) -> bool {
        self.in_use.lock().contains(&at)
    }
}

/// The device.
#[derive(Debug)]
pub struct Watched {
    pub sim: Arc<SimDevice>,
    pub seen: Arc<Seen>,
    /// Errors of the next barriers; those after them are well.
    pub barriers: Mutex<VecDeque<DeviceError>>,
}

impl Watched {
    /// A device that completes work at once, on a thread of its own.
    pub fn new() -> Arc<Self> {
        Self::with(SimPace::Immediate)
    }

    pub fn with(pace: SimPace) -> Arc<Self> {
        let sim = SimDevice::new(SimOptions { pace, ..SimOptions::default() });
        Arc::new(Self { sim: sim.unwrap(), seen: Arc::default(), barriers: Mutex::default() })
    }

    /// Work of a consumer on the memory at `at`, on a queue that the engine does not know.
    pub fn use_memory(&self, at: usize) {
        self.seen.in_use.lock().push(at);
        let seen = Arc::clone(&self.seen);
        let work = move || {
            let mut in_use = seen.in_use.lock();
            let place = in_use.iter().position(|one| *one == at).unwrap();
            in_use.swap_remove(place);
        };
        self.sim.queue(false).launch("work", 1, work).unwrap();
    }
}

pub fn refused() -> DeviceError {
    DeviceError::new(DeviceErrorKind::Other, "a graph is being captured").with_code(900)
}

pub fn broken() -> DeviceError {
    DeviceError::new(DeviceErrorKind::Fault, "illegal address").with_code(700)
}

impl Device for Watched {
    fn id(&self) -> DLDevice {
        self.sim.id()
    }

    fn name(&self) -> &str {
        "watched"
    }

    fn host_accessible(&self) -> bool {
        false
    }

    fn default_queue(&self) -> Arc<dyn Queue> {
        self.sim.default_queue()
    }

    fn create_queue(&self) -> Result<Arc<dyn Queue>, DeviceError> {
        self.sim.create_queue()
    }

    fn barrier(&self) -> Result<Fence, DeviceError> {
        self.seen.spoiled.fetch_add(self.seen.capturing.load(Ordering::SeqCst).into(), Ordering::SeqCst);
        let error = self.barriers.lock().pop_front();
        let barrier = error.map_or_else(|| self.sim.barrier(), Err);
        self.seen.spoiled.fetch_add(self.seen.capturing.load(Ordering::SeqCst).into(), Ordering::SeqCst);
        barrier
    }

    fn allocate(&self, bytes: usize, align: usize) -> Result<Allocation, DeviceError> {
        let (memory, seen) = (self.sim.allocate(bytes, align)?, Arc::clone(&self.seen));
        let at = memory.ptr();
        let freed = move |at: NonNull<u8>, _| {
            seen.freed.fetch_add(1, Ordering::SeqCst);
            seen.freed_early.fetch_add(seen.is_in_use(at.as_ptr().addr()).into(), Ordering::SeqCst);
            drop(memory);
        };
        // SAFETY: the memory is kept until it is released.
        Ok(unsafe { Allocation::from_raw(at, bytes, self.id(), freed) })
    }

    unsafe fn copy(
        &self,
        queue: &dyn Queue,
        src: *const u8,
        dst: *mut u8,
        bytes: usize,
    ) -> Result<(), DeviceError> {
        // SAFETY: by contract.
        unsafe { self.sim.copy(queue, src, dst, bytes) }
    }

    fn host_copy_blocks(&self, _host: *const u8) -> bool {
        true
    }

    fn allocate_staging(&self, bytes: usize) -> Result<Allocation, DeviceError> {
        let (memory, seen) = (self.sim.allocate(bytes, 1)?, Arc::clone(&self.seen));
        let at = memory.ptr();
        let staged = seen.staged.fetch_add(1, Ordering::SeqCst) + 1;
        seen.staged_max.fetch_max(staged, Ordering::SeqCst);
        let freed = move |_, _| {
            seen.staged.fetch_sub(1, Ordering::SeqCst);
            drop(memory);
        };
        // SAFETY: the memory is kept until it is released.
        Ok(unsafe { Allocation::from_raw(at, bytes, DLDevice::CPU, freed) })
    }
}
