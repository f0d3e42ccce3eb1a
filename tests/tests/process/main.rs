//! A process has once: the reaper, the quarantine, memory for reuse, its resident memory, the counter of
//! inspections. The tests take turns, so they have a binary of their own.
//!
//! | part | what it has |
//! |---|---|
//! | `bad_input` | bad DLPack structs at the door of the engine |
//! | `consumers` | memory that a consumer on a device has |
//! | `fresh_memory` | what fresh memory costs |
//! | `slow_deleters` | a deleter that does not return |
//! | `waits_cost_little` | what waiting costs, by counts of what is inspected |
#![allow(clippy::unwrap_used, reason = "in a test, an unwrap is an assertion")]

mod bad_input;
mod consumers;
mod fresh_memory;
mod slow_deleters;
mod waits_cost_little;
