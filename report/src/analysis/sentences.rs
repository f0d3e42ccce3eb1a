//! Stalls in words.

use crate::Trace;
use crate::analysis::attribution::{has_several_pools, is_link_wait};
use crate::analysis::roots::Root;
use crate::model::shown::shown;
use crate::model::{
    Blocker, Cause, IN_FLIGHT_LIMIT, ImportOrigin, Nanos, OperationId, OperationKind, Site, TrackKind,
};

/// A duration for people: three digits and a unit.
pub fn duration(nanos: Nanos) -> String {
    let (value, unit) = match nanos {
        0..1_000 => return format!("{nanos} ns"),
        1_000..1_000_000 => (nanos as f64 / 1e3, "µs"),
        1_000_000..1_000_000_000 => (nanos as f64 / 1e6, "ms"),
        _ => (nanos as f64 / 1e9, "s"),
    };
    let digits = match value {
        value if value < 9.995 => 2,
        value if value < 99.95 => 1,
        _ => 0,
    };
    format!("{value:.digits$} {unit}")
}

/// An operation by its name.
pub fn name(trace: &Trace, id: OperationId) -> String {
    let Some(operation) = trace.operation(id) else {
        return format!("operation {id}, which is not in the trace");
    };
    let who = operation.library.and_then(|library| trace.libraries.get(library));
    if let (OperationKind::Wait | OperationKind::Await, Some(site)) = (operation.kind, &operation.site) {
        return format!("`{}` at {}", shown(&operation.name), place(site));
    }
    match (operation.kind, who) {
        (OperationKind::Export, Some(library)) => format!("an export to {}", shown(library)),
        (OperationKind::Export, None) => match trace.lease(id) {
            Some(lease) if !lease.owner.is_empty() => format!("a lease of {}", shown(&lease.owner)),
            _ => "a lease".into(),
        },
        (OperationKind::Wait | OperationKind::Await, _) => {
            let (wait, of) = match operation.kind {
                OperationKind::Wait => ("a wait", "of"),
                _ => ("an await", "on"),
            };
            let wait = match submitter(trace, id) {
                Some(thread) => format!("{wait} {of} thread `{}`", shown(thread)),
                None => wait.to_owned(),
            };
            match operation.own_name() {
                IN_FLIGHT_LIMIT => format!("{wait} for room below the in-flight limit"),
                name if is_link_wait(operation) => format!("{wait} in `{name}`"),
                _ => wait,
            }
        }
        (_, _) => format!("`{}`", shown(&operation.name)),
    }
}

fn submitter(trace: &Trace, id: OperationId) -> Option<&str> {
    let operation = trace.operation(id)?;
    Some(&trace.tracks.get(operation.submitter?)?.name)
}

/// A lease by its owner.
pub fn lease(trace: &Trace, id: OperationId) -> String {
    let Some(lease) = trace.lease(id) else { return format!("lease {id}") };
    let owner = trace.library(lease.library);
    // If the place is known, the owner's text would only say it again.
    let function = lease.site.as_ref().map(|site| site.function.as_str());
    let words = function.filter(|function| !function.is_empty()).unwrap_or(&lease.owner);
    let owner = shown(owner.or_else(|| (!words.is_empty()).then_some(words)).unwrap_or("an unknown owner"));
    match &lease.site {
        Some(site) => format!("a lease taken by {owner} at {}", place(site)),
        None if trace.library(lease.library).is_some() && !lease.owner.is_empty() => {
            format!("a lease taken by {owner} in {}", shown(&lease.owner))
        }
        None => format!("a lease taken by {owner}"),
    }
}

/// A line by its file's name.
pub fn place(site: &Site) -> String {
    let file = site.file.rsplit(['/', '\\']).next().unwrap_or(&site.file);
    format!("{}:{}", shown(file), site.line)
}

/// The reason why an operation waited, as the end of a sentence that begins with "because".
pub fn because(trace: &Trace, cause: Cause, blocker: Blocker) -> String {
    match (cause, blocker) {
        (Cause::Computing, Blocker::Operation(id)) if let Some(from) = origin(trace, id) => {
            match (from.process, &from.clock) {
                (process, None) => {
                    format!("its input was still being computed in another process (process {process})")
                }
                (process, Some(_)) => {
                    format!("its input had not come from another machine yet (process {process} there)")
                }
            }
        }
        (Cause::Computing, Blocker::Operation(id)) => format!("{} was still computing", name(trace, id)),
        (Cause::Computing, _) => "its input was still being computed".into(),
        (Cause::Leased, Blocker::Lease(id)) => format!("{} was still open", lease(trace, id)),
        (Cause::Leased, _) => "a lease was still open".into(),
        (Cause::Queued, Blocker::Operation(id)) => format!("{} stood in a queue itself", name(trace, id)),
        (Cause::Queued, _) => {
            "something was in the way that began before the trace, or whose record is lost".into()
        }
        (Cause::NoWorker, Blocker::Queue(track)) => {
            format!("{} of the device was busy", shown(trace.track_name(track, "a queue")))
        }
        (Cause::NoWorker, Blocker::None) => {
            "nothing is known of the workers of its engine, which is one of several".into()
        }
        (Cause::NoWorker, _) if trace.processes.len() > 1 => "no worker was free".into(),
        (Cause::NoWorker, _) => match workers(trace) {
            None => "no worker of its engine was free, as far as is known".into(),
            Some((0, _)) => "no worker was free".into(),
            Some((1, _)) => "no worker was free (one ran everything)".into(),
            Some((count, least)) if least < count => {
                format!("no worker was free (of {count}, as few as {least} ran at once, which share a lock)")
            }
            Some((count, _)) => format!("no worker was free (all {count} were busy)"),
        },
        (Cause::NotObserved, _) => "the end of its input had not been observed yet".into(),
        (Cause::NotResumed, Blocker::Interpreter) => "the Python lock was held elsewhere".into(),
        (Cause::NotResumed, Blocker::Operation(id)) => {
            format!("the Python lock was held elsewhere, and only {} ran", name(trace, id))
        }
        (Cause::NotResumed, Blocker::LockOwner(track)) => {
            let track = shown(trace.track_name(track, ""));
            format!("the Python lock was held elsewhere, and only thread `{track}` was not seen waiting")
        }
        (Cause::NotResumed, Blocker::EventLoop) => "the event loop was busy".into(),
        (Cause::NotResumed, Blocker::Thread(track)) => {
            format!("thread `{}` had been woken and did not run yet", shown(trace.track_name(track, "")))
        }
        (Cause::NotResumed, Blocker::Pool) => "a worker was free and had not woken up yet".into(),
        (Cause::NotResumed, _) => "the waiter resumed late".into(),
    }
}

/// The origin of an import.
fn origin(trace: &Trace, id: OperationId) -> Option<&ImportOrigin> {
    trace.operation(id)?.origin.as_deref()
}

/// The workers of the engine, and the fewest of them that it ran at once; `None` of several engines.
fn workers(trace: &Trace) -> Option<(usize, usize)> {
    match &trace.workers[..] {
        [one] => Some((one.count as usize, one.least() as usize)),
        [] if !has_several_pools(trace) => {
            let busy = busy_workers(trace);
            Some((busy, busy))
        }
        _ => None,
    }
}

/// Threads of pools that have run something, for files that do not say how many workers there were.
fn busy_workers(trace: &Trace) -> usize {
    let mut tracks: Vec<usize> = trace
        .operations
        .iter()
        .filter(|operation| operation.began.is_some() && operation.kind == OperationKind::Operation)
        .filter_map(|operation| operation.track)
        .filter(|track| trace.tracks.get(*track).is_some_and(|track| track.kind == TrackKind::Worker))
        .collect();
    tracks.sort_unstable();
    tracks.dedup();
    tracks.len()
}

/// A wait as one sentence: who waited for whom, on what, and why. `waited` is how long, in words.
pub fn sentence(trace: &Trace, root: &Root, waited: &str) -> String {
    let waiter = name(trace, root.waiter);
    let access = trace.access(root.waiter, root.access);
    let variable = access.and_then(|access| trace.variable(access.variable));
    let on = variable.map_or_else(String::new, |variable| format!(" on `{}`", shown(&variable.name)));
    let hazard = root
        .direct
        .filter(|_| access.is_some())
        .map_or_else(String::new, |hazard| format!(", {}", hazard.words()));
    let direct = match (root.via, root.cause, root.blocker) {
        (Some(via), _, _) | (None, Cause::Computing | Cause::Queued, Blocker::Operation(via)) => {
            format!(" for {}", name(trace, via))
        }
        (None, Cause::Leased, Blocker::Lease(id)) => {
            let holder = trace.lease(id).and_then(|lease| trace.library(lease.library));
            holder.map_or_else(|| " for a lease".into(), |library| format!(" for {}", shown(library)))
        }
        _ => String::new(),
    };
    let because = match (root.cause, root.blocker) {
        // The operation that was to end, or to make room, was not there yet when the wait began: a permit
        // without its operation, or an operation that was submitted meanwhile.
        (Cause::Queued, Blocker::Operation(id))
            if trace.operation(id).is_some_and(|operation| root.from < operation.submitted) =>
        {
            format!("{} had not been submitted yet", name(trace, id))
        }
        (Cause::Computing, Blocker::None)
            if let Some(wait) = trace.operation(root.waiter).filter(|waiter| is_link_wait(waiter)) =>
        {
            match wait.own_name() {
                "connect" | "accept" => "the other process was not there yet".into(),
                _ => "the other process had not answered yet".into(),
            }
        }
        _ => because(trace, root.cause, root.blocker),
    };
    format!("{waiter} waited {waited}{direct}{on}{hazard}, because {because}")
}

#[cfg(test)]
mod tests {
    use super::duration;

    #[test]
    fn durations_have_three_digits() {
        let texts = [0, 999, 1_000, 12_345, 999_400, 3_200_000, 99_960_000, 1_500_000_000].map(duration);
        assert_eq!(texts, ["0 ns", "999 ns", "1.00 µs", "12.3 µs", "999 µs", "3.20 ms", "100 ms", "1.50 s"]);
    }
}
