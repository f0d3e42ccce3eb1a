//! Readiness, and waits that end. A subscriber of `tracing` sees the whole process, and tests that block many
//! threads would slow others down, so they have a binary of their own.
//!
//! | part | what it has |
//! |---|---|
//! | `awaits_end` | awaits end as blocking waits do |
//! | `blocked` | waits inside of waits, and the in-flight limit |
//! | `definition` | tensors that are defined later, and aliases |
//! | `futures` | the same program under several executors |
//! | `live` | snapshots, the watchdog, events of `tracing` |
//! | `names_shown` | names with control characters |
//! | `open_telemetry` | spans of bodies |
//! | `permits` | futures that wait for permits |
//! | `readiness` | readiness is of the version at the call |
//! | `results_from_elsewhere` | completions from outside |
//! | `waits_end` | timeouts, help across engines, nested waits |
#![allow(clippy::unwrap_used, reason = "in a test, an unwrap is an assertion")]

mod awaits_end;
mod blocked;
mod definition;
mod futures;
mod live;
mod names_shown;
mod open_telemetry;
mod permits;
mod readiness;
mod results_from_elsewhere;
mod waits_end;
