//! When as many bodies ran as an engine runs at once. At other times an operation that is ready waits for a
//! worker that must wake up, and more workers would not help it.

use std::collections::{HashMap, HashSet};

use crate::Trace;
use crate::model::source::{Merging, Source, operations};
use crate::model::{Blocker, Nanos, Operation, OperationKind, TrackId, TrackKind, Workers};

/// A worker that pauses for less is looking for the next operation.
const PAUSE_MAX: Nanos = 50_000;

/// Parts that [`Pool::full_between`] gives at most: an operation that is ready for long while the pool fills
/// and empties thousands of times has as few stalls as any other.
const PARTS_MAX: usize = 8;

/// The busy times of an operation's workers.
pub(super) struct Pool {
    workers: HashSet<TrackId>,
    /// The time at which each of them is first known to have been busy.
    first: HashMap<TrackId, Nanos>,
    /// The times at which as many bodies ran as run at once, by engine.
    full: Vec<Intervals>,
    engine_of: HashMap<TrackId, usize>,
    /// Engines by their numbers, where those are known.
    numbers: HashMap<u64, usize>,
}

/// The reason why there was no worker in an interval of time.
pub(super) type NoWorker = (Nanos, Nanos, Blocker);

impl Pool {
    pub(super) fn of(source: &impl Source) -> Self {
        let about = source.about();
        let is_worker = |track: &TrackId| about.tracks[*track].kind == TrackKind::Worker;
        let workers: HashSet<TrackId> = (0..about.tracks.len()).filter(is_worker).collect();
        let engines = engines(about, &workers);
        let tracks = engines.iter().map(|engine| &engine.tracks).enumerate();
        let engine_of: HashMap<TrackId, usize> =
            tracks.flat_map(|(at, tracks)| tracks.iter().map(move |track| (*track, at))).collect();
        let numbers = engines.iter().enumerate().filter(|(_, engine)| engine.engine != 0);
        let numbers = numbers.map(|(at, engine)| (engine.engine, at)).collect();
        // A thread of the program takes a turn of the only engine.
        let engine = |track| engine_of.get(&track).copied().or((engines.len() == 1).then_some(0));
        let is_limited = |track| engine(track).is_some_and(|engine| is_limited(&engines[engine]));
        // Nothing can make an engine without workers fuller.
        let can_be_free = !workers.is_empty() || engines.iter().any(|engine| engine.count > 0);
        let busy = if can_be_free { busy(source, &workers, is_limited) } else { HashMap::new() };
        let first = busy.iter().filter(|(track, _)| workers.contains(track));
        let first = first.filter_map(|(track, busy)| Some((*track, busy.first()?.0))).collect();
        let mut of_each = vec![Vec::new(); engines.len()];
        for (track, busy) in busy {
            engine(track).into_iter().for_each(|engine| of_each[engine].extend_from_slice(&busy));
        }
        let full = engines.iter().zip(of_each).map(|(engine, busy)| full(engine, &busy)).collect();
        Self { workers, first, full, engine_of, numbers }
    }

    pub(super) fn has(&self, track: TrackId) -> bool {
        self.workers.contains(&track)
    }

    /// The time at which a worker is first known to have been busy.
    pub(super) fn first(&self, worker: TrackId) -> Option<Nanos> {
        self.first.get(&worker).copied()
    }

    /// The parts of a time in which an operation lacked a worker: in order, at most [`PARTS_MAX`].
    pub(super) fn full_between(&self, operation: &Operation, from: Nanos, to: Nanos) -> Vec<NoWorker> {
        // If a file does not say the engine of an operation, the engine of its worker counts.
        let of_worker = || self.engine_of.get(&operation.track?);
        let full = match &self.full[..] {
            [only] => Some(only),
            all => self.numbers.get(&operation.engine).or_else(of_worker).map(|engine| &all[*engine]),
        };
        match full {
            Some(full) => full.between(from, to).map(|(from, to)| (from, to, Blocker::Pool)).collect(),
            // Of which engine it was is not known.
            None => vec![(from, to.max(from), Blocker::None)],
        }
    }
}

struct Intervals {
    /// In order of time, apart from each other.
    all: Vec<(Nanos, Nanos)>,
    /// Of each, how long the ones before it lasted together.
    before: Vec<Nanos>,
}

impl Intervals {
    fn of(all: Vec<(Nanos, Nanos)>) -> Self {
        let lengths = all.iter().map(|(from, to)| to - from);
        let before = lengths.scan(0, |sum, length| Some(std::mem::replace(sum, *sum + length))).collect();
        Self { all, before }
    }

    /// The parts of a time that they cover, in order, at most [`PARTS_MAX`]. Of more than that, neighbours
    /// are put together at the end of the last of them, as long as they were together.
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

/// True if the workers belong to several engines: those of one engine have different names.
pub(crate) fn has_several_pools(trace: &Trace) -> bool {
    let mut names = HashSet::new();
    let mut workers = trace.tracks.iter().filter(|track| track.kind == TrackKind::Worker);
    !workers.all(|track| names.insert(track.name.as_str()))
}

fn engines(trace: &Trace, workers: &HashSet<TrackId>) -> Vec<Workers> {
    let all = || workers.iter().copied();
    match &trace.workers[..] {
        [only] => vec![Workers { tracks: all().collect(), ..only.clone() }],
        noted if noted.iter().any(|engine| !engine.tracks.is_empty()) => noted.to_vec(),
        // A file of before does not say which workers the engine of an operation has, but it has the one that
        // ran the operation: while that one was free, the operation lacked none.
        _ if has_several_pools(trace) => {
            let alone = |track| Workers { count: 1, tracks: vec![track], ..Workers::default() };
            all().map(alone).collect()
        }
        _ => vec![Workers { count: workers.len() as u32, tracks: all().collect(), ..Workers::default() }],
    }
}

/// True if more threads take turns than run at once.
fn is_limited(engine: &Workers) -> bool {
    engine.least() < engine.count
}

/// The times at which there was no room for one more body, with these.
fn full(engine: &Workers, busy: &[(Nanos, Nanos)]) -> Intervals {
    let first = engine.at_once.first().map_or(engine.count, |(_, at_once)| *at_once);
    let mut room = i64::from(first);
    let limits = engine.at_once.windows(2);
    let mut changes: Vec<(Nanos, i64)> =
        limits.map(|two| (two[1].0, i64::from(two[1].1) - i64::from(two[0].1))).collect();
    changes.reserve_exact(2 * busy.len());
    changes.extend(busy.iter().flat_map(|(from, to)| [(*from, -1), (*to, 1)]));
    // At one moment ends come first.
    changes.sort_unstable_by_key(|(time, change)| (*time, -change));
    let (mut full, mut since) = (Vec::new(), 0);
    for (time, change) in changes {
        let was_full = room <= 0;
        room += change;
        match (was_full, room <= 0) {
            (false, true) => since = time,
            (true, false) if time > since => full.push((since, time)),
            _ => {}
        }
    }
    if room <= 0 {
        full.push((since, Nanos::MAX));
    }
    if is_limited(engine) {
        without_pauses(&mut full);
    }
    Intervals::of(full)
}

/// The times at which each worker ran bodies, without its short pauses and without what it waited for inside
/// of them: then another thread stands in for it. And when threads of the program ran bodies that share a
/// lock, for which they take turns with the workers. The pauses of threads for which `is_limited` returns
/// true stay: another thread takes its turn in them.
fn busy(
    source: &impl Source,
    workers: &HashSet<TrackId>,
    is_limited: impl Fn(TrackId) -> bool,
) -> HashMap<TrackId, Vec<(Nanos, Nanos)>> {
    type Busy = HashMap<TrackId, Merging<(Nanos, Nanos)>>;
    let join =
        |track| -> fn(&mut Vec<(Nanos, Nanos)>) { if is_limited(track) { joined } else { without_pauses } };
    let (about, mut waits) = (source.about(), Busy::new());
    for operation in (!workers.is_empty()).then(|| operations(source)).into_iter().flatten() {
        let Some(track) = operation.submitter.filter(|track| workers.contains(track)) else { continue };
        let to = match operation.kind {
            OperationKind::Wait => operation.resumed.unwrap_or(about.duration),
            OperationKind::Export if operation.track == Some(track) => operation.resumed.unwrap_or(0),
            _ => continue,
        };
        if operation.submitted < to {
            waits.entry(track).or_insert_with(|| Merging::new(joined)).push((operation.submitted, to));
        }
    }
    let waits: HashMap<TrackId, Vec<(Nanos, Nanos)>> =
        waits.into_iter().map(|(track, waits)| (track, waits.finish())).collect();
    let waits_of = |track: TrackId| waits.get(&track).map(Vec::as_slice).unwrap_or_default();
    let takes_turn = |track: TrackId, operation: &Operation| {
        about.workers.len() == 1
            && operation.awake.is_some()
            && about.tracks.get(track).is_some_and(|track| track.kind == TrackKind::Thread)
    };
    // Operations that run inside of a wait are those that the worker helps with.
    let (mut outside, mut inside) = (Busy::new(), Busy::new());
    for operation in operations(source) {
        let is_counted = |track: &TrackId| workers.contains(track) || takes_turn(*track, &operation);
        let Some(track) = operation.track.filter(is_counted) else { continue };
        let Some(from) = operation.awake.or(operation.began) else { continue };
        let to = operation.issued.unwrap_or(about.duration);
        if matches!(operation.kind, OperationKind::Operation | OperationKind::Copy) && from < to {
            let waits = waits_of(track);
            let before = waits.partition_point(|(begin, _)| *begin <= from);
            let helps = before.checked_sub(1).is_some_and(|wait| waits[wait].1 >= to);
            let busy = if helps { &mut inside } else { &mut outside };
            busy.entry(track).or_insert_with(|| Merging::new(join(track))).push((from, to));
        }
    }
    let mut all: HashMap<_, _> =
        outside.into_iter().map(|(track, busy)| (track, without(&busy.finish(), waits_of(track)))).collect();
    for (track, helped) in inside {
        let own: &mut Vec<_> = all.entry(track).or_default();
        own.extend(helped.finish());
        join(track)(own);
    }
    all
}

/// The intervals without the holes; both in order, and apart from each other.
fn without(intervals: &[(Nanos, Nanos)], holes: &[(Nanos, Nanos)]) -> Vec<(Nanos, Nanos)> {
    let mut left = Vec::with_capacity(intervals.len());
    for &(mut from, to) in intervals {
        let first = holes.partition_point(|(_, end)| *end <= from);
        for &(begin, end) in holes[first..].iter().take_while(|(begin, _)| *begin < to) {
            left.extend((from < begin).then_some((from, begin)));
            from = end;
        }
        left.extend((from < to).then_some((from, to)));
    }
    left
}

/// Puts intervals of time together that follow each other closely.
fn without_pauses(intervals: &mut Vec<(Nanos, Nanos)>) {
    join(intervals, PAUSE_MAX);
}

/// Puts intervals of time together that overlap.
fn joined(intervals: &mut Vec<(Nanos, Nanos)>) {
    join(intervals, 0);
}

fn join(intervals: &mut Vec<(Nanos, Nanos)>, pause_max: Nanos) {
    intervals.sort_unstable();
    intervals.dedup_by(|next, last| {
        let is_joined = next.0 <= last.1.saturating_add(pause_max);
        if is_joined {
            last.1 = last.1.max(next.1);
        }
        is_joined
    });
}
