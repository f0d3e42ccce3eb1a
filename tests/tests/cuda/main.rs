//! CUDA devices, on a simulator of the driver.
#![allow(clippy::unwrap_used, reason = "in a test, an unwrap is an assertion")]

mod arrow;
mod copies;
mod exchange;
mod hand_back;
mod programs;

use std::sync::MutexGuard;

use estafette_cuda_sim_client::Simulator;
use tests::ops::exclusive;

/// The simulator of the process, and the turn to use it. A device that breaks stays broken for the process, so that there are three.
fn simulator() -> (MutexGuard<'static, ()>, &'static Simulator) {
    let turn = exclusive();
    let simulator = Simulator::load().expect("cargo has built the simulator");
    // Counts before the first look at the driver.
    simulator.devices(3);
    (turn, simulator)
}
