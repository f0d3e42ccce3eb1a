//! Quantities over time, counted from beginnings and ends.

use crate::Recording;
use crate::model::{Counter, Nanos, OperationKind};

/// Operations in flight, bytes leased, fences pending.
pub(super) fn counters(recording: &Recording) -> Vec<Counter> {
    let mut in_flight = Vec::new();
    let mut fences = Vec::new();
    for operation in &recording.operations {
        if operation.kind == OperationKind::Operation {
            span(&mut in_flight, operation.submitted, operation.issued, 1);
        }
        if let Some(issued) = operation.issued
            && operation.done.is_none_or(|done| done > issued)
        {
            span(&mut fences, issued, operation.done, 1);
        }
    }
    let mut leased = Vec::new();
    for lease in &recording.leases {
        let bytes = recording.variable(lease.variable).and_then(|variable| variable.bytes).unwrap_or(0);
        span(&mut leased, lease.opened, lease.closed, bytes.try_into().unwrap_or(i64::MAX));
    }
    [
        ("operations in flight", "operations", in_flight),
        ("bytes leased", "bytes", leased),
        ("fences pending", "fences", fences),
    ]
    .map(|(name, unit, changes)| Counter { name: name.into(), unit: unit.into(), samples: sum(changes) })
    .into()
}

fn span(changes: &mut Vec<(Nanos, i64)>, from: Nanos, to: Option<Nanos>, amount: i64) {
    changes.push((from, amount));
    changes.extend(to.map(|to| (to, -amount)));
}

fn sum(mut changes: Vec<(Nanos, i64)>) -> Vec<(Nanos, i64)> {
    changes.sort_unstable_by_key(|(at, _)| *at);
    let mut samples: Vec<(Nanos, i64)> = Vec::new();
    let mut value: i64 = 0;
    for (at, change) in changes {
        value = value.saturating_add(change);
        match samples.last_mut() {
            Some(last) if last.0 == at => last.1 = value,
            _ => samples.push((at, value)),
        }
    }
    samples
}
