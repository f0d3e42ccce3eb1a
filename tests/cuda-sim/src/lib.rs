//! A simulator of the CUDA driver: a shared library with the driver's symbols, for tests on machines without
//! a GPU.
//!
//! Its figures are never a result of a GPU. It lets the real code path run, dynamic loading included: streams
//! are queues of commands on memory of the host, done by a thread per stream (`clockwork.rs`) or, on a
//! virtual clock, only when a test lets time pass. A test scripts latencies, faults and shortage through the
//! `cusim_*` functions (`control.rs`; the crate `estafette-cuda-sim-client` calls them), and asks for calls
//! counted by name. What no order protects is found from the order itself, not from timing (`detector.rs`).
//!
//! If the driver leaves something open, the simulator chooses what is harder for its caller: copies from
//! pageable memory are not staged early, memory is full of rubbish at first, releasing memory waits for the
//! whole context.
//!
//! It uses `std`'s locks, not those of `estafette-sync`: it stands for a foreign library.

mod api;
mod capture;
mod clockwork;
pub mod codes;
mod command;
mod control;
mod detector;
mod kernels;
mod kind;
mod memory;
mod script;
mod state;
mod stream;
mod vector_clock;

pub use control::Controls;
pub use kind::Kind;
