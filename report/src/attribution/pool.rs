//! When all workers were busy. At other times an operation that is ready waits for a worker that must wake up, and more
//! workers would not help it.

use std::collections::HashSet;

use crate::Recording;
use crate::model::{LaneId, LaneKind, Nanos, Operation, OperationKind};

/// A worker that pauses for less is looking for the next operation.
const PAUSE_MAX: Nanos = 50_000;

/// When all workers were busy.
pub(super) struct Pool {
    workers: HashSet<LaneId>,
    /// In order of time, apart from each other.
    full: Vec<(Nanos, Nanos)>,
}

impl Pool {
    pub(super) fn of(recording: &Recording) -> Self {
        let is_worker = |lane: &LaneId| recording.lanes[*lane].kind == LaneKind::Worker;
        let workers: HashSet<LaneId> = (0..recording.lanes.len()).filter(is_worker).collect();
        let names: HashSet<&str> = workers.iter().map(|lane| recording.lanes[*lane].name.as_str()).collect();
        // Workers of the same name are of several engines: nobody knows whose were free. So with no workers at all.
        if workers.is_empty() || names.len() < workers.len() {
            return Self { workers, full: vec![(0, Nanos::MAX)] };
        }
        let mut changes: Vec<(Nanos, i32)> = Vec::new();
        for lane in &workers {
            for (from, to) in busy(recording, *lane) {
                changes.extend([(from, 1), (to, -1)]);
            }
        }
        // At one moment ends come first.
        changes.sort_unstable();
        let mut full = Vec::new();
        let (mut count, mut since) = (0, 0);
        for (time, change) in changes {
            let was_full = count == workers.len() as i32;
            count += change;
            match (was_full, count == workers.len() as i32) {
                (false, true) => since = time,
                (true, false) if time > since => full.push((since, time)),
                _ => {}
            }
        }
        Self { workers, full }
    }

    pub(super) fn has(&self, lane: LaneId) -> bool {
        self.workers.contains(&lane)
    }

    /// The parts of a time in which all workers were busy, in order.
    pub(super) fn full_between(&self, from: Nanos, to: Nanos) -> impl Iterator<Item = (Nanos, Nanos)> {
        let first = self.full.partition_point(|(_, end)| *end <= from);
        let parts = self.full[first..].iter().take_while(move |(begin, _)| *begin < to);
        parts.map(move |(begin, end)| ((*begin).max(from), (*end).min(to)))
    }
}

/// When a worker was busy, without its short pauses.
fn busy(recording: &Recording, lane: LaneId) -> Vec<(Nanos, Nanos)> {
    let of_lane = recording.operations.iter().filter(|operation| {
        operation.lane == Some(lane)
            && matches!(operation.kind, OperationKind::Operation | OperationKind::Copy)
    });
    let body = |operation: &Operation| {
        let from = operation.awake.or(operation.began)?;
        Some((from, operation.issued.unwrap_or(recording.duration)))
    };
    let mut bodies: Vec<(Nanos, Nanos)> = of_lane.filter_map(body).filter(|(from, to)| from < to).collect();
    bodies.sort_unstable();
    let mut busy: Vec<(Nanos, Nanos)> = Vec::new();
    for (from, to) in bodies {
        match busy.last_mut() {
            Some(last) if from <= last.1.saturating_add(PAUSE_MAX) => last.1 = last.1.max(to),
            _ => busy.push((from, to)),
        }
    }
    busy
}
