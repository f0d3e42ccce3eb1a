//! The rules of the graph, by single situations and by random programs.
#![cfg(not(estafette_loom))]
#![allow(clippy::unwrap_used, reason = "in a test, an unwrap is an assertion")]

mod collapse;
mod common;
mod dependents;
mod history;
mod lifetimes;
mod order;
mod pin;
mod reentry;
mod replay;
mod snapshot;
mod split;
mod walk;
mod withdraw;
