//! A tensor goes from CUDA to SYCL and back. The two runtimes know nothing of each other, so the crossing is
//! through the host, by the reactor. SYCL is the real runtime on the processor; CUDA is the simulated driver,
//! so nothing here has seen a GPU.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use estafette::devices::cuda::{CudaDevice, CudaQueue, CudaRuntime};
use estafette::devices::sycl::SyclRuntime;
use estafette::devices::{DLDevice, Device, DeviceType, Queue};
use estafette::exchange::{Abi, ExportFlags, Layout, export};
use estafette::{DType, Engine, Op, Tensor};
use estafette_cuda_sim_client::Simulator;
use tests::ops::until;
use tests::watchdog::Watchdog;

const BYTES: usize = 4_096;

/// Host memory that CUDA copies to without the calling thread.
fn pinned(engine: &Engine, device: &CudaDevice) -> Tensor {
    let memory = device.allocate_pinned(BYTES, 64).unwrap();
    let place = DLDevice::new(DeviceType::CUDA_HOST, 0);
    let layout = Layout::contiguous(DType::U8, place, &[BYTES as i64]).unwrap();
    let data = memory.ptr().as_ptr().cast();
    // SAFETY: the memory is as long as the layout, is written before it is read, and stays until the deleter
    // is called.
    unsafe {
        let managed = export(&layout, data, ExportFlags::default(), Abi::Versioned, move || drop(memory));
        engine.import(managed).unwrap()
    }
}

/// Copies on a queue of `device`; says when its body has run.
fn copy(
    engine: &Engine,
    device: &Arc<dyn Device>,
    queue: &Arc<dyn Queue>,
    from: &Tensor,
    to: &Tensor,
) -> (Op, Arc<AtomicBool>) {
    let begun = Arc::new(AtomicBool::new(false));
    let (device, note) = (Arc::clone(device), Arc::clone(&begun));
    let op = engine.op("copy").reads([from]).writes([to]).on(queue);
    let op = op.run_on(move |queue, [from], [mut to]| {
        note.store(true, Ordering::SeqCst);
        // SAFETY: the engine keeps both tensors until the work is done.
        Ok(unsafe { device.copy(queue, from.data_ptr(), to.data_mut_ptr(), BYTES) }?)
    });
    (op.unwrap(), begun)
}

#[test]
fn cuda_to_sycl_and_back_goes_through_the_host_and_no_thread_waits() {
    let simulator = Simulator::load().expect("cargo has built the simulator");
    let cuda = Arc::clone(&CudaRuntime::get().expect("a simulated driver").devices()[0]);
    let sycl = Arc::clone(&SyclRuntime::get().unwrap_or_else(|error| panic!("{error}")).devices()[0]);
    let engine = Engine::builder().workers(1).build().unwrap();
    let _watchdog = Watchdog::of(&engine);
    let (stream, queue) = (cuda.create_queue().unwrap(), sycl.create_queue().unwrap());
    let (cuda_device, sycl_device) = (Arc::clone(&cuda) as Arc<dyn Device>, sycl as Arc<dyn Device>);
    let shape = [BYTES as i64];
    let x = engine.empty(&shape, DType::U8, cuda_device.id()).unwrap();
    let back = engine.empty(&shape, DType::U8, cuda_device.id()).unwrap();
    let y = engine.empty(&shape, DType::U8, sycl_device.id()).unwrap();
    let (there, here, seen) = (pinned(&engine, &cuda), pinned(&engine, &cuda), pinned(&engine, &cuda));

    // Allocating waits for the pool's own stream, which is idle.
    simulator.forget_calls();
    simulator.block(stream.native());
    let fill = engine.op("fill").writes([&x]).on(&stream).run_on(|queue, [], [mut x]| {
        let queue = CudaQueue::from_queue(queue).expect("a CUDA queue");
        // SAFETY: the engine keeps the tensor until the work is done.
        Ok(unsafe { queue.fill(x.data_mut_ptr(), 5, BYTES) }?)
    });
    fill.unwrap();
    let (_, cuda_issued) = copy(&engine, &cuda_device, &stream, &x, &there);
    let (_, sycl_issued) = copy(&engine, &sycl_device, &queue, &there, &y);
    let (_, sycl_back) = copy(&engine, &sycl_device, &queue, &y, &here);
    let (_, cuda_back) = copy(&engine, &cuda_device, &stream, &here, &back);
    copy(&engine, &cuda_device, &stream, &back, &seen);

    // The one worker is free: an independent operation runs beside the wait.
    engine.op("beside").run(|[], []| Ok(())).unwrap().wait().unwrap();
    until("CUDA's own work is issued, since it needs no wait on the host", || {
        cuda_issued.load(Ordering::SeqCst)
    });
    std::thread::sleep(Duration::from_millis(30));
    assert!(!sycl_issued.load(Ordering::SeqCst), "SYCL cannot wait for CUDA, so this is not issued yet");
    assert!(!there.is_ready());

    simulator.unblock(stream.native());
    assert_eq!(seen.to_vec::<u8>().unwrap(), [5; BYTES]);
    assert!([sycl_issued, sycl_back, cuda_back].iter().all(|issued| issued.load(Ordering::SeqCst)));
    assert_eq!(simulator.violations(), [""; 0]);
    assert_eq!(simulator.calls("cuCtxSynchronize") + simulator.calls("cuStreamSynchronize"), 0);
}
