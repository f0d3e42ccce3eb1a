//! Single things of a process: the reaper, the quarantine, memory for reuse. The tests take turns.
//!
//! | part | what it has |
//! |---|---|
//! | `bad_input` | bad DLPack structs at the door of the engine |
//! | `consumers` | memory that a consumer on a device has |
//! | `fresh_memory` | what fresh memory costs |
//! | `slow_deleters` | a deleter that does not return |
#![allow(clippy::unwrap_used, reason = "in a test, an unwrap is an assertion")]

mod bad_input;
mod consumers;
mod fresh_memory;
mod slow_deleters;
