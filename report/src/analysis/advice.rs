//! The changes that would help most, each with the time that it would save at most.

use std::collections::{HashMap, HashSet};

use crate::Trace;
use crate::analysis::idle::idle;
use crate::analysis::sentences;
use crate::analysis::summary::Advice;
use crate::analysis::walk::{Step, What};
use crate::analysis::what_if::{Change, TaskGraph, blocks, is_observed};
use crate::analysis::with_graph::WithGraph;
use crate::model::shown::shown;
use crate::model::{
    AccessMode, Blocker, Cause, Hazard, IN_FLIGHT_LIMIT, Nanos, OperationId, OperationKind, TrackKind,
};

/// Changes that are listed, at most.
const LISTED_MAX: usize = 3;

/// Of how many waits and tensors it is asked what the run would have been without them.
const TRIED: usize = 3;

/// The least saving of a change that is listed, in percent of the run time.
pub(crate) const WORTH: u64 = 3;

/// The advice for operations that wait for a worker that sleeps.
const SUBMIT_TOGETHER: &str = "submit more at once: a worker with nothing to do sleeps, and must be woken";

/// The parts of the walk that could be shorter, sorted by how much it takes of it. A change cannot save more
/// than that, and saves less where something else then becomes the longest way. Added to these are changes
/// that let more happen at once, with what they save when the trace is played again. Only changes that are to
/// be kept are listed.
pub(crate) fn advice(
    trace: &Trace,
    steps: &[Step],
    with_graph: &WithGraph,
    keep: &dyn Fn(&str) -> bool,
) -> Vec<Advice> {
    let mut by_change: HashMap<String, Nanos> = HashMap::new();
    // No program makes an operation take no time; a change that saves nearly as much and can be made is
    // listed first.
    let mut faster: HashSet<String> = HashSet::new();
    let busy = busy(trace);
    for step in steps {
        if let Some(change) = change(trace, step.what, &busy) {
            if matches!(step.what, What::Run(_)) {
                faster.insert(change.clone());
            }
            *by_change.entry(change).or_default() += step.to - step.from;
        }
    }
    // Nor is memory for a second tensor, or a program that goes on, to be had for nothing.
    let is_observed = is_observed(trace);
    let overlaps = if is_observed { with_graph.worth(walked(steps)) } else { overlaps(trace, steps, keep) };
    let overlapping: HashSet<String> = overlaps.iter().map(|(change, _)| change.clone()).collect();
    by_change.extend(overlaps);
    let idle = idle(trace, steps);
    // A program that is only observed submits nothing.
    if idle > 0 && !is_observed && !trace.operations.is_empty() {
        let change = "submit earlier: nothing was under way while the program did something else";
        by_change.insert(change.to_owned(), idle);
    }
    by_change.retain(|change, _| keep(change));
    let mut advice: Vec<Advice> =
        by_change.into_iter().map(|(change, saves_ns)| Advice { change, saves_ns }).collect();
    let weight = |Advice { change, saves_ns }: &Advice| {
        let tenths = if faster.contains(change) {
            6
        } else if overlapping.contains(change) {
            9
        } else {
            10
        };
        tenths * saves_ns
    };
    advice.sort_by(|a, b| weight(b).cmp(&weight(a)).then_with(|| a.change.cmp(&b.change)));
    advice.truncate(LISTED_MAX);
    advice
}

/// The whole of a walk.
pub(crate) fn walked(steps: &[Step]) -> Nanos {
    steps.iter().map(|step| step.to - step.from).sum()
}

/// Changes that let more happen at once, and what each saves.
fn overlaps(trace: &Trace, steps: &[Step], keep: &dyn Fn(&str) -> bool) -> Vec<(String, Nanos)> {
    // Several processes have several pools of workers, which no simulation here has.
    if trace.processes.len() > 1 {
        return Vec::new();
    }
    let graph = TaskGraph::of(trace);
    let Some(as_it_was) = graph.as_it_was(walked(steps)) else { return Vec::new() };
    let saves = |change: Change| Some(as_it_was.saturating_sub(graph.play(&change)?));
    let waits = longest(waits(trace), keep)
        .into_iter()
        .filter_map(|(change, unwaited)| Some((change, saves(Change { unwaited, ..Change::default() })?)));
    let tensors = longest(overwritten(trace), keep)
        .into_iter()
        .filter_map(|(change, renamed)| Some((change, saves(Change { renamed, ..Change::default() })?)));
    waits.chain(tensors).filter(|(_, saved)| *saved > walked(steps) / 100 * WORTH).collect()
}

/// The longest of what is grouped by the change that it suggests.
fn longest<T>(groups: HashMap<String, (Nanos, T)>, keep: &dyn Fn(&str) -> bool) -> Vec<(String, T)> {
    let mut groups: Vec<(String, (Nanos, T))> =
        groups.into_iter().filter(|(change, _)| keep(change)).collect();
    groups.sort_by(|(a, (x, _)), (b, (y, _))| y.cmp(x).then_with(|| a.cmp(b)));
    groups.into_iter().take(TRIED).map(|(name, (_, group))| (name, group)).collect()
}

/// The waits of the program by place, with their time, and what they waited for.
fn waits(trace: &Trace) -> HashMap<String, (Nanos, HashSet<OperationId>)> {
    let mut places: HashMap<String, (Nanos, HashSet<OperationId>)> = HashMap::new();
    for operation in trace.operations.iter().filter(|operation| blocks(operation.kind)) {
        let Some(resumed) = operation.resumed else { continue };
        let lease = trace.lease(operation.id);
        let site = operation.site.as_ref().or_else(|| lease.and_then(|lease| lease.site.as_ref()));
        let thread = operation.submitter.and_then(|track| trace.tracks.get(track));
        let place = match (site, lease, thread) {
            (Some(site), ..) => format!("at {}", sentences::place(site)),
            (None, Some(lease), _) if !lease.owner.is_empty() => format!("in {}", shown(&lease.owner)),
            (_, _, Some(thread)) => format!("on thread `{}`", shown(&thread.name)),
            _ => continue,
        };
        let change = match operation.name.as_str() {
            IN_FLIGHT_LIMIT => format!("raise the in-flight limit: the program waited for room {place}"),
            _ => format!("continue without waiting {place}: the program submitted nothing meanwhile"),
        };
        let (time, ids) = places.entry(change).or_default();
        *time += resumed.saturating_sub(operation.submitted);
        ids.insert(operation.id);
    }
    places
}

/// The tensors that were waited for only to overwrite them: for how long, and which they are.
fn overwritten(trace: &Trace) -> HashMap<String, (Nanos, HashSet<u64>)> {
    let mut names: HashMap<String, (Nanos, HashSet<u64>)> = HashMap::new();
    for stall in trace.stalls.iter().filter(|stall| stall.hazard.is_some_and(|hazard| hazard != Hazard::Raw))
    {
        let access = trace.access(stall.waiter, stall.access);
        let Some(access) = access.filter(|access| access.mode == AccessMode::Write) else { continue };
        // A plain variable orders what cannot be in two places, such as a file or the steps of a training.
        let Some(variable) = trace.variable(access.variable).filter(|variable| variable.bytes.is_some())
        else {
            continue;
        };
        let name = shown(&variable.name);
        let change = format!("use two of `{name}` in turn: operations waited only to overwrite it");
        let (time, variables) = names.entry(change).or_default();
        *time += stall.duration();
        variables.insert(variable.id);
    }
    names
}

/// True if bodies need the Python lock: one came later than its thread.
fn needs_lock(trace: &Trace) -> bool {
    trace
        .operations
        .iter()
        .any(|it| it.kind == OperationKind::Operation && it.awake.is_some() && it.awake < it.began)
}

/// A thread that sleeps runs this long after it was woken, at most.
const AWAKE_WITHIN: Nanos = 1_000_000;

/// The threads whose tasks could have gone on while the threads did something else, for longer than these
/// threads took to wake up.
fn busy(trace: &Trace) -> HashSet<usize> {
    let mut late: HashMap<usize, [Nanos; 2]> = HashMap::new();
    for stall in trace.stalls.iter().filter(|stall| stall.cause == Cause::NotResumed) {
        let Blocker::Thread(track) = stall.blocker else { continue };
        let is_await = trace.operation(stall.waiter).is_some_and(|it| it.kind == OperationKind::Await);
        let is_busy = is_await && stall.duration() > AWAKE_WITHIN;
        late.entry(track).or_default()[usize::from(is_busy)] += stall.duration();
    }
    late.into_iter().filter(|(_, [asleep, busy])| busy > asleep).map(|(track, _)| track).collect()
}

fn change(trace: &Trace, what: What, busy: &HashSet<usize>) -> Option<String> {
    Some(match what {
        What::Run(id) => format!("make {} faster", sentences::name(trace, id)),
        What::Stall(Cause::Leased, Blocker::Lease(id)) => {
            format!("release sooner: {}", sentences::lease(trace, id))
        }
        What::Stall(Cause::NoWorker, Blocker::Queue(_)) => "use more queues of the device".into(),
        What::Stall(Cause::NoWorker, Blocker::None) => return None,
        // The time for which a function held the lock is not recorded.
        What::Stall(Cause::NoWorker, _) if needs_lock(trace) => {
            "use more workers, if what they run releases the Python lock".into()
        }
        What::Stall(Cause::NoWorker, _) => "use more workers".into(),
        What::Stall(
            Cause::NotResumed,
            blocker @ (Blocker::Interpreter | Blocker::LockOwner(_) | Blocker::Operation(_)),
        ) => {
            let holder = match blocker {
                Blocker::Operation(id) => format!(" in {}", sentences::name(trace, id)),
                Blocker::LockOwner(track) => trace
                    .tracks
                    .get(track)
                    .map_or_else(String::new, |track| format!(" on thread `{}`", shown(&track.name))),
                _ => String::new(),
            };
            format!("hold the Python lock for less time{holder}, or release it during long calls")
        }
        What::Stall(Cause::NotResumed, Blocker::EventLoop) => {
            "keep the event loop free: move what blocks it to an operation or a thread".into()
        }
        What::Stall(Cause::NotResumed, Blocker::Pool) => SUBMIT_TOGETHER.into(),
        What::Stall(Cause::NotResumed, Blocker::Thread(track))
            if trace.tracks.get(track).is_some_and(|track| track.kind == TrackKind::Worker) =>
        {
            SUBMIT_TOGETHER.into()
        }
        What::Stall(Cause::NotResumed, Blocker::Thread(track)) if busy.contains(&track) => {
            let thread = trace.tracks.get(track).map_or("", |track| track.name.as_str());
            format!(
                "keep thread `{}` free: move what blocks it to an operation or another thread",
                shown(thread)
            )
        }
        What::Stall(Cause::NotResumed, _) => {
            "wake fewer sleeping threads: await, or wait for more at once".into()
        }
        What::Stall(Cause::NotObserved, _) => {
            "have ends observed sooner: a device that pushes, or fewer fences".into()
        }
        What::Program | What::Stall(Cause::Computing | Cause::Queued | Cause::Leased, _) => return None,
    })
}
