//! Owners of the Python lock while others waited for it.
//!
//! The lock has no events. But what holds it runs: where of all that a trace shows one alone ran for (nearly)
//! a whole wait, that one is named. What a trace does not show, such as a thread that calls no engine, may be
//! to blame all the same; so the report says what is known, that this one ran meanwhile.

use std::borrow::Cow;
use std::collections::BTreeMap;

use crate::model::{Blocker, Cause, Nanos, OperationId, OperationKind, Stall, Trace, TrackId, TrackKind};

/// Tracks that are asked for each wait; in a trace with more of them nothing is named.
const TRACKS_MAX: usize = 64;

/// The trace with the waits for the Python lock because of those who held it, as far as that is known. Only a
/// borrowed trace in which some are known and not named yet is copied.
pub(crate) fn with_holders(trace: Cow<'_, Trace>) -> Cow<'_, Trace> {
    let is_for_lock =
        |stall: &Stall| (stall.cause, stall.blocker) == (Cause::NotResumed, Blocker::Interpreter);
    // In a merged trace they were found process by process.
    if trace.processes.len() > 1 || trace.tracks.len() > TRACKS_MAX || !trace.stalls.iter().any(is_for_lock) {
        return trace;
    }
    let runners = runners(&trace);
    let own = |id: OperationId| {
        let waiter = trace.operation(id)?;
        waiter.track.or(waiter.submitter)
    };
    let holders: Vec<Option<Blocker>> = trace
        .stalls
        .iter()
        .map(|stall| is_for_lock(stall).then(|| holder(&trace, &runners, stall, own(stall.waiter))).flatten())
        .collect();
    if holders.iter().all(Option::is_none) {
        return trace;
    }
    let mut trace = trace.into_owned();
    for (stall, holder) in trace.stalls.iter_mut().zip(holders) {
        stall.blocker = holder.unwrap_or(stall.blocker);
    }
    trace.stalls.sort_by_key(|stall| (stall.waiter, stall.from, stall.access));
    Cow::Owned(trace)
}

/// The times at which a thread ran, as far as the trace says.
#[derive(Default)]
struct Runner {
    /// In order of time, apart from each other: from, to, what ran. `None` is the program itself.
    intervals: Vec<(Nanos, Nanos, Option<OperationId>)>,
    /// The time that it ran before each.
    before: Vec<Nanos>,
}

impl Runner {
    fn of(mut intervals: Vec<(Nanos, Nanos, Option<OperationId>)>) -> Self {
        intervals.sort_unstable();
        let (mut end, mut sum, mut before) = (0, 0, Vec::with_capacity(intervals.len()));
        for (from, to, _) in &mut intervals {
            *from = (*from).max(end);
            *to = (*to).max(*from);
            before.push(sum);
            sum += *to - *from;
            end = *to;
        }
        Self { intervals, before }
    }

    /// The time that it ran until `at`.
    fn until(&self, at: Nanos) -> Nanos {
        let Some(last) = self.intervals.partition_point(|(from, ..)| *from < at).checked_sub(1) else {
            return 0;
        };
        let (from, to, _) = self.intervals[last];
        self.before[last] + to.min(at) - from
    }

    /// The last that ran before `at`.
    fn last(&self, at: Nanos) -> Option<(Nanos, Nanos, Option<OperationId>)> {
        let last = self.intervals.partition_point(|(from, ..)| *from < at).checked_sub(1)?;
        Some(self.intervals[last])
    }
}

/// Threads of the program between what they waited for, from the first that is known of them to the last, and
/// workers while they ran functions of Python.
fn runners(trace: &Trace) -> BTreeMap<TrackId, Runner> {
    let mut bodies: BTreeMap<TrackId, Vec<(Nanos, Nanos, Option<OperationId>)>> = BTreeMap::new();
    let mut waits: BTreeMap<TrackId, Vec<(Nanos, Nanos)>> = BTreeMap::new();
    for operation in &trace.operations {
        // Only what needs the lock asks for it.
        if let (OperationKind::Operation, Some(track), Some(_), Some(began)) =
            (operation.kind, operation.track, operation.awake, operation.began)
        {
            let end = operation.issued.or(operation.done).unwrap_or(trace.duration);
            bodies.entry(track).or_default().push((began, end, Some(operation.id)));
        }
        if let Some(track) = operation.submitter {
            let stands = matches!(operation.kind, OperationKind::Wait | OperationKind::Export);
            let end = if stands { operation.resumed.unwrap_or(trace.duration) } else { operation.submitted };
            waits.entry(track).or_default().push((operation.submitted, end));
        }
    }
    for (track, mut waits) in waits {
        // A loop's thread that waits for events has no wait in a trace.
        if trace.tracks.get(track).is_none_or(|track| track.kind != TrackKind::Thread) {
            continue;
        }
        waits.sort_unstable();
        let own = bodies.entry(track).or_default();
        let mut at = waits[0].0;
        for (from, to) in waits {
            if from > at {
                own.push((at, from, None));
            }
            at = at.max(to);
        }
    }
    bodies.into_iter().map(|(track, intervals)| (track, Runner::of(intervals))).collect()
}

fn holder(
    trace: &Trace,
    runners: &BTreeMap<TrackId, Runner>,
    stall: &Stall,
    own: Option<TrackId>,
) -> Option<Blocker> {
    let mut ran: Vec<(Nanos, TrackId)> = runners
        .iter()
        .filter(|(track, _)| Some(**track) != own)
        .map(|(track, runner)| (runner.until(stall.to) - runner.until(stall.from), *track))
        .collect();
    ran.sort_unstable_by(|a, b| b.cmp(a));
    let (most, track) = *ran.first()?;
    let next = ran.get(1).map_or(0, |(next, _)| *next);
    // A body on an event loop is asynchronous: until its end it takes only a part of the loop's time, and
    // nothing says which. So it may have held the lock, and is not named.
    let is_loop = trace.tracks.get(track).is_some_and(|track| track.kind == TrackKind::EventLoop);
    if is_loop || most < stall.duration() / 10 * 9 || next > stall.duration() / 2 {
        return None;
    }
    let (from, to, what) = runners[&track].last(stall.to)?;
    match what {
        Some(id) => {
            let is_whole = to.min(stall.to).saturating_sub(from.max(stall.from)) >= stall.duration() / 10 * 9;
            is_whole.then_some(Blocker::Operation(id))
        }
        None => Some(Blocker::LockOwner(track)),
    }
}
