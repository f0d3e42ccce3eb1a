//! Memory from outside and back: imports, deleters, operators.
#![allow(clippy::unwrap_used, reason = "in a test, an unwrap is an assertion")]

mod deleters;
mod destructors_misbehave;
mod misuse;
mod operators;
mod structs;
