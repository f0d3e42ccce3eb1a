//! When all workers were busy. At other times an operation that is ready waits for a worker that must wake up, and more
//! workers would not help it.

use std::collections::{HashMap, HashSet};

use crate::Trace;
use crate::model::source::{Merging, Source, operations};
use crate::model::{Blocker, Nanos, OperationKind, TrackId, TrackKind};

/// A worker that pauses for less is looking for the next operation.
const PAUSE_MAX: Nanos = 50_000;

/// Parts that [`Pool::full_between`] gives at most: an operation that is ready for long while the pool fills and empties thousands of
/// times has as few stalls as any other.
const PARTS_MAX: usize = 8;

/// When the workers of an operation were busy.
pub(super) struct Pool {
    workers: HashSet<TrackId>,
    /// When each of them is first known to have been busy.
    first: HashMap<TrackId, Nanos>,
    full: Full,
}

/// Which workers have to be busy for an operation to lack one.
enum Full {
    /// All, which are those of one engine.
    Together(Stretches),
    /// Those of the operation's engine. A trace does not say which workers that has, but it has the one that ran the operation: while
    /// that one was free, the operation lacked none.
    Apart(HashMap<TrackId, Stretches>),
    /// There are none.
    Always,
}

/// Why there was no worker in a stretch of time.
pub(super) type NoWorker = (Nanos, Nanos, Blocker);

impl Pool {
    pub(super) fn of(source: &impl Source) -> Self {
        let tracks = &source.about().tracks;
        let is_worker = |track: &TrackId| tracks[*track].kind == TrackKind::Worker;
        let workers: HashSet<TrackId> = (0..tracks.len()).filter(is_worker).collect();
        if workers.is_empty() {
            return Self { workers, first: HashMap::new(), full: Full::Always };
        }
        let busy = busy(source, &workers);
        let first = busy.iter().filter_map(|(track, busy)| Some((*track, busy.first()?.0))).collect();
        if has_several_pools(source.about()) {
            let of_each = busy.into_iter().map(|(track, busy)| (track, Stretches::of(busy)));
            return Self { full: Full::Apart(of_each.collect()), first, workers };
        }
        let mut changes: Vec<(Nanos, i32)> =
            Vec::with_capacity(2 * busy.values().map(Vec::len).sum::<usize>());
        for (from, to) in busy.into_values().flatten() {
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
        Self { workers, first, full: Full::Together(Stretches::of(full)) }
    }

    pub(super) fn has(&self, track: TrackId) -> bool {
        self.workers.contains(&track)
    }

    /// When a worker is first known to have been busy.
    pub(super) fn first(&self, worker: TrackId) -> Option<Nanos> {
        self.first.get(&worker).copied()
    }

    /// The parts of a time in which an operation that `worker` ran, if one did, lacked a worker: in order, at most [`PARTS_MAX`].
    pub(super) fn full_between(&self, worker: Option<TrackId>, from: Nanos, to: Nanos) -> Vec<NoWorker> {
        let because_of = |blocker| move |(from, to)| (from, to, blocker);
        match (&self.full, worker) {
            (Full::Together(full), _) => full.between(from, to).map(because_of(Blocker::Pool)).collect(),
            (Full::Apart(own), Some(worker)) => {
                let busy = own.get(&worker).into_iter();
                busy.flat_map(|busy| busy.between(from, to)).map(because_of(Blocker::Pool)).collect()
            }
            // Of which engine it was is not known.
            (Full::Apart(_), None) => vec![(from, to.max(from), Blocker::None)],
            (Full::Always, _) => vec![(from, to.max(from), Blocker::Pool)],
        }
    }
}

/// Stretches of time.
struct Stretches {
    /// In order of time, apart from each other.
    all: Vec<(Nanos, Nanos)>,
    /// Of each, how long the ones before it lasted together.
    before: Vec<Nanos>,
}

impl Stretches {
    fn of(all: Vec<(Nanos, Nanos)>) -> Self {
        let lengths = all.iter().map(|(from, to)| to - from);
        let before = lengths.scan(0, |sum, length| Some(std::mem::replace(sum, *sum + length))).collect();
        Self { all, before }
    }

    /// The parts of a time that they cover, in order, at most [`PARTS_MAX`]. Of more than that, neighbours are put together at the end of the
    /// last of them, as long as they were together.
    fn between(&self, from: Nanos, to: Nanos) -> impl Iterator<Item = (Nanos, Nanos)> {
        let to = to.max(from);
        let first = self.all.partition_point(|(_, end)| *end <= from);
        let end = self.all.partition_point(|(begin, _)| *begin < to).max(first);
        let parts = (end - first).min(PARTS_MAX);
        (0..parts).map(move |part| {
            let bound = |part: usize| first + (end - first) * part / parts;
            let (first, last) = (bound(part), bound(part + 1) - 1);
            let ((first_from, _), (last_from, last_to)) = (self.all[first], self.all[last]);
            let until = last_to.min(to);
            // Only the first and the last may reach out of the time.
            let whole = self.before[last] - self.before[first] + (until - last_from);
            (until - (whole - from.saturating_sub(first_from)), until)
        })
    }
}

/// Whether the workers belong to several engines: those of one engine have different names.
pub(crate) fn has_several_pools(trace: &Trace) -> bool {
    let mut names = HashSet::new();
    let mut workers = trace.tracks.iter().filter(|track| track.kind == TrackKind::Worker);
    !workers.all(|track| names.insert(track.name.as_str()))
}

/// When each worker was busy, without its short pauses.
fn busy(source: &impl Source, workers: &HashSet<TrackId>) -> HashMap<TrackId, Vec<(Nanos, Nanos)>> {
    let mut busy: HashMap<TrackId, Merging<(Nanos, Nanos)>> = HashMap::new();
    for operation in operations(source) {
        let Some(track) = operation.track.filter(|track| workers.contains(track)) else { continue };
        let Some(from) = operation.awake.or(operation.began) else { continue };
        let to = operation.issued.unwrap_or(source.about().duration);
        if matches!(operation.kind, OperationKind::Operation | OperationKind::Copy) && from < to {
            busy.entry(track).or_insert_with(|| Merging::new(without_pauses)).push((from, to));
        }
    }
    busy.into_iter().map(|(track, busy)| (track, busy.finish())).collect()
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
