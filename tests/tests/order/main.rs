//! Who may go next: operations have the meaning of their order of submission.
#![allow(clippy::unwrap_used, reason = "in a test, an unwrap is an assertion")]

mod access;
mod at_once;
mod many_operands;
mod never_lost;
mod priorities_age;
mod sequential;
mod submit_many;
