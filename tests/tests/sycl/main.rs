//! SYCL devices, on the real runtime, which only the suite `sycl` has.
//!
//! | part | what it has |
//! |---|---|
//! | `exchange` | imports, exports and leases |
//! | `streams` | consumers with a queue, in Rust and C |
//! | `with_cuda` | from CUDA to SYCL and back |
#![allow(clippy::unwrap_used, reason = "in a test, an unwrap is an assertion")]

mod exchange;
mod streams;
mod with_cuda;
