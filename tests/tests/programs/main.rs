//! Programs and their replays.
#![allow(clippy::unwrap_used, reason = "in a test, an unwrap is an assertion")]

mod on_devices;
mod replay;
