//! Arrow's `sync_event` on CUDA devices, a `cudaEvent_t*`, in both directions, on the driver simulator:
//! nothing here has seen a GPU.

use std::ffi::c_void;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, MutexGuard};
use std::time::Duration;

use estafette::devices::cuda::{CudaDevice, CudaQueue, CudaRuntime};
use estafette::devices::{Allocation, Device, DeviceType, Fence, Order, Queue};
use estafette::exchange::arrow::ArrowDeviceArray;
use estafette::{DType, Engine};
use estafette_cuda_sim_client::Simulator;
use tests::ops::until;

const COUNT: usize = 64;
const PATIENCE: Option<Duration> = Some(Duration::from_secs(30));

#[path = "../../../engine/tests/arrow_abi/mod.rs"]
mod arrow_abi;

use arrow_abi::{Array, DeviceArray};

struct Bench {
    simulator: &'static Simulator,
    device: Arc<CudaDevice>,
    engine: Engine,
    _alone: MutexGuard<'static, ()>,
}

fn bench() -> Bench {
    let (alone, simulator) = crate::simulator();
    simulator.forget_violations();
    let device = CudaRuntime::get().expect("a simulated driver").device(0).expect("it has devices");
    let engine = Engine::builder().workers(1).build().unwrap();
    Bench { simulator, device: Arc::clone(device), engine, _alone: alone }
}

impl Bench {
    /// A queue that stands still until it is unblocked.
    fn blocked_queue(&self) -> Arc<CudaQueue> {
        let queue = self.device.queue().unwrap();
        self.simulator.block(queue.native());
        queue
    }

    fn silent(&self) {
        assert_eq!(self.simulator.violations(), [""; 0]);
    }

    fn read(&self, from: *const u8) -> Vec<u8> {
        let mut bytes = vec![0; COUNT];
        let queue = self.device.queue().unwrap();
        // SAFETY: both are as long, and settled at once.
        unsafe { self.device.copy(&*queue, from, bytes.as_mut_ptr(), COUNT) }.unwrap();
        queue.record().unwrap().wait_timeout(PATIENCE).unwrap().unwrap();
        bytes
    }
}

#[test]
fn an_unfinished_tensor_leaves_at_once_with_a_cuda_event() {
    let bench = bench();
    let queue = bench.blocked_queue();
    let tensor = bench.engine.empty(&[COUNT as i64], DType::U8, bench.device.id()).unwrap();
    let write = bench.engine.op("write").writes([&tensor]).on(&(queue.clone() as Arc<dyn Queue>));
    write
        .run_on(|queue, [], [mut x]| {
            // SAFETY: the engine keeps the tensor until the work is done.
            Ok(unsafe { CudaQueue::from_queue(queue).unwrap().fill(x.data_mut_ptr(), 9, COUNT) }?)
        })
        .unwrap();
    // It would wait for ever if the host had to.
    let (_schema, array) = tensor.export_arrow_wait(PATIENCE).unwrap();
    // SAFETY: the type has the layout of the C struct, as it documents.
    let seen: &DeviceArray = unsafe { &*ptr::from_ref(&array).cast() };
    assert_eq!((seen.device_type, seen.device_id), (DeviceType::CUDA.0, 0));
    let event = NonNull::new(seen.sync_event).expect("the write is unfinished");
    // SAFETY: a pointer to an event, alive as long as the array.
    let fence: Fence = unsafe { bench.device.fence_of_event(event) }.unwrap();
    assert!(!fence.is_done());
    // A consumer that does not know the engine waits on its own stream.
    let theirs = bench.device.queue().unwrap();
    let copy = bench.device.allocate(COUNT, 64).unwrap();
    assert_eq!(theirs.order_after(&fence).unwrap(), Order::Device);
    // SAFETY: the array keeps the tensor, and the copy is the consumer's.
    unsafe { bench.device.copy(&*theirs, tensor.data_ptr().unwrap(), copy.ptr().as_ptr(), COUNT) }.unwrap();
    let end = theirs.record().unwrap();
    assert!(!end.is_done());
    bench.simulator.unblock(queue.native());
    end.wait_timeout(PATIENCE).unwrap().unwrap();
    assert!(fence.is_done());
    assert_eq!(bench.read(copy.ptr().as_ptr()), [9; COUNT]);
    drop(array);
    bench.silent();
}

/// A producer's data behind an array.
struct Kept {
    memory: Allocation,
    buffers: [*const c_void; 2],
    released: Arc<AtomicUsize>,
}

unsafe extern "C" fn release(array: *mut Array) {
    // SAFETY: `private_data` is the box that was leaked; a released array is not released again.
    unsafe {
        assert!((*array).release.take().is_some(), "released twice");
        let kept = Box::from_raw((*array).private_data.cast::<Kept>());
        kept.released.fetch_add(1, Ordering::SeqCst);
    }
}

#[test]
fn the_cuda_event_of_a_producer_holds_readers_back() {
    let bench = bench();
    let theirs = bench.blocked_queue();
    let memory = bench.device.allocate(COUNT, 64).unwrap();
    // SAFETY: settled before the array is released.
    unsafe { theirs.fill(memory.ptr().as_ptr(), 5, COUNT) }.unwrap();
    let event = bench.device.event_of_fence(&theirs.record().unwrap()).unwrap();
    let released = Arc::new(AtomicUsize::new(0));
    let kept = Kept { memory, buffers: [ptr::null(); 2], released: Arc::clone(&released) };
    let kept = Box::leak(Box::new(kept));
    kept.buffers[1] = kept.memory.ptr().as_ptr().cast();
    let mut array = DeviceArray {
        array: Array {
            length: COUNT as i64,
            null_count: 0,
            offset: 0,
            n_buffers: 2,
            n_children: 0,
            buffers: kept.buffers.as_mut_ptr(),
            children: ptr::null_mut(),
            dictionary: ptr::null_mut(),
            release: Some(release),
            private_data: ptr::from_mut(kept).cast(),
        },
        device_id: 0,
        device_type: DeviceType::CUDA.0,
        sync_event: event.pointer().as_ptr(),
        reserved: [0; 3],
    };
    // SAFETY: the struct is valid, no other code uses it, and it describes the array.
    let tensor = unsafe {
        let array = ArrowDeviceArray::take(ptr::from_mut(&mut array).cast()).unwrap();
        bench.engine.import_arrow(c"C", array).unwrap()
    };
    assert!(!tensor.is_ready());
    let ours: Arc<dyn Queue> = bench.device.queue().unwrap();
    let copy = Arc::new(bench.device.allocate(COUNT, 64).unwrap());
    let (device, to) = (Arc::clone(&bench.device), Arc::clone(&copy));
    let read = bench.engine.op("read").reads([&tensor]).on(&ours).run_on(move |queue, [x], []| {
        // SAFETY: the engine keeps the tensor, and the copy lives to the end of the test.
        Ok(unsafe { device.copy(queue, x.data_ptr(), to.ptr().as_ptr(), COUNT) }?)
    });
    let read = read.unwrap();
    until("the read was issued, behind a wait on the device", || bench.simulator.pending(ours.native()) > 0);
    read.wait().unwrap();
    let end = ours.record().unwrap();
    assert!(!end.is_done() && !tensor.is_ready(), "it is issued, and nothing of it has run");
    bench.simulator.unblock(theirs.native());
    end.wait_timeout(PATIENCE).unwrap().unwrap();
    assert!(tensor.is_ready());
    assert_eq!(bench.read(copy.ptr().as_ptr()), [5; COUNT]);
    assert_eq!(released.load(Ordering::SeqCst), 0);
    drop(tensor);
    until("the array was released", || released.load(Ordering::SeqCst) == 1);
    drop(event);
    bench.silent();
}
