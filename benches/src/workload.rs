//! The table of workloads.

use crate::error::Error;
use crate::record::{Quantity, Record};
use crate::{chain, contended, deferred, fan, independent, metg, random, ready, replay, stencil, wake};

/// Every workload, in the order in which they are listed.
pub const WORKLOADS: &[Workload] = &[
    chain::CHAIN,
    independent::INDEPENDENT,
    fan::FAN,
    random::RANDOM,
    stencil::WIDTH_8,
    stencil::WIDTH_32,
    stencil::WIDTH_64,
    deferred::DEFERRED,
    metg::TRIVIAL,
    metg::STENCIL,
    metg::NEAREST,
    metg::SPREAD,
    metg::FFT,
    metg::NEAREST_X4,
    wake::SAME,
    wake::CROSS,
    ready::IS_READY,
    ready::AWAIT,
    contended::SHARED_2,
    contended::SHARED_4,
    contended::DISJOINT_2,
    contended::DISJOINT_4,
    replay::REPLAY,
];

/// Default number of operations: large enough that start and end do not matter.
pub(crate) const OPERATIONS_DEFAULT: usize = 500_000;

/// A workload.
#[derive(Debug)]
pub struct Workload {
    /// Name. The part before a `-` is the name of a group.
    pub name: &'static str,
    /// Description in one line.
    pub about: &'static str,
    /// Default number of operations of one run.
    pub n: usize,
    /// Default number of worker threads. With 0 the submitting thread runs everything.
    pub workers: fn() -> usize,
    /// True if operations can have a body of a given length.
    pub has_body: bool,
    pub(crate) run: fn(&Settings) -> Result<Measured, Error>,
}

/// Size of a measurement.
#[derive(Debug, Clone, Copy)]
pub struct Settings {
    /// Operations of one run, at least 1.
    pub n: usize,
    /// Worker threads of the engine, beside the thread that submits.
    pub workers: usize,
    /// Length of each body in nanoseconds; 0 for an empty one.
    pub body_ns: u64,
    /// Measured runs, after one to warm up.
    pub rounds: usize,
}

/// Result of a workload.
#[derive(Debug)]
pub(crate) struct Measured {
    /// Number of operations of one run.
    pub(crate) n: usize,
    pub(crate) quantities: Vec<(&'static str, Quantity)>,
}

impl Workload {
    /// The usual form: no workers by default, and bodies of any length.
    pub(crate) const fn plain(
        name: &'static str,
        about: &'static str,
        n: usize,
        run: fn(&Settings) -> Result<Measured, Error>,
    ) -> Self {
        Self { name, about, n, workers: || 0, has_body: true, run }
    }

    /// Runs the workload.
    ///
    /// # Errors
    /// Fails if the engine refuses something, or has lost or repeated operations.
    pub fn measure(&self, settings: &Settings) -> Result<Record, Error> {
        let Measured { n, quantities } = (self.run)(settings)?;
        let Settings { workers, rounds, .. } = *settings;
        Ok(Record { workload: self.name, workers, n, rounds, quantities })
    }
}

/// The workload called `name`, or all workloads of the group `name`. May be empty.
pub fn named(name: &str) -> Vec<&'static Workload> {
    if let Some(workload) = WORKLOADS.iter().find(|workload| workload.name == name) {
        return vec![workload];
    }
    let in_group =
        |workload: &&Workload| workload.name.strip_prefix(name).is_some_and(|rest| rest.starts_with('-'));
    WORKLOADS.iter().filter(in_group).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_means_its_workload_alone() {
        for workload in WORKLOADS {
            let found: Vec<_> = named(workload.name).iter().map(|found| found.name).collect();
            assert_eq!(found, [workload.name]);
        }
    }

    #[test]
    fn a_group_is_all_that_begins_with_its_name() {
        let widths: Vec<_> = named("stencil").iter().map(|found| found.name).collect();
        assert_eq!(widths, ["stencil-8", "stencil-32", "stencil-64"]);
        assert!(named("sten").is_empty());
    }
}
