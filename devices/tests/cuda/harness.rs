//! The driver that the tests run on, one test at a time, and what they do with it again and again.

use std::ffi::c_void;
use std::ptr;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use cudarc::driver::sys::{self, CUcontext, CUresult, CUstream};
use estafette_cuda_sim_client::Simulator;
use estafette_devices::conformance::Blocked;
use estafette_devices::cuda::{CudaDevice, CudaQueue, CudaRuntime};
use estafette_devices::{Allocation, Device, Fence, Order, Outcome, Queue};
use estafette_sync::sync::{Mutex, MutexGuard};

/// A wait this long means a lost wake-up.
pub const PATIENCE: Duration = Duration::from_secs(20);
/// Long enough to notice what should not happen.
pub const MOMENT: Duration = Duration::from_millis(30);
/// A test that breaks a device leaves it broken, so there are enough of them.
const DEVICES: u32 = 48;

static TURN: Mutex<()> = Mutex::new(());

/// One device that works, for one test.
pub struct Bench {
    /// `None` on a GPU.
    simulator: Option<&'static Simulator>,
    pub device: Arc<CudaDevice>,
    _turn: MutexGuard<'static, ()>,
}

pub fn is_gpu() -> bool {
    std::env::var_os("ESTAFETTE_CUDA").is_some_and(|what| what == "gpu")
}

/// The simulator, unless the tests are to run on the machine's own driver.
pub fn simulator() -> Option<&'static Simulator> {
    if is_gpu() {
        return None;
    }
    let simulator = Simulator::load_without(crate::MISSING).expect("the simulator is built with the tests");
    simulator.devices(DEVICES);
    // Before the first device is opened, and again after what was scripted is forgotten.
    for (attribute, value) in crate::ATTRIBUTES {
        simulator.attribute(*attribute, *value);
    }
    Some(simulator)
}

/// A device that nothing has broken yet.
pub fn device() -> Arc<CudaDevice> {
    intact_devices().into_iter().next().expect("there is a device that still works")
}

pub fn intact_devices() -> Vec<Arc<CudaDevice>> {
    simulator();
    let runtime = CudaRuntime::get().unwrap_or_else(|error| panic!("{error}"));
    runtime.devices().iter().filter(|device| device.fault().is_none()).cloned().collect()
}

pub fn bench() -> Bench {
    let turn = TURN.lock();
    let simulator = simulator();
    let device = device();
    if let Some(simulator) = simulator {
        simulator.reset();
    }
    let simulator = self::simulator();
    flags(&device);
    Bench { simulator, device, _turn: turn }
}

impl Bench {
    /// The simulator; `None`, said aloud, on a GPU.
    pub fn simulator(&self, why: &str) -> Option<&'static Simulator> {
        if self.simulator.is_none() {
            eprintln!("skipped on a GPU: {why}");
        }
        self.simulator
    }

    /// Number of pieces of work that a blocked stream takes, beside the wait that blocks it and what marks
    /// the work's end, before a call that enqueues more waits.
    pub fn room(&self) -> usize {
        room()
    }

    /// True if a stream goes on while so many others are blocked; `false`, said aloud, if streams share fewer
    /// hardware connections than that.
    pub fn runs_beside(&self, blocked: usize) -> bool {
        let has_room = connections() > blocked;
        if !has_room {
            eprintln!("skipped: the streams share {} hardware connections", connections());
        }
        has_room
    }

    /// A second device that works.
    pub fn another_device(&self) -> Option<Arc<CudaDevice>> {
        let other = intact_devices().into_iter().find(|other| other.ordinal() != self.device.ordinal());
        if other.is_none() {
            eprintln!("skipped: there is one device only");
        }
        other
    }

    pub fn queue(&self) -> Arc<CudaQueue> {
        self.device.queue().expect("a device gives a few queues")
    }

    /// Memory filled with zeros.
    pub fn memory(&self, bytes: usize) -> Allocation {
        let memory = self.device.allocate(bytes, 64).expect("there is room for a few bytes");
        let queue = self.queue();
        fill(&queue, &memory, 0);
        assert!(settle(&record(&queue)).is_ok());
        memory
    }

    /// A copy within the device, or from and to the host.
    pub fn copy(&self, queue: &CudaQueue, from: &Allocation, to: &Allocation) {
        assert_eq!(from.len(), to.len());
        // SAFETY: tests settle what they enqueue before they drop their memory, and order accesses with the
        // waits under test.
        unsafe { self.device.copy(queue, from.ptr().as_ptr(), to.ptr().as_ptr(), from.len()) }
            .expect("a queue that has not failed takes work");
    }

    pub fn read(&self, memory: &Allocation) -> Vec<u8> {
        let mut host = vec![0xee; memory.len()];
        let queue = self.queue();
        // SAFETY: both are valid for that length, and the fence is settled before either is used again.
        unsafe { self.device.copy(&*queue, memory.ptr().as_ptr(), host.as_mut_ptr(), memory.len()) }
            .expect("a fresh queue takes work");
        assert!(settle(&record(&queue)).is_ok());
        host
    }

    #[track_caller]
    pub fn assert_filled(&self, memory: &Allocation, value: u8) {
        let bytes = self.read(memory);
        assert!(bytes.iter().all(|&byte| byte == value), "expected only {value}, found {bytes:?}");
    }

    /// The simulator has seen nothing that was not ordered, no use after a release and no forbidden call.
    #[track_caller]
    pub fn assert_nothing_wrong(&self) {
        if let Some(simulator) = self.simulator {
            assert_eq!(simulator.violations(), [""; 0]);
            assert_eq!(simulator.calls("cuCtxSynchronize"), 0, "nothing waits for a whole context");
        }
    }

    /// A foreign stream, in this device's context.
    pub fn foreign_stream(&self) -> ForeignStream {
        ForeignStream::new(&self.device)
    }
}

/// About a thousand: the documented number that a driver takes before a launch waits.
const DRIVERS_DEPTH: usize = 1_000;
/// The driver's number for a process unless `CUDA_DEVICE_MAX_CONNECTIONS` says otherwise.
const DRIVERS_CONNECTIONS: usize = 8;

pub fn room() -> usize {
    let depth = simulator().map_or(Some(DRIVERS_DEPTH), |simulator| simulator.limits().1);
    depth.map_or(usize::MAX, |depth| depth - 4)
}

/// Number of streams that may be blocked, and one more goes on.
pub fn connections() -> usize {
    if let Some(simulator) = simulator() {
        return simulator.limits().0.unwrap_or(usize::MAX);
    }
    let asked = std::env::var("CUDA_DEVICE_MAX_CONNECTIONS").ok();
    asked.and_then(|number| number.parse().ok()).unwrap_or(DRIVERS_CONNECTIONS)
}

pub fn fill(queue: &CudaQueue, memory: &Allocation, value: u8) {
    // SAFETY: tests keep the memory alive and order accesses to it.
    unsafe { queue.fill(memory.ptr().as_ptr(), value, memory.len()) }
        .expect("a queue that has not failed takes work");
}

pub fn record(queue: &CudaQueue) -> Fence {
    queue.record().expect("a queue that has not failed gives fences")
}

pub fn order(queue: &CudaQueue, fence: &Fence) -> Order {
    queue.order_after(fence).expect("neither queue nor fence has failed")
}

/// Waits until the fence has settled.
#[track_caller]
pub fn settle(fence: &Fence) -> Outcome {
    fence.wait_timeout(Some(PATIENCE)).expect("it settles in time")
}

/// Enqueues a wait that ends when the returned guard is dropped.
pub fn block(queue: &dyn Queue) -> Blocked {
    let runtime = CudaRuntime::get().expect("the queue is of some device");
    let device = runtime.device(queue.device().device_id).expect("the queue's");
    hold(device, ptr::with_exposed_provenance_mut(queue.native()))
}

/// The same on a stream of the device.
pub fn hold(device: &CudaDevice, stream: CUstream) -> Blocked {
    let flag = next_flag(device);
    inside(device, || {
        let at = ptr::from_ref(flag).expose_provenance() as u64;
        // SAFETY: the flag stays for good: the device reads it while it waits. The stream is live;
        // CU_STREAM_WAIT_VALUE_EQ is 1.
        unsafe { assert_ok(sys::cuStreamWaitValue32_v2(stream, at, 1, 1)) };
    });
    Blocked::new(move || flag.store(1, Ordering::SeqCst))
}

/// Number of streams that the tests of a process may block.
const FLAGS: usize = 4_096;

/// A word of pinned memory, 0 at first, that nothing else uses. All of them are made before the first stream
/// is blocked: pinning memory may wait for the whole device.
fn next_flag(device: &CudaDevice) -> &'static AtomicU32 {
    static TAKEN: AtomicUsize = AtomicUsize::new(0);
    let taken = TAKEN.fetch_add(1, Ordering::Relaxed);
    flags(device).get(taken).expect("the tests block fewer streams than there are flags")
}

fn flags(device: &CudaDevice) -> &'static [AtomicU32] {
    static MADE: OnceLock<&'static [AtomicU32]> = OnceLock::new();
    MADE.get_or_init(|| {
        let bytes = FLAGS * size_of::<AtomicU32>();
        let mut place: *mut c_void = ptr::null_mut();
        inside(device, || {
            // SAFETY: writes one address; 1 makes the memory that of all contexts.
            unsafe { assert_ok(sys::cuMemHostAlloc(&raw mut place, bytes, 1)) };
        });
        // SAFETY: so many bytes were just allocated, are aligned to pages, and are never released.
        unsafe {
            place.cast::<u8>().write_bytes(0, bytes);
            std::slice::from_raw_parts(place.cast(), FLAGS)
        }
    })
}

#[track_caller]
pub fn assert_ok(code: CUresult) {
    assert_eq!(code, CUresult::CUDA_SUCCESS);
}

/// A stream that the test has made itself, as another library would.
pub struct ForeignStream {
    pub raw: CUstream,
    device: Arc<CudaDevice>,
}

impl ForeignStream {
    pub fn new(device: &Arc<CudaDevice>) -> Self {
        let mut stream = ptr::null_mut();
        inside(device, || {
            // SAFETY: writes one handle; non-blocking.
            unsafe { assert_ok(sys::cuStreamCreate(&raw mut stream, 1)) };
        });
        Self { raw: stream, device: Arc::clone(device) }
    }

    pub fn handle(&self) -> usize {
        self.raw.expose_provenance()
    }

    pub fn fill(&self, memory: &Allocation, value: u8) {
        let at = memory.ptr().as_ptr().expose_provenance() as u64;
        inside(&self.device, || {
            // SAFETY: tests keep the memory alive and order accesses to it.
            unsafe { assert_ok(sys::cuMemsetD8Async(at, value, memory.len(), self.raw)) };
        });
    }
}

impl Drop for ForeignStream {
    fn drop(&mut self) {
        inside(&self.device, || {
            // SAFETY: destroyed this once; what is enqueued goes on.
            let _ = unsafe { sys::cuStreamDestroy_v2(self.raw) };
        });
    }
}

/// Runs `f` in the device's primary context, as a library that uses the runtime interface does.
pub fn inside<R>(device: &CudaDevice, f: impl FnOnce() -> R) -> R {
    let mut context: CUcontext = ptr::with_exposed_provenance_mut(device.native_context());
    // SAFETY: a context that stays; what is pushed is popped.
    unsafe {
        assert_ok(sys::cuCtxPushCurrent_v2(context));
        let result = f();
        assert_ok(sys::cuCtxPopCurrent_v2(&raw mut context));
        result
    }
}

/// The next command that begins on `queue` after what is enqueued there fails, and with it the device.
pub fn break_next(simulator: &Simulator, queue: &CudaQueue) {
    const ILLEGAL_ADDRESS: i32 = 700;
    let stream = queue.native();
    simulator.fault(stream, simulator.pending(stream) + 1, ILLEGAL_ADDRESS);
}
