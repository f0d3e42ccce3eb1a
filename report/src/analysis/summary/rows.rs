//! The rows of a report: sums by cause, operation, tensor and part of the run time.

use std::collections::{BTreeMap, HashMap, HashSet};

use super::{CauseRow, FailureRow, OperationRow, RunTimeRow, TensorRow, Totals};
use crate::Trace;
use crate::analysis::critical_path::own_time;
use crate::analysis::roots::Root;
use crate::analysis::sentences;
use crate::analysis::walk::{Step, What};
use crate::format::facts::Word;
use crate::model::{Blocker, Cause, Nanos, OperationId, OperationKind, Outcome};

const FAILURES: usize = 10;

/// For each cause the time, and how many operations waited.
#[derive(Default)]
pub(super) struct Causes(pub(super) HashMap<Cause, (Nanos, usize)>);

impl Causes {
    pub(super) fn add(&mut self, roots: &[Root]) {
        let mut seen = HashSet::new();
        for root in roots {
            let (time, waits) = self.0.entry(root.cause).or_default();
            *time += root.duration();
            *waits += usize::from(seen.insert(root.cause));
        }
    }

    pub(super) fn rows(&self) -> Vec<CauseRow> {
        let row = |cause: Cause| {
            let (waited_ns, waits) = self.0.get(&cause).copied().unwrap_or_default();
            CauseRow { cause: cause.name().into(), waited_ns, waits }
        };
        Cause::ALL.map(row).into()
    }
}

/// The first failures. What was skipped because of one is none of its own.
pub(super) fn failures(trace: &Trace, keep: &dyn Fn(&str) -> bool) -> Vec<FailureRow> {
    let mut rows: HashMap<(String, &str), (Nanos, FailureRow)> = HashMap::new();
    for operation in &trace.operations {
        let Outcome::Failed(why) = &operation.outcome else { continue };
        let name = sentences::name(trace, operation.id);
        if !keep(&name) {
            continue;
        }
        let when = operation.done.or(operation.issued).unwrap_or(trace.duration);
        let first =
            || FailureRow { name: name.clone(), operation: operation.id, why: why.to_string(), count: 0 };
        let (since, row) = rows.entry((name.clone(), why)).or_insert_with(|| (when, first()));
        row.count += 1;
        if when < *since {
            (*since, row.operation) = (when, operation.id);
        }
    }
    let mut rows: Vec<(Nanos, FailureRow)> = rows.into_values().collect();
    rows.sort_by_key(|(when, row)| (*when, row.operation));
    rows.into_iter().take(FAILURES).map(|(_, row)| row).collect()
}

pub(super) fn totals(trace: &Trace, waited_ns: Nanos) -> Totals {
    let mut totals = Totals { leases: trace.leases.len(), waited_ns, ..Totals::default() };
    for operation in &trace.operations {
        match operation.kind {
            OperationKind::Operation => {
                totals.operations += 1;
                totals.running_ns += own_time(trace, operation.id);
                totals.unfinished += usize::from(operation.outcome == Outcome::Unfinished);
            }
            OperationKind::Wait | OperationKind::Await => {
                totals.waits += 1;
                continue;
            }
            OperationKind::Export => continue,
            OperationKind::Copy | OperationKind::Import => {}
        }
        match operation.outcome {
            Outcome::Ok | Outcome::Unfinished => {}
            Outcome::Failed(_) => totals.failed += 1,
            Outcome::Cancelled => totals.cancelled += 1,
            Outcome::Skipped(_) => totals.skipped += 1,
        }
    }
    totals
}

/// The operations by name and kind.
pub(super) struct Rows {
    rows: Vec<OperationRow>,
    /// Per operation, its row.
    of: Vec<u32>,
}

impl Rows {
    pub(super) fn of(trace: &Trace) -> Self {
        let mut known: HashMap<(String, OperationKind), u32> = HashMap::new();
        let (mut rows, mut of) = (Vec::new(), Vec::with_capacity(trace.operations.len()));
        for operation in &trace.operations {
            let name = sentences::name(trace, operation.id);
            let at = *known.entry((name, operation.kind)).or_insert_with_key(|(name, kind)| {
                rows.push(OperationRow {
                    name: name.clone(),
                    kind: kind.word().to_owned(),
                    count: 0,
                    running_ns: 0,
                    waited_ns: 0,
                    causes_ns: vec![0; Cause::ALL.len()],
                    blamed_ns: 0,
                    slack_ns: Nanos::MAX,
                });
                rows.len() as u32 - 1
            });
            of.push(at);
            let row = &mut rows[at as usize];
            row.count += 1;
            if matches!(operation.kind, OperationKind::Operation | OperationKind::Copy) {
                row.running_ns += own_time(trace, operation.id);
            }
        }
        Self { rows, of }
    }

    fn row(&mut self, trace: &Trace, id: OperationId) -> Option<&mut OperationRow> {
        Some(&mut self.rows[self.of[trace.position(id)?] as usize])
    }

    pub(super) fn add(&mut self, trace: &Trace, root: &Root) {
        if let Some(row) = self.row(trace, root.waiter) {
            row.waited_ns += root.duration();
            let cause = Cause::ALL.iter().position(|cause| *cause == root.cause);
            cause.into_iter().for_each(|cause| row.causes_ns[cause] += root.duration());
        }
        if let Blocker::Operation(id) | Blocker::Lease(id) = root.blocker
            && let Some(row) = self.row(trace, id)
        {
            row.blamed_ns += root.duration();
        }
    }

    pub(super) fn finish(
        mut self,
        trace: &Trace,
        slack: &HashMap<OperationId, Nanos>,
        keep: &dyn Fn(&str) -> bool,
    ) -> Vec<OperationRow> {
        for (id, slack) in slack {
            if let Some(row) = self.row(trace, *id) {
                row.slack_ns = row.slack_ns.min(*slack);
            }
        }
        self.rows.retain(|row| keep(&row.name));
        for row in &mut self.rows {
            if row.slack_ns == Nanos::MAX {
                row.slack_ns = 0;
            }
        }
        let key = |row: &OperationRow| (std::cmp::Reverse(row.waited_ns), row.name.clone(), row.kind.clone());
        self.rows.sort_by_cached_key(key);
        self.rows
    }
}

pub(super) fn tensors(trace: &Trace) -> Vec<TensorRow> {
    let mut rows: BTreeMap<&str, TensorRow> = BTreeMap::new();
    for variable in &trace.variables {
        let row = rows.entry(&variable.name).or_insert_with(|| TensorRow {
            name: variable.name.to_string(),
            bytes: 0,
            accesses: 0,
            waited_ns: 0,
            leased_ns: 0,
        });
        row.bytes = row.bytes.saturating_add(variable.bytes.unwrap_or(0));
    }
    let name_of = |variable: u64| trace.variable(variable).map(|variable| variable.name.as_str());
    for access in trace.operations.iter().flat_map(|operation| &operation.accesses) {
        if let Some(row) = name_of(access.variable).and_then(|name| rows.get_mut(name)) {
            row.accesses += 1;
        }
    }
    for stall in &trace.stalls {
        let access = trace.access(stall.waiter, stall.access);
        if let Some(row) =
            access.and_then(|access| name_of(access.variable)).and_then(|name| rows.get_mut(name))
        {
            row.waited_ns += stall.duration();
        }
    }
    for lease in &trace.leases {
        if let Some(row) = name_of(lease.variable).and_then(|name| rows.get_mut(name)) {
            row.leased_ns += lease.closed.unwrap_or(trace.end_of(lease.id)).saturating_sub(lease.opened);
        }
    }
    let mut rows: Vec<TensorRow> = rows.into_values().filter(|row| row.accesses > 0).collect();
    rows.sort_by(|a, b| b.waited_ns.cmp(&a.waited_ns).then_with(|| a.name.cmp(&b.name)));
    rows
}

pub(super) fn run_time(trace: &Trace, steps: &[Step], keep: &dyn Fn(&str) -> bool) -> Vec<RunTimeRow> {
    let mut by_what: HashMap<What, Nanos> = HashMap::new();
    for step in steps {
        *by_what.entry(step.what).or_default() += step.to - step.from;
    }
    let mut rows: BTreeMap<String, Nanos> = BTreeMap::new();
    for (what, time) in by_what {
        let what = match what {
            What::Run(id) => format!("{} ran", sentences::name(trace, id)),
            What::Program => "the program did something else".into(),
            What::Stall(cause, blocker) => sentences::because(trace, cause, blocker),
        };
        *rows.entry(what).or_default() += time;
    }
    rows.retain(|what, _| keep(what));
    let mut rows: Vec<RunTimeRow> =
        rows.into_iter().map(|(what, time_ns)| RunTimeRow { what, time_ns }).collect();
    rows.sort_by_key(|row| std::cmp::Reverse(row.time_ns));
    rows
}
