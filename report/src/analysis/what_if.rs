//! The duration of the run with one change: the trace is simulated again with the times that things took of
//! themselves, in the order that dependences, workers, queues and the program's own steps allow.
//!
//! This is list scheduling (Graham, "Bounds on Multiprocessing Timing Anomalies", 1969): whatever is ready
//! first gets the first free worker. It knows no time between an end and what it allows, so it is compared
//! with itself: a trace played as it was, and with the change.
//!
//! Of a program that was only observed, a trace has no more than what its threads waited for and handed over.
//! Between two waits a thread takes the time that it took; the works of one library, and its copies, follow
//! each other; what hands its memory over comes after these.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, HashSet};

use crate::Trace;
use crate::analysis::attribution::{is_own_time, queue_of, ran_at_once};
use crate::analysis::critical_path::own_time;
use crate::model::{
    AccessMode, Blocker, Cause, Edge, Hazard, LibraryId, Nanos, Operation, OperationId, OperationKind, Stall,
    TrackId, TrackKind,
};

/// The difference from the recorded run.
#[derive(Debug, Clone, Default)]
pub(crate) struct Change {
    /// The program goes on at once where it waited for these.
    pub(crate) unwaited: HashSet<OperationId>,
    /// An operation that overwrites one of these variables does not wait for earlier users of the old
    /// content.
    pub(crate) renamed: HashSet<u64>,
    /// These copies are not made.
    pub(crate) shared: HashSet<OperationId>,
}

/// The greatest number of things that may have come back at one moment and are considered.
pub(crate) const SAME_MOMENT_MAX: usize = 4;

/// The tasks of a trace and the edges between them.
pub(crate) struct TaskGraph<'a> {
    trace: &'a Trace,
    tasks: Vec<Task>,
    /// Edges between tasks, by their earlier end.
    edges: Vec<Vec<(usize, &'a Edge)>>,
    /// The number of bodies that may run at once.
    workers: usize,
    /// The time that an observed program goes on after the last wait that it came back from.
    tail: Option<(usize, Nanos)>,
}

/// An operation, a wait or a lease.
struct Task {
    /// The time that it takes of itself.
    takes: Nanos,
    place: Resource,
    /// The task that its thread came back from before it, or began, and the time after which it was
    /// submitted; else since the start.
    after: (Option<usize>, Nanos),
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Resource {
    Worker,
    Queue(TrackId),
    /// The work of a library that was observed, one after the other.
    Library(Option<LibraryId>),
    /// A thread of the program, which goes on when it is ready.
    Program,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum ReplayEvent {
    Submitted,
    Ready,
}

impl<'a> TaskGraph<'a> {
    pub(crate) fn of(trace: &'a Trace) -> Self {
        let at: HashMap<OperationId, usize> =
            trace.operations.iter().enumerate().map(|(at, operation)| (operation.id, at)).collect();
        let is_observed = is_observed(trace);
        // By thread, the tasks that its later ones come after, and when.
        let mut predecessors: HashMap<TrackId, Vec<(Nanos, usize)>> = HashMap::new();
        let mut last = None;
        for (at, operation) in trace.operations.iter().enumerate() {
            if let (true, Some(track), Some(resumed)) =
                (blocks(operation.kind), operation.submitter, operation.resumed)
            {
                predecessors.entry(track).or_default().push((resumed, at));
                last = last.max(Some((resumed, at)));
            }
            // A thread of an executor does what it does from the beginning of a function on.
            if let (true, Resource::Worker, Some(track), Some(began)) =
                (is_observed, observed_place(trace, operation), operation.track, operation.began)
            {
                predecessors.entry(track).or_default().push((began, at));
            }
        }
        predecessors.values_mut().for_each(|predecessors| predecessors.sort_unstable());
        let mut tracks = HashSet::new();
        let tasks = trace.operations.iter().enumerate().map(|(at, operation)| {
            let place = match (operation.kind, queue_of(trace, operation)) {
                _ if is_observed => observed_place(trace, operation),
                // A library copies what is imported on the thread that imports it.
                (OperationKind::Copy, None) if ran_at_once(operation) => Resource::Program,
                (OperationKind::Operation | OperationKind::Copy, Some(queue)) => Resource::Queue(queue),
                (OperationKind::Operation | OperationKind::Copy, None) => Resource::Worker,
                _ => Resource::Program,
            };
            // Work that a thread of the program does itself is over when the thread has come so far.
            let runs = matches!(operation.kind, OperationKind::Operation | OperationKind::Copy);
            let own = place == Resource::Program && runs;
            let (time, takes) = match operation.done {
                Some(done) if own => (done, 0),
                _ => (operation.submitted, own_time(trace, operation.id)),
            };
            // Waits for an operation by name have numbers of their own: only time says what came before. What
            // takes no time comes back at the moment at which it is submitted itself.
            let earlier = |wait: usize| (trace.operations[wait].submitted, wait) < (time, at);
            let before =
                operation.submitter.and_then(|track| predecessors.get(&track)).and_then(|predecessors| {
                    let last = predecessors.partition_point(|(then, _)| *then <= time);
                    predecessors[..last].iter().rev().take(SAME_MOMENT_MAX).find(|(_, wait)| earlier(*wait))
                });
            if let (Resource::Worker, Some(track)) = (place, operation.track) {
                tracks.insert(track);
            }
            let after = before.map_or((None, time), |(then, before)| (Some(*before), time - then));
            Task { takes, place, after }
        });
        let tasks: Vec<Task> = tasks.collect();
        let last = last.filter(|_| is_observed);
        let tail = last.map(|(resumed, wait)| (wait, trace.duration.saturating_sub(resumed)));
        let more = usize::from(!is_observed && has_another(trace));
        let mut edges = vec![Vec::new(); tasks.len()];
        for edge in &trace.edges {
            if let (Some(from), Some(to)) = (at.get(&edge.from), at.get(&edge.to)) {
                edges[*from].push((*to, edge));
            }
        }
        Self { trace, tasks, edges, workers: tracks.len().max(1) + more, tail }
    }

    /// The time at which the last operation or wait ends; `None` if not everything can be finished, as in a
    /// trace that lies.
    pub(crate) fn play(&self, change: &Change) -> Option<Nanos> {
        Simulation::new(self, change).run()
    }

    /// The duration of the replay without a change, beside the recorded one. A trace that plays quite
    /// differently says nothing about changes.
    pub(crate) fn as_it_was(&self, took: Nanos) -> Option<Nanos> {
        self.play(&Change::default()).filter(|played| *played > took / 2 && *played < took + took / 10)
    }

    fn holds(&self, edge: &Edge, change: &Change) -> bool {
        let overwrites = || {
            let later = self.trace.operation(edge.to);
            let access =
                later.and_then(|it| it.accesses.iter().find(|access| access.variable == edge.variable));
            access.is_some_and(|access| access.mode == AccessMode::Write)
        };
        let gone = edge.hazard != Hazard::Raw && change.renamed.contains(&edge.variable) && overwrites();
        !gone
    }
}

/// True if there must have been a worker beside those that ran something: a trace has no more of a worker
/// than what it ran, and one after the other a single worker runs everything. Had there been no other,
/// another operation would have waited for it.
fn has_another(trace: &Trace) -> bool {
    let for_workers = |stall: &&Stall| (stall.cause, stall.blocker) == (Cause::NoWorker, Blocker::Pool);
    let waited: Nanos = trace.stalls.iter().filter(for_workers).map(Stall::duration).sum();
    waited < trace.duration / 100
}

/// True if the trace is of observe mode: it has threads of the program alone, and what one of them did at
/// once it did not submit before.
pub(crate) fn is_observed(trace: &Trace) -> bool {
    let program = |kind| matches!(kind, TrackKind::Thread | TrackKind::EventLoop);
    let works = |it: &&Operation| matches!(it.kind, OperationKind::Operation | OperationKind::Copy);
    let at_once = |it: &Operation| it.track != it.submitter || it.began == Some(it.submitted);
    trace.tracks.iter().all(|track| program(track.kind)) && trace.operations.iter().filter(works).all(at_once)
}

fn observed_place(trace: &Trace, operation: &Operation) -> Resource {
    let memory = || trace.variable(operation.accesses.first()?.variable)?.library;
    match operation.kind {
        OperationKind::Copy | OperationKind::Export => Resource::Library(memory()),
        OperationKind::Operation if operation.library.is_some() => Resource::Library(operation.library),
        OperationKind::Operation if !is_own_time(operation) => Resource::Worker,
        _ => Resource::Program,
    }
}

/// True if the thread that it is submitted on stands still until it is over.
pub(crate) fn blocks(kind: OperationKind) -> bool {
    matches!(kind, OperationKind::Wait | OperationKind::Export)
}

/// One simulated run of a task graph.
struct Simulation<'a> {
    graph: &'a TaskGraph<'a>,
    change: &'a Change,
    /// The number of things that each task still waits for: its dependences and its submission.
    missing: Vec<usize>,
    /// Until when, as far as known.
    ready: Vec<Nanos>,
    /// The tasks of a thread after each task.
    next: Vec<Vec<usize>>,
    events: BinaryHeap<Reverse<(Nanos, ReplayEvent, usize)>>,
    workers: BinaryHeap<Reverse<Nanos>>,
    queues: HashMap<Resource, Nanos>,
    finished: usize,
    end: Nanos,
}

impl<'a> Simulation<'a> {
    fn new(graph: &'a TaskGraph<'a>, change: &'a Change) -> Self {
        let mut missing = vec![1; graph.tasks.len()];
        for (to, edge) in graph.edges.iter().flatten() {
            missing[*to] += usize::from(graph.holds(edge, change));
        }
        let mut next = vec![Vec::new(); graph.tasks.len()];
        let mut events = BinaryHeap::new();
        for (at, task) in graph.tasks.iter().enumerate() {
            match task.after {
                (Some(wait), _) => next[wait].push(at),
                (None, time) => events.push(Reverse((time, ReplayEvent::Submitted, at))),
            }
        }
        let workers = std::iter::repeat_n(Reverse(0), graph.workers).collect();
        let ready = vec![0; graph.tasks.len()];
        Self {
            graph,
            change,
            missing,
            ready,
            next,
            events,
            workers,
            queues: HashMap::new(),
            finished: 0,
            end: 0,
        }
    }

    fn run(mut self) -> Option<Nanos> {
        while let Some(Reverse((time, event, at))) = self.events.pop() {
            match event {
                ReplayEvent::Submitted => {
                    if self.resumes(at) {
                        self.resume(at, time);
                    }
                    self.met(at, time);
                }
                ReplayEvent::Ready => self.start(at, time),
            }
        }
        (self.finished == self.graph.tasks.len()).then_some(self.end)
    }

    /// True if the program does not wait for this one.
    fn resumes(&self, at: usize) -> bool {
        self.change.unwaited.contains(&self.graph.trace.operations[at].id)
    }

    fn resume(&mut self, at: usize, time: Nanos) {
        if let Some((_, tail)) = self.graph.tail.filter(|(last, _)| *last == at) {
            self.end = self.end.max(time.saturating_add(tail));
        }
        for next in std::mem::take(&mut self.next[at]) {
            let after = self.graph.tasks[next].after.1;
            self.events.push(Reverse((time.saturating_add(after), ReplayEvent::Submitted, next)));
        }
    }

    /// Something that `at` waited for is over.
    fn met(&mut self, at: usize, time: Nanos) {
        self.ready[at] = self.ready[at].max(time);
        self.missing[at] -= 1;
        if self.missing[at] == 0 {
            self.events.push(Reverse((self.ready[at], ReplayEvent::Ready, at)));
        }
    }

    fn start(&mut self, at: usize, time: Nanos) {
        let task = &self.graph.tasks[at];
        let begin = match task.place {
            Resource::Program => time,
            Resource::Worker => time.max(self.workers.pop().map_or(0, |Reverse(free)| free)),
            place => time.max(self.queues.get(&place).copied().unwrap_or(0)),
        };
        let operation = &self.graph.trace.operations[at];
        let takes = if self.change.shared.contains(&operation.id) { 0 } else { task.takes };
        let end = begin.saturating_add(takes);
        if !self.resumes(at) {
            self.resume(at, begin);
        }
        match task.place {
            // A lease may well last longer than all that is waited for.
            Resource::Program => self.end = self.end.max(begin),
            Resource::Worker => {
                self.workers.push(Reverse(end));
                self.end = self.end.max(end);
            }
            place => {
                self.queues.insert(place, end);
                self.end = self.end.max(end);
            }
        }
        self.finished += 1;
        for (to, edge) in &self.graph.edges[at] {
            if self.graph.holds(edge, self.change) {
                self.met(*to, end);
            }
        }
    }
}
