//! Consumers with a SYCL queue, in Rust and through the C interface, on the real runtime. `cargo xtask test
//! --suite sycl` has one.

use std::ffi::c_void;
use std::ptr;
use std::sync::Arc;
use std::time::Duration;

use estafette::devices::sycl::{SyclDevice, SyclQueue, SyclRuntime, UsmKind};
use estafette::devices::{Allocation, DLDevice, Device, Queue};
use estafette::lease::Consumer;
use estafette::{Access, DType, Engine, Op, Tensor};
use estafette_c::estafette_status::ESTAFETTE_OK;
use estafette_c::{
    estafette_lease, estafette_lease_fence, estafette_lease_release, estafette_order_on,
    estafette_tensor_release, tensor_handle,
};

/// So long that a fill of it is under way for milliseconds.
const BYTES: i64 = 64 << 20;

fn sycl() -> Arc<SyclDevice> {
    Arc::clone(&SyclRuntime::get().unwrap_or_else(|error| panic!("{error}")).devices()[0])
}

fn fill(engine: &Engine, queue: &Arc<dyn Queue>, x: &Tensor, value: u8) -> Op {
    let op = engine.op("fill").writes([x]).on(queue);
    op.run_on(move |queue, [], [mut x]| {
        let queue = SyclQueue::from_queue(queue).expect("a SYCL queue");
        // SAFETY: the engine keeps the tensor, and all other uses away from it, until the work is done.
        Ok(unsafe { queue.fill(x.data_mut_ptr(), value, BYTES as usize) }?)
    })
    .unwrap()
}

/// A consumer: it copies what it was given, on a queue of its own, to memory of its own.
struct Theirs {
    device: Arc<SyclDevice>,
    queue: Arc<SyclQueue>,
    memory: Allocation,
}

impl Theirs {
    fn new(device: &Arc<SyclDevice>, in_order: bool) -> Self {
        let memory = device.allocate_usm(UsmKind::Shared, BYTES as usize, 64).unwrap();
        Self { device: Arc::clone(device), queue: device.queue(in_order).unwrap(), memory }
    }

    fn copies(&self, x: &Tensor) {
        let (from, to) = (x.data_ptr().unwrap(), self.memory.ptr().as_ptr());
        // SAFETY: the lease keeps the tensor, and the memory is this consumer's.
        unsafe { self.device.copy(&*self.queue, from, to, BYTES as usize) }.unwrap();
    }

    /// The value that it has read, if that was all the same.
    fn read(&self) -> u8 {
        self.queue.record().unwrap().wait_timeout(None).unwrap().unwrap();
        // SAFETY: shared memory that no code writes any more.
        let bytes = unsafe { std::slice::from_raw_parts(self.memory.ptr().as_ptr(), BYTES as usize) };
        assert!(bytes.iter().all(|byte| *byte == bytes[0]), "read while it was written");
        bytes[0]
    }
}

#[test]
fn a_queue_from_outside_waits_for_us_and_we_for_it_and_the_host_for_nothing() {
    let device = sycl();
    let engine = Engine::builder().workers(1).build().unwrap();
    let ours = device.create_queue().unwrap();
    let x = engine.empty(&[BYTES], DType::U8, device.id()).unwrap();
    let theirs = Theirs::new(&device, true);
    for round in 1..=8 {
        fill(&engine, &ours, &x, 0);
        fill(&engine, &ours, &x, round).wait().unwrap();
        let native = theirs.queue.native();
        // SAFETY: the queue lives.
        let foreign = unsafe { Device::foreign_queue(&*device, native) }.unwrap();
        let consumer = Consumer::Queue(foreign);
        // No time to wait: what is not done is waited for by the queue.
        let lease =
            x.lease(Access::Read, "a consumer").for_consumer(&consumer).wait(Some(Duration::ZERO)).unwrap();
        drop(consumer);
        theirs.copies(&x);
        drop(lease);
        // Behind the copy, which has most likely not begun.
        fill(&engine, &ours, &x, 100 + round);
        assert_eq!(theirs.read(), round);
    }
    assert_eq!(engine.stats().quarantine.given_up, 0);
}

#[test]
fn the_c_interface_orders_a_sycl_queue_and_is_notified_of_its_end() {
    let device = sycl();
    let engine = Engine::builder().workers(1).build().unwrap();
    let ours = device.create_queue().unwrap();
    let x = engine.empty(&[BYTES], DType::U8, device.id()).unwrap();
    let handle = tensor_handle(x.clone()).unwrap();
    let theirs = Theirs::new(&device, true);
    for round in 1..=4 {
        fill(&engine, &ours, &x, 0);
        fill(&engine, &ours, &x, round).wait().unwrap();
        let stream: *mut c_void = ptr::with_exposed_provenance_mut(theirs.queue.native());
        let mut lease: *mut estafette_lease = ptr::null_mut();
        // SAFETY: a live tensor, a live queue, and a place.
        let taken = unsafe { estafette_order_on(handle, 0, device.id(), stream, &mut lease) };
        assert_eq!(taken, ESTAFETTE_OK);
        theirs.copies(&x);
        let mut fence = std::mem::MaybeUninit::uninit();
        // SAFETY: a live lease, given up once; the fence is one that the first call has made.
        unsafe {
            assert_eq!(estafette_lease_fence(lease, fence.as_mut_ptr()), ESTAFETTE_OK);
            assert_eq!(estafette_lease_release(lease, ptr::null()), ESTAFETTE_OK);
            let fence = fence.assume_init();
            // The end is the end of the copy.
            assert_eq!(fence.wait.unwrap()(fence.context, u64::MAX), 0);
            fence.release.unwrap()(fence.context);
        }
        assert_eq!(theirs.read(), round);
    }
    let mut lease: *mut estafette_lease = ptr::null_mut();
    let somewhere = DLDevice { device_id: 7, ..device.id() };
    // SAFETY: a live tensor and a place; the stream is not looked at.
    let refused =
        unsafe { estafette_order_on(handle, 0, somewhere, ptr::without_provenance_mut(8), &mut lease) };
    assert_ne!(refused, ESTAFETTE_OK);
    assert_eq!(estafette_tensor_release(handle), ESTAFETTE_OK);
}
