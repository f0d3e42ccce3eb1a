//! CUDA devices, on a simulator of the driver, which takes the driver's place in the whole process.
//!
//! | part | what it has |
//! |---|---|
//! | `arrow` | Arrow's `sync_event`, in both directions |
//! | `copies` | copies between host and device: who waits, and in which order |
//! | `cudarc` | the crate cudarc on the driver simulator |
//! | `exchange` | imports, exports and leases on streams |
//! | `hand_back` | memory that is released behind a wait of its allocator's stream |
//! | `processes` | memory of a device in another process |
//! | `programs` | programs, node by node and as one graph |
//! | `support` | a test that starts its own program again |
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
