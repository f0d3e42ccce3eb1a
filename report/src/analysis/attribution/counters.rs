//! Quantities over time, counted from beginnings and ends.

use crate::Trace;
use crate::model::{Counter, Lease, Nanos, Operation, OperationKind};

pub(crate) const COUNTERS: [(&str, &str); 3] =
    [("operations in flight", "operations"), ("bytes leased", "bytes"), ("fences pending", "fences")];

/// The changes of counters by an operation, and by the lease that has its id: which counter, when, by how
/// much. `bytes` is the size of what is leased.
pub(crate) fn changes(
    operation: Option<&Operation>,
    lease: Option<&Lease>,
    bytes: Option<u64>,
    mut change: impl FnMut(usize, Nanos, i64),
) {
    let mut span = |counter, from, to: Option<Nanos>, amount: i64| {
        change(counter, from, amount);
        to.into_iter().for_each(|to| change(counter, to, -amount));
    };
    if let Some(operation) = operation {
        if operation.kind == OperationKind::Operation {
            span(0, operation.submitted, operation.issued, 1);
        }
        if let Some(issued) = operation.issued
            && operation.done.is_none_or(|done| done > issued)
        {
            span(2, issued, operation.done, 1);
        }
    }
    if let Some(lease) = lease {
        span(1, lease.opened, lease.closed, bytes.unwrap_or(0).try_into().unwrap_or(i64::MAX));
    }
}

/// Operations in flight, bytes leased, fences pending.
pub(super) fn counters(trace: &Trace) -> Vec<Counter> {
    let mut all: [Vec<(Nanos, i64)>; 3] = Default::default();
    let mut add = |counter: usize, at, amount| all[counter].push((at, amount));
    trace.operations.iter().for_each(|operation| changes(Some(operation), None, None, &mut add));
    for lease in &trace.leases {
        let bytes = trace.variable(lease.variable).and_then(|variable| variable.bytes);
        changes(None, Some(lease), bytes, &mut add);
    }
    let counter = |((name, unit), changes): ((&str, &str), _)| Counter {
        name: name.into(),
        unit: unit.into(),
        samples: sum(changes),
    };
    COUNTERS.into_iter().zip(all).map(counter).collect()
}

/// From changes to values, one for each moment.
fn sum(mut changes: Vec<(Nanos, i64)>) -> Vec<(Nanos, i64)> {
    changes.sort_unstable_by_key(|(at, _)| *at);
    let mut value: i64 = 0;
    for (_, change) in &mut changes {
        value = value.saturating_add(*change);
        *change = value;
    }
    changes.dedup_by(|next, last| {
        let at_once = next.0 == last.0;
        if at_once {
            last.1 = next.1;
        }
        at_once
    });
    changes.shrink_to_fit();
    changes
}
