//! Memory that is lent to consumers.
#![allow(clippy::unwrap_used, reason = "in a test, an unwrap is an assertion")]

mod detached;
mod guards;
mod held;
mod own_leases;
mod reports;
