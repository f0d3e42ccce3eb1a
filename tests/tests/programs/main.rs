//! Programs and their replays.
//!
//! | part | what it has |
//! |---|---|
//! | `on_devices` | nodes on devices, and nodes that other threads complete |
//! | `replay` | recorded once, replayed as one operation |
#![allow(clippy::unwrap_used, reason = "in a test, an unwrap is an assertion")]

mod on_devices;
mod replay;
