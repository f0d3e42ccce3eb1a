//! Tests that span crates or need heavy development dependencies, and what they share: a watchdog that turns
//! a hang into a loud failure, gates that tests open by hand, and a foreign library that counts its deleters.

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
