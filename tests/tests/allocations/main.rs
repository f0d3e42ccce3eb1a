//! How much memory operations, replays and traces take. The tests take turns, since the allocator counts for
//! the whole process.
#![allow(clippy::unwrap_used, reason = "in a test, an unwrap is an assertion")]

mod operations;
mod replays;
mod traces;

use tests::counting::Counting;

#[global_allocator]
static COUNTING: Counting = Counting;
