//! Engines start, with the stacks that they are given, and end, as do tasks and forked processes. The tests
//! fork, and use up the address space of the process, so they have a binary of their own.
//!
//! | part | what it has |
//! |---|---|
//! | `dropped_tasks` | wakers of dropped futures |
//! | `engines` | shutdown of engines |
//! | `fork` | a forked child |
//! | `stacks` | how large the stacks are that bodies run on |
#![allow(clippy::unwrap_used, reason = "in a test, an unwrap is an assertion")]

mod dropped_tasks;
mod engines;
mod fork;
#[cfg(target_os = "linux")]
mod stacks;
