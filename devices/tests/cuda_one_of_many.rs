//! A process that uses one of several devices opens that one: each context takes memory of its device.

use std::ptr;

use cudarc::driver::sys::{self, CUresult};
use estafette_cuda_sim_client::Simulator;
use estafette_devices::cuda::CudaRuntime;
use estafette_devices::{DLDevice, DeviceType, Queue, table};

#[track_caller]
fn assert_ok(code: CUresult) {
    assert_eq!(code, CUresult::CUDA_SUCCESS);
}

#[test]
fn only_what_is_asked_for_is_opened() {
    let simulator = Simulator::load().expect("the simulator is built with the tests");
    assert!(simulator.devices(8));
    let runtime = CudaRuntime::get().expect("there is a driver");
    assert_eq!(runtime.count(), 8);
    let retained = || simulator.calls("cuDevicePrimaryCtxRetain");
    assert_eq!(retained(), 0, "looking for the driver opens nothing");
    let local = [0_u8; 8];
    assert_eq!(runtime.used(), None);
    assert_eq!(runtime.pointer_info(local.as_ptr()), None, "no device has memory yet");
    // Another library opens a device, and makes a stream and memory there.
    let (mut context, mut stream, mut memory) = (ptr::null_mut(), ptr::null_mut(), ptr::null_mut());
    // SAFETY: the places are valid; what is pushed is popped.
    unsafe {
        assert_ok(sys::cuDevicePrimaryCtxRetain(&raw mut context, 3));
        assert_ok(sys::cuCtxPushCurrent_v2(context));
        assert_eq!(runtime.current(), Some(3));
        assert_eq!(runtime.device_of_stream(1), Some(3), "each device has a default stream");
        assert_ok(sys::cuStreamCreate(&raw mut stream, 1));
        assert_ok(sys::cuMemHostAlloc(&raw mut memory, 64, 1));
        assert_ok(sys::cuCtxPopCurrent_v2(&raw mut context));
        assert_eq!((runtime.current(), runtime.device_of_stream(1)), (None, None));
        assert_eq!(runtime.device_of_stream(stream.expose_provenance()), Some(3), "on any thread");
    }
    assert_eq!(runtime.used(), Some(3));
    let info = runtime.pointer_info(memory.cast()).expect("that device knows it");
    assert_eq!((info.ordinal, retained()), (3, 2), "and no other was opened");
    simulator.forget_calls();
    let fifth = runtime.device(5).expect("it is there");
    assert_eq!((fifth.ordinal(), retained()), (5, 1));
    let named = table::resolve(DLDevice::new(DeviceType::CUDA, 5)).expect("it has a number");
    assert_eq!((named.id, retained()), (fifth.queue().expect("it works").device(), 1));
    assert_eq!(runtime.pointer_info(local.as_ptr()), None);
    assert_eq!(retained(), 1, "any open device knows all memory");
    assert!(runtime.device(8).is_none() && runtime.device(-1).is_none());
    // A refusal is not remembered: another process may have taken the memory for a while.
    let second = DLDevice::new(DeviceType::CUDA, 2);
    simulator.fail_call("cuDevicePrimaryCtxRetain", 2);
    let refused = table::resolve(second).expect_err("its memory is full");
    assert!(refused.message().contains("CUDA_ERROR_OUT_OF_MEMORY"), "{refused}");
    table::resolve(second).expect("there is room again");
    let count = || table::entries().iter().filter(|entry| entry.id.device_type == DeviceType::CUDA).count();
    for count in [&|| runtime.devices().len(), &count as &dyn Fn() -> usize] {
        simulator.fail_call("cuDevicePrimaryCtxRetain", 2);
        assert_eq!(count(), 7);
    }
    assert_eq!([runtime.devices().len(), count()], [8, 8]);
    assert_eq!(retained(), 10);
}
