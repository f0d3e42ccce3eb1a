//! The end of engines, of tasks and of forked processes.
//!
//! | part | what it has |
//! |---|---|
//! | `dropped_tasks` | wakers of dropped futures |
//! | `engines` | shutdown of engines |
//! | `fork` | a forked child |
#![allow(clippy::unwrap_used, reason = "in a test, an unwrap is an assertion")]

mod dropped_tasks;
mod engines;
mod fork;
