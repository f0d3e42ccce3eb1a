//! A runtime that refuses what a test says. Nothing of it runs.

use std::cell::Cell;
use std::ffi::{c_char, c_int, c_void};
use std::process;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use crate::{DLDevice, Device, DeviceErrorKind, DeviceType, FenceState, Queue};

use super::api::{Api, ErrorHandler, Object, QUEUE_PROFILING};
use super::context::Context;
use super::device::SyclDevice;
use super::handle::Handle;
use super::queue::SyclQueue;

thread_local! {
    static REFUSES_BARRIERS: Cell<bool> = const { Cell::new(false) };
}

extern "C" fn absent() {
    process::abort();
}

/// Objects are addresses that are never followed.
fn object() -> Object {
    NonNull::dangling().as_ptr()
}

extern "C" fn delete(_: Object) {}

extern "C" fn copy(_: Object) -> Object {
    object()
}

/// The device has no profiling.
extern "C" fn create(_: Object, _: Object, _: Option<ErrorHandler>, properties: c_int) -> Object {
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
    if REFUSES_BARRIERS.get() { ptr::null_mut() } else { object() }
}

extern "C" fn barrier_for(queue: Object, _: *const Object, _: usize) -> Object {
    barrier(queue)
}

/// Nothing is ever done, by `DPCTL_SUBMITTED`; and no backend has that number.
extern "C" fn status(_: Object) -> u32 {
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
    true
}

extern "C" fn memory(_: Object) -> u64 {
    1 << 30
}

fn device() -> Arc<SyclDevice> {
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
    api.event_status = status;
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
