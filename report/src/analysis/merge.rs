//! Traces of several processes as one: on one time axis, under names that say of which process they are, and
//! with what one process waited for in another.
//!
//! A process that shows a value to others takes a lease of it. Its key is in the traces of both sides: the
//! owner has the lease, and the other process an import. What waited for the import is made to wait for the
//! lease, behind which stands what the owner did; and the lease gets the line of the import.
//!
//! Processes of one machine share a clock. An import from another machine says how far the clock there is
//! ahead, so the times of one are shifted to the clock of the other. Traces of clocks between which nothing
//! is known have axes of their own, which all begin at 0.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap, HashSet};

use crate::Trace;
use crate::analysis::lock::with_holders;
use crate::analysis::sentences::duration;
use crate::model::sane::{TIME_MAX, each_time, sane};
use crate::model::shown::shown;
use crate::model::{
    Blocker, Cause, Edge, Nanos, OperationId, OperationKind, Process, Site, Stall, Text, TrackId,
};

/// The bits of an identity that say in a merged trace of which process it is. Processes count from 1, and
/// waits from 1 << 62.
const TAG_SHIFT: u32 = 50;
const TAG: u64 = 0xfff << TAG_SHIFT;

const PROCESSES_MAX: usize = (TAG >> TAG_SHIFT) as usize + 1;

/// Clocks drift apart by at most a part in so many.
const DRIFT: i128 = 10_000;

/// The greatest number of direct dependences of a lease: it is for reading, and waits for one writer.
const EDGES_MAX: usize = 16;

/// The process of an operation, a lease or a variable: an index into [`Trace::processes`].
pub(crate) fn process_of(id: u64) -> usize {
    ((id & TAG) >> TAG_SHIFT) as usize
}

impl Trace {
    /// The time at which what had not ended was last seen: at the end of the trace of its process.
    pub(crate) fn end_of(&self, id: OperationId) -> Nanos {
        self.ends.get(process_of(id)).copied().unwrap_or(self.duration)
    }
}

/// The suffix of names of a process: `@4711`.
pub(crate) fn label(trace: &Trace, process: usize) -> String {
    let number = |at: usize| trace.processes.get(at).map_or(0, |process| process.number);
    match (0..process).filter(|earlier| number(*earlier) == number(process)).count() {
        0 => format!("@{}", number(process)),
        // Of another container, or later.
        earlier => format!("@{}-{}", number(process), earlier + 1),
    }
}

/// The traces of several processes as one. Times begin with the earliest trace. Names of everything get the
/// number of their process, as `decode @4711`, and identities of all processes but the first are others than
/// in diagnoses. One trace alone stays as it is.
///
/// # Errors
/// In words, why they cannot be merged: one is of no known process, or two are of the same.
pub fn merge(traces: Vec<Trace>) -> Result<Trace, String> {
    let axes = axes(&traces)?;
    let is_alone = traces.len() < 2;
    let merged = merged(traces, axes);
    // Nothing is copied for a report of it.
    Ok(if is_alone { resolved(merged) } else { merged })
}

/// The places of traces on axes of time.
#[derive(Default)]
pub(crate) struct Axes {
    /// The axis of each trace, and where on it the trace begins. No trace alone has one.
    starts: Vec<(usize, Nanos)>,
    /// The differences of clocks, in words.
    clocks: Vec<String>,
}

/// The axes of traces that can be merged.
pub(crate) fn axes(traces: &[Trace]) -> Result<Axes, String> {
    if traces.len() < 2 {
        return Ok(Axes::default());
    }
    if traces.len() > PROCESSES_MAX {
        return Err(format!(
            "{} traces are too many: {PROCESSES_MAX} at most are put together",
            traces.len()
        ));
    }
    let mut processes = Vec::new();
    for trace in traces {
        let program = shown(&trace.program);
        match &trace.processes[..] {
            [process] => processes.push((process, format!("`{program}` (process {})", process.number))),
            [] => {
                return Err(format!(
                    "the trace of `{program}` does not say of which process it is: an earlier version made it, or its head is lost. \
                     Report it alone, or record it again"
                ));
            }
            _ => {
                return Err(format!(
                    "the trace of {program} is of several processes already: give each once"
                ));
            }
        }
    }
    let mut keys = HashSet::new();
    if let Some((twice, _)) = processes.iter().find(|(process, _)| !keys.insert(process.key)) {
        return Err(format!("two traces are of process {}: give one of them", twice.number));
    }
    let (clock_of, clocks) = clocks(traces);
    let start = |(process, clock): (&Process, usize)| {
        let (axis, (from, to)) = clocks[clock];
        (axis, i128::from(process.started_ns) + (from + to).div_euclid(2))
    };
    let starts: Vec<(usize, i128)> =
        processes.iter().map(|(process, _)| *process).zip(clock_of.iter().copied()).map(start).collect();
    let mut earliest: BTreeMap<usize, (i128, usize)> = BTreeMap::new();
    for (at, (axis, start)) in starts.iter().enumerate() {
        earliest.entry(*axis).and_modify(|first| *first = (*first).min((*start, at))).or_insert((*start, at));
    }
    let mut axes = Axes::default();
    for (at, (axis, start)) in starts.iter().enumerate() {
        let (first_start, first) = earliest[axis];
        let shift = u64::try_from(start - first_start).ok().filter(|shift| *shift <= TIME_MAX);
        let Some(shift) = shift else {
            let (first, later) = (&processes[first].1, &processes[at].1);
            return Err(format!(
                "between {first} and {later} lie more than three days: report them one by one"
            ));
        };
        axes.starts.push((*axis, shift));
    }
    let one_of = |clock| &processes[clock_of.iter().position(|of| *of == clock).unwrap_or(0)].1;
    for (clock, (axis, (from, to))) in clocks.iter().enumerate().skip(1) {
        let first = one_of(if clock == *axis { 0 } else { *axis });
        let nanos = |time: i128| duration(time.unsigned_abs().try_into().unwrap_or(Nanos::MAX));
        axes.clocks.push(match clock == *axis {
            true => format!(
                "nothing is known of how the clocks of {first} and {} differ, since no tensor of one has come to the other in these \
                 traces. They are shown side by side: the times of both begin at 0 and cannot be compared",
                one_of(clock)
            ),
            false => format!(
                "the clocks of {first} and {} differ by {} ± {}, and their times are shifted by that",
                one_of(clock),
                nanos((from + to).div_euclid(2)),
                nanos((to - from + 1).div_euclid(2))
            ),
        });
    }
    Ok(axes)
}

/// From where to where something may be, in nanoseconds.
type Span = (i128, i128);

/// The clock of each trace by its number. And of each clock the first one that it can be compared with, and
/// what that one shows less what it shows itself.
fn clocks(traces: &[Trace]) -> (Vec<usize>, Vec<(usize, Span)>) {
    let (mut numbers, mut clock_of, mut count) = (HashMap::new(), Vec::new(), 0);
    for trace in traces {
        let clock = &*trace.processes[0].clock;
        // One without a name is the trace's own.
        let number = if clock.is_empty() { count } else { *numbers.entry(clock).or_insert(count) };
        count = count.max(number + 1);
        clock_of.push(number);
    }
    // The difference of two clocks: the time that the second one shows less the time that the first one
    // shows.
    let mut between: BTreeMap<(usize, usize), Span> = BTreeMap::new();
    for (trace, own) in traces.iter().zip(&clock_of) {
        for (clock, (from, to)) in offsets(trace) {
            let (pair, span) = match numbers.get(clock) {
                Some(other) if other > own => ((*own, *other), (from, to)),
                Some(other) if other < own => ((*other, *own), (-to, -from)),
                _ => continue,
            };
            between.entry(pair).and_modify(|all| *all = around(*all, span)).or_insert(span);
        }
    }
    let mut known: Vec<Option<(usize, Span)>> = vec![None; count];
    for axis in 0..count {
        if known[axis].is_some() {
            continue;
        }
        known[axis] = Some((axis, (0, 0)));
        let reached = |known: &[Option<(usize, Span)>]| {
            let way =
                |(&(one, other), &(from, to)): (&(usize, usize), &Span)| match (known[one], known[other]) {
                    (Some((_, (first, last))), None) => Some((other, (first - to, last - from))),
                    (None, Some((_, (first, last)))) => Some((one, (first + from, last + to))),
                    _ => None,
                };
            between.iter().filter_map(way).min_by_key(|(_, (from, to))| to - from)
        };
        while let Some((clock, span)) = reached(&known) {
            known[clock] = Some((axis, span));
        }
    }
    (clock_of, known.into_iter().flatten().collect())
}

/// The least span with two others in it.
fn around(one: Span, other: Span) -> Span {
    (one.0.min(other.0), one.1.max(other.1))
}

/// The offsets of other clocks from the clock of the trace, at every time at which that is known.
fn offsets(trace: &Trace) -> BTreeMap<&str, Span> {
    let mut known: Vec<(Nanos, &str, Span)> = Vec::new();
    for operation in &trace.operations {
        if let Some(offset) = operation.origin.as_ref().and_then(|origin| origin.clock.as_ref()) {
            let (ahead, off) = (i128::from(offset.ahead_ns), i128::from(offset.uncertainty_ns));
            let at = operation.done.unwrap_or(operation.submitted);
            known.push((at, &offset.clock, (ahead - off, ahead + off)));
        }
    }
    known.sort_unstable();
    let mut later: BTreeMap<&str, (Nanos, Span)> = BTreeMap::new();
    let mut all: BTreeMap<&str, Span> = BTreeMap::new();
    for (at, clock, (from, to)) in known.into_iter().rev() {
        let mut span = (from, to);
        // An estimate says something of earlier times as well, but not of those before a clock was stopped or
        // set.
        if let Some((then, (first, last))) = later.get(clock) {
            let drift = i128::from(then - at) / DRIFT + 1;
            let both = (from.max(first - drift), to.min(last + drift));
            span = if both.0 <= both.1 { both } else { span };
        }
        later.insert(clock, (at, span));
        all.entry(clock).and_modify(|all| *all = around(*all, span)).or_insert(span);
    }
    all
}

/// The trace with times that sums have room for, and with who held the Python lock, which is found within one
/// process.
fn resolved(trace: Trace) -> Trace {
    let cut = match sane(&trace) {
        Cow::Owned(cut) => Some(cut),
        Cow::Borrowed(_) => None,
    };
    with_holders(Cow::Owned(cut.unwrap_or(trace))).into_owned()
}

pub(crate) fn merged(mut traces: Vec<Trace>, Axes { starts, clocks }: Axes) -> Trace {
    if traces.len() < 2 {
        return traces.pop().unwrap_or_default();
    }
    // Of the axis of the first trace.
    let of_first = traces.iter().zip(&starts).filter(|(_, (axis, _))| *axis == 0);
    let started_unix_ns =
        of_first.min_by_key(|(_, (_, shift))| shift).map_or(0, |(it, _)| it.started_unix_ns);
    let mut all = Trace { started_unix_ns, clocks, ..Trace::default() };
    let mut programs = Vec::new();
    for (trace, (_, shift)) in traces.into_iter().zip(&starts) {
        let mut trace = resolved(trace);
        each_time(&mut trace, |time| *time = time.saturating_add(*shift));
        programs.push(add(&mut all, trace));
    }
    all.program = programs.join(", ").into();
    all.sort_by_id();
    all.edges.sort_by_key(|edge| edge.to);
    hand_over(&mut all, &programs, &starts);
    all.stalls.sort_unstable_by_key(|stall| (stall.waiter, stall.from, stall.access, stall.to));
    all
}

/// Adds the trace of a process. Returns the program with the process.
fn add(all: &mut Trace, mut trace: Trace) -> String {
    let process = all.processes.len();
    all.processes.append(&mut trace.processes);
    let (label, tag) = (label(all, process), (process as u64) << TAG_SHIFT);
    let (tracks, libraries) = (all.tracks.len(), all.libraries.len());
    let mut labelled: HashMap<Text, Text> = HashMap::new();
    let mut name = |text: &mut Text| {
        let new = labelled.entry(text.clone()).or_insert_with_key(|text| format!("{text} {label}").into());
        *text = new.clone();
    };
    let id = |id: &mut u64| *id = *id & !TAG | tag;
    let track = |track: &mut TrackId| *track = track.saturating_add(tracks);
    let library =
        |library: &mut Option<usize>| *library = library.map(|library| library.saturating_add(libraries));
    for operation in &mut trace.operations {
        name(&mut operation.name);
        id(&mut operation.id);
        library(&mut operation.library);
        operation.submitter.iter_mut().chain(&mut operation.track).for_each(track);
        operation.accesses.iter_mut().for_each(|access| id(&mut access.variable));
        operation.waits_for.iter_mut().for_each(id);
    }
    for lease in &mut trace.leases {
        name(&mut lease.owner);
        lease
            .site
            .iter_mut()
            .filter(|site| !site.function.is_empty())
            .for_each(|site| name(&mut site.function));
        id(&mut lease.id);
        id(&mut lease.variable);
        library(&mut lease.library);
    }
    for variable in &mut trace.variables {
        name(&mut variable.name);
        id(&mut variable.id);
        library(&mut variable.library);
    }
    for stall in &mut trace.stalls {
        id(&mut stall.waiter);
        match &mut stall.blocker {
            Blocker::Operation(which) | Blocker::Lease(which) => id(which),
            Blocker::Queue(which) | Blocker::Thread(which) | Blocker::LockOwner(which) => track(which),
            Blocker::None | Blocker::Pool | Blocker::Observer | Blocker::Interpreter | Blocker::EventLoop => {
            }
        }
    }
    for edge in &mut trace.edges {
        id(&mut edge.from);
        id(&mut edge.to);
        if edge.variable != 0 {
            id(&mut edge.variable);
        }
    }
    trace.losses.records.iter_mut().for_each(|lost| track(&mut lost.track));
    trace.tracks.iter_mut().for_each(|track| name(&mut track.name));
    trace.libraries.iter_mut().for_each(&mut name);
    trace.counters.iter_mut().for_each(|counter| name(&mut counter.name));
    all.duration = all.duration.max(trace.duration);
    all.ends.push(trace.duration);
    all.tracks.append(&mut trace.tracks);
    all.libraries.append(&mut trace.libraries);
    all.variables.append(&mut trace.variables);
    all.operations.append(&mut trace.operations);
    all.leases.append(&mut trace.leases);
    all.stalls.append(&mut trace.stalls);
    all.edges.append(&mut trace.edges);
    all.counters.append(&mut trace.counters);
    all.losses.records.append(&mut trace.losses.records);
    let damage = trace.losses.damage.into_iter();
    all.losses.damage.extend(damage.map(|damage| format!("of process {label}: {damage}")));
    format!("{} {label}", trace.program)
}

/// Has waits for imports wait for the leases of their owners, and leases name the lines of the imports.
fn hand_over(trace: &mut Trace, programs: &[String], starts: &[(usize, Nanos)]) {
    let imports = trace.operations.iter().filter_map(|import| Some((import.id, import.origin.as_ref()?.key)));
    let imports: Vec<(OperationId, u64)> = imports.collect();
    let wanted: HashSet<u64> = imports.iter().map(|(_, key)| *key).collect();
    let exports = trace.operations.iter().filter(|operation| operation.kind == OperationKind::Export);
    let exports: HashMap<u64, OperationId> = exports
        .map(|export| (trace.processes[process_of(export.id)].key.wrapping_add(export.id & !TAG), export.id))
        .filter(|(key, _)| wanted.contains(key))
        .collect();
    // The lease of each import, and when it was held.
    let mut leases: HashMap<OperationId, (OperationId, Nanos)> = HashMap::new();
    for (import, key) in imports {
        let (to, axis) = (process_of(import), |process: usize| starts.get(process).map(|(axis, _)| axis));
        let is_other = |export: &&u64| process_of(**export) != to && axis(process_of(**export)) == axis(to);
        let Some(&export) = exports.get(&key).filter(is_other) else { continue };
        let opened = trace.lease(export).map_or(Nanos::MAX, |lease| lease.opened);
        leases.insert(import, (export, opened));
    }
    name_holders(trace, &leases, programs);
    let mut edges = Vec::new();
    for operation in &mut trace.operations {
        let Some((export, opened)) = leases.get(&operation.id) else { continue };
        // Before it waited for the other process, and took no time of its own.
        let end = operation.done.unwrap_or(trace.ends[process_of(operation.id)]);
        operation.began = operation.began.map(|began| began.max(end.min(*opened)));
        let first = trace.edges.partition_point(|edge| edge.to < *export);
        let own = trace.edges[first..].iter().take_while(|edge| edge.to == *export).take(EDGES_MAX);
        edges.extend(own.map(|edge| Edge { to: operation.id, ..*edge }));
    }
    trace.edges.extend(edges);
    trace.edges.sort_by_key(|edge| edge.to);
    let mut stalls = Vec::with_capacity(trace.stalls.len());
    for stall in &trace.stalls {
        let lease = match (stall.cause, stall.blocker) {
            (Cause::Computing, Blocker::Operation(import)) => leases.get(&import),
            _ => None,
        };
        let Some((export, opened)) = lease else {
            stalls.push(*stall);
            continue;
        };
        // Before its owner shared the value, a lease held up no other use.
        let shared = trace.operation(*export).map_or(0, |export| export.submitted);
        let shared = shared.clamp(stall.from, stall.to);
        let unshared = Stall { to: shared, ..*stall };
        let crossing = (*opened).clamp(shared, stall.to);
        let (cause, blocker) = (Cause::Queued, Blocker::Operation(*export));
        let before = Stall { from: shared, to: crossing, cause, blocker, ..*stall };
        // A value that comes from another machine takes its time.
        let clock = |id| trace.processes.get(process_of(id)).map(|process| &process.clock);
        let (cause, blocker) = match clock(stall.waiter) == clock(*export) {
            true => (Cause::NotObserved, Blocker::Observer),
            false => (stall.cause, stall.blocker),
        };
        let after = Stall { from: crossing, cause, blocker, ..*stall };
        stalls.extend([unshared, before, after].into_iter().filter(|part| part.to > part.from));
    }
    trace.stalls = stalls;
}

/// Has leases of other processes name these, and the line of what was used last there.
fn name_holders(trace: &mut Trace, leases: &HashMap<OperationId, (OperationId, Nanos)>, programs: &[String]) {
    let variable = |import: OperationId| Some(trace.operation(import)?.accesses.first()?.variable);
    let mut last_use: HashMap<u64, Nanos> =
        leases.keys().filter_map(|import| Some((variable(*import)?, 0))).collect();
    for operation in &trace.operations {
        for access in &operation.accesses {
            if let Some(last) = last_use.get_mut(&access.variable) {
                *last =
                    (*last).max(operation.done.or(operation.resumed).unwrap_or(trace.end_of(operation.id)));
            }
        }
    }
    let mut holders: HashMap<OperationId, (Nanos, OperationId)> = HashMap::new();
    for (import, (export, _)) in leases {
        let last = variable(*import).and_then(|variable| last_use.get(&variable)).copied().unwrap_or(0);
        let holder = holders.entry(*export).or_insert((last, *import));
        *holder = (*holder).max((last, *import));
    }
    for lease in &mut trace.leases {
        let Some((_, import)) = holders.get(&lease.id) else { continue };
        let found = trace.operations.binary_search_by_key(import, |operation| operation.id);
        let site = found.ok().and_then(|at| trace.operations[at].site.clone());
        lease.owner = programs[process_of(*import)].as_str().into();
        // The function would stand in the place of the process.
        lease.site = site.map(|site| Site { function: Text::default(), ..site });
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::model::{ClockOffset, ImportOrigin, Operation};

    /// A trace of a process on a machine, with what has come from others: when, whose clock, and from where
    /// to where that may be ahead.
    fn trace(key: u64, clock: &str, started_ns: Nanos, came: &[(Nanos, &str, [i64; 2])]) -> Trace {
        let import = |(id, (done, clock, [from, to])): (u64, &(Nanos, &str, [i64; 2]))| {
            let (ahead_ns, uncertainty_ns) = ((from + to) / 2, (to - from) as u64 / 2 + 1);
            let clock = Some(ClockOffset { clock: (*clock).into(), ahead_ns, uncertainty_ns });
            let origin = Some(Box::new(ImportOrigin { process: 1, key: 0, clock }));
            Operation { id, kind: OperationKind::Import, done: Some(*done), origin, ..Operation::default() }
        };
        Trace {
            processes: vec![Process { number: key as u32, key, started_ns, clock: clock.into() }],
            operations: (1..).zip(came).map(import).collect(),
            ..Trace::default()
        }
    }

    #[test]
    fn clocks_are_compared_by_way_of_others_where_that_is_the_most_exact() {
        let traces = [
            trace(1, "a", 1_000, &[(0, "b", [90, 110]), (0, "c", [0, 9_000])]),
            trace(2, "b", 5_000, &[(0, "c", [-60, -40]), (0, "of no trace", [0, 1])]),
            trace(3, "c", 7_000, &[]),
            // A machine that is known from its own side alone, and a second process there.
            trace(4, "d", 30, &[]),
            trace(5, "d", 10, &[(7, "c", [1_000_000, 1_000_010])]),
            trace(6, "e", 77, &[]),
            trace(7, "", 99, &[]),
            trace(8, "", 99, &[(0, "", [0, 0])]),
        ];
        let (clock_of, clocks) = clocks(&traces);
        assert_eq!(clock_of, [0, 1, 2, 3, 3, 4, 5, 6]);
        let (b, c) = ((0, (-111, -89)), (0, (-72, -28)));
        assert_eq!(clocks[..3], [(0, (0, 0)), b, c]);
        // Of d: what c is less than a, and d less than c.
        assert_eq!(clocks[3..], [(0, (999_927, 999_983)), (4, (0, 0)), (5, (0, 0)), (6, (0, 0))]);
        let axes = axes(&traces).unwrap();
        let starts = [(0, 0), (0, 3_900), (0, 5_950), (0, 998_985), (0, 998_965), (4, 0), (5, 0), (6, 0)];
        assert_eq!(axes.starts, starts);
        assert_eq!(axes.clocks.iter().filter(|words| words.starts_with("nothing is known")).count(), 3);
    }

    #[test]
    fn a_clock_that_was_stopped_makes_the_whole_uncertain_by_that() {
        let (before, after) = ((10, "b", [0, 10]), (20, "b", [500, 510]));
        let span = |came: &[_]| offsets(&trace(1, "a", 0, came))["b"];
        assert_eq!(span(&[before]), (-1, 11));
        assert_eq!(span(&[before, after]), (-1, 511));
        // A later import makes the offset at an earlier one more exact.
        assert_eq!(span(&[(10, "b", [-900, 900]), before]), (-2, 12));
        assert_eq!(span(&[(10, "b", [-900, 900]), (20_010, "b", [0, 10])]), (-4, 14));
    }

    proptest! {
        /// A process has things from another machine, whose clock drifts, and networks of any kind tell it
        /// how far it is ahead.
        #[test]
        fn no_cause_comes_after_its_effect_beyond_the_uncertainty(
            ahead in -(1_i64 << 45)..1 << 45,
            rate in -100..=100_i64,
            came in prop::collection::vec((0..10_000_000_000_u64, 0..100_000_i64, 0..100_000_i64, 0..50_u64), 1..40),
            is_owner_first: bool,
        ) {
            const START: u64 = 1 << 46;
            let ahead_at = |time: u64| ahead + time as i64 / 10_000 * rate / 100;
            let told: Vec<_> = came
                .iter()
                .map(|(at, below, above, _)| (*at, "owner's", [ahead_at(*at) - below, ahead_at(*at) + above]))
                .collect();
            let consumer = trace(2, "consumer's", START, &told);
            let mut owner = trace(1, "owner's", START.wrapping_add_signed(ahead), &[]);
            // Operations of the owner that were done a little before their values came.
            owner.operations = (1..)
                .zip(&came)
                .map(|(id, (at, .., took))| {
                    let done = at.saturating_add_signed(ahead_at(*at) - ahead).saturating_sub(*took);
                    Operation { id, done: Some(done), ..Operation::default() }
                })
                .collect();
            let traces = if is_owner_first { vec![owner, consumer] } else { vec![consumer, owner] };
            let (from, to) = clocks(&traces).1[1].1;
            let uncertainty = (to - from + 1).div_euclid(2) + 1;
            prop_assert!(uncertainty <= 2_100_000, "{}", uncertainty);
            let both = merge(traces).unwrap();
            let done = |process: usize, id: u64| {
                both.operation((process as u64) << TAG_SHIFT | id).unwrap().done.map(i128::from).unwrap()
            };
            for id in 1..=came.len() as u64 {
                let (cause, effect) = (done(usize::from(!is_owner_first), id), done(is_owner_first.into(), id));
                prop_assert!(cause <= effect + uncertainty, "{} {} {}", cause, effect, uncertainty);
            }
        }
    }
}
