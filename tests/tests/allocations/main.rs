//! Memory that operations, replays and traces take. The allocator counts for the whole process, so the tests
//! take turns in a binary of their own.
//!
//! | part | what it has |
//! |---|---|
//! | `operations` | in steady state an operation allocates nothing |
//! | `replays` | what a replay allocates does not grow with its nodes |
//! | `traces` | what it takes to finish a trace and to read its file |
#![allow(clippy::unwrap_used, reason = "in a test, an unwrap is an assertion")]

mod operations;
mod replays;
mod traces;

use tests::counting::Counting;

#[global_allocator]
static COUNTING: Counting = Counting;
