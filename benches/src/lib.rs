//! The workloads of `estafette bench`, and the criterion benches of single parts.
//!
//! A workload is one file and one line in [`WORKLOADS`]. A workload measures and returns a [`Record`]; the
//! command (`bindings/cli`) reads arguments and prints. The format of a record is described in `README.md`.
//!
//! The criterion benches share the access patterns:
//! `cargo bench -p benches --features criterion --bench graph` (or `engine`, `ready`, `exchange`, `replay`).
//! Figures are in `results/`.

mod access;
mod chain;
mod contended;
mod deferred;
#[expect(dead_code, reason = "other suites use more of it")]
#[path = "../../tests/src/dice.rs"]
mod dice;
mod error;
mod fan;
mod gate;
mod independent;
mod measure;
mod metg;
mod random;
mod ready;
mod record;
pub mod replay;
mod resident;
mod spin;
mod spread;
mod stencil;
mod submit;
mod wake;
mod workload;

pub use access::{Access, READS_MAX, VARIABLES};
pub use error::Error;
pub use metg::WrongInput;
pub use record::{Quantity, Record};
pub use spin::SpinBody;
pub use spread::{Spread, median_us, percentile};
pub use submit::submit;
pub use workload::{Settings, WORKLOADS, Workload, named};

/// Operations of one run of a criterion bench.
pub const OPERATIONS: usize = 10_000;

/// The patterns of the criterion benches, with their names.
pub fn patterns() -> [(&'static str, Vec<Access>); 3] {
    [
        ("chain", chain::accesses(OPERATIONS)),
        ("independent", independent::accesses(OPERATIONS)),
        ("random 2r+1w", random::accesses(OPERATIONS)),
    ]
}
