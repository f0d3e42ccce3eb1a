//! Blocking waits: help, then inspect whether the wait can end, then sleep.
//!
//! A wait without a timeout runs what it needs on its own thread. A body may take any time, and the engine
//! cannot interrupt it. So a wait with a timeout runs no body: the workers run them, or a
//! [stand-in](crate::wait::stand_in) of an engine without workers. A stand-in also helps a wait that has
//! slept in vain.
//!
//! A wait [inspects](crate::wait::inspect) the operations that it waits for, since they decide how the wait
//! ends. A wait that leads back to the waiting operation is refused. A wait that only leases hold up ends
//! with their names. All other waits sleep until woken. At its start a wait inspects what is near. A thread
//! that runs no operation then sleeps, and one thread of the process inspects for all such threads
//! ([`awaits`](crate::wait::awaits)). This thread wakes those that have to inspect for themselves, since
//! something may be wrong or they could help. A thread inside of an operation inspects for itself now and
//! then: such threads are few, and what they wait for may wait for them.

use std::cell::OnceCell;
use std::collections::HashSet;
use std::fmt::Display;

use estafette_devices::cpu::{ConcurrencySlot, Job, WaitGuard};
use estafette_graph::{OpId, Snapshot};
use estafette_sync::sleeper::has_host;
use estafette_sync::thread;
use estafette_sync::time::{Duration, Instant};
use smallvec::SmallVec;

use crate::core::clock::{self, Coarse};
use crate::core::context::{self, Helping};
use crate::core::core_ref::CoreRef;
use crate::core::engine_core::{Core, graph};
use crate::core::error::{Error, LeaseHeld};
use crate::core::lease_info::LeaseInfo;
use crate::core::one_shot::{Delivered, OneShot};
use crate::core::operation::{Name, OpGranted, OpHandle, OpKind, OpState, Phase};
use crate::core::wait_for::{self, On};
use crate::exchange::{callback, foreign_fence, reaper};
use crate::lease::LeaseState;
use crate::operation::run;
use crate::tensor::handle::Tensor;
use crate::trace::hooks;
use crate::wait::awaits;
use crate::wait::inspect::{self, EVERYTHING, Inspection};
use crate::wait::ready::{Polled, poll_or_query};
use crate::wait::stand_in::{StandInSet, others_without_workers};
use crate::wait::watched::{Watched, sleep_until_work};

/// Time until the first inspection while asleep. An inspection finds only what no wake-up can report: that
/// nothing is left that could wake this thread. Each pause is twice as long as the one before, up to
/// `INSPECTION_LAST`, or longer where inspections take long.
const INSPECTION_FIRST: Duration = Duration::from_millis(10);

/// See [`INSPECTION_FIRST`].
const INSPECTION_LAST: Duration = Duration::from_millis(500);

/// A wait that depends on more operations than this sleeps instead of picking the operations that it needs: a
/// search for them would cost more than it gains.
const HELP_SCAN_MAX: usize = 4096;

/// The number of times that a snapshot yields to operations that are about to end.
const ENDING_YIELDS: usize = 16;

/// Accesses that are inspected for an operation with a few variables.
const ACCESSES_PER_OP: usize = 8;

/// The data of an operation in a snapshot.
#[derive(Clone)]
pub(crate) struct OpSummary {
    pub(crate) core: u64,
    pub(crate) engine: CoreRef,
    pub(crate) name: Name,
    pub(crate) kind: OpKind,
    pub(crate) phase: Phase,
    pub(crate) counted: bool,
    pub(crate) since: Coarse,
    pub(crate) lease: Option<LeaseInfo>,
}

pub(crate) fn summarize(state: &OpState) -> OpSummary {
    OpSummary {
        core: state.core.id,
        engine: state.core.clone(),
        name: state.name.clone(),
        kind: state.kind,
        phase: state.phase(),
        counted: state.is_counted(),
        since: state.since,
        lease: state.lease().map(|lease| lease.info()),
    }
}

/// A snapshot of the graph, in which leases without an operation look like those with one.
pub(crate) fn take_snapshot() -> Snapshot<OpSummary> {
    graph().snapshot_with(summarize, |state, found| {
        state.pins().each(|pin| found.push((pin.number(), summarize_pin(pin.lease()))));
    })
}

/// A snapshot, and how much of what `core` has in flight it does not show: operations without variables, and
/// permits that no operation has used yet.
pub(crate) fn take_snapshot_of(core: &Core) -> (Snapshot<OpSummary>, usize) {
    let before = core.in_flight();
    let snapshot = take_snapshot();
    let listed = snapshot.ops.iter().filter(|op| op.label.core == core.id && op.label.counted).count();
    if before > listed {
        // A tensor is ready a moment before its operation releases the permit.
        (0..ENDING_YIELDS).for_each(|_| thread::yield_now());
    }
    // Meanwhile operations are submitted, and end.
    let unlisted = before.min(core.in_flight()).saturating_sub(listed);
    (snapshot, unlisted)
}

fn summarize_pin(lease: &LeaseState) -> OpSummary {
    let core = &lease.tensor.inner.core;
    OpSummary {
        core: core.id,
        engine: core.clone(),
        name: Name::Static("lease"),
        kind: OpKind::Lease,
        phase: Phase::Begun,
        counted: false,
        since: lease.since(),
        lease: Some(lease.info()),
    }
}

pub(crate) fn block_on_tensor(tensor: &Tensor, timeout: Option<Duration>) -> Result<(), Error> {
    if let Some(timeout @ Duration::ZERO) = timeout {
        // A query only, which leaves nothing in any queue.
        return tensor.inner.poll().unwrap_or(Err(Error::Timeout(timeout)));
    }
    match poll_or_query(&tensor.inner, true) {
        Polled::Ready => Ok(()),
        Polled::Failed(error) => {
            error.retrieve();
            Err(*error)
        }
        Polled::Probing(query) => {
            let core = &tensor.inner.core;
            let waited = block(core, &query.handle, &"a tensor", &query.one_shot, timeout);
            if query.handle.payload().noted {
                hooks::resumed(query.handle.id().get(), true);
            }
            waited?
        }
    }
}

/// Blocks until `one_shot`, which `waiting` will set, is set.
pub(crate) fn block<V: Clone + Delivered>(
    core: &CoreRef,
    waiting: &OpHandle,
    what: &dyn Display,
    one_shot: &OneShot<V>,
    timeout: Option<Duration>,
) -> Result<V, Error> {
    block_while(core, waiting, what, one_shot, timeout, true)
}

/// As [`block`]. Where `takes_slots` is false, the workers of an engine with a shared lock run the operations
/// that need it.
pub(crate) fn block_while<V: Clone + Delivered>(
    core: &CoreRef,
    waiting: &OpHandle,
    what: &dyn Display,
    one_shot: &OneShot<V>,
    timeout: Option<Duration>,
    takes_slots: bool,
) -> Result<V, Error> {
    if let Some(value) = one_shot.get() {
        return Ok(value);
    }
    waiting.payload().core.generation.check()?;
    if let Some(Duration::ZERO) = timeout {
        return Err(Error::Timeout(Duration::ZERO));
    }
    callback::check()?;
    core.end_caller_runs();
    let helps = timeout.is_none() && context::may_help();
    let deadline = timeout.and_then(clock::deadline);
    let mut watch = Watch { op: waiting, what, deadline, held_since: None, collected: false };
    let _blocked = wait_for::register(|| On::Op(waiting.clone()));
    let inside = context::current().is_some() || core.runs_anything_here();
    // A worker takes none: a spare one takes its place.
    let may_take = takes_slots && helps && !core.runs_anything_here() && core.may_run_bodies();
    let waiting_for_job = may_take.then(|| core.pool.begin_wait());
    let takes_slots = waiting_for_job.as_ref().is_some_and(WaitGuard::takes_slots);
    let mut needed = Needed::at_the_start(core, &mut watch, timeout)?;
    let mut relief = Relief::default();
    if !helps {
        needed.want_stand_ins(&mut relief.stand_ins);
    }
    let mut cover = None;
    let mut inspection_took = Duration::ZERO;
    let mut pause = INSPECTION_FIRST;
    // The time of the next call of the wait hook, and of an inspection if enough time has gone by for one.
    let mut next_look = Instant::now() + pause;
    let mut looks_from = next_look;
    let mut watched: Option<Watched<'_, V>> = None;
    let mut is_wanted = false;
    loop {
        if let Some(value) = one_shot.get() {
            return Ok(value);
        }
        if helps {
            // A worker that has slept a while runs what it needs after all, since all spare workers wait as
            // well. A body inside another body's wait is better than a hang. Where all threads of the pool
            // are blocked, the worker runs it at once.
            let in_vain = pause > INSPECTION_FIRST || (cover.is_some() && core.pool.are_all_blocked());
            let last_resort = in_vain && core.runs_anything_here();
            let helping = if in_vain { context::begin_last_help() } else { context::begin_help() };
            if helping.is_none() {
                needed.want_stand_ins(&mut relief.stand_ins);
            }
            if needed.help(helping, last_resort, takes_slots, || one_shot.has_value()) {
                core.check_raised()?;
                continue;
            }
            if pause > INSPECTION_FIRST {
                // On this thread an operation could wait for the current one, or for a lease of the thread.
                needed.want_stand_ins(&mut relief.stand_ins);
            }
        }
        core.pool.release_to_workers();
        let now = Instant::now();
        if let (Some(deadline), Some(timeout)) = (deadline, timeout)
            && now >= deadline
        {
            return Err(Error::Timeout(timeout));
        }
        if is_wanted || now >= next_look {
            let ends_first = OnceCell::new();
            core.check_interrupt(&|stopped| {
                let ends_first = ends_first.get_or_init(|| needed_by(waiting));
                stopped.iter().position(|op| ends_first.contains(&op.op))
            })?;
            foreign_fence::stand_in_for_queries();
            let looks_itself = inside
                || watch.held_since.is_some()
                || (helps && needed.without_workers().next().is_some())
                || !awaits::has_watcher();
            let looks = is_wanted || (looks_itself && now >= looks_from);
            // No inspection where the end of the wait is as near as that of the inspection may be.
            if looks
                && deadline.is_none_or(|deadline| deadline - now >= INSPECTION_FIRST.max(2 * inspection_took))
            {
                let inspected = inspect::inspected();
                let seen = watch.inspect(core, EVERYTHING)?;
                if !(helps && core.runs_anything_here() && context::may_help_at_last()) {
                    relief.see_to(&seen, what)?;
                }
                if helps && !needed.complete {
                    needed = Needed::by(&seen, waiting);
                }
                drop(seen);
                inspection_took = inspect::duration(now, inspected);
                looks_from = Instant::now() + inspect::pause_after(inspection_took);
            }
            pause = (pause * 2).min(INSPECTION_LAST);
            next_look = Instant::now() + pause;
            if std::mem::take(&mut is_wanted) {
                // Ready work that the wait needs may have become near.
                watched = None;
                continue;
            }
        }
        let wake = deadline.map_or(next_look, |deadline| deadline.min(next_look));
        if helps && needed.without_workers().next().is_some() {
            // Work that arrived before this thread listened has not woken the thread.
            sleep_until_work(one_shot, needed.without_workers(), wake, || {
                let is_over = || one_shot.has_value();
                let helped = needed.help(context::begin_help(), false, takes_slots, is_over);
                if !helped {
                    cover.get_or_insert_with(|| core.cover());
                }
                !helped
            });
            core.check_raised()?;
        } else if !inside && pause > INSPECTION_FIRST && watch.held_since.is_none() {
            // The wait takes long, and nothing is wrong so far.
            let watched = watched.get_or_insert_with(|| Watched::new(one_shot, waiting, pause, helps));
            // Only this thread can run a signal handler of the language.
            let asks = core.may_be_interrupted() || !awaits::has_watcher();
            let wake = if asks { Some(wake) } else { deadline };
            is_wanted = context::blocking(|| watched.wait_until(wake));
        } else {
            watched = None;
            if cover.is_none() {
                cover = Some(core.cover());
                if helps && core.runs_anything_here() && core.pool.are_all_blocked() {
                    continue;
                }
            }
            if has_host() {
                sleep_until_work(one_shot, std::iter::empty(), wake, || true);
            } else if let Some(value) = context::blocking(|| one_shot.wait_until(Some(wake))) {
                return Ok(value);
            }
        }
    }
}

/// The stand-ins that run operations for a wait.
#[derive(Default)]
struct Relief {
    stand_ins: StandInSet,
    /// True if the last inspection found a needed operation ready, and no thread left to run it.
    hopeless: bool,
}

impl Relief {
    /// Makes a stand-in run what is needed and ready, where all threads of its pool are blocked.
    ///
    /// # Errors
    /// [`Error::WouldDeadlock`] when no stand-in was available twice in a row: other threads that could run
    /// the work have had the time.
    fn see_to(&mut self, seen: &Inspection, what: &dyn Display) -> Result<(), Error> {
        let before = std::mem::take(&mut self.hopeless);
        let is_left = |op: &OpState| is_ready_work(op) && op.core.lacks_thread();
        for (_, _, op) in seen.ops().filter(|(_, granted, op)| *granted && is_left(op)) {
            let Some(missing) = self.stand_ins.want(&op.core) else { continue };
            if before {
                let message = format!("{what} waits for {}, which is ready, but {missing}", op.in_words());
                return Err(Error::WouldDeadlock(message));
            }
            self.hopeless = true;
        }
        Ok(())
    }
}

/// As [`block`], for an operation by name.
pub(crate) fn block_on_op(
    core: &CoreRef,
    op: &OpHandle,
    one_shot: &OneShot<Result<(), crate::core::error::OperationError>>,
    timeout: Option<Duration>,
) -> Result<(), Error> {
    block(core, op, &op.payload().in_words(), one_shot, timeout)?.map_err(Error::from)
}

/// The operations whose end is needed for that of `waiting`, including `waiting`.
fn needed_by(waiting: &OpHandle) -> HashSet<OpId> {
    Inspection::of(waiting, EVERYTHING).ops().map(|(id, _, _)| id).collect()
}

/// Refuses a wait, asynchronous or not, that leads back to the operation that makes the wait. A notification
/// waits for nothing.
pub(crate) fn check_self_wait(waiting: &OpHandle) -> Result<(), Error> {
    if context::is_notification() {
        return Ok(());
    }
    let Some(current) = context::current() else { return Ok(()) };
    if needed_by(waiting).contains(&current) {
        let what = match waiting.payload().kind {
            OpKind::ReadinessQuery => "a tensor".into(),
            _ => waiting.payload().in_words().to_string(),
        };
        return Err(Error::WouldDeadlock(format!("{what} waits for the operation that waits for it")));
    }
    Ok(())
}

/// True if the operation, if granted, has a body that has not begun.
pub(crate) fn is_ready_work(op: &OpState) -> bool {
    op.kind.has_body() && op.phase() == Phase::Queued
}

/// The operations that a wait may help with, and the engines whose pools run them: operations of one engine
/// may write a tensor of another.
struct Needed {
    /// Ascending.
    ops: SmallVec<[OpId; 8]>,
    cores: SmallVec<[CoreRef; 1]>,
    /// There are too many operations to pick the needed ones: without workers, the wait runs any ready
    /// operation.
    too_many: bool,
    /// True if no operation is left out. Operations that are left out are farther away than those in `ops`.
    complete: bool,
}

impl Needed {
    /// The engines without workers: the waiting thread itself runs what it needs there.
    fn without_workers(&self) -> impl Iterator<Item = &CoreRef> {
        self.cores.iter().filter(|core| core.has_no_workers())
    }

    /// Makes a stand-in run what is ready in each of the engines without workers.
    fn want_stand_ins(&self, stand_ins: &mut StandInSet) {
        self.cores.iter().for_each(|core| _ = stand_ins.relieve(core));
    }

    /// The needs of a wait that are known at its start. Operations that are submitted later come behind it.
    ///
    /// At the start only what is near is known. For engines without workers everything is inspected: there
    /// the waiting thread itself runs what it needs, or has to know the engines that have something to run
    /// for it.
    fn at_the_start(core: &CoreRef, watch: &mut Watch<'_>, timeout: Option<Duration>) -> Result<Self, Error> {
        let is_granted = || watch.op.is_granted() && watch.op.payload().kind.has_body();
        if timeout.is_none() && context::current().is_none() && is_granted() {
            // Nothing is in its way.
            return Ok(Self::only(watch.op, true));
        }
        let others = others_without_workers(core);
        let limit = match (others, core.has_no_workers()) {
            (true, _) => EVERYTHING,
            (false, true) => HELP_SCAN_MAX * ACCESSES_PER_OP,
            (false, false) => wait_for::NEAR,
        };
        if timeout.is_none() {
            Ok(Self::by(&watch.inspect(core, limit)?, watch.op))
        } else if others {
            Ok(Self::by(&Inspection::of(watch.op, limit), watch.op))
        } else {
            // An inspection could take longer than the wait.
            Ok(Self::only(watch.op, false))
        }
    }

    /// `waiting` alone; `complete` where it needs nothing else.
    fn only(waiting: &OpHandle, complete: bool) -> Self {
        let cores = SmallVec::from_iter([waiting.payload().core.clone()]);
        Self { ops: SmallVec::from_iter([waiting.id()]), cores, too_many: false, complete }
    }

    /// The needs of `waiting`, according to an inspection.
    fn by(inspection: &Inspection, waiting: &OpHandle) -> Self {
        let own = &waiting.payload().core;
        let mut cores: SmallVec<[CoreRef; 1]> = SmallVec::from_iter([own.clone()]);
        let mut ops = SmallVec::new();
        for (id, _, op) in inspection.ops() {
            ops.push(id);
            if cores.iter().all(|known| !known.same(&op.core)) {
                cores.push(op.core.clone());
            }
        }
        ops.sort_unstable();
        let complete = inspection.is_complete();
        Self {
            too_many: ops.len() > HELP_SCAN_MAX || (own.has_no_workers() && !complete),
            ops,
            cores,
            complete,
        }
    }

    /// True if `op` is needed, or helps a needed operation.
    fn names(&self, op: &OpGranted) -> bool {
        let has = |id| self.ops.binary_search(&id).is_ok();
        has(op.id()) || op.payload().helped_op().is_some_and(has)
    }

    /// Runs needed, ready operations of one engine, one at least, until there is none or `is_over`. False if
    /// there was none.
    ///
    /// Worker-only operations run only as the `last_resort`, and those that need the shared lock also where
    /// this thread `takes_slots` with the workers.
    fn help(
        &self,
        helping: Option<Helping>,
        last_resort: bool,
        takes_slots: bool,
        is_over: impl Fn() -> bool,
    ) -> bool {
        let Some(_helping) = helping else { return false };
        self.cores
            .iter()
            .filter(|core| core.pool.has_work())
            .any(|core| self.help_engine(core, last_resort, takes_slots, &is_over))
    }

    fn help_engine(
        &self,
        core: &CoreRef,
        last_resort: bool,
        takes_slots: bool,
        is_over: &impl Fn() -> bool,
    ) -> bool {
        // Kept while the operations that it is for make others ready, for which a worker would be woken else.
        let slot = if takes_slots && !core.runs_anything_here() { core.pool.take_slot() } else { None };
        let take = || {
            let job = core.pool.take_matching(|job| {
                let has_slot = slot.is_some() && job.0.payload().kind == OpKind::NeedsLock;
                let helpable = last_resort || has_slot || core.is_for_waiters(&job.0);
                let needed = if self.too_many { core.has_no_workers() } else { self.names(&job.0) };
                helpable && needed
            })?;
            slot.iter().filter(|_| job.needs_lock()).for_each(ConcurrencySlot::has_job);
            Some(job)
        };
        let mut job = take();
        let found = job.is_some();
        if let Some(lock) = core.pool.shared_lock().filter(|_| job.as_ref().is_some_and(Job::needs_lock)) {
            // As a worker does: the lock is taken once for several.
            lock.lock_while(&mut || {
                job.take().into_iter().for_each(|job| run::execute_one(job.0));
                job = if is_over() || core.has_raised() { None } else { take() };
                job.as_ref().is_some_and(Job::needs_lock)
            });
        }
        drop(slot);
        job.into_iter().for_each(|job| run::execute_one(job.0));
        found
    }
}

/// The inspections of one wait.
struct Watch<'a> {
    op: &'a OpHandle,
    what: &'a dyn Display,
    /// The time at which the wait ends, whatever an inspection would still find.
    deadline: Option<Instant>,
    /// Since when only leases have held up the wait.
    held_since: Option<Instant>,
    /// True once unwanted leases were given the chance to end.
    collected: bool,
}

impl Watch<'_> {
    /// True if this wait, which `current` makes, needs the end of `current`.
    fn leads_back_to(&self, current: OpId, limit: usize) -> bool {
        Inspection::of(self.op, limit).leads_to(current, limit)
    }

    /// The leases that hold up the wait, if nothing else does.
    fn only_leases(&self) -> Option<Vec<LeaseInfo>> {
        Inspection::of(self.op, EVERYTHING).only_leases(false)
    }

    /// Fails when the wait can never end, or only leases hold it up for too long. Returns the inspection of
    /// `limit` accesses.
    fn inspect(&mut self, core: &Core, limit: usize) -> Result<Inspection, Error> {
        if let Some(current) = context::current()
            && self.leads_back_to(current, limit)
        {
            return Err(Error::WouldDeadlock(format!(
                "{} waits for the operation that waits for it",
                self.what
            )));
        }
        let inspection = Inspection::of(self.op, limit);
        let Some(mut held) = inspection.only_leases(false) else {
            self.held_since = None;
            return Ok(inspection);
        };
        // Collecting garbage can take longer than others keep their leases. So only waits that last, or would
        // fail, collect.
        if !self.collected && (self.held_since.is_some() || held.iter().any(|lease| lease.own)) {
            self.collected = true;
            let left = self.deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            release_unwanted_within(core, left);
            match self.only_leases() {
                Some(still) => held = still,
                None => return Ok(inspection),
            }
        }
        let since = *self.held_since.get_or_insert_with(Instant::now);
        // This thread will not return its lease while it waits here. But the last owner of the lease may just
        // be dropping it on another thread.
        let collected = core.on_lease_wait.get().is_some();
        let patience = since + if collected { COLLECTED_GRACE } else { OWN_GRACE };
        let patience = self.deadline.map_or(patience, |deadline| patience.min(deadline));
        while held.iter().any(|lease| lease.own) && Instant::now() < patience {
            linger();
            match self.only_leases() {
                Some(still) => held = still,
                None => return Ok(inspection),
            }
        }
        let own = held.iter().any(|lease| lease.own);
        if own || since.elapsed() >= core.lease_timeout {
            return Err(Error::LeaseHeld(LeaseHeld::new(self.what, held)));
        }
        Ok(inspection)
    }
}

/// Yields to other threads for a while that is too short for falling asleep.
fn linger() {
    let until = Instant::now() + OWN_LOOK;
    while Instant::now() < until {
        thread::yield_now();
    }
}

/// Lets unwanted leases end: garbage of the language that holds them, and deleters on their way.
pub(crate) fn release_unwanted(core: &Core) {
    release_unwanted_within(core, None);
}

/// As [`release_unwanted`], for a wait that has only the time `left`. The duration of a collection is not
/// known.
pub(crate) fn release_unwanted_within(core: &Core, left: Option<Duration>) {
    if let Some(collect) = core.on_lease_wait.get()
        && left.is_none_or(|left| left >= COLLECTED_GRACE)
    {
        collect();
    }
    reaper().flush(left.map_or(RELEASE_GRACE, |left| left.min(RELEASE_GRACE)));
}

/// The time that a wait continues that a lease of its own thread holds up. A worker drops the operands of an
/// operation after it has notified the waiters, and these operands may be the last to keep the lease.
const OWN_GRACE: Duration = OWN_LOOK;

/// The same time where garbage is collected. Libraries release collected objects on threads of their own: JAX
/// took up to 68 ms on a busy machine.
const COLLECTED_GRACE: Duration = Duration::from_millis(200);

/// The time between two inspections meanwhile.
const OWN_LOOK: Duration = Duration::from_micros(200);

/// The time that a wait which leases hold up lets deleters finish that are already with the reaper.
const RELEASE_GRACE: Duration = Duration::from_millis(500);
