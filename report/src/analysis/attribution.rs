//! Attribution: every waited nanosecond of every access gets exactly one cause and one blocker.
//!
//! # Who stood in the way
//! The accesses of one variable are put in the order of their queue: conflicting ones are granted in the
//! order in which they were submitted, so the times at which they were granted sort them, even where several
//! threads submitted at once. An access waits for the writer before it, a writer for the readers in between.
//! Of these the *latest to end* is the blocker: without the others it would have waited as long. (Legion Prof
//! picks the latest precondition of an event in the same way: StanfordLegion/legion,
//! `tools/legion_prof_rs/src/state.rs`.)
//!
//! # What the waiting was for
//! The time until the blocker has ended is divided by what the blocker did: it stood in a queue itself, it
//! ran, it was a lease that was held elsewhere. What follows divides by what happened to the waiter: the end
//! was not observed yet; it was ready and all workers were busy, or one had to wake up; its thread was awake
//! and had not the interpreter's lock. Device work waits once more on its queue.
//!
//! Each division goes on where the one before ended and never turns back (`tiling`), so the intervals of an
//! access tile the time that it waited whatever the trace says: without gap, without overlap.
//!
//! | part | what it has |
//! |---|---|
//! | `order` | the queues of all variables |
//! | `pool` | when all workers were busy |
//! | `counters` | quantities over time |
//! | `tiling` | intervals without gap and overlap |

mod counters;
mod order;
mod pool;
mod tiling;

use crate::Trace;
use crate::model::source::{Source, operations};
use crate::model::{
    AccessMode, Blocker, Cause, Edge, Hazard, LINK_WAITS, Nanos, Operation, OperationId, OperationKind,
    Outcome, Stall, TrackId, TrackKind,
};

use self::counters::counters;
#[cfg(feature = "report")]
pub(crate) use self::counters::{COUNTERS, changes};
use self::order::{Before, Order};
use self::pool::Pool;
#[cfg(feature = "report")]
pub(crate) use self::pool::has_several_pools;
use self::tiling::Tiling;

/// Time between the end of a blocker and the waiter's being ready that the engine takes at most. More than
/// this, with nothing known to have been in the way, means that something unknown was.
const HANDING_ON_MAX: Nanos = 1_000_000;

/// Fills [`Trace::stalls`], [`Trace::edges`] and [`Trace::counters`] from everything else.
pub fn attribute(trace: &mut Trace) {
    let _ = attribute_within(trace, &mut |_| true);
}

/// As [`attribute`], as long as `takes` grants the bytes that more stalls and edges take. Returns whether it
/// granted all.
pub fn attribute_within(trace: &mut Trace, takes: &mut dyn FnMut(usize) -> bool) -> bool {
    let (mut stalls, mut edges, mut is_whole) = (Vec::new(), Vec::new(), true);
    let attribution = Attribution::of(trace);
    for (at, operation) in trace.operations.iter().enumerate() {
        let (new_stalls, new_edges) = (attribution.stalls(at, operation), attribution.edges(at, operation));
        is_whole = takes(size_of_val(&new_stalls[..]) + size_of_val(&new_edges[..]));
        if !is_whole {
            break;
        }
        stalls.extend(new_stalls);
        edges.extend(new_edges);
    }
    drop(attribution);
    trace.stalls = stalls;
    trace.edges = edges;
    trace.counters = counters(trace);
    is_whole
}

/// The state of attribution for a trace: enough to say of each operation why it waited.
pub(crate) struct Attribution<'a, S> {
    pub(crate) source: &'a S,
    order: Order,
    /// Operations whose end is waited for by name, and the positions of those that wait; sorted.
    by_name: Vec<(OperationId, u32)>,
    /// The operations on device queues, in the order of their issue: queue, time, position.
    on_queues: Vec<(TrackId, Nanos, u32)>,
    pool: Pool,
    /// The times at which threads of executors ended the functions that they ran; sorted.
    executors: Vec<(TrackId, Nanos)>,
}

impl<'a, S: Source> Attribution<'a, S> {
    pub(crate) fn of(source: &'a S) -> Self {
        let (mut by_name, mut on_queues, mut executors) = (Vec::new(), Vec::new(), Vec::new());
        for (at, operation) in operations(source).enumerate() {
            executors.extend(executor(&operation).zip(operation.done));
            by_name.extend(operation.waits_for.map(|target| (target, at as u32)));
            if let (Some(track), Some(issued)) = (queue_of(source.about(), &operation), operation.issued) {
                on_queues.push((track, issued, at as u32));
            }
        }
        by_name.sort_unstable();
        on_queues.sort_unstable();
        executors.sort_unstable();
        Self { source, order: Order::of(source), by_name, on_queues, pool: Pool::of(source), executors }
    }

    /// The stalls of the operation at `at`, in order of time.
    pub(crate) fn stalls(&self, at: usize, operation: &Operation) -> Vec<Stall> {
        let mut stalls = Vec::new();
        self.operation(at, operation, &mut stalls);
        stalls.sort_by_key(|stall| (stall.from, stall.access));
        stalls
    }

    pub(crate) fn edges(&self, at: usize, operation: &Operation) -> Vec<Edge> {
        let mut edges = Vec::new();
        for (access, used) in operation.accesses.iter().enumerate() {
            edges.extend(self.order.predecessors(at, access).into_iter().map(|earlier| Edge {
                from: self.source.operation(earlier.at).id,
                to: operation.id,
                variable: used.variable,
                hazard: earlier.hazard,
            }));
        }
        if let Some(from) = operation.waits_for {
            edges.push(Edge { from, to: operation.id, variable: 0, hazard: Hazard::Raw });
        }
        edges
    }

    /// The predecessors of the operation at `at`: positions, and numbers of the dependences.
    pub(crate) fn arriving(&self, at: usize, operation: &Operation) -> Vec<(usize, u64)> {
        let accesses = 0..operation.accesses.len();
        let mut arriving: Vec<(usize, u64)> = accesses
            .flat_map(|access| self.order.predecessors(at, access))
            .map(|earlier| (earlier.at, earlier.arrow))
            .collect();
        let target = operation.waits_for.and_then(|id| self.source.position(id));
        arriving.extend(target.map(|target| (target, by_name(at))));
        arriving
    }

    /// The successors of the operation at `at`: positions, and numbers of the dependences.
    pub(crate) fn leaving(&self, at: usize, operation: &Operation) -> Vec<(usize, u64)> {
        let accesses = 0..operation.accesses.len();
        let mut leaving: Vec<(usize, u64)> =
            accesses.flat_map(|access| self.order.successors(at, access)).collect();
        let first = self.by_name.partition_point(|(target, _)| *target < operation.id);
        let waiters = self.by_name[first..].iter().take_while(|(target, _)| *target == operation.id);
        leaving.extend(waiters.map(|(_, waiter)| (*waiter as usize, by_name(*waiter as usize))));
        leaving
    }

    /// The time at which the operation before this one on its in-order queue was done.
    fn ahead(&self, at: usize, track: TrackId, issued: Nanos) -> Option<Nanos> {
        let own = self.on_queues.partition_point(|known| *known < (track, issued, at as u32));
        let (its_track, _, before) = self.on_queues[own.checked_sub(1)?];
        if its_track == track { self.source.operation(before as usize).done } else { None }
    }
}

/// The number of the dependence of a wait on the operation that it waits for by name. The numbers of accesses
/// are below it.
fn by_name(waiter: usize) -> u64 {
    1 << 63 | waiter as u64
}

pub(crate) fn queue_of(trace: &Trace, operation: &Operation) -> Option<TrackId> {
    let track = operation.track?;
    (trace.tracks.get(track)?.kind == TrackKind::Queue).then_some(track)
}

/// The thread of an executor that ran a function of an observed program. An engine notes when an operation
/// was ready, observe mode only when a function began.
fn executor(operation: &Operation) -> Option<TrackId> {
    let is_observed = operation.awake.is_none() && operation.ready == operation.began;
    let is_function = operation.kind == OperationKind::Operation && operation.library.is_none();
    let track = operation.track.filter(|_| is_observed && is_function && operation.accesses.is_empty());
    // A thread may run what it has submitted to its own pool.
    let is_handed_over =
        operation.began.is_some() && operation.submitter.is_some() && !is_own_time(operation);
    track.filter(|_| is_handed_over)
}

/// The parts of a blocker's time, as others see them.
struct Phases {
    blocker: Blocker,
    waiting_for: Blocker,
    /// It stopped waiting itself.
    began: Option<Nanos>,
    /// It stopped being in the way.
    ended: Option<Nanos>,
    cause: Cause,
}

impl<S: Source> Attribution<'_, S> {
    /// `on_device`: the waiter is ordered after the blocker's device work by its queue, so only the issue
    /// counts.
    fn phases(&self, at: usize, on_device: bool) -> Phases {
        let operation = &*self.source.operation(at);
        let duration = self.source.about().duration;
        let waiting_for = Blocker::Operation(operation.id);
        if operation.kind == OperationKind::Export {
            let lease = self.source.lease(at, operation);
            return Phases {
                blocker: Blocker::Lease(operation.id),
                waiting_for,
                // Until its holder went on with it, the lease waited for that thread.
                began: lease.as_ref().map(|lease| lease.opened.max(Waits::of(operation, duration).end)),
                // A lease that was given up before its grant ends when that was noted.
                ended: lease.map_or(operation.issued, |lease| lease.closed),
                cause: Cause::Leased,
            };
        }
        Phases {
            blocker: waiting_for,
            waiting_for,
            // A value that has not come from another process yet is computed there.
            began: if operation.kind == OperationKind::Import { Some(0) } else { operation.began },
            ended: if on_device { operation.issued } else { operation.done },
            cause: Cause::Computing,
        }
    }

    fn operation(&self, at: usize, operation: &Operation, stalls: &mut Vec<Stall>) {
        let accesses = 0..operation.accesses.len();
        let before: Vec<Vec<Before>> = accesses.map(|access| self.order.predecessors(at, access)).collect();
        let mut waits = Waits::of(operation, self.source.about().duration);
        let on_device = queue_of(self.source.about(), operation).is_some();
        let by_name = operation.waits_for.and_then(|id| self.source.position(id));
        // The operation or lease that each access waited for, and the time until which it waited.
        let mut blocked: Vec<Option<(Phases, Hazard, Nanos)>> = before
            .iter()
            .map(|before| {
                before
                    .iter()
                    .map(|earlier| {
                        let phases = self.phases(earlier.at, self.orders(on_device, earlier.at, operation));
                        // An operation that went on was no longer blocked by then, whatever the record of the
                        // earlier one says.
                        let ended = phases.ended.unwrap_or(Nanos::MAX).clamp(waits.from, waits.ready);
                        (phases, earlier.hazard, ended)
                    })
                    .max_by_key(|(_, _, ended)| *ended)
            })
            .collect();
        if let (true, Some(target)) = (blocked.is_empty(), by_name) {
            let phases = self.phases(target, true);
            let ended = phases.ended.unwrap_or(Nanos::MAX).clamp(waits.from, waits.ready);
            // A wait by name is notified at once.
            waits.ready = ended;
            blocked.push(Some((phases, Hazard::Raw, ended)));
        }
        if blocked.is_empty() {
            blocked.push(None);
        }
        let end_of = |blocked: &Option<(Phases, Hazard, Nanos)>| {
            blocked.as_ref().map_or(waits.from, |(_, _, ended)| *ended)
        };
        let critical = (0..blocked.len()).rev().max_by_key(|access| end_of(&blocked[*access])).unwrap_or(0);
        for (access, blocked) in blocked.iter().enumerate() {
            let mut tiling = Tiling::new(stalls, operation.id, access, waits.from);
            tiling.critical = access == critical;
            let mut hazard = None;
            if let Some((phases, kind, ended)) = blocked {
                hazard = Some(*kind);
                let queued_until = phases.began.unwrap_or(Nanos::MAX).min(*ended);
                tiling.until(queued_until, Cause::Queued, hazard, phases.waiting_for);
                tiling.until(*ended, phases.cause, hazard, phases.blocker);
            }
            if access == critical {
                self.rest(&mut tiling, operation, &waits, hazard);
            }
        }
        if on_device && operation.began.is_some() {
            self.on_queue(at, operation, &before, stalls);
        }
    }

    /// True if the device, not the host, orders `waiter` after the device work of the earlier operation.
    fn orders(&self, on_device: bool, earlier: usize, waiter: &Operation) -> bool {
        let earlier = &*self.source.operation(earlier);
        // An operation that began only when the earlier work was done was parked until then: no device could
        // wait for it.
        let parked = || match (earlier.done, waiter.began) {
            (Some(done), Some(began)) => done <= began,
            _ => false,
        };
        on_device && queue_of(self.source.about(), earlier).is_some() && !parked()
    }

    /// Tiles the time after all blockers have ended.
    fn rest(&self, tiling: &mut Tiling<'_>, operation: &Operation, waits: &Waits, hazard: Option<Hazard>) {
        if let Some(track) = executor(operation) {
            tiling.until(self.free_since(track, waits.ready), Cause::NoWorker, None, Blocker::Pool);
            tiling.until(waits.end, Cause::NotResumed, None, Blocker::Thread(track));
        }
        if is_link_wait(operation) && operation.waits_for.is_none() {
            tiling.until(waits.ready, Cause::Computing, None, Blocker::None);
        }
        let late = waits.ready.saturating_sub(tiling.at()) > HANDING_ON_MAX;
        if late && (hazard.is_none() || !self.source.about().losses.is_empty()) {
            tiling.until(waits.ready, Cause::Queued, None, Blocker::None);
        }
        tiling.until(waits.ready, Cause::NotObserved, hazard, Blocker::Observer);
        let resumes = operation.kind != OperationKind::Operation && operation.kind != OperationKind::Copy;
        let sleeper = self.sleeper(operation);
        let on_loop = sleeper == Blocker::EventLoop;
        if resumes {
            tiling.until(waits.awake, Cause::NotResumed, None, sleeper);
        } else {
            let worker = operation.track.filter(|track| self.pool.has(*track));
            // No record says which worker sends a body to its event loop. A thread that waited took the
            // operation, if it was no worker.
            let late = if on_loop { Blocker::None } else { worker.map_or(Blocker::Pool, Blocker::Thread) };
            // A worker that is not known to have done anything before ran something that the trace does not
            // have.
            let is_first = |worker: TrackId| self.pool.first(worker).is_none_or(|first| first >= waits.awake);
            let waited = waits.awake.saturating_sub(tiling.at());
            if self.source.about().began_amid_bodies
                && worker.is_some_and(is_first)
                && waited > HANDING_ON_MAX
            {
                tiling.until(waits.awake, Cause::Queued, None, Blocker::None);
            }
            for (from, to, blocker) in self.pool.full_between(operation, tiling.at(), waits.awake) {
                // Before that another worker was free, and asleep.
                tiling.until(from, Cause::NotResumed, None, late);
                tiling.until(to, Cause::NoWorker, None, blocker);
            }
            tiling.until(waits.awake, Cause::NotResumed, None, late);
        }
        let resumer = if on_loop { sleeper } else { Blocker::Interpreter };
        tiling.until(waits.end, Cause::NotResumed, None, resumer);
    }

    /// The time at which a thread of an executor had ended what it ran before `began`. An executor hands on
    /// in the order of submission, to whichever thread is free first: until then none was free.
    fn free_since(&self, track: TrackId, began: Nanos) -> Nanos {
        let before = self.executors.partition_point(|known| *known <= (track, began));
        let last = before.checked_sub(1).map(|last| self.executors[last]);
        last.filter(|(its_track, _)| *its_track == track).map_or(0, |(_, end)| end)
    }

    /// The thread or event loop that resumed late.
    fn sleeper(&self, operation: &Operation) -> Blocker {
        let Some(track) = operation.track.or(operation.submitter) else { return Blocker::None };
        match self.source.about().tracks.get(track).map(|track| track.kind) {
            Some(TrackKind::EventLoop) => Blocker::EventLoop,
            Some(_) => Blocker::Thread(track),
            None => Blocker::None,
        }
    }

    /// The causes for which device work waited on its queue: earlier work of others, then whatever was in
    /// front of it there.
    fn on_queue(&self, at: usize, operation: &Operation, before: &[Vec<Before>], stalls: &mut Vec<Stall>) {
        let (Some(track), Some(own_issue)) = (operation.track, operation.issued) else { return };
        let issued = own_issue.max(Waits::of(operation, self.source.about().duration).end);
        let done = operation.done.unwrap_or(self.source.about().duration).max(issued);
        // Work that a device has begun waits for nothing any more.
        let begun = operation.ran.map_or(done, |(from, _)| from.clamp(issued, done));
        let inputs: Vec<Option<(&Before, Nanos)>> = before
            .iter()
            .map(|before| {
                let ends = before.iter().map(|earlier| {
                    let operation = self.source.operation(earlier.at);
                    let lease = operation.kind == OperationKind::Export;
                    let end = if lease { issued } else { operation.done.unwrap_or(Nanos::MAX) };
                    (earlier, end.clamp(issued, begun))
                });
                ends.max_by_key(|(_, end)| *end)
            })
            .collect();
        let inputs_done = inputs.iter().flatten().map(|(_, end)| *end).max().unwrap_or(issued);
        // On a queue that keeps no order the one before may well be done later.
        let ahead = match operation.ran {
            // It could have run, but the device was elsewhere, or about to come.
            Some(_) => begun,
            None => self.ahead(at, track, own_issue).filter(|ahead| *ahead <= done).unwrap_or(issued),
        };
        let end_of = |access: usize| inputs[access].map_or(issued, |(_, end)| end);
        let critical = (0..inputs.len()).rev().max_by_key(|access| end_of(*access)).unwrap_or(0);
        for access in 0..inputs.len().max(1) {
            let mut tiling = Tiling::new(stalls, operation.id, access, issued);
            tiling.critical = access == critical;
            let mut hazard = None;
            if let Some(Some((earlier, end))) = inputs.get(access) {
                hazard = Some(earlier.hazard);
                let blocker = Blocker::Operation(self.source.operation(earlier.at).id);
                tiling.until(*end, Cause::Computing, hazard, blocker);
            }
            if access == critical {
                tiling.until(inputs_done.max(ahead), Cause::NoWorker, hazard, Blocker::Queue(track));
            }
        }
    }
}

/// The times of an operation's wait. In order: `from`, `ready`, `awake`, `end`.
struct Waits {
    from: Nanos,
    /// Nothing of what it waits for is in the way any more, and the engine knows.
    ready: Nanos,
    /// Its thread runs.
    awake: Nanos,
    /// It goes on.
    end: Nanos,
}

impl Waits {
    fn of(operation: &Operation, duration: Nanos) -> Self {
        let from = operation.submitted;
        let (ready, end) = match operation.kind {
            OperationKind::Operation | OperationKind::Copy | OperationKind::Import => {
                // An operation that was skipped has waited until it was skipped.
                (operation.ready, operation.began.or(operation.issued))
            }
            OperationKind::Wait | OperationKind::Await => {
                // A future that was dropped does not resume.
                let given_up = operation.done.filter(|_| operation.outcome == Outcome::Cancelled);
                let end = operation.resumed.or(given_up);
                (if operation.waits_for.is_some() { end } else { operation.observed.or(end) }, end)
            }
            OperationKind::Export => (
                operation.began.or(operation.issued),
                operation.resumed.or(operation.began).or(operation.issued),
            ),
        };
        let end = end.unwrap_or(duration).max(from);
        let awake = operation.awake.unwrap_or(end).clamp(from, end);
        let ready = ready.unwrap_or(end).clamp(from, awake);
        Self { from, ready, awake, end }
    }
}

/// True if it waited for what another process does.
pub(crate) fn is_link_wait(operation: &Operation) -> bool {
    let waits = matches!(operation.kind, OperationKind::Wait | OperationKind::Await);
    waits && LINK_WAITS.contains(&operation.own_name())
}

/// The conflict between an earlier and a later access of one variable; `None` if they are both reads.
pub(crate) fn hazard(earlier: AccessMode, later: AccessMode) -> Option<Hazard> {
    match (earlier, later) {
        (AccessMode::Read, AccessMode::Read) => None,
        (AccessMode::Read, AccessMode::Write | AccessMode::Update) => Some(Hazard::War),
        (AccessMode::Write | AccessMode::Update, AccessMode::Write) => Some(Hazard::Waw),
        (AccessMode::Write | AccessMode::Update, AccessMode::Read | AccessMode::Update) => Some(Hazard::Raw),
    }
}

/// True if it is the time of a thread between two of its calls, as observe mode notes it.
pub(crate) fn is_own_time(operation: &Operation) -> bool {
    operation.kind == OperationKind::Operation && operation.library.is_none() && ran_at_once(operation)
}

/// True if the submitter of an operation ran it itself, and at once.
pub(crate) fn ran_at_once(operation: &Operation) -> bool {
    operation.track.is_some()
        && operation.track == operation.submitter
        && operation.began == Some(operation.submitted)
}
