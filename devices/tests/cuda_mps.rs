//! A process whose server of MPS is not there or has no room: there is no CUDA, and the reason names the
//! driver's code.

use estafette_cuda_sim_client::{Simulator, codes};
use estafette_devices::cuda::CudaRuntime;

#[test]
fn a_start_that_the_server_of_mps_refuses_is_no_cuda_and_says_why() {
    let simulator = Simulator::load().expect("the simulator is built with the tests");
    simulator.fail_start(codes::MPS_MAX_CLIENTS_REACHED);
    let why = CudaRuntime::get().expect_err("the driver does not start").to_string();
    assert!(why.contains("CUDA_ERROR_MPS_MAX_CLIENTS_REACHED (808)"), "{why}");
}
