//! SYCL devices, on the real runtime.
#![allow(clippy::unwrap_used, reason = "in a test, an unwrap is an assertion")]

mod exchange;
mod streams;
mod with_cuda;
