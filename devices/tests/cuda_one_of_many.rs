//! A process that uses one of several devices opens that one: each context takes memory of its device.

use estafette_cuda_sim_client::Simulator;
use estafette_devices::cuda::CudaRuntime;
use estafette_devices::{DLDevice, DeviceType, Queue, table};

#[test]
fn only_what_is_asked_for_is_opened() {
    let simulator = Simulator::load().expect("the simulator is built with the tests");
    assert!(simulator.devices(8));
    let runtime = CudaRuntime::get().expect("there is a driver");
    assert_eq!(runtime.count(), 8);
    let retained = || simulator.calls("cuDevicePrimaryCtxRetain");
    assert_eq!(retained(), 0, "looking for the driver opens nothing");
    let fifth = runtime.device(5).expect("it is there");
    assert_eq!((fifth.ordinal(), retained()), (5, 1));
    let named = table::resolve(DLDevice::new(DeviceType::CUDA, 5)).expect("it has a number");
    assert_eq!((named.id, retained()), (fifth.queue().expect("it works").device(), 1));
    let local = [0_u8; 8];
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
    assert_eq!(retained(), 11);
}
