//! The end of engines, of tasks and of forked processes.
#![allow(clippy::unwrap_used, reason = "in a test, an unwrap is an assertion")]

mod dropped_tasks;
mod engines;
mod fork;
