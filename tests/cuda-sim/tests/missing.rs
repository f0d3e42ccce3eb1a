//! A driver that lacks functions. In a file of its own: a process has one driver.

use cudarc::driver::sys;
use estafette_cuda_sim_client::Simulator;

#[test]
fn functions_that_the_driver_lacks_are_not_found() {
    let simulator = Simulator::load_without(&["cuStreamWriteValue64_v2", "cuMemAllocAsync"]).unwrap();
    // SAFETY: these ask the loader, and call what is there.
    unsafe {
        assert!(sys::is_culib_present());
        let library = sys::culib();
        for missing in [&b"cuStreamWriteValue64_v2"[..], b"cuMemAllocAsync"] {
            assert!(library.get::<unsafe extern "C" fn()>(missing).is_err());
        }
        library.get::<unsafe extern "C" fn()>(b"cuStreamWriteValue32_v2").unwrap();
        assert_eq!(sys::cuInit(0), sys::CUresult::CUDA_SUCCESS);
    }
    assert_eq!(simulator.calls("cuInit"), 1);
}
