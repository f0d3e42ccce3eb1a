//! The content of a trace of a run. A recorder notes the whole process, so the tests have a binary of their
//! own.
//!
//! | part | what it has |
//! |---|---|
//! | `environment` | `ESTAFETTE_TRACE` and its siblings |
//! | `files` | the unfinished file, and the one that replaces an older trace |
//! | `nvtx` | ranges of NVTX |
//! | `planted_stalls` | stalls planted on purpose, and their causes |
//! | `recorder` | each form of event, against a clock of the test |
//! | `rolling` | several recorders, and those that keep only the end |
//! | `simulated_devices` | attribution against truth worked out by hand |
#![allow(clippy::unwrap_used, reason = "in a test, an unwrap is an assertion")]

#[cfg(unix)]
mod environment;
mod files;
#[cfg(unix)]
mod nvtx;
mod planted_stalls;
mod recorder;
mod rolling;
mod simulated_devices;
