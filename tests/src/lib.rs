//! Tests that span crates or need heavy development dependencies, and what they share: a watchdog that turns
//! a hang into a loud failure, gates that tests open by hand, and a foreign library that counts its deleters.
//!
//! The tests are in `tests/tests`. The first comment of each binary says why it is one of its own.
//!
//! | binary | what it tests |
//! |---|---|
//! | `allocations` | memory that operations, replays and traces take |
//! | `cuda` | CUDA devices, on the driver simulator |
//! | `engine` | behaviour whose tests may run beside each other: order, failure, leases, devices, programs |
//! | `exchange` | memory from outside and back: imports, deleters, operators |
//! | `fuzz` | inputs of the fuzz targets that are kept; how suites judge what they measure |
//! | `links` | tensors of one process in another |
//! | `links_kills` | processes that are killed or stopped, or that lack something |
//! | `memory` | every deleter runs once, and resident memory stays flat |
//! | `process` | what a process has once: the reaper, the quarantine, memory for reuse |
//! | `protocols` | protocols of the engine under random schedules |
//! | `random` | random programs against oracles |
//! | `shutdown` | how engines, tasks and forked processes end |
//! | `simulation` | whole engines under a schedule, a clock and faults of a seed |
//! | `sycl` | SYCL devices, on the real runtime |
//! | `threads` | threads never own an engine |
//! | `trace` | the content of a trace |
//! | `waiting` | readiness, and waits that end |

#![allow(
    missing_docs,
    missing_debug_implementations,
    reason = "only tests of this repository use what is public here"
)]

pub mod c_fuzz;
pub mod churn;
pub mod counting;
pub mod dice;
pub mod foreign;
pub mod fuzz;
pub mod gate;
pub mod limits;
pub mod nothing_left;
pub mod on_device;
pub mod ops;
pub mod oracle;
pub mod scale;
#[cfg(estafette_shuttle)]
pub mod simulation;
pub mod watchdog;
pub mod who_may_run;

/// The Rust examples of the README and of the guide compile and run.
#[cfg(doctest)]
mod pages {
    #[doc = include_str!("../../README.md")]
    struct Readme;
    #[doc = include_str!("../../docs/guide/rust.md")]
    struct Rust;
    #[doc = include_str!("../../docs/guide/service.md")]
    struct Service;
    #[doc = include_str!("../../docs/guide/device.md")]
    struct Device;
    #[doc = include_str!("../../docs/operators.md")]
    struct Operators;
}
