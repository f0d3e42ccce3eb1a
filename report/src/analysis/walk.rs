//! A walk from the end of the trace back to its beginning, at each moment along whatever held up the rest.
//!
//! Unlike the critical path, which knows work alone, this covers the whole time: work, waiting of every
//! cause, and the time that the program itself let pass. Its intervals follow each other without gap, so they
//! sum up to the run time.

use std::cmp::Reverse;
use std::collections::HashMap;

use crate::Trace;
use crate::analysis::attribution::{is_own_time, queue_of};
use crate::analysis::what_if::SAME_MOMENT_MAX;
use crate::model::{Blocker, Cause, Nanos, Operation, OperationId, OperationKind, Stall, TrackId, TrackKind};

/// An interval of the walk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Step {
    /// Since when.
    pub from: Nanos,
    /// Until when.
    pub to: Nanos,
    /// The use of the time.
    pub what: What,
}

/// The use of an interval of the walk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum What {
    /// An operation ran.
    Run(OperationId),
    /// Nothing ran, for this reason.
    Stall(Cause, Blocker),
    /// The program had not submitted it yet.
    Program,
}

/// Walks back; the intervals come in order of time.
pub fn walk(trace: &Trace) -> Vec<Step> {
    walked(trace).steps
}

fn walked(trace: &Trace) -> Walker<'_> {
    let mut walker = Walker::new(trace);
    walker.at = trace.duration;
    let last = trace
        .operations
        .iter()
        .filter(|operation| {
            operation.began.is_some() || operation.resumed.is_some() || is_unfinished(operation)
        })
        .max_by_key(|operation| {
            // Several may last until the end of the trace. A wait of the program says more than what it waits
            // for. Of several waits, the longest says most.
            let longest =
                is_unfinished(operation).then_some((waits(operation), Reverse(operation.submitted)));
            (end(operation, trace.end_of(operation.id)), longest)
        });
    if let Some(last) = last {
        // The time after the end of the last operation was the program's own.
        let end = end(last, trace.end_of(last.id));
        walker.at = trace.duration.max(end);
        walker.step(end, What::Program);
        walker.follow(last);
    } else {
        walker.step(0, What::Program);
    }
    walker.steps.reverse();
    walker
}

/// True if it goes on at the end of the trace. A future that was dropped is done.
fn is_unfinished(operation: &Operation) -> bool {
    operation.issued.is_none() && operation.done.is_none() && operation.resumed.is_none()
}

fn waits(operation: &Operation) -> bool {
    matches!(operation.kind, OperationKind::Wait | OperationKind::Await)
}

fn end(operation: &Operation, duration: Nanos) -> Nanos {
    let end = match operation.kind {
        OperationKind::Wait | OperationKind::Await | OperationKind::Export => {
            operation.resumed.or(operation.began)
        }
        OperationKind::Operation | OperationKind::Copy | OperationKind::Import => {
            operation.done.or(operation.issued)
        }
    };
    end.unwrap_or(duration)
}

struct Walker<'a> {
    trace: &'a Trace,
    /// The critical stalls of each operation, in order of time.
    stalls: HashMap<OperationId, Own<'a>>,
    threads: Threads,
    at: Nanos,
    steps: Vec<Step>,
    /// Stalls that were looked at: what the walk costs.
    looked_at: usize,
}

/// The critical stalls of one operation.
#[derive(Default)]
struct Own<'a> {
    /// In order of time.
    stalls: Vec<&'a Stall>,
    /// The number of them that may still cover the time at which the walk stands; it only goes back. `None`
    /// before it was here.
    left: Option<usize>,
}

impl<'a> Own<'a> {
    /// The stall that covers the time just before `at`, and otherwise the end of the last one before it.
    /// Counts what it looks at.
    fn before(&mut self, at: Nanos, looked_at: &mut usize) -> (Option<&'a Stall>, Option<Nanos>) {
        let mut left = self.left.unwrap_or(self.stalls.len());
        // A stall that begins no earlier than this covers no earlier time either.
        while left > 0 && self.stalls[left - 1].from >= at {
            left -= 1;
            *looked_at += 1;
        }
        self.left = Some(left);
        *looked_at += 1;
        match left.checked_sub(1).map(|last| self.stalls[last]) {
            Some(stall) if at <= stall.to => (Some(stall), None),
            Some(stall) => (None, Some(stall.to)),
            None => (None, None),
        }
    }
}

impl<'a> Walker<'a> {
    fn new(trace: &'a Trace) -> Self {
        let mut stalls: HashMap<OperationId, Own<'_>> = HashMap::new();
        for stall in trace.stalls.iter().filter(|stall| stall.critical) {
            stalls.entry(stall.waiter).or_default().stalls.push(stall);
        }
        stalls.values_mut().for_each(|own| own.stalls.sort_by_key(|stall| stall.from));
        Self { trace, stalls, threads: Threads::of(trace), at: 0, steps: Vec::new(), looked_at: 0 }
    }

    fn step(&mut self, from: Nanos, what: What) {
        if from >= self.at {
            return;
        }
        match self.steps.last_mut() {
            Some(last) if last.what == what => last.from = from,
            _ => self.steps.push(Step { from, to: self.at, what }),
        }
        self.at = from;
    }

    fn follow(&mut self, from: &'a Operation) {
        let mut current = from;
        // Each turn goes back in time or to an operation that was submitted earlier; the bound is for traces
        // that lie.
        let mut turns = 2 * (self.trace.operations.len() + self.trace.stalls.len()) + 16;
        while self.at > 0 && turns > 0 {
            turns -= 1;
            // A stall that covers the time just before.
            let at = self.at;
            let own = self.stalls.get_mut(&current.id);
            let (stall, ran_since) = own.map_or((None, None), |own| own.before(at, &mut self.looked_at));
            let Some(stall) = stall else {
                // It ran, or it was not there yet.
                let began = ran_since.unwrap_or(0).max(current.submitted);
                if began < at {
                    if let Some((resumed, wait)) = self.inside(current) {
                        self.step(resumed, What::Run(current.id));
                        current = wait;
                        continue;
                    }
                    let has_not_run = waits(current) || current.began.is_none();
                    let what = if has_not_run { What::Program } else { What::Run(current.id) };
                    self.step(began, what);
                    continue;
                }
                match self.before(current) {
                    Some(next) => current = next,
                    None => self.step(0, What::Program),
                }
                continue;
            };
            match (stall.cause, stall.blocker) {
                (Cause::Computing | Cause::Queued, Blocker::Operation(id)) if id != current.id => {
                    match self.trace.operation(id).filter(|earlier| earlier.submitted <= current.submitted) {
                        Some(earlier) => current = earlier,
                        None => self.step(stall.from, What::Stall(stall.cause, stall.blocker)),
                    }
                }
                (cause, blocker) => self.step(stall.from, What::Stall(cause, blocker)),
            }
        }
    }

    /// The wait that a thread came back from last while it ran `current`. A wait for `current` itself is not
    /// a part of it.
    fn inside(&self, current: &Operation) -> Option<(Nanos, &'a Operation)> {
        let (track, began, _) = on_thread(self.trace, current)?;
        let is_part = |it: &Operation| it.waits_for != Some(current.id);
        // A wait that came back at this moment is no progress: two operations might take turns for ever.
        let last = self.last((track, Some(current.id)), self.at.checked_sub(1)?, is_part);
        last.filter(|(back, _)| *back > began)
    }

    /// The operation of its thread before it submitted `current`: the wait that it had come back from, or the
    /// body that it was running.
    fn before(&mut self, current: &Operation) -> Option<&'a Operation> {
        let (track, at) = (current.submitter?, current.submitted.min(self.at));
        let is_earlier = |it: &Operation| it.submitted < current.submitted;
        let runner = self.threads.runners.get(&current.id).copied();
        let running = runner.and_then(|runner| self.trace.operation(runner)).filter(|it| is_earlier(it));
        let since = running.and_then(|running| running.began).unwrap_or(0);
        match self.last((track, runner), at, is_earlier).filter(|(back, _)| *back > since) {
            Some((back, earlier)) => {
                self.step(back, running.map_or(What::Program, |running| What::Run(running.id)));
                Some(earlier)
            }
            None => running,
        }
    }

    /// The wait that a thread came back from last, until `at`.
    fn last(
        &self,
        within: Within,
        at: Nanos,
        is_it: impl Fn(&Operation) -> bool,
    ) -> Option<(Nanos, &'a Operation)> {
        let backs = self.threads.backs.get(&within)?;
        let last = backs.partition_point(|(back, _)| *back <= at);
        // A few may have come back at one moment.
        let candidates = backs[..last].iter().rev().take(SAME_MOMENT_MAX);
        let mut found = candidates.filter_map(|(back, id)| Some((*back, self.trace.operation(*id)?)));
        found.find(|(_, earlier)| is_it(earlier))
    }
}

/// A thread, and the operation that it runs, of several the innermost.
type Within = (TrackId, Option<OperationId>);

#[derive(Default)]
struct Threads {
    /// The operation that the submitter of each operation ran when it submitted that.
    runners: HashMap<OperationId, OperationId>,
    /// The times at which each thread came back from a wait or from its own time, and from which. Outside of
    /// everything else also from an operation that it ran: a body that began while another one ran is no part
    /// of that one, which may be asynchronous.
    backs: HashMap<Within, Vec<(Nanos, OperationId)>>,
}

impl Threads {
    fn of(trace: &Trace) -> Self {
        // Submissions, and beginnings with their ends, by thread and time. Of operations that begin at once
        // the longest is the outermost, and nothing is submitted from within an operation that begins at that
        // moment.
        let mut moments = Vec::new();
        for (at, operation) in trace.operations.iter().enumerate() {
            if let Some((track, began, end)) = on_thread(trace, operation) {
                moments.push((track, began, Some(Reverse(end)), at));
            }
            if let Some(track) = operation.submitter.filter(|_| !is_own_time(operation)) {
                moments.push((track, operation.submitted, None, at));
            }
        }
        moments.sort_unstable();
        let mut threads = Self::default();
        // The operations that the thread runs, the innermost last. One that is over is removed as soon as it
        // comes last.
        let mut running: Vec<(Nanos, OperationId)> = Vec::new();
        let mut thread = None;
        for (track, time, ends, at) in moments {
            if thread != Some(track) {
                running.clear();
                thread = Some(track);
            }
            while running.pop_if(|(end, _)| *end <= time).is_some() {}
            let operation = &trace.operations[at];
            let runner = running.last().map(|(_, runner)| *runner);
            let is_own = is_own_time(operation);
            if let Some(runner) = runner.filter(|_| is_own || ends.is_none()) {
                threads.runners.insert(operation.id, runner);
            }
            let back = match ends {
                Some(Reverse(end)) => {
                    running.push((end, operation.id));
                    (is_own || runner.is_none()).then_some(end)
                }
                None => operation.resumed.filter(|resumed| *resumed > time),
            };
            if let Some(back) = back {
                threads.backs.entry((track, runner)).or_default().push((back, operation.id));
            }
        }
        threads.backs.values_mut().for_each(|backs| backs.sort_unstable());
        threads
    }
}

/// The thread that ran an operation, and from when to when that took the thread. The bodies on an event loop
/// are asynchronous: until its end one takes only a part of the loop's time, and nothing says which.
fn on_thread(trace: &Trace, operation: &Operation) -> Option<(TrackId, Nanos, Nanos)> {
    let runs = matches!(operation.kind, OperationKind::Operation | OperationKind::Copy);
    let track = operation.track.filter(|_| runs && queue_of(trace, operation).is_none())?;
    let on_loop = trace.tracks.get(track).is_some_and(|track| track.kind == TrackKind::EventLoop);
    if on_loop && !is_own_time(operation) {
        return None;
    }
    let end = operation.issued.or(operation.done).unwrap_or(trace.duration);
    Some((track, operation.began?, end))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Access, AccessMode, Outcome};

    /// One operation that waits in so many pieces, with gaps between them in which it ran.
    fn pieces(count: u64) -> Trace {
        let operation = Operation {
            id: 1,
            name: "waits".into(),
            granted: Some(1),
            ready: Some(1),
            began: Some(1),
            issued: Some(10 * count),
            done: Some(10 * count),
            outcome: Outcome::Ok,
            accesses: vec![Access { variable: 1, mode: AccessMode::Write }],
            ..Operation::default()
        };
        let stall = |at: u64| Stall {
            waiter: 1,
            access: 0,
            from: 10 * at,
            to: 10 * at + 7,
            cause: Cause::NoWorker,
            hazard: None,
            blocker: Blocker::Pool,
            critical: true,
        };
        Trace {
            duration: 10 * count,
            operations: vec![operation],
            stalls: (0..count).map(stall).collect(),
            ..Trace::default()
        }
    }

    #[test]
    fn a_walk_looks_at_each_of_an_operations_many_stalls_a_few_times_at_most() {
        for count in [100, 10_000, 100_000] {
            let trace = pieces(count);
            let walked = walked(&trace);
            let waited: Nanos = walked
                .steps
                .iter()
                .filter(|step| step.what != What::Run(1))
                .map(|step| step.to - step.from)
                .sum();
            assert_eq!((walked.steps.len() as u64, waited), (2 * count, 7 * count));
            assert!(walked.looked_at as u64 <= 4 * count, "{} of {count}", walked.looked_at);
        }
    }
}
