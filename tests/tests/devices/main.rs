//! Fences and queues, on the simulated device.
#![allow(clippy::unwrap_used, reason = "in a test, an unwrap is an assertion")]

mod fences;
mod queues;
