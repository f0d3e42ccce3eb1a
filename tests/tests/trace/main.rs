//! What a trace says of a run.
#![allow(clippy::unwrap_used, reason = "in a test, an unwrap is an assertion")]

mod files;
mod planted_stalls;
mod recorder;
mod simulated_devices;
