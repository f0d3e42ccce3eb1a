//! Behaviour of the engine, in operations that may run beside each other in one process: a test that needs a
//! process of its own, or has to take turns, is in another binary.
//!
//! | part | what it has |
//! |---|---|
//! | `devices` | fences and queues, and a kind of device that only a test knows |
//! | `failure` | failures and cancellations follow the data |
//! | `leases` | memory that is lent to consumers |
//! | `order` | operations have the meaning of their order of submission |
//! | `programs` | programs and their replays |
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
