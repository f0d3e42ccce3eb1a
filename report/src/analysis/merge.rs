//! Traces of several processes as one: on one time axis, under names that say of which process they are, and with what one process waited
//! for in another.
//!
//! A process that shows a value to others takes a lease of it. Its key is in the traces of both sides: the owner has the lease, and the
//! other process an import. What waited for the import is made to wait for the lease, behind which stands what the owner did; and the
//! lease gets the line of the import.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};

use crate::Trace;
use crate::analysis::lock::with_holders;
use crate::model::sane::{TIME_MAX, each_time, sane};
use crate::model::shown::shown;
use crate::model::{Blocker, Cause, Edge, Nanos, OperationId, OperationKind, Site, Stall, Text, TrackId};

/// The bits of an identity that say in a merged trace of which process it is. Processes count from 1, and waits from 1 << 62.
const TAG_SHIFT: u32 = 50;
const TAG: u64 = 0xfff << TAG_SHIFT;

/// Processes at most.
const PROCESSES_MAX: usize = (TAG >> TAG_SHIFT) as usize + 1;

/// What a lease directly depended on, at most: it is for reading, and waits for one writer.
const EDGES_MAX: usize = 16;

/// The process of an operation, a lease or a variable: an index into [`Trace::processes`].
pub(crate) fn process_of(id: u64) -> usize {
    ((id & TAG) >> TAG_SHIFT) as usize
}

/// What is added to names of a process: `@4711`.
pub(crate) fn label(trace: &Trace, process: usize) -> String {
    let number = |at: usize| trace.processes.get(at).map_or(0, |process| process.number);
    match (0..process).filter(|earlier| number(*earlier) == number(process)).count() {
        0 => format!("@{}", number(process)),
        // Of another container, or later.
        earlier => format!("@{}-{}", number(process), earlier + 1),
    }
}

/// The traces of several processes as one. Times begin with the earliest trace. Names of everything get the number of their process, as
/// `decode @4711`, and identities of all processes but the first are others than in diagnoses. One trace alone stays as it is.
///
/// # Errors
/// In words, why they cannot be merged: they have no common clock, one is of no known process, or two are of the same.
pub fn merge(traces: Vec<Trace>) -> Result<Trace, String> {
    check(&traces)?;
    Ok(merged(traces))
}

/// Whether traces can be merged.
pub(crate) fn check(traces: &[Trace]) -> Result<(), String> {
    if traces.len() < 2 {
        return Ok(());
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
            [process] if process.clock.is_empty() => {
                return Err(format!(
                    "the trace of `{program}` (process {}) has a clock of its own: report it alone",
                    process.number
                ));
            }
            [process] => processes.push((process, program)),
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
    let (first, first_program) = &processes[0];
    let mut keys = HashSet::new();
    for (process, program) in &processes {
        let both = || {
            format!(
                "`{first_program}` (process {}) and `{program}` (process {})",
                first.number, process.number
            )
        };
        if process.clock != first.clock {
            return Err(format!(
                "{} have no common clock: they ran on different machines, or the machine was restarted in between. Report them one by \
                 one",
                both()
            ));
        }
        if process.started_ns.abs_diff(first.started_ns) > TIME_MAX {
            return Err(format!("between {} lie more than three days: report them one by one", both()));
        }
        if !keys.insert(process.key) {
            return Err(format!(
                "two traces are of process {} (`{program}`): give one of them",
                process.number
            ));
        }
    }
    Ok(())
}

/// The traces as one; they have been [checked](check).
pub(crate) fn merged(mut traces: Vec<Trace>) -> Trace {
    if traces.len() < 2 {
        return traces.pop().unwrap_or_default();
    }
    let started = |trace: &Trace| trace.processes[0].started_ns;
    let earliest = traces.iter().map(started).min().unwrap_or_default();
    let started_unix_ns = traces.iter().min_by_key(|trace| started(trace)).map_or(0, |it| it.started_unix_ns);
    let mut all = Trace { started_unix_ns, ..Trace::default() };
    let mut programs = Vec::new();
    for trace in traces {
        // Who held a lock is found within one process.
        let held = match with_holders(sane(&trace)) {
            Cow::Owned(other) => Some(other),
            Cow::Borrowed(_) => None,
        };
        let mut trace = held.unwrap_or(trace);
        let shift = started(&trace) - earliest;
        each_time(&mut trace, |time| *time = time.saturating_add(shift));
        programs.push(add(&mut all, trace));
    }
    all.program = programs.join(", ").into();
    all.sort_by_id();
    all.edges.sort_by_key(|edge| edge.to);
    hand_over(&mut all, &programs);
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
            Blocker::Queue(which) | Blocker::Thread(which) | Blocker::Holder(which) => track(which),
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
fn hand_over(trace: &mut Trace, programs: &[String]) {
    let imports =
        trace.operations.iter().filter_map(|import| Some((import.id, import.elsewhere.as_ref()?.key)));
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
        let Some(&export) = exports.get(&key).filter(|export| process_of(**export) != process_of(import))
        else {
            continue;
        };
        let opened = trace.lease(export).map_or(Nanos::MAX, |lease| lease.opened);
        leases.insert(import, (export, opened));
    }
    name_holders(trace, &leases, programs);
    let mut edges = Vec::new();
    for operation in &mut trace.operations {
        let Some((export, opened)) = leases.get(&operation.id) else { continue };
        // Before it waited for the other process, and took no time of its own.
        let end = operation.done.unwrap_or(trace.duration);
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
        let crossing = (*opened).clamp(stall.from, stall.to);
        let (cause, blocker) = (Cause::Queued, Blocker::Operation(*export));
        let before = Stall { to: crossing, cause, blocker, ..*stall };
        let (cause, blocker) = (Cause::NotObserved, Blocker::Observer);
        let after = Stall { from: crossing, cause, blocker, ..*stall };
        stalls.extend([before, after].into_iter().filter(|part| part.to > part.from));
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
                *last = (*last).max(operation.done.or(operation.resumed).unwrap_or(trace.duration));
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
