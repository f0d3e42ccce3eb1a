//! A runtime that refuses what a test says. Nothing of it runs. A call after its shutdown, or in a forked
//! child, ends the process.

use std::cell::Cell;
use std::ffi::{c_char, c_int, c_void};
use std::process::{self, Command};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use estafette_sync::platform::child::in_forked_child;

use crate::{
    Allocation, DLDevice, Device, DeviceErrorKind, DeviceType, Fence, FenceState, NativeEvent, Queue,
};

use super::api::{Api, ErrorHandler, Object, QUEUE_PROFILING};
use super::context::{Context, UsmKind};
use super::device::SyclDevice;
use super::exit::{self, RUNTIME};
use super::handle::Handle;
use super::queue::SyclQueue;

thread_local! {
    static REFUSES_BARRIERS: Cell<bool> = const { Cell::new(false) };
}

/// Set once the runtime has shut down.
static SHUT_DOWN: AtomicBool = AtomicBool::new(false);
/// The process that has started the runtime.
static OF: AtomicU32 = AtomicU32::new(0);
/// The status of a process that has called a runtime that does not work.
const CALLED: c_int = 86;

extern "C" fn absent() {
    process::abort();
}

extern "C" fn shut_down() {
    SHUT_DOWN.store(true, Ordering::Relaxed);
}

fn called() {
    if SHUT_DOWN.load(Ordering::Relaxed) || OF.load(Ordering::Relaxed) != process::id() {
        // SAFETY: ends the process.
        unsafe { libc::_exit(CALLED) };
    }
}

/// Objects are addresses that are never followed.
fn object() -> Object {
    called();
    ptr::without_provenance_mut(64)
}

extern "C" fn delete(_: Object) {
    called();
}

extern "C" fn allocate(_: usize, _: usize, _: Object) -> Object {
    object()
}

extern "C" fn free(_: Object, _: Object) {
    called();
}

extern "C" fn hash(_: Object) -> usize {
    called();
    1
}

extern "C" fn kind(_: Object, _: Object) -> u32 {
    called();
    1
}

extern "C" fn copy(_: Object) -> Object {
    object()
}

/// The device has no profiling.
extern "C" fn create(_: Object, _: Object, _: Option<ErrorHandler>, properties: c_int) -> Object {
    called();
    if properties & QUEUE_PROFILING == 0 { object() } else { ptr::null_mut() }
}

extern "C" fn memcpy(
    _: Object,
    _: *mut c_void,
    _: *const c_void,
    _: usize,
    _: *const Object,
    _: usize,
) -> Object {
    object()
}

extern "C" fn barrier(_: Object) -> Object {
    called();
    if REFUSES_BARRIERS.get() { ptr::null_mut() } else { object() }
}

extern "C" fn barrier_for(queue: Object, _: *const Object, _: usize) -> Object {
    barrier(queue)
}

/// Nothing is ever done, by `DPCTL_SUBMITTED`; and no backend has that number.
extern "C" fn status(_: Object) -> u32 {
    called();
    1
}

extern "C" fn name(_: Object) -> *const c_char {
    ptr::null()
}

extern "C" fn no(_: Object) -> bool {
    false
}

extern "C" fn has(_: Object, _: c_int) -> bool {
    true
}

extern "C" fn same(_: Object, _: Object) -> bool {
    called();
    true
}

extern "C" fn memory(_: Object) -> u64 {
    1 << 30
}

fn device() -> Arc<SyclDevice> {
    OF.store(process::id(), Ordering::Relaxed);
    RUNTIME.claim();
    let mut api = Api::double(absent);
    api.device_delete = delete;
    api.device_name = name;
    api.device_backend = status;
    api.device_is_cpu = no;
    api.device_is_gpu = no;
    api.device_aspect = has;
    api.device_memory = memory;
    api.context_delete = delete;
    api.context_eq = same;
    api.queue_create = create;
    api.queue_copy = copy;
    api.queue_delete = delete;
    api.queue_memcpy = memcpy;
    api.queue_barrier = barrier;
    api.queue_barrier_for = barrier_for;
    api.event_delete = delete;
    api.event_copy = copy;
    api.event_status = status;
    (api.alloc_shared, api.alloc_host) = (allocate, allocate);
    api.free = free;
    api.queue_hash = hash;
    api.pointer_kind = kind;
    let api: &'static Api = Box::leak(Box::new(api));
    // SAFETY: objects of the double are never followed.
    let [context, device] = [(); 2].map(|()| unsafe { Handle::own(object(), delete) }.expect("not null"));
    let context = Arc::new(Context::new(api, context));
    SyclDevice::new(DLDevice::new(DeviceType::ONE_API, 0), context, device).expect("it refuses nothing")
}

fn copies(device: &SyclDevice, queue: &SyclQueue) -> bool {
    let (from, mut to) = ([0_u8; 8], [0_u8; 8]);
    // SAFETY: nothing is copied.
    unsafe { device.copy(queue, from.as_ptr(), to.as_mut_ptr(), 8) }.is_ok()
}

#[test]
fn a_measurement_that_cannot_begin_leaves_the_queue_as_it_was() {
    let device = device();
    let queue = device.queue(true).expect("it has queues");
    assert!(queue.time().is_none(), "the device has no profiling");
    assert!(copies(&device, &queue) && queue.native() != 0);
    queue.record().expect("nothing failed");
}

#[test]
fn memory_of_the_host_may_be_larger_than_that_of_the_device() {
    let device = device();
    let larger = 2 * device.memory_bytes() as usize;
    let shared = device.allocate_usm(UsmKind::Shared, larger, 64).expect_err("the device has less");
    assert_eq!(shared.kind(), DeviceErrorKind::OutOfMemory);
    device.allocate_usm(UsmKind::Host, larger, 64).expect("the host has more");
}

/// Work goes on after an error that is no fault of the device, so its memory must not be released.
#[test]
fn work_before_a_refused_barrier_has_a_fault() {
    let device = device();
    let [queue, other] = [(); 2].map(|()| device.queue(true).expect("it has queues"));
    assert!(copies(&device, &queue) && copies(&device, &other));
    let running = queue.record().expect("it works");
    queue.order_after(&other.record().expect("it works")).expect("it waits with the next command");
    REFUSES_BARRIERS.set(true);
    assert_eq!(queue.native(), 0);
    REFUSES_BARRIERS.set(false);
    let FenceState::Failed(error) = running.state() else { panic!("its queue has failed") };
    assert_eq!(error.kind(), DeviceErrorKind::Fault);
    assert!(error.message().contains("refused a barrier"), "{error}");
}

/// One of everything that calls the runtime.
struct Objects {
    device: Arc<SyclDevice>,
    queue: Arc<SyclQueue>,
    fence: Fence,
    event: NativeEvent,
    memory: Allocation,
}

impl Objects {
    fn new() -> Self {
        let device = device();
        let queue = device.queue(true).expect("it has queues");
        assert!(copies(&device, &queue));
        let fence = queue.record().expect("it works");
        let event = device.event_of_fence(&fence).expect("it has events");
        let memory = device.allocate(64, 64).expect("it has memory");
        Self { device, queue, fence, event, memory }
    }

    /// Uses and drops all of them. True if every call is refused with a text that begins with `why`, and
    /// nothing fails.
    fn are_refused(self, why: &str) -> bool {
        let Self { device, queue, fence, event, memory } = self;
        let refusals = [
            queue.record().err(),
            queue.order_after(&fence).err(),
            device.create_queue().err(),
            device.allocate(64, 64).err(),
            device.event_of_fence(&fence).err(),
        ];
        let refused =
            refusals.into_iter().all(|error| error.is_some_and(|error| error.message().starts_with(why)));
        let at = memory.ptr().as_ptr();
        let known = copies(&device, &queue)
            || queue.native() != 0
            || queue.time().is_some()
            || device.usm_kind_of(at).is_some()
            || device.host_accessible_at(at);
        let named = queue.identity() != 0 && device.context().same(device.context());
        let pending = matches!(fence.state(), FenceState::Pending);
        drop((memory, event, queue, fence, device));
        refused && !known && named && pending
    }
}

#[test]
fn a_forked_child_calls_nothing_of_its_parents_runtime() {
    let mut objects = Some(Objects::new());
    assert!(in_forked_child(|| {
        let objects = objects.take().expect("the parent's");
        objects.device.is_inherited() && objects.are_refused("forked child")
    }));
    let Objects { queue, fence, .. } = objects.as_ref().expect("the child had a copy");
    assert!(queue.record().is_ok() && matches!(fence.state(), FenceState::Pending));
}

/// A process of its own, since what it does to its process cannot be undone.
const CHILD: &str = "ESTAFETTE_TEST_OF_SYCL_EXIT";
/// The status of a process at whose exit all was as it has to be.
const FINE: c_int = 42;

static LEFT: Mutex<Option<Objects>> = Mutex::new(None);

/// As a destructor of the program, which runs after the runtime has shut down.
extern "C" fn drop_what_is_left() {
    let left = LEFT.lock().expect("no thread panics with it").take();
    let fine = left.is_some_and(|left| left.are_refused("the process exits"));
    // SAFETY: ends the process.
    unsafe { libc::_exit(if fine { FINE } else { 1 }) };
}

#[test]
fn a_process_that_exits_calls_nothing_of_a_runtime_that_has_shut_down() {
    if std::env::var_os(CHILD).is_some() {
        // SAFETY: both are functions of this program. They run in the opposite order.
        unsafe { (libc::atexit(drop_what_is_left), libc::atexit(shut_down)) };
        *LEFT.lock().expect("no thread panics with it") = Some(Objects::new());
        return exit::arrange();
    }
    let name = "sycl::tests::a_process_that_exits_calls_nothing_of_a_runtime_that_has_shut_down";
    let program = std::env::current_exe().expect("this test is a program");
    let output = Command::new(program).args([name, "--exact"]).env(CHILD, "1").output();
    assert_eq!(output.expect("a test can be started again").status.code(), Some(FINE));
}
