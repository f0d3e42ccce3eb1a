//! Fences and queues, on the simulated device, and a kind of device that only a test knows.
#![allow(clippy::unwrap_used, reason = "in a test, an unwrap is an assertion")]

mod another_kind;
mod fences;
mod queues;
