//! The report as data: what the terminal and JSON show, and what two reports are compared by.
//!
//! Names of fields are those of the JSON; `docs/report.md` explains them to readers.
//!
//! | part | content |
//! |---|---|
//! | `rows` | sums by cause, operation, tensor and part of the run time |
//! | `waits` | the waits, equal ones as one, and the headline |

mod rows;
mod waits;

use serde::{Deserialize, Serialize};

use self::rows::{Causes, Rows, failures, run_time, tensors, totals};
use self::waits::{Waits, headline, program, worst};
use crate::Trace;
use crate::analysis::advice::advice;
use crate::analysis::barrier::{Barriers, barriers};
use crate::analysis::critical_path::critical_path;
use crate::analysis::exchanges::{Exchange, Exchanges};
use crate::analysis::hand_overs::{HandOver, hand_overs};
use crate::analysis::lock::with_holders;
use crate::analysis::matrix::{Matrix, Sums};
use crate::analysis::roots::each_wait;
use crate::analysis::sentences;
use crate::analysis::walk::walk;
use crate::analysis::with_graph::{WithGraph, with_graph};
use crate::model::sane::sane;
use crate::model::shown::shown;
use crate::model::{Nanos, OperationId};

/// Version of the JSON; grows when a field changes its meaning or goes.
pub const SCHEMA: u32 = 2;

/// A report.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// [`SCHEMA`] of the version that made the report.
    pub schema: u32,
    /// The cause that held up most of the run.
    pub headline: String,
    /// The program that was recorded.
    pub program: String,
    /// Run time.
    pub duration_ns: Nanos,
    /// Numbers of what was recorded.
    pub totals: Totals,
    /// The first failures, equal ones as one.
    #[serde(default)]
    pub failures: Vec<FailureRow>,
    /// Waiting time by cause at the root, in the order of [`Cause::ALL`](crate::model::Cause::ALL).
    pub causes: Vec<CauseRow>,
    /// The worst waits, equal ones as one, those that took most time together first.
    pub worst: Vec<WorstRow>,
    /// The waits by waiter and blocker.
    pub matrix: Matrix,
    /// The hand-overs from library to library, longest waits first.
    pub exchanges: Vec<Exchange>,
    /// Hand-overs of device memory that nothing ordered after the work that made it, or that may not have
    /// been.
    #[serde(default)]
    pub hand_overs: Vec<HandOver>,
    /// The changes by Estafette in a program that was only observed.
    #[serde(default)]
    pub with_graph: WithGraph,
    /// By name, most waiting first.
    pub operations: Vec<OperationRow>,
    /// By name, most waiting first.
    pub tensors: Vec<TensorRow>,
    /// The longest chain of work.
    pub critical_path: PathRow,
    /// The uses of the run time, most first.
    pub run_time: Vec<RunTimeRow>,
    /// The cost of barriers.
    pub barriers: Barriers,
    /// The changes that would help most.
    pub advice: Vec<Advice>,
    /// The differences of several machines' clocks, in words.
    #[serde(default)]
    pub clocks: Vec<String>,
    /// The losses, in words.
    pub missing: Vec<String>,
}

/// Numbers of what was recorded.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Totals {
    /// Operations with a body.
    pub operations: usize,
    /// Operations, copies and imports that failed themselves.
    pub failed: usize,
    /// Operations that were cancelled.
    #[serde(default)]
    pub cancelled: usize,
    /// Operations that were skipped, since an operation that they need failed or was cancelled.
    #[serde(default)]
    pub skipped: usize,
    /// Operations that had not ended.
    pub unfinished: usize,
    /// Waits and awaits of the program.
    pub waits: usize,
    /// Leases that were held.
    pub leases: usize,
    /// Time that operations ran, summed.
    pub running_ns: Nanos,
    /// Time that operations, waits and exports waited, summed.
    pub waited_ns: Nanos,
}

/// Failures for one reason, of one name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FailureRow {
    /// The name.
    pub name: String,
    /// The first of them.
    pub operation: OperationId,
    /// The failure, in the words of the operation.
    pub why: String,
    /// Their number.
    pub count: usize,
}

/// One cause.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CauseRow {
    /// [`Cause::name`](crate::model::Cause::name).
    pub cause: String,
    /// Time.
    pub waited_ns: Nanos,
    /// Waits that it had a part in.
    pub waits: usize,
}

/// Waits of the same operations, by name, for the same cause and blocker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorstRow {
    /// In words.
    pub sentence: String,
    /// The operation that waited longest.
    pub waiter: OperationId,
    /// The time that it waited.
    pub waited_ns: Nanos,
    /// The number of these waits.
    #[serde(default)]
    pub count: usize,
    /// Their total time.
    #[serde(default)]
    pub total_ns: Nanos,
    /// The cause of most of it, at the root.
    pub cause: String,
    /// The blocker of most of it, in words.
    pub blocker: String,
}

/// All operations of one name and kind.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OperationRow {
    /// The name.
    pub name: String,
    /// The kind: `operation`, `copy`, `wait`, `await`, `export` or `import`.
    #[serde(default)]
    pub kind: String,
    /// Their number.
    pub count: usize,
    /// Time that they ran.
    pub running_ns: Nanos,
    /// Time that they waited.
    pub waited_ns: Nanos,
    /// The time that they waited, by cause at the root, in the order of
    /// [`Cause::ALL`](crate::model::Cause::ALL).
    #[serde(default)]
    pub causes_ns: Vec<Nanos>,
    /// Time that others waited for them, at the root.
    pub blamed_ns: Nanos,
    /// The least slack among them; 0 on the critical path.
    pub slack_ns: Nanos,
}

/// All tensors (and plain variables) of one name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TensorRow {
    /// The name.
    pub name: String,
    /// Their size together, as far as known.
    pub bytes: u64,
    /// Uses.
    pub accesses: usize,
    /// Time that was waited for them, hidden waits included.
    pub waited_ns: Nanos,
    /// Time that they were under a lease, summed.
    pub leased_ns: Nanos,
}

/// The critical path.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PathRow {
    /// Time that its operations took: no number of workers makes the run shorter than this.
    pub length_ns: Nanos,
    /// The number of its operations.
    pub count: usize,
    /// Its operations by name, in order; consecutive ones of the same name are one.
    pub names: Vec<String>,
}

/// A part of the run time, along whatever held up the end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunTimeRow {
    /// In words.
    pub what: String,
    /// The time.
    pub time_ns: Nanos,
}

/// A change that would help.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Advice {
    /// The change.
    pub change: String,
    /// The greatest saving.
    pub saves_ns: Nanos,
}

/// Names of a critical path that are kept.
const PATH_NAMES: usize = 64;

/// Tracks whose losses have a line each.
const LOSSES: usize = 10;

/// The order of rows of operations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SortBy {
    /// The name, in the order of the alphabet.
    Name,
    /// Their number; most first, as all that follow.
    Count,
    /// Time that they ran.
    Ran,
    /// Time that they waited.
    Waited,
    /// Time that others waited for them.
    Blamed,
    /// Their slack.
    Slack,
}

impl Report {
    /// Sorts the operations.
    pub fn sort(&mut self, by: SortBy) {
        let key = |row: &OperationRow| match by {
            SortBy::Name => 0,
            SortBy::Count => row.count as u64,
            SortBy::Ran => row.running_ns,
            SortBy::Waited => row.waited_ns,
            SortBy::Blamed => row.blamed_ns,
            SortBy::Slack => row.slack_ns,
        };
        self.operations.sort_by(|a, b| key(b).cmp(&key(a)).then_with(|| a.name.cmp(&b.name)));
    }
}

/// Makes the report.
pub fn report(trace: &Trace) -> Report {
    report_of(trace, &|_| true)
}

/// Makes the report, with only those operations, failures, worst waits, parts of the run time and changes
/// that name a text.
pub fn report_about(trace: &Trace, text: &str) -> Report {
    // In sentences names are shown, not as they are.
    let shown = shown(text).to_string();
    report_of(trace, &|words| words.contains(&shown))
}

fn report_of(trace: &Trace, keep: &dyn Fn(&str) -> bool) -> Report {
    let trace = &*with_holders(sane(trace));
    let (mut waits, mut causes, mut operations) = (Waits::default(), Causes::default(), Rows::of(trace));
    let (mut matrix, mut exchanges) = (Sums::default(), Exchanges::of(trace));
    each_wait(trace, |roots| {
        waits.add(trace, roots);
        causes.add(roots);
        for root in roots {
            operations.add(trace, root);
            matrix.add(trace, root);
            exchanges.add(root);
        }
    });
    let waits = waits.most_first();
    let path = critical_path(trace);
    let steps = walk(trace);
    let with_graph = with_graph(trace, &steps, keep);
    let mut names: Vec<String> = Vec::new();
    for id in &path.operations {
        let name = sentences::name(trace, *id);
        if names.last() != Some(&name) {
            names.push(name);
        }
    }
    names.truncate(PATH_NAMES);
    Report {
        schema: SCHEMA,
        headline: format!("{}{}", program(trace, &steps), headline(trace, &steps, &waits)),
        program: trace.program.to_string(),
        duration_ns: trace.duration,
        totals: totals(trace, causes.0.values().map(|(time, _)| time).sum()),
        failures: failures(trace, keep),
        causes: causes.rows(),
        worst: worst(trace, &waits, keep),
        matrix: matrix.matrix(trace),
        exchanges: exchanges.rows(),
        hand_overs: hand_overs(trace),
        operations: operations.finish(trace, &path.slack, keep),
        tensors: tensors(trace),
        critical_path: PathRow { length_ns: path.length, count: path.operations.len(), names },
        run_time: run_time(trace, &steps, keep),
        barriers: barriers(trace),
        advice: advice(trace, &steps, &with_graph, keep),
        with_graph,
        clocks: trace.clocks.iter().map(|words| shown(words).to_string()).collect(),
        missing: missing(trace),
    }
}

/// The losses of the trace, in words.
pub fn missing(trace: &Trace) -> Vec<String> {
    let (first, others) = trace.losses.records.split_at(trace.losses.records.len().min(LOSSES));
    let lost = first.iter().map(|lost| {
        format!("{} events of `{}` did not fit", lost.count, shown(trace.track_name(lost.track, "a thread")))
    });
    let count = others.iter().fold(0, |count: u64, lost| count.saturating_add(lost.count));
    let more = (!others.is_empty()).then(|| format!("{count} events of {} more did not fit", others.len()));
    let damage = trace.losses.damage.iter().map(|damage| shown(damage).to_string());
    lost.chain(more).chain(damage).collect()
}
