//! Readiness, and waits that end.
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
