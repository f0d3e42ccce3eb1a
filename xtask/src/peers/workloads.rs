//! The workloads, as data. `benches/README.md` describes each.

/// Quantities for which a workload is there; each kind has tables of its own.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum WorkloadKind {
    /// Time per operation, from the first submission until everything is done.
    Throughput,
    /// Pushing behind a gate, running, and memory in between.
    Deferred,
    /// METG(50 %).
    Granularity,
}

#[derive(Debug)]
pub struct Workload {
    /// Its name, the same for `estafette bench` and the peers' programs.
    pub name: &'static str,
    pub kind: WorkloadKind,
    /// Operations of one run for engines that need no other number.
    pub n: u64,
}

/// All of them, in the order of the tables.
pub const WORKLOADS: &[Workload] = &[
    throughput("chain", 500_000),
    throughput("independent", 500_000),
    throughput("fan", 500_000),
    throughput("random", 500_000),
    throughput("stencil-8", STEPS * 8),
    throughput("stencil-32", STEPS * 32),
    throughput("stencil-64", STEPS * 64),
    Workload { name: "deferred", kind: WorkloadKind::Deferred, n: 1_000_000 },
    granularity("metg-trivial", STEPS * 32),
    granularity("metg-stencil", STEPS * 32),
    granularity("metg-nearest", STEPS * 32),
    granularity("metg-spread", STEPS * 32),
    granularity("metg-fft", STEPS * 32),
    granularity("metg-nearest-x4", STEPS * 32 * 4),
];

const STEPS: u64 = 1_000;

const fn throughput(name: &'static str, n: u64) -> Workload {
    Workload { name, kind: WorkloadKind::Throughput, n }
}

const fn granularity(name: &'static str, n: u64) -> Workload {
    Workload { name, kind: WorkloadKind::Granularity, n }
}

/// Number of threads that an engine may use.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Setting {
    /// The submitting thread runs everything, or, where an engine cannot do that, one worker does.
    Alone,
    AllCores,
}

impl Setting {
    pub fn name(self) -> &'static str {
        match self {
            Setting::Alone => "alone",
            Setting::AllCores => "all cores",
        }
    }

    /// Threads for a machine with `cores`.
    pub fn threads(self, cores: usize) -> usize {
        match self {
            Setting::Alone => 1,
            Setting::AllCores => cores,
        }
    }
}

impl Workload {
    /// The settings that say something: METG is about all cores.
    pub fn settings(&self) -> &'static [Setting] {
        match self.kind {
            WorkloadKind::Granularity => &[Setting::AllCores],
            WorkloadKind::Throughput | WorkloadKind::Deferred => &[Setting::Alone, Setting::AllCores],
        }
    }
}
