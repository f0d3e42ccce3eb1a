//! The cost of a global barrier at each hand-over: the usual alternative (`cudaDeviceSynchronize` before
//! every exchange), at which everything that was submitted before must end, needed or not.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::Trace;
use crate::analysis::merge::process_of;
use crate::model::{Nanos, OperationKind};

/// The cost of barriers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Barriers {
    /// Hand-overs at which there would have been one: exports, and waits of the host.
    pub hand_overs: usize,
    /// Those at which it would have waited longer than was waited.
    pub longer: usize,
    /// The extra time, summed over all of them.
    pub extra_ns: Nanos,
    /// The extra time of the worst one.
    pub worst_ns: Nanos,
}

/// Computes the cost from what was recorded; what the barriers would have delayed in turn is not counted.
pub fn barriers(trace: &Trace) -> Barriers {
    // All work that had been submitted at a moment would be done at the greatest end so far.
    // A barrier waits for the work of its own process.
    let mut ends: BTreeMap<usize, Vec<(Nanos, Nanos)>> = BTreeMap::new();
    for operation in &trace.operations {
        if matches!(operation.kind, OperationKind::Operation | OperationKind::Copy) {
            let end = operation.done.unwrap_or(trace.end_of(operation.id));
            ends.entry(process_of(operation.id)).or_default().push((operation.submitted, end));
        }
    }
    for ends in ends.values_mut() {
        ends.sort_unstable();
        let mut greatest = 0;
        for (_, end) in ends {
            greatest = greatest.max(*end);
            *end = greatest;
        }
    }
    let mut cost = Barriers::default();
    for operation in &trace.operations {
        if !matches!(operation.kind, OperationKind::Export | OperationKind::Wait | OperationKind::Await) {
            continue;
        }
        let Some(went_on) = operation.resumed.or(operation.began) else { continue };
        cost.hand_overs += 1;
        let ends = ends.get(&process_of(operation.id)).map(Vec::as_slice).unwrap_or_default();
        let before = ends.partition_point(|(submitted, _)| *submitted < operation.submitted);
        let barrier = before.checked_sub(1).map_or(0, |last| ends[last].1);
        let extra = barrier.saturating_sub(went_on);
        if extra > 0 {
            cost.longer += 1;
            cost.extra_ns += extra;
            cost.worst_ns = cost.worst_ns.max(extra);
        }
    }
    cost
}
