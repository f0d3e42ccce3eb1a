//! Random programs against oracles. The suite `property` builds them optimized, with assertions, and nothing
//! else, so they have a binary of their own.
//!
//! | part | what it has |
//! |---|---|
//! | `oracle` | programs against a sequential oracle |
//! | `replay` | replays against a sequential oracle |
//! | `who_may_run` | after each step, exactly the operations that may run have begun |
#![allow(clippy::unwrap_used, reason = "in a test, an unwrap is an assertion")]

mod oracle;
mod replay;
mod who_may_run;
