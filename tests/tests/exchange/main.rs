//! Memory from outside and back: imports, deleters, operators. Their deleters panic, lock and block on the
//! reaper, which a process has once, so the tests have a binary of their own.
//!
//! | part | what it has |
//! |---|---|
//! | `deleters` | a deleter runs once, after the last use, under no lock |
//! | `destructors_misbehave` | users' destructors that panic, lock, and use the engine |
//! | `misuse` | public handles, views and closures, used as they must not be |
//! | `operators` | operators: the three kinds, in Rust and through the C types |
//! | `structs` | structs of a foreign library come in and are released once |
#![allow(clippy::unwrap_used, reason = "in a test, an unwrap is an assertion")]

mod deleters;
mod destructors_misbehave;
mod misuse;
mod operators;
mod structs;
