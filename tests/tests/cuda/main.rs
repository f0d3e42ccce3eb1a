//! CUDA devices, on a simulator of the driver.
#![allow(clippy::unwrap_used, reason = "in a test, an unwrap is an assertion")]

mod arrow;
mod copies;
mod cudarc;
mod exchange;
mod hand_back;
mod processes;
mod programs;
#[path = "../../../links/tests/support/mod.rs"]
mod support;

use std::sync::MutexGuard;

use estafette_cuda_sim_client::Simulator;
use tests::ops::exclusive;

/// The device that breaks during a copy.
const BREAKS_IN_COPY: usize = 2;
/// The device that breaks during a replay.
const BREAKS_IN_GRAPH: usize = 3;

/// The simulator of the process, and the turn to use it. A device that breaks stays broken for the process,
/// so that there are four: two that no test breaks, and one for each test that breaks one
/// ([`BREAKS_IN_COPY`], [`BREAKS_IN_GRAPH`]).
fn simulator() -> (MutexGuard<'static, ()>, &'static Simulator) {
    let turn = exclusive();
    let simulator = Simulator::load().expect("cargo has built the simulator");
    // Counts before the first look at the driver.
    simulator.devices(4);
    (turn, simulator)
}
