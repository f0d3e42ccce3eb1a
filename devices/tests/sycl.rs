//! SYCL devices pass the suite that every device has to pass, on the real runtime. `cargo xtask test --suite
//! sycl` has one; a plain test run leaves these out.

use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::{Arc, OnceLock};

use estafette_devices::conformance::{Blocked, Harness, Report, Skip, run};
use estafette_devices::sycl::{SyclDevice, SyclQueue, SyclRuntime};
use estafette_devices::{Allocation, Device, DeviceError, Queue};
use libloading::os::unix::Library;

fn device() -> Arc<SyclDevice> {
    let runtime = SyclRuntime::get().unwrap_or_else(|error| panic!("{error}"));
    Arc::clone(&runtime.devices()[0])
}

/// Events that the host completes, as OpenCL has them and the C interface does not: made of a `cl_event` by
/// the runtime's own functions (intel/llvm: `sycl::detail::make_event`, by its name in the Itanium C++ ABI).
struct UserEvents {
    create: unsafe extern "C" fn(*mut c_void, *mut c_int) -> *mut c_void,
    set_status: unsafe extern "C" fn(*mut c_void, c_int) -> c_int,
    /// An object that is not returned in registers is put where the first argument says.
    make_event: unsafe extern "C" fn(*mut [usize; 2], *mut c_void, *mut c_void, bool, i8) -> *mut c_void,
    barrier_for: unsafe extern "C" fn(*mut c_void, *const *mut c_void, usize) -> *mut c_void,
    delete_event: unsafe extern "C" fn(*mut c_void),
    context: usize,
    opencl_context: usize,
}

/// `sycl::backend::opencl`.
const OPENCL: i8 = 1;
/// `CL_COMPLETE`.
const COMPLETE: c_int = 0;

/// A file that the process has loaded, by the beginning of its name.
fn loaded(prefix: &str) -> &'static Library {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("Linux tells what is loaded");
    let mut files = maps.lines().filter_map(|line| line.split_whitespace().nth(5));
    let has_name = |file: &&str| file.rsplit('/').next().is_some_and(|name| name.starts_with(prefix));
    let file = files.find(has_name).unwrap_or_else(|| panic!("{prefix} is not loaded"));
    // SAFETY: in the process already.
    Box::leak(Box::new(unsafe { Library::open(Some(file), libc::RTLD_NOW) }.expect("loaded already")))
}

impl UserEvents {
    fn get(device: &SyclDevice) -> &'static UserEvents {
        static EVENTS: OnceLock<UserEvents> = OnceLock::new();
        EVENTS.get_or_init(|| {
            let [sycl, opencl, dpctl] =
                ["libsycl.so", "libOpenCL.so", "libDPCTLSyclInterface.so"].map(loaded);
            let context = device.native_context();
            // SAFETY: the declarations are those of the headers, with `this` first; the libraries stay.
            unsafe {
                let native = sycl
                    .get::<unsafe extern "C" fn(*mut c_void) -> *mut c_void>(
                        b"_ZNK4sycl3_V17context9getNativeEv\0",
                    )
                    .expect("is there");
                let opencl_context = native(ptr::with_exposed_provenance_mut(context)).expose_provenance();
                UserEvents {
                    create: *opencl.get(b"clCreateUserEvent\0").expect("is there"),
                    set_status: *opencl.get(b"clSetUserEventStatus\0").expect("is there"),
                    make_event: *sycl
                        .get(b"_ZN4sycl3_V16detail10make_eventEmRKNS0_7contextEbNS0_7backendE\0")
                        .expect("is there"),
                    barrier_for: *dpctl.get(b"DPCTLQueue_SubmitBarrierForEvents\0").expect("is there"),
                    delete_event: *dpctl.get(b"DPCTLEvent_Delete\0").expect("is there"),
                    context,
                    opencl_context,
                }
            }
        })
    }

    /// Makes what is enqueued on `queue` from here on wait for an event, which is returned for
    /// [`UserEvents::complete`].
    fn hold(&self, queue: &dyn Queue) -> usize {
        let native = ptr::with_exposed_provenance_mut(queue.native());
        let (context, opencl) = (self.context, self.opencl_context);
        // A few events per process stay for ever: the runtime's handles to them have no end that is known
        // here.
        let event = Box::leak(Box::new([0_usize; 2]));
        // SAFETY: live objects; a `sycl::event` is a shared pointer, two words.
        unsafe {
            let mut code = COMPLETE;
            let user = (self.create)(ptr::with_exposed_provenance_mut(opencl), &raw mut code);
            assert_eq!(code, COMPLETE);
            (self.make_event)(event, user, ptr::with_exposed_provenance_mut(context), true, OPENCL);
            let list = (&raw mut *event).cast::<c_void>();
            let barrier = (self.barrier_for)(native, &raw const list, 1);
            assert!(!barrier.is_null(), "the barrier is taken");
            (self.delete_event)(barrier);
            user.expose_provenance()
        }
    }

    fn complete(&self, event: usize) {
        // SAFETY: a live user event, completed once.
        let code = unsafe { (self.set_status)(ptr::with_exposed_provenance_mut(event), COMPLETE) };
        assert_eq!(code, COMPLETE);
    }
}

struct SyclHarness {
    in_order: bool,
    device: Arc<SyclDevice>,
}

impl SyclHarness {
    fn new(in_order: bool) -> Self {
        Self { in_order, device: device() }
    }
}

/// The device, giving queues of one kind.
#[derive(Debug)]
struct OfKind {
    device: Arc<SyclDevice>,
    in_order: bool,
}

impl Device for OfKind {
    fn id(&self) -> estafette_devices::DLDevice {
        self.device.id()
    }

    fn name(&self) -> &str {
        self.device.name()
    }

    fn host_accessible(&self) -> bool {
        self.device.host_accessible()
    }

    fn default_queue(&self) -> Arc<dyn Queue> {
        self.device.default_queue()
    }

    fn create_queue(&self) -> Result<Arc<dyn Queue>, DeviceError> {
        Ok(self.device.queue(self.in_order)?)
    }

    fn allocate(&self, bytes: usize, align: usize) -> Result<Allocation, DeviceError> {
        self.device.allocate(bytes, align)
    }

    unsafe fn copy(
        &self,
        queue: &dyn Queue,
        src: *const u8,
        dst: *mut u8,
        bytes: usize,
    ) -> Result<(), DeviceError> {
        // SAFETY: passed on.
        unsafe { self.device.copy(queue, src, dst, bytes) }
    }
}

fn sycl(queue: &dyn Queue) -> &SyclQueue {
    SyclQueue::from_queue(queue).expect("a SYCL queue")
}

impl Harness for SyclHarness {
    fn device(&self) -> Arc<dyn Device> {
        Arc::new(OfKind { device: Arc::clone(&self.device), in_order: self.in_order })
    }

    fn fill(&self, queue: &dyn Queue, memory: &Allocation, value: u8) -> Result<(), DeviceError> {
        // SAFETY: the suite keeps the memory alive and orders accesses to it.
        unsafe { sycl(queue).fill(memory.ptr().as_ptr(), value, memory.len()) }
    }

    fn block(&self, queue: &dyn Queue) -> Result<Blocked, Skip> {
        let events = UserEvents::get(&self.device);
        let held = events.hold(queue);
        Ok(Blocked::new(move || events.complete(held)))
    }

    fn can_break(&self) -> Result<(), Skip> {
        // Tried with a user event that ends in an error: the status of what depends on it reads "complete",
        // and an out-of-order queue crashes in the driver.
        Err(Skip::because("the CPU driver does not report that a command failed"))
    }
}

/// The checks that need a queue to break.
const BREAKING: [&str; 5] = [
    "failure: unfinished fences fail with one root error, as often as asked",
    "failure: what was done before stays done",
    "failure: a failed queue takes no more work",
    "failure: a queue that waits for a failed one does not hang",
    "failure: callbacks and futures get the error",
];

#[test]
fn in_order_queues_pass() {
    let report: Report = run(&SyclHarness::new(true));
    assert_eq!(report.skipped_names(), BREAKING);
    assert!(report.passed.len() > 35, "{report:?}");
}

#[test]
fn out_of_order_queues_pass() {
    let report = run(&SyclHarness::new(false));
    let skipped = report.skipped_names();
    assert_eq!(skipped[0], "ordering: an in-order queue needs no wait for its own fences");
    assert_eq!(skipped[1..], BREAKING);
}
