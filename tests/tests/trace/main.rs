//! What a trace says of a run.
#![allow(clippy::unwrap_used, reason = "in a test, an unwrap is an assertion")]

#[cfg(unix)]
mod environment;
mod files;
#[cfg(unix)]
mod nvtx;
mod planted_stalls;
mod recorder;
mod rolling;
mod simulated_devices;
