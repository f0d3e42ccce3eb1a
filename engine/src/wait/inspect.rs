//! Inspections of the graph: what an operation waits for, and whether any of these blockers can move.
//!
//! An inspection walks back from the operation through the queues that the operation waits in, one after the
//! other ([`Walk`]). So the cost is proportional to what the inspection finds, whatever else is alive or in
//! flight, and the inspection holds up no other thread. Waits make few inspections: a blocking wait inspects
//! what is [near](wait_for::NEAR) at its start, and one thread of the process inspects for all long waits
//! ([`awaits`](crate::wait::awaits)), for a [hundredth](PACE) of its time at most for each engine.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use estafette_graph::{OpId, Step, StepKind, Walk};
use estafette_sync::sync::atomic::{AtomicU64, Ordering};
use estafette_sync::sync::{Mutex, MutexGuard};
use estafette_sync::time::{Duration, Instant};

use crate::core::engine_core::graph;
use crate::core::lease_info::LeaseInfo;
use crate::core::operation::{OpHandle, OpKind, OpState, Phase};
use crate::core::var_state::VarState;
use crate::core::wait_for::{self, On};

/// A limit for inspections that have to find everything.
pub(crate) const EVERYTHING: usize = usize::MAX;

/// The pause between two inspections of a series is this many times as long as the last inspection took.
const PACE: u32 = 100;

/// The time in which an access is inspected, some 0.2 µs, with room for slow machines.
const ACCESS_MAX: Duration = Duration::from_micros(2);

estafette_sync::statics! {
    /// Accesses, and operations in snapshots, that were inspected since the process began.
    static INSPECTED: AtomicU64 = AtomicU64::new(0);
}

/// Number of accesses that waits have inspected since the process began, plus operations in flight that they
/// have checked for a standstill. For tests of the cost of waits.
pub fn inspected() -> u64 {
    INSPECTED.load(Ordering::Relaxed)
}

/// Counts what a wait has inspected.
pub(crate) fn count(inspected: usize) {
    INSPECTED.fetch_add(inspected as u64, Ordering::Relaxed);
}

/// The duration of an inspection that began at `began`, when `before` accesses had been
/// [inspected](inspected). A garbage collection, and other threads that had the processor meanwhile, do not
/// count.
pub(crate) fn duration(began: Instant, before: u64) -> Duration {
    let accesses = u32::try_from(inspected() - before).unwrap_or(u32::MAX);
    began.elapsed().min(ACCESS_MAX.saturating_mul(accesses.saturating_add(10)))
}

/// The least time until the next inspection, after an inspection of this duration.
pub(crate) fn pause_after(inspection_took: Duration) -> Duration {
    inspection_took.saturating_mul(PACE)
}

/// Paces the inspections that several threads make of the same thing: one at a time, for a [hundredth](PACE)
/// of the time.
#[derive(Debug, Default)]
pub(crate) struct InspectionPace(Mutex<Option<Instant>>);

impl InspectionPace {
    /// Inspects, unless another thread is inspecting, or has inspected a short while ago.
    pub(crate) fn inspect<R>(&self, inspect: impl FnOnce() -> R) -> Option<R> {
        let began = Instant::now();
        {
            let mut from = self.from();
            if from.is_some_and(|from| began < from) {
                return None;
            }
            *from = began.checked_add(LOOK_MAX);
        }
        let before = inspected();
        let found = inspect();
        *self.from() = Instant::now().checked_add(pause_after(duration(began, before)));
        Some(found)
    }

    fn from(&self) -> MutexGuard<'_, Option<Instant>> {
        self.0.lock()
    }
}

/// An inspection that takes longer, or panics, does not keep others from inspecting.
const LOOK_MAX: Duration = Duration::from_secs(10);

/// An inspection: what some operations wait for.
pub(crate) struct Inspection {
    walk: Walk<'static, VarState, OpState, LeaseInfo>,
    roots: BTreeSet<OpId>,
    complete: bool,
}

impl Inspection {
    pub(crate) fn new() -> Self {
        Self { walk: graph().walk(), roots: BTreeSet::new(), complete: true }
    }

    /// The operations that `op` waits for, as far as `limit` accesses show.
    pub(crate) fn of(op: &OpHandle, limit: usize) -> Self {
        let mut inspection = Self::new();
        inspection.add(op);
        inspection.run(limit);
        inspection
    }

    /// Adds an operation. Returns its place in [`reaches`](Self::reaches).
    pub(crate) fn add(&mut self, op: &OpHandle) -> usize {
        self.roots.insert(op.id());
        self.walk.add(op)
    }

    /// Inspects further, up to `limit` accesses in all.
    pub(crate) fn run(&mut self, limit: usize) {
        let before = self.walk.inspected();
        self.complete = self.walk.run(limit, |state, found| {
            state.pins().each(|pin| found.push((pin.number(), pin.lease().info())));
        });
        count(self.walk.inspected() - before);
    }

    /// True if everything was found.
    pub(crate) fn is_complete(&self) -> bool {
        self.complete
    }

    /// The operations found, including the roots of the inspection, and whether each is granted.
    pub(crate) fn ops(&self) -> impl Iterator<Item = (OpId, bool, &OpState)> {
        self.walk.steps().filter_map(|step| match step.what {
            StepKind::Op(state) => Some((step.id, step.granted, state)),
            StepKind::Pin(_) => None,
        })
    }

    /// The operations found that wait for nothing.
    pub(crate) fn granted(&self) -> impl Iterator<Item = Step<'_, OpState, LeaseInfo>> {
        self.walk.steps().filter(|step| step.granted)
    }

    /// For each place, whether `such` holds for its operation, or for a granted operation that this operation
    /// waits for.
    pub(crate) fn reaches(&self, such: impl Fn(&OpState) -> bool) -> Vec<bool> {
        self.walk.reaches(|step| matches!(step.what, StepKind::Op(state) if such(state)))
    }

    /// The leases that hold up the roots of the inspection, if nothing else does. Roots that have ended are
    /// left out. A root that is a held lease counts as such if `ends` are waited for.
    ///
    /// The answer was true at one moment: the inspection found every waiting operation, and all of them still
    /// wait.
    pub(crate) fn only_leases(&self, ends: bool) -> Option<Vec<LeaseInfo>> {
        if !self.complete {
            return None;
        }
        let mut leases = Vec::new();
        for step in self.walk.steps().filter(|step| step.granted) {
            let is_root = self.roots.contains(&step.id);
            if is_root && matches!(step.what, StepKind::Op(state) if state.phase() == Phase::Done) {
                continue;
            }
            leases.push(lease_of(&step).filter(|_| ends || !is_root)?);
        }
        (!leases.is_empty() && self.walk.all_still_wait()).then_some(leases)
    }

    /// True if the roots of the inspection need the end of `op`, by way of queues and of blocked operations.
    ///
    /// The needs of an operation only shrink, and `op` runs. So what was found at different times was true
    /// when the inspection began. The function inspects at most `limit` accesses; beyond these the answer is
    /// false.
    pub(crate) fn leads_to(mut self, op: OpId, limit: usize) -> bool {
        let blocked = wait_for::now();
        let mut followed = HashSet::new();
        loop {
            if self.walk.steps().any(|step| step.id == op) {
                return true;
            }
            let found = self.walk.steps().filter(|step| step.granted).map(|step| step.id);
            let new: Vec<OpId> =
                found.filter(|id| blocked.contains_key(id) && followed.insert(*id)).collect();
            if new.is_empty() {
                return false;
            }
            for on in new.iter().flat_map(|id| &blocked[id]) {
                if let On::Op(target) = on {
                    self.add(target);
                }
            }
            self.run(limit);
        }
    }
}

/// The operations among `ops` that leases alone hold up, and these leases. One inspection serves all of them.
pub(crate) fn held<'a>(ops: impl Iterator<Item = &'a OpHandle>) -> (HashSet<OpId>, Vec<LeaseInfo>) {
    let mut inspection = Inspection::new();
    let ops: Vec<_> = ops.map(|op| (op, inspection.add(op))).collect();
    inspection.run(EVERYTHING);
    let reaches = inspection.reaches(moves);
    let mut leases = Inspection::new();
    let held = ops.into_iter().filter(|(_, place)| !reaches[*place]).map(|(op, _)| {
        leases.add(op);
        op.id()
    });
    let held = held.collect();
    leases.run(EVERYTHING);
    // A lease is found once for each variable that waits for it.
    let granted = leases.walk.steps().filter(|step| step.granted);
    let leases: BTreeMap<_, _> = granted.filter_map(|step| Some((step.id, lease_of(&step)?))).collect();
    (held, leases.into_values().collect())
}

/// The lease, when this is one that is held.
fn lease_of(step: &Step<'_, OpState, LeaseInfo>) -> Option<LeaseInfo> {
    match step.what {
        StepKind::Pin(lease) => Some(lease.clone()),
        StepKind::Op(state) => held_lease(state),
    }
}

/// The lease, when this operation is one that is held.
pub(crate) fn held_lease(state: &OpState) -> Option<LeaseInfo> {
    let label = state.lease().filter(|label| state.kind == OpKind::Lease && label.is_held())?;
    Some(label.info())
}

/// True if the operation can move by itself, once it is granted.
pub(crate) fn moves(state: &OpState) -> bool {
    state.kind != OpKind::Lease || state.lease().is_none_or(|label| !label.is_held())
}
