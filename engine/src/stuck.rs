//! Can anything still move? What a wait asks before it goes on waiting for room, or for everything to end.

use std::collections::{HashMap, HashSet};

use estafette_graph::{Explained, OpId, OpView, Snapshot};
use estafette_sync::time::Instant;
use smallvec::SmallVec;

use crate::blocked::{self, On};
use crate::context;
use crate::core::Core;
use crate::core_ref::CoreRef;
use crate::error::{Error, LeaseHeld};
use crate::lease_info::LeaseInfo;
use crate::operation::{Kind, Phase};
use crate::wait::{Seen, let_go, picture};

/// The lease, when this operation is one that is held.
fn held_lease(seen: &Seen) -> Option<LeaseInfo> {
    seen.lease.clone().filter(|lease| seen.kind == Kind::Lease && lease.held)
}

/// Fails when a full window can never drain, or when only leases have kept it full for longer than the engine accepts.
///
/// A lease of the calling thread is not returned while the thread waits here. Each other lease may be returned at any time and make
/// room. `held_since` is since when leases alone hold this submission up, as found by its earlier looks.
pub(crate) fn check_progress(
    core: &Core,
    in_flight: usize,
    held_since: &mut Option<Instant>,
) -> Result<(), Error> {
    let Some(leases) = standstill(&picture(), core) else {
        *held_since = None;
        return Ok(());
    };
    let is_first_look = held_since.is_none();
    let since = *held_since.get_or_insert_with(Instant::now);
    let is_over =
        |leases: &[LeaseInfo]| leases.iter().all(|lease| lease.own) || since.elapsed() >= core.lease_timeout;
    // Collecting garbage may end leases. It can take long, so it is for the first look and for one that would fail.
    if !is_first_look && !is_over(&leases) {
        return Ok(());
    }
    let_go(core);
    let Some(leases) = standstill(&picture(), core) else {
        *held_since = None;
        return Ok(());
    };
    if !is_over(&leases) {
        return Ok(());
    }
    if leases.iter().any(|lease| !lease.own) {
        return Err(Error::LeaseHeld(LeaseHeld::new("a submission into a full window", leases)));
    }
    let held: Vec<String> = leases.iter().map(LeaseInfo::to_string).collect();
    Err(Error::WouldDeadlock(format!(
        "all {in_flight} operations in flight wait for {}",
        if held.is_empty() { "the submitting operation".to_string() } else { held.join("; ") }
    )))
}

/// Fails when everything in flight has waited for leases only, for longer than the engine accepts, or waits for the operation
/// that asks.
pub(crate) fn check_idle_progress(core: &Core) -> Result<(), Error> {
    if standstill(&picture(), core).is_none() {
        return Ok(());
    }
    let_go(core);
    let snapshot = picture();
    let Some(leases) = standstill(&snapshot, core) else { return Ok(()) };
    if leases.is_empty() {
        return Err(Error::WouldDeadlock("waiting for all operations inside one of them".into()));
    }
    let own = leases.iter().any(|lease| lease.own);
    let oldest = snapshot.ops.iter().filter(|op| op.label.counted && op.label.core == core.id);
    let waited = oldest.map(|op| op.label.since.elapsed()).max().unwrap_or_default();
    if own || waited >= core.lease_timeout {
        return Err(Error::LeaseHeld(LeaseHeld::new("waiting for all operations", leases)));
    }
    Ok(())
}

/// The engines without workers, other than `core`, that have to run something before operations in flight in `core` can end.
pub(crate) fn without_workers(core: &Core) -> SmallVec<[CoreRef; 1]> {
    let snapshot = picture();
    let ready = |op: &&OpView<Seen>| {
        op.granted && op.label.phase == Phase::Queued && op.label.home.alone() && op.label.core != core.id
    };
    let mut found: SmallVec<[CoreRef; 1]> = SmallVec::new();
    if snapshot.ops.iter().any(|op| ready(&op)) {
        let mine = snapshot.ops.iter().filter(|op| op.label.counted && op.label.core == core.id);
        let needed: HashSet<OpId> = snapshot.ancestors_of(mine.map(|op| op.id)).into_iter().collect();
        for op in snapshot.ops.iter().filter(|op| ready(op) && needed.contains(&op.id)) {
            if found.iter().all(|known| !known.same(&op.label.home)) {
                found.push(op.label.home.clone());
            }
        }
    }
    found
}

/// When none of the engine's operations in flight can move: the leases they are behind. None of those means that they are
/// behind the current operation, or behind others that are blocked as it is.
fn standstill(snapshot: &Snapshot<Seen>, core: &Core) -> Option<Vec<LeaseInfo>> {
    let mine: Vec<_> =
        snapshot.ops.iter().filter(|op| op.label.counted && op.label.core == core.id).collect();
    // Operations without variables are not in the picture. Unless they are blocked, they move; so may those that a picture
    // taken a moment ago has missed.
    let unseen = blocked::of_core(core.id).iter().filter(|op| snapshot.op(**op).is_none()).count();
    if mine.len() + unseen == 0 || mine.len() + unseen != core.in_flight() {
        return None;
    }
    let mut search = Search {
        snapshot,
        explained: snapshot.explained(),
        blocked: blocked::now(),
        seen: HashSet::new(),
        leases: Vec::new(),
    };
    if mine.into_iter().any(|op| search.moves(op.id)) { None } else { Some(search.leases) }
}

/// Looks for operations that can move, among all that some operations need.
struct Search<'a> {
    snapshot: &'a Snapshot<Seen>,
    explained: Explained<'a, Seen>,
    blocked: HashMap<OpId, Vec<On>>,
    /// Those looked at; none of them moves.
    seen: HashSet<OpId>,
    /// The held leases among them.
    leases: Vec<LeaseInfo>,
}

impl Search<'_> {
    /// Whether `op`, or anything that it needs, can move.
    fn moves(&mut self, op: OpId) -> bool {
        let mut open = vec![op];
        while let Some(next) = open.pop() {
            if !self.seen.insert(next) {
                continue;
            }
            // Not in the picture any more: it has ended, and whoever was blocked on it moves.
            let Some(view) = self.snapshot.op(next) else { return true };
            if !view.granted {
                open.extend(self.explained.blockers(view).into_iter().map(|blocker| blocker.op));
            } else if let Some(lease) = held_lease(&view.label) {
                self.leases.push(lease);
            } else if let Some(blocked) = self.blocked.get(&next) {
                open.extend(blocked.iter().filter_map(|on| match on {
                    On::Op(target) => Some(target.id()),
                    On::AnyOther => None,
                }));
            } else if Some(next) != context::current() {
                return true;
            }
        }
        false
    }
}
