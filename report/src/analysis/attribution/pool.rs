//! When all workers were busy. At other times an operation that is ready waits for a worker that must wake up, and more
//! workers would not help it.

use std::collections::{HashMap, HashSet};

use crate::model::source::{Merging, Source, operations};
use crate::model::{Nanos, OperationKind, TrackId, TrackKind};

/// A worker that pauses for less is looking for the next operation.
const PAUSE_MAX: Nanos = 50_000;

/// Parts that [`Pool::full_between`] gives at most: an operation that is ready for long while the pool fills and empties thousands of
/// times has as few stalls as any other.
const PARTS_MAX: usize = 8;

/// When all workers were busy.
pub(super) struct Pool {
    workers: HashSet<TrackId>,
    /// In order of time, apart from each other.
    full: Vec<(Nanos, Nanos)>,
    /// Of each entry of `full`, how long the ones before it lasted together.
    before: Vec<Nanos>,
}

impl Pool {
    pub(super) fn of(source: &impl Source) -> Self {
        let tracks = &source.about().tracks;
        let is_worker = |track: &TrackId| tracks[*track].kind == TrackKind::Worker;
        let workers: HashSet<TrackId> = (0..tracks.len()).filter(is_worker).collect();
        let names: HashSet<&str> = workers.iter().map(|track| tracks[*track].name.as_str()).collect();
        // Workers of the same name belong to several engines, so their free time is unknown. The same holds without workers.
        if workers.is_empty() || names.len() < workers.len() {
            return Self { workers, full: vec![(0, Nanos::MAX)], before: vec![0] };
        }
        let busy = busy(source, &workers);
        let mut changes: Vec<(Nanos, i32)> = Vec::with_capacity(2 * busy.iter().map(Vec::len).sum::<usize>());
        for (from, to) in busy.into_iter().flatten() {
            changes.extend([(from, 1), (to, -1)]);
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
        let lengths = full.iter().map(|(from, to)| to - from);
        let before = lengths.scan(0, |sum, length| Some(std::mem::replace(sum, *sum + length))).collect();
        Self { workers, full, before }
    }

    pub(super) fn has(&self, track: TrackId) -> bool {
        self.workers.contains(&track)
    }

    /// The parts of a time in which all workers were busy, in order, at most [`PARTS_MAX`]. Of more than that, neighbours are put
    /// together at the end of the last of them, as long as they were together.
    pub(super) fn full_between(&self, from: Nanos, to: Nanos) -> impl Iterator<Item = (Nanos, Nanos)> {
        let to = to.max(from);
        let first = self.full.partition_point(|(_, end)| *end <= from);
        let end = self.full.partition_point(|(begin, _)| *begin < to).max(first);
        let parts = (end - first).min(PARTS_MAX);
        (0..parts).map(move |part| {
            let bound = |part: usize| first + (end - first) * part / parts;
            let (first, last) = (bound(part), bound(part + 1) - 1);
            let ((first_from, _), (last_from, last_to)) = (self.full[first], self.full[last]);
            let until = last_to.min(to);
            // Only the first and the last may reach out of the time.
            let whole = self.before[last] - self.before[first] + (until - last_from);
            (until - (whole - from.saturating_sub(first_from)), until)
        })
    }
}

/// When each worker was busy, without its short pauses.
fn busy(source: &impl Source, workers: &HashSet<TrackId>) -> Vec<Vec<(Nanos, Nanos)>> {
    let mut busy: HashMap<TrackId, Merging<(Nanos, Nanos)>> = HashMap::new();
    for operation in operations(source) {
        let Some(track) = operation.track.filter(|track| workers.contains(track)) else { continue };
        let Some(from) = operation.awake.or(operation.began) else { continue };
        let to = operation.issued.unwrap_or(source.about().duration);
        if matches!(operation.kind, OperationKind::Operation | OperationKind::Copy) && from < to {
            busy.entry(track).or_insert_with(|| Merging::new(without_pauses)).push((from, to));
        }
    }
    busy.into_values().map(Merging::finish).collect()
}

/// Puts stretches of time together that follow each other closely.
fn without_pauses(stretches: &mut Vec<(Nanos, Nanos)>) {
    stretches.sort_unstable();
    stretches.dedup_by(|next, last| {
        let joined = next.0 <= last.1.saturating_add(PAUSE_MAX);
        if joined {
            last.1 = last.1.max(next.1);
        }
        joined
    });
}
