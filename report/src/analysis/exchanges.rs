//! Library by library: what was handed over, how much of it was copied, and how long that was waited for.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::Trace;
use crate::analysis::matrix::HOST;
use crate::analysis::roots::Root;
use crate::model::{Blocker, Nanos, Operation, OperationKind};

/// Everything that went from one library to another.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exchange {
    /// The library whose memory it is; `host` is no known library.
    pub producer: String,
    /// The library that took it; `host` is the program itself.
    pub consumer: String,
    /// The number of times.
    pub count: usize,
    /// Bytes that were handed over, as far as known.
    pub bytes: u64,
    /// The number of copies among them.
    pub copies: usize,
    /// Bytes of these.
    pub copied_bytes: u64,
    /// Time that the consumer waited for it: for the copies, and for the work of the producer.
    pub waited_ns: Nanos,
}

/// The exchanges of a trace. Waits of one library for the work of another without an exchange are not among
/// them.
pub(crate) struct Exchanges<'t> {
    trace: &'t Trace,
    rows: BTreeMap<(&'t str, &'t str), Exchange>,
}

impl<'t> Exchanges<'t> {
    /// The exchanges of the trace, before any wait is added.
    pub(crate) fn of(trace: &'t Trace) -> Self {
        let mut rows: BTreeMap<(&str, &str), Exchange> = BTreeMap::new();
        for operation in &trace.operations {
            let Some(pair) = pair(trace, operation) else { continue };
            let row = rows.entry(pair).or_default();
            let size = operation.accesses.iter().filter_map(|access| trace.variable(access.variable)?.bytes);
            let size = size.fold(0, u64::saturating_add);
            row.count += 1;
            row.bytes = row.bytes.saturating_add(size);
            if operation.kind == OperationKind::Copy {
                row.copies += 1;
                row.copied_bytes = row.copied_bytes.saturating_add(size);
            }
        }
        Self { trace, rows }
    }

    pub(crate) fn add(&mut self, root: &Root) {
        let trace = self.trace;
        let waited_for = || {
            let Blocker::Operation(blocker) = root.blocker else { return None };
            let (blocker, waiter) = (trace.operation(blocker)?, trace.operation(root.waiter)?);
            let work = blocker.library.and_then(|from| trace.library(Some(from)));
            pair(trace, blocker).or_else(|| Some((work?, library(trace, waiter))))
        };
        if !self.rows.is_empty()
            && let Some(row) = waited_for().and_then(|pair| self.rows.get_mut(&pair))
        {
            row.waited_ns = row.waited_ns.saturating_add(root.duration());
        }
    }

    /// Longest waits first.
    pub(crate) fn rows(self) -> Vec<Exchange> {
        let named = |((producer, consumer), row)| Exchange {
            producer: str::to_owned(producer),
            consumer: str::to_owned(consumer),
            ..row
        };
        let mut rows: Vec<Exchange> = self.rows.into_iter().map(named).collect();
        rows.sort_by_key(|row| std::cmp::Reverse((row.waited_ns, row.bytes)));
        rows
    }
}

/// From which library to which an operation hands something over, if it does.
pub(crate) fn pair<'t>(trace: &'t Trace, operation: &'t Operation) -> Option<(&'t str, &'t str)> {
    if !matches!(operation.kind, OperationKind::Copy | OperationKind::Export) {
        return None;
    }
    let memory = trace.variable(operation.accesses.first()?.variable)?;
    Some((trace.library(memory.library).unwrap_or(HOST), library(trace, operation)))
}

fn library<'t>(trace: &'t Trace, operation: &Operation) -> &'t str {
    trace.library(operation.library).unwrap_or(HOST)
}
