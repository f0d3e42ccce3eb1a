//! Times at which nothing was under way: the program had submitted nothing that was not over.

use crate::Trace;
use crate::analysis::walk::{Step, What};
use crate::model::{Nanos, OperationKind};

/// The time of the walk that was the program's own doing, with nothing under way.
pub(crate) fn idle(trace: &Trace, steps: &[Step]) -> Nanos {
    let busy = under_way(trace);
    let program = steps.iter().filter(|step| step.what == What::Program);
    program.map(|step| step.to - step.from - overlap(&busy, step.from, step.to)).sum()
}

/// When anything was, in order of time and apart from each other.
fn under_way(trace: &Trace) -> Vec<(Nanos, Nanos)> {
    let works = |kind| matches!(kind, OperationKind::Operation | OperationKind::Copy);
    let mut all: Vec<(Nanos, Nanos)> = trace
        .operations
        .iter()
        .filter(|operation| works(operation.kind))
        .map(|operation| {
            let end = operation.done.or(operation.issued).unwrap_or(trace.end_of(operation.id));
            (operation.submitted, end.max(operation.submitted))
        })
        .collect();
    all.sort_unstable();
    let mut joined: Vec<(Nanos, Nanos)> = Vec::new();
    for (from, to) in all {
        match joined.last_mut() {
            Some(last) if from <= last.1 => last.1 = last.1.max(to),
            _ => joined.push((from, to)),
        }
    }
    joined
}

fn overlap(busy: &[(Nanos, Nanos)], from: Nanos, to: Nanos) -> Nanos {
    let first = busy.partition_point(|(_, end)| *end <= from);
    let inside = busy[first..].iter().take_while(|(begin, _)| *begin < to);
    inside.map(|(begin, end)| (*end).min(to) - (*begin).max(from)).sum()
}
