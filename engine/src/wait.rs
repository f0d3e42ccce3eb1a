//! Blocking waits: help, then look whether the wait can end, then sleep.
//!
//! A wait without a timeout runs what it needs on its own thread. A body may take any time, and the engine cannot interrupt it, so
//! a wait with a timeout runs none: the workers do, or a [stand-in](crate::stand_in) of an engine that has none.
//!
//! A wait looks at the graph before it sleeps and again now and then, because what it sees decides how it ends: a wait
//! that leads back to the waiting operation is refused, one that only leases hold up ends with their names, and all
//! others sleep until woken.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use estafette_graph::{OpId, Roots, Snapshot};
use estafette_report::shown::shown;
use estafette_sync::thread;
use smallvec::SmallVec;

use crate::blocked::{self, On};
use crate::clock::{self, Coarse};
use crate::context::{self, Helping};
use crate::core::{Core, graph};
use crate::core_ref::CoreRef;
use crate::error::{Error, LeaseHeld};
use crate::exchange::{callback, reaper};
use crate::journal::hooks;
use crate::lease::LeaseInner;
use crate::lease_info::LeaseInfo;
use crate::operation::{Kind, Name, OpGranted, OpHandle, OpState, OpVar, Phase};
use crate::ready::{self, Looked, look_or_probe};
use crate::run;
use crate::signal::{Delivered, Signal};
use crate::stand_in::{StandInSet, others_without_workers};
use crate::state::VarState;
use crate::stuck::only_leases;
use crate::tensor::Tensor;

/// Time until the first look at the graph while asleep. A look finds only what cannot be told by a wake-up: that nobody is
/// left who could wake us. It costs time in proportion to what is in flight, so each look comes twice as late as the
/// one before, up to `LOOK_LAST`.
const LOOK_FIRST: Duration = Duration::from_millis(10);

/// See [`LOOK_FIRST`].
const LOOK_LAST: Duration = Duration::from_millis(500);

/// A wait that depends on more operations than this does not pick the ones it needs but sleeps: finding them would cost
/// more than it gains.
const HELP_SCAN_MAX: usize = 4096;

/// What a look at the graph takes from each operation.
#[derive(Clone)]
pub(crate) struct Seen {
    pub(crate) core: u64,
    pub(crate) home: CoreRef,
    pub(crate) name: Name,
    pub(crate) kind: Kind,
    pub(crate) phase: Phase,
    pub(crate) counted: bool,
    pub(crate) since: Coarse,
    pub(crate) lease: Option<LeaseInfo>,
}

pub(crate) fn see(state: &OpState) -> Seen {
    Seen {
        core: state.core.id,
        home: state.core.clone(),
        name: state.name.clone(),
        kind: state.kind,
        phase: state.phase(),
        counted: state.is_counted(),
        since: state.since,
        lease: state.lease().map(|label| LeaseInfo::of(label)),
    }
}

/// A picture of the graph, in which leases without an operation look like those with one.
pub(crate) fn picture(roots: Roots<'_, VarState, OpState>) -> Snapshot<Seen> {
    graph().snapshot_with(roots, see, |state, found| {
        state.holders().each(|holder| found.push((holder.number(), see_holder(holder.lease()))));
    })
}

fn see_holder(lease: &LeaseInner) -> Seen {
    let (label, core) = (lease.label(), &lease.tensor.inner.core);
    Seen {
        core: core.id,
        home: core.clone(),
        name: Name::Static("lease"),
        kind: Kind::Lease,
        phase: Phase::Begun,
        counted: false,
        since: label.since,
        lease: Some(LeaseInfo::of(label)),
    }
}

pub(crate) fn block_on_tensor(tensor: &Tensor, timeout: Option<Duration>) -> Result<(), Error> {
    if let Some(timeout @ Duration::ZERO) = timeout {
        // Only a question, which leaves nothing in any queue.
        return ready::look(&tensor.inner).unwrap_or(Err(Error::Timeout(timeout)));
    }
    match look_or_probe(&tensor.inner) {
        Looked::Ready => Ok(()),
        Looked::Failed(error) => Err(*error),
        Looked::Probing(probe) => {
            let core = &tensor.inner.core;
            let waited =
                block(core, &probe.handle, Some(&tensor.inner.vars), "a tensor", &probe.signal, timeout);
            if probe.handle.payload().noted {
                hooks::resumed(probe.handle.id().get(), true);
            }
            waited?
        }
    }
}

/// Blocks until `signal`, which `waiting` will set, is set. `vars` are the variables it is queued on, when known.
pub(crate) fn block<V: Clone + Delivered>(
    core: &CoreRef,
    waiting: &OpHandle,
    vars: Option<&[OpVar]>,
    what: &str,
    signal: &Signal<V>,
    timeout: Option<Duration>,
) -> Result<V, Error> {
    if let Some(value) = signal.get() {
        return Ok(value);
    }
    core.check_fork()?;
    if let Some(Duration::ZERO) = timeout {
        return Err(Error::Timeout(Duration::ZERO));
    }
    callback::check()?;
    core.stop_flow();
    let helps = timeout.is_none() && context::may_help();
    let deadline = timeout.and_then(clock::deadline);
    let mut watch = Watch {
        waiting: waiting.id(),
        op: waiting,
        vars,
        what,
        deadline,
        held_since: None,
        collected: false,
    };
    let _blocked = blocked::enter(On::Op(waiting.id()));
    // The picture at the start names all that this wait can need: later submissions come behind it. A picture takes time in
    // proportion to what is in flight, so a wait with a timeout does with as few as it can.
    let needed = if timeout.is_none() {
        Needed::by(&watch.look(core)?, waiting)
    } else if others_without_workers(core.alone()) {
        Needed::by(&watch.snapshot(), waiting)
    } else {
        Needed::nothing_but(waiting)
    };
    let mut relief = Relief::default();
    if !helps {
        needed.want_stand_ins(&mut relief.stand_ins);
    }
    let mut cover = None;
    let mut look_took = Duration::ZERO;
    let mut pause = LOOK_FIRST;
    let mut next_look = Instant::now() + pause;
    loop {
        if let Some(value) = signal.get() {
            return Ok(value);
        }
        if helps {
            // A worker that has slept a while without another thread taking what it needs, since all spare workers wait as well,
            // runs it after all: better a body inside another one's wait than a hang.
            // At once, where all threads of the pool are blocked.
            let in_vain = pause > LOOK_FIRST || (cover.is_some() && core.pool.is_stuck());
            let last_resort = in_vain && core.runs_anything_here();
            let helping = if in_vain { context::begin_last_help() } else { context::begin_help() };
            if helping.is_none() {
                needed.want_stand_ins(&mut relief.stand_ins);
            }
            if needed.help(helping, last_resort) {
                continue;
            }
        }
        let now = Instant::now();
        if let (Some(deadline), Some(timeout)) = (deadline, timeout)
            && now >= deadline
        {
            return Err(Error::Timeout(timeout));
        }
        if now >= next_look {
            core.check_interrupt()?;
            // Not where the end of the wait is as near as that of the look may be.
            if deadline.is_none_or(|deadline| deadline - now >= LOOK_FIRST.max(2 * look_took)) {
                let seen = watch.look(core)?;
                look_took = now.elapsed();
                if !(helps && core.runs_anything_here() && context::may_help_at_last()) {
                    relief.see_to(&seen, waiting, what)?;
                }
            }
            pause = (pause * 2).min(LOOK_LAST);
            next_look = Instant::now() + pause;
        }
        let wake = deadline.map_or(next_look, |deadline| deadline.min(next_look));
        if helps && let Some(alone) = needed.alone() {
            let mut listening = alone.bell.listen();
            // What arrived before we listened did not ring for us.
            if signal.get().is_none() && !needed.help(context::begin_help(), false) {
                cover.get_or_insert_with(|| core.cover());
                context::blocking(|| listening.wait_until(wake.min(now + ALONE_NAP)));
            }
        } else {
            if cover.is_none() {
                cover = Some(core.cover());
                if helps && core.runs_anything_here() && core.pool.is_stuck() {
                    continue;
                }
            }
            if let Some(value) = context::blocking(|| signal.wait_until(Some(wake))) {
                return Ok(value);
            }
        }
    }
}

/// What a wait has others run for it.
#[derive(Default)]
struct Relief {
    stand_ins: StandInSet,
    /// Whether the last look found what is needed ready, and nothing left to run it.
    hopeless: bool,
}

impl Relief {
    /// Has a stand-in run what is needed and ready, where all threads of its pool are blocked.
    ///
    /// # Errors
    /// [`Error::WouldDeadlock`] where that has failed twice in a row: other threads that could take it have had the time.
    fn see_to(&mut self, seen: &Snapshot<Seen>, waiting: &OpHandle, what: &str) -> Result<(), Error> {
        let before = std::mem::take(&mut self.hopeless);
        let is_left = |kind: Kind, phase: Phase, home: &CoreRef| {
            matches!(kind, Kind::Work | Kind::Unhelped)
                && phase == Phase::Queued
                && (home.alone() || home.pool.is_stuck())
                && home.pool.has_work()
        };
        let needed = seen.ancestors(waiting.id()).into_iter().filter_map(|id| seen.op(id));
        let needed = needed.filter(|op| op.granted);
        let left = needed.map(|op| (op.label.kind, op.label.phase, &op.label.home, op.label.name.as_str()));
        // What is waited for may be ready itself, and then it is in no picture of what it waits for.
        let state = waiting.payload();
        let itself = seen.op(waiting.id()).is_none_or(|op| op.granted);
        let itself = itself.then(|| (state.kind, state.phase(), &state.core, state.name.as_str()));
        for (kind, phase, home, name) in left.chain(itself) {
            if !is_left(kind, phase, home) || self.stand_ins.want(home) {
                continue;
            }
            if before {
                return Err(Error::WouldDeadlock(format!(
                    "{what} waits for operation `{name}`, which is ready, but every thread that could run it is blocked in a wait \
                     inside of an operation; nest fewer waits, or give the engine more workers"
                )));
            }
            self.hopeless = true;
        }
        Ok(())
    }
}

/// Without workers a wait listens for new work, not for its signal, which may come from a reactor or another thread; this is how
/// late it may notice.
const ALONE_NAP: Duration = Duration::from_micros(200);

/// As [`block`], for an operation by name.
pub(crate) fn block_on_op(
    core: &CoreRef,
    op: &OpHandle,
    signal: &Signal<Result<(), crate::OperationError>>,
    timeout: Option<Duration>,
) -> Result<(), Error> {
    let what = format!("operation `{}`", shown(op.payload().name.as_str()));
    block(core, op, None, &what, signal, timeout)?.map_err(crate::OperationError::into_error)
}

/// Refuses a wait, asynchronous or not, that leads back to the operation it is made in.
pub(crate) fn check_self_wait(waiting: &OpHandle, vars: &[OpVar]) -> Result<(), Error> {
    let Some(current) = context::current() else { return Ok(()) };
    let roots: Vec<&OpVar> = vars.iter().collect();
    if graph().snapshot(Roots::Vars(&roots), |_| ()).ancestors(waiting.id()).contains(&current) {
        return Err(Error::WouldDeadlock("a tensor waits for the operation that waits for it".into()));
    }
    Ok(())
}

/// Which operations a wait may help with, and the engines whose pools they come through: a tensor of one engine may be
/// written by operations of another.
struct Needed {
    ops: HashSet<OpId>,
    cores: SmallVec<[CoreRef; 1]>,
    /// There were too many to pick those that are needed: without workers, whatever is ready must do.
    too_many: bool,
}

impl Needed {
    /// One of the engines that has no workers, so that its work waits for somebody like us.
    fn alone(&self) -> Option<&Core> {
        self.cores.iter().map(|core| &**core).find(|core| core.alone())
    }

    /// Has a stand-in run what is ready in each of the engines that has no workers.
    fn want_stand_ins(&self, stand_ins: &mut StandInSet) {
        for core in self.cores.iter().filter(|core| core.alone()) {
            stand_ins.want(core);
        }
    }

    /// Nothing else is known.
    fn nothing_but(waiting: &OpHandle) -> Self {
        let cores = SmallVec::from_iter([waiting.payload().core.clone()]);
        Self { ops: HashSet::from([waiting.id()]), cores, too_many: false }
    }

    /// What `waiting` needs, according to a picture of it.
    fn by(snapshot: &Snapshot<Seen>, waiting: &OpHandle) -> Self {
        let mut ops: HashSet<OpId> = snapshot.ancestors(waiting.id()).into_iter().collect();
        ops.insert(waiting.id());
        // It may be ready itself, and then it is in no picture of what it waits for.
        let mut cores: SmallVec<[CoreRef; 1]> = SmallVec::from_iter([waiting.payload().core.clone()]);
        for op in snapshot.ops.iter().filter(|op| ops.contains(&op.id)) {
            if cores.iter().all(|known| known.id != op.label.core) {
                cores.push(op.label.home.clone());
            }
        }
        Self { too_many: ops.len() > HELP_SCAN_MAX, ops, cores }
    }

    /// Whether `op` is one of those, or does a part of the work of one.
    fn names(&self, op: &OpGranted) -> bool {
        self.ops.contains(&op.id()) || op.payload().part_of().is_some_and(|whole| self.ops.contains(&whole))
    }

    /// Runs one ready operation that is needed; one that is not to be helped with only as the `last_resort`.
    fn help(&self, helping: Option<Helping>, last_resort: bool) -> bool {
        let Some(_helping) = helping else { return false };
        let job = self.cores.iter().find_map(|core| {
            let alone = core.alone();
            core.pool.take_matching(|job| {
                let helpable = alone || last_resort || job.0.payload().kind == Kind::Work;
                let needed = if self.too_many { alone } else { self.names(&job.0) };
                helpable && needed
            })
        });
        match job {
            Some(job) => {
                run::execute_one(job.0);
                true
            }
            None => false,
        }
    }
}

/// Watches one wait.
struct Watch<'a> {
    waiting: OpId,
    op: &'a OpHandle,
    vars: Option<&'a [OpVar]>,
    what: &'a str,
    /// When the wait ends, whatever a look would still find.
    deadline: Option<Instant>,
    /// Since when only leases have held it up.
    held_since: Option<Instant>,
    /// Whether leases that nobody wants any more were given the chance to end.
    collected: bool,
}

impl Watch<'_> {
    fn snapshot(&self) -> Snapshot<Seen> {
        match self.vars {
            Some(vars) => {
                let roots: Vec<&OpVar> = vars.iter().collect();
                picture(Roots::Vars(&roots))
            }
            None => picture(Roots::Op(self.op)),
        }
    }

    /// Whether this wait, which `current` makes, needs the end of `current`.
    fn leads_back_to(&self, current: OpId) -> bool {
        let others = blocked::now().keys().any(|op| *op != current);
        // What others are blocked on may be anywhere.
        let snapshot = if others { picture(Roots::All) } else { self.snapshot() };
        self.waiting == current || blocked::leads_to(&snapshot, self.waiting, current)
    }

    /// Fails when the wait can never end, or only leases hold it up for too long. Gives what it saw.
    fn look(&mut self, core: &Core) -> Result<Snapshot<Seen>, Error> {
        if let Some(current) = context::current()
            && self.leads_back_to(current)
        {
            return Err(Error::WouldDeadlock(format!(
                "{} waits for the operation that waits for it",
                self.what
            )));
        }
        let mut snapshot = self.snapshot();
        let Some(mut held) = only_leases(&snapshot, self.waiting) else {
            self.held_since = None;
            return Ok(snapshot);
        };
        // Collecting garbage can take longer than others hold their leases, so it is for waits that last, or would fail.
        if !self.collected && (self.held_since.is_some() || held.iter().any(|lease| lease.own)) {
            self.collected = true;
            let left = self.deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            let_go_within(core, left);
            snapshot = self.snapshot();
            match only_leases(&snapshot, self.waiting) {
                Some(still) => held = still,
                None => return Ok(snapshot),
            }
        }
        let since = *self.held_since.get_or_insert_with(Instant::now);
        // Our own thread will not return its lease while it waits here; but what held it may just be on its way out elsewhere.
        let collected = core.on_lease_wait.get().is_some();
        let patience = since + if collected { COLLECTED_GRACE } else { OWN_GRACE };
        let patience = self.deadline.map_or(patience, |deadline| patience.min(deadline));
        while held.iter().any(|lease| lease.own) && Instant::now() < patience {
            linger();
            snapshot = self.snapshot();
            match only_leases(&snapshot, self.waiting) {
                Some(still) => held = still,
                None => return Ok(snapshot),
            }
        }
        let own = held.iter().any(|lease| lease.own);
        if own || since.elapsed() >= core.lease_timeout {
            return Err(Error::LeaseHeld(LeaseHeld::new(self.what, held)));
        }
        Ok(snapshot)
    }
}

/// Gives the processor to others for a while that is too short for falling asleep.
fn linger() {
    let until = Instant::now() + OWN_LOOK;
    while Instant::now() < until {
        thread::yield_now();
    }
}

/// Lets leases end that nobody wants any more: garbage of the language that holds them, and deleters on their way.
pub(crate) fn let_go(core: &Core) {
    let_go_within(core, None);
}

/// As [`let_go`], for a wait that has only so much time `left`. How long a collection takes is not known.
fn let_go_within(core: &Core, left: Option<Duration>) {
    if let Some(collect) = core.on_lease_wait.get()
        && left.is_none_or(|left| left >= COLLECTED_GRACE)
    {
        collect();
    }
    reaper().flush(left.map_or(RELEASE_GRACE, |left| left.min(RELEASE_GRACE)));
}

/// How long a wait goes on that a lease of its own thread holds up. A worker drops the operands of an operation after it has
/// told that the operation has ended, and may be the last to hold what the lease was taken for.
const OWN_GRACE: Duration = OWN_LOOK;

/// The same where garbage is collected. Libraries let go of what was collected on threads of their own: JAX took up to 68 ms on a busy
/// machine.
const COLLECTED_GRACE: Duration = Duration::from_millis(200);

/// The time between two looks meanwhile.
const OWN_LOOK: Duration = Duration::from_micros(200);

/// How long a wait that leases hold up lets deleters finish that are already with the reaper.
const RELEASE_GRACE: Duration = Duration::from_millis(500);
