//! Random programs against oracles.
#![allow(clippy::unwrap_used, reason = "in a test, an unwrap is an assertion")]

mod oracle;
mod replay;
mod who_may_run;
