//! The queues of all variables, as they were.

use std::collections::HashMap;

use crate::Recording;
use crate::model::{Hazard, Mode, Nanos, Operation, OperationKind};

use super::hazard;

/// An operation that had to end first.
#[derive(Debug, Clone, Copy)]
pub(super) struct Before {
    /// Index into the recording's operations.
    pub(super) at: usize,
    pub(super) hazard: Hazard,
}

/// For each operation, for each of its accesses, what directly stood before it.
pub(super) fn predecessors(recording: &Recording) -> Vec<Vec<Vec<Before>>> {
    let mut queues: HashMap<u64, Vec<(usize, usize)>> = HashMap::new();
    for (at, operation) in recording.operations.iter().enumerate() {
        for (access, used) in operation.accesses.iter().enumerate() {
            queues.entry(used.variable).or_default().push((at, access));
        }
    }
    let mut before: Vec<Vec<Vec<Before>>> =
        recording.operations.iter().map(|operation| vec![Vec::new(); operation.accesses.len()]).collect();
    for queue in queues.values_mut() {
        queue.sort_unstable_by_key(|(at, access)| (place(&recording.operations[*at]), *access));
        walk(recording, queue, &mut before);
    }
    before
}

/// Conflicting accesses are granted in the order of their queue, and those of one thread have ascending identities.
fn place(operation: &Operation) -> (Nanos, Nanos, u64) {
    let granted = operation.granted.or(operation.ready).or(operation.awake).or(operation.began);
    (granted.or(operation.issued).unwrap_or(Nanos::MAX), operation.submitted, operation.id)
}

fn walk(recording: &Recording, queue: &[(usize, usize)], before: &mut [Vec<Vec<Before>>]) {
    let mut writer: Option<(usize, Mode)> = None;
    let mut readers: Vec<usize> = Vec::new();
    for &(at, access) in queue {
        let operation = &recording.operations[at];
        let mode = operation.accesses[access].mode;
        let found = &mut before[at][access];
        let mut note = |earlier: usize, earlier_mode: Mode| {
            if earlier != at
                && let Some(hazard) = hazard(earlier_mode, mode)
            {
                found.push(Before { at: earlier, hazard });
            }
        };
        if mode != Mode::Read && !readers.is_empty() {
            readers.iter().for_each(|reader| note(*reader, Mode::Read));
        } else if let Some((writer, writer_mode)) = writer {
            note(writer, writer_mode);
        }
        // Whoever only looks is in nobody's way.
        if matches!(operation.kind, OperationKind::Wait | OperationKind::Await) {
            continue;
        }
        if mode == Mode::Read {
            readers.push(at);
        } else {
            writer = Some((at, mode));
            readers.clear();
        }
    }
}
