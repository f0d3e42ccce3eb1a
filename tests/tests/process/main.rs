//! What a process has once: the reaper, the quarantine, memory for reuse. The tests take turns.
#![allow(clippy::unwrap_used, reason = "in a test, an unwrap is an assertion")]

mod bad_input;
mod consumers;
mod fresh_memory;
mod slow_deleters;
