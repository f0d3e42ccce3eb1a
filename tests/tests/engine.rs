//! Behaviour of the engine, in operations that may run beside each other in one process: a test that needs a process of its own, or has
//! to take turns, is in another binary.
#![allow(clippy::unwrap_used, reason = "in a test, an unwrap is an assertion")]

#[path = "devices/mod.rs"]
mod devices;
#[path = "failure/mod.rs"]
mod failure;
#[path = "leases/mod.rs"]
mod leases;
#[path = "order/mod.rs"]
mod order;
#[path = "programs/mod.rs"]
mod programs;
