//! The variables that order the uses of a piece of memory.
//!
//! Every tensor with memory has an entry in one process-wide interval map, with a variable of its own.
//! Tensors with the same memory that are ordered by the same variable share an entry, so the same memory may
//! be imported very often. A tensor that is imported later and overlaps an older tensor takes the variable of
//! the older tensor into its set. So any two overlapping tensors share at least one variable. A tensor that
//! lies inside an older one needs only the variables that it found.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::{Arc, Weak};

use estafette_devices::FenceSet;
use estafette_graph::{AccessMode, OpId};
use estafette_sync::sync::{Mutex, MutexGuard};
use smallvec::SmallVec;

use crate::core::context;
use crate::core::core_ref::CoreRef;
use crate::core::engine_core::graph;
use crate::core::lease_info::{Access, LeaseOwner};
use crate::core::operation::{Name, OpGranted, OpKind, OpState, OpVar};
use crate::core::var_state::{Ending, Replaced, VarState, has, thin_out};
use crate::exchange::{AddressSpace, IntervalKey, IntervalMap, Resolution};
use crate::lease::LeaseState;
use crate::operation::run::{self, ReadyList};
use crate::tensor::handle::{Tensor, VarSet};

/// A tensor that overlaps more than this many others collapses them into one group variable. The cost of an
/// operation grows with its variables, and a use of the whole needs no finer order.
const OVERLAP_MAX: usize = 16;

/// Leases of one memory that may be dead before they are swept.
const LEASES_MIN: usize = 8;

/// Dead leases go when a new one comes: those at the end at once, and all of them when the list is twice as
/// long as after the last sweep. So a new lease costs the same however many are open.
#[derive(Default)]
struct Leases {
    known: Vec<Weak<LeaseState>>,
    sweep_at: usize,
    /// Leases that are handed out and not granted yet, newest last.
    pending: Vec<Weak<LeaseState>>,
    /// Views of running functions that are no leases.
    lent: Vec<LentView>,
}

impl Leases {
    fn add(&mut self, lease: &Arc<LeaseState>) {
        if self.known.last().is_some_and(|known| std::ptr::eq(known.as_ptr(), Arc::as_ptr(lease))) {
            return;
        }
        while self.known.last().is_some_and(|known| known.strong_count() == 0) {
            self.known.pop();
        }
        if self.known.len() >= self.sweep_at {
            self.known.retain(|known| known.strong_count() > 0);
            self.sweep_at = (2 * self.known.len()).max(LEASES_MIN);
        }
        self.known.push(Arc::downgrade(lease));
    }
}

/// A view of an operand for the time that the function of its operation runs. It becomes a lease when memory
/// is imported from it.
pub(crate) struct LentView {
    pub(crate) op: OpId,
    pub(crate) name: Name,
    pub(crate) tensor: Tensor,
    pub(crate) access: Access,
    pub(crate) lease: Option<Arc<LeaseState>>,
}

impl LentView {
    pub(crate) fn to_lease(&self) -> Arc<LeaseState> {
        let owner = LeaseOwner::of_operation(self.name.clone());
        LeaseState::view_of(self.op, &self.tensor, self.access, owner)
    }
}

/// The entry of a tensor, or of several with the same memory.
pub(crate) struct Region {
    range: Range<usize>,
    own: Mutex<Owners>,
    /// Leases taken on this memory, newest last, without those that pin the variable.
    leases: Mutex<Leases>,
}

/// The variable that orders a tensor.
struct Owners {
    now: OpVar,
    /// The first variable of a tensor that was collapsed: leases may still pin it.
    first: Option<OpVar>,
}

impl Region {
    fn new(range: Range<usize>, own: OpVar) -> Arc<Self> {
        let own = Mutex::new(Owners { now: own, first: None });
        Arc::new(Self { range, own, leases: Mutex::default() })
    }

    fn owners(&self) -> MutexGuard<'_, Owners> {
        self.own.lock()
    }

    fn own(&self) -> OpVar {
        self.owners().now.clone()
    }

    fn collapse_into(&self, group: &OpVar) {
        let mut owners = self.owners();
        let before = std::mem::replace(&mut owners.now, group.clone());
        owners.first.get_or_insert(before);
    }

    /// The newest lease that pins the variable for this memory.
    fn newest_pin(&self) -> Option<Arc<LeaseState>> {
        let owners = self.owners();
        let held = owners.first.as_ref().unwrap_or(&owners.now);
        held.with_state(|state, _| {
            state.pins().find(|pin| {
                let lease = pin.lease();
                (lease.is_of(self) && lease.protects()).then(|| pin.share()).flatten()
            })
        })
    }

    /// Makes imports from inside this memory find `lease`.
    pub(crate) fn add_lease(&self, lease: &Arc<LeaseState>) {
        self.leases.lock().add(lease);
    }

    /// Notes a view, until [`take_back`](Self::take_back).
    pub(crate) fn lend(&self, view: LentView) {
        self.leases.lock().lent.push(view);
    }

    /// Takes out a view that `op` has of `tensor`.
    pub(crate) fn take_back(&self, op: OpId, tensor: &Tensor) -> Option<LentView> {
        let lent = &mut self.leases.lock().lent;
        let at = lent.iter().rposition(|view| view.op == op && view.tensor.same(tensor))?;
        Some(lent.swap_remove(at))
    }

    /// The open lease under which all of `range` was handed out, where `origin` permits that the memory comes
    /// from it: the pending lease that one of the fences `ready` is of; else the newest lease; else, with any
    /// fence, the newest pending lease. `None` as the origin permits every lease, and nothing is derived yet.
    /// Clones may be the last: they go to `keep`, to be dropped where no lock is held.
    fn covering(
        &self,
        range: &Range<usize>,
        origin: Option<Origin>,
        ready: &FenceSet,
        keep: &mut SmallVec<[Arc<LeaseState>; 2]>,
    ) -> Option<Arc<LeaseState>> {
        if self.range.start > range.start || self.range.end < range.end {
            return None;
        }
        let is_lent = origin.is_none_or(|origin| origin == Origin::Lent);
        let pin = self.newest_pin();
        keep.extend(pin.clone());
        let mut leases = self.leases.lock();
        let mut pending: SmallVec<[Arc<LeaseState>; 2]> = SmallVec::new();
        if !ready.is_empty() {
            pending.extend(leases.pending.iter().rev().filter_map(Weak::upgrade));
            keep.extend(pending.iter().cloned());
        }
        let is_of = |lease: &&Arc<LeaseState>| lease.granted_after().is_some_and(|fence| has(ready, fence));
        let mut found = pending.iter().find(is_of).cloned().or(pin);
        if found.is_none() {
            for at in 0..leases.lent.len() {
                let view = &mut leases.lent[at];
                if view.lease.is_none() && (is_lent || context::current() == Some(view.op)) {
                    let lease = view.to_lease();
                    view.lease = Some(Arc::clone(&lease));
                    leases.add(&lease);
                }
            }
            for lease in leases.known.iter().rev().filter_map(Weak::upgrade) {
                keep.push(Arc::clone(&lease));
                if lease.protects() && (is_lent || lease.can_be_imported_from_here()) {
                    found = Some(lease);
                    break;
                }
            }
        }
        let found = found.or_else(|| pending.first().cloned())?;
        if origin.is_some() {
            // Made under the lock: what is derived from the lease relies on it from here on.
            found.scope(range);
        }
        Some(found)
    }

    /// Makes imports with a fence find `lease`, which is handed out and not granted yet.
    pub(crate) fn add_pending(&self, lease: &Arc<LeaseState>) {
        let mut leases = self.leases.lock();
        leases.pending.retain(|known| known.strong_count() > 0);
        leases.pending.push(Arc::downgrade(lease));
    }

    /// Makes imports find `lease`, which was granted, instead of the `pending` lease. `None` where the lease
    /// is refused.
    pub(crate) fn end_pending(&self, pending: &LeaseState, lease: Option<&Arc<LeaseState>>) {
        let mut leases = self.leases.lock();
        leases.pending.retain(|known| !std::ptr::eq(known.as_ptr(), pending));
        if let Some(lease) = lease {
            pending.become_granted(lease);
            if !lease.is_pin() {
                leases.add(lease);
            }
        }
    }

    /// Makes a lease of this memory an alias, unless a tensor was derived from the lease: the lease is the
    /// only place in the graph of such a tensor.
    pub(crate) fn untrack(&self, lease: &LeaseState) -> bool {
        let _leases = self.leases.lock();
        let alone = !lease.has_scope();
        if alone {
            lease.untrack();
        }
        alone
    }
}

impl std::fmt::Debug for Region {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Region").field("range", &self.range).finish_non_exhaustive()
    }
}

/// The process-wide map.
pub(crate) fn alias_map() -> &'static IntervalMap<Arc<Region>> {
    estafette_sync::per_process! {
        static ALIAS_MAP: IntervalMap<Arc<Region>> = IntervalMap::new();
    }
    &ALIAS_MAP
}

/// A tensor's share of its entry; dropping the last share removes the entry.
#[derive(Debug)]
pub(crate) struct Placed {
    pub(crate) region: Arc<Region>,
    key: Option<IntervalKey>,
}

impl Drop for Placed {
    fn drop(&mut self) {
        if let Some(key) = self.key.take() {
            alias_map().remove(key);
        }
    }
}

/// The origin of imported memory, when a lease of the same memory is open.
///
/// A tensor is *derived* when it is imported from an object that a lease owner has made from leased memory. A
/// derived tensor carries the lease and does not wait for it. A tensor that is imported once more from the
/// owner of the memory waits for the lease, as the first tensor does. The address is the same in both cases.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// The origin is unknown. The tensor is taken to be derived, unless the lease is the view of a running
    /// operation and the calling code is not part of this operation.
    Unknown,
    /// The owner of the memory: leases do not matter.
    Owner,
    /// A consumer that holds a lease of the memory.
    Lent,
}

/// The place of a new tensor among those that are known.
pub(crate) struct Placement {
    pub(crate) vars: VarSet,
    pub(crate) placed: Placed,
    /// The open lease whose memory contains the tensor, if any.
    pub(crate) lease: Option<Arc<LeaseState>>,
}

/// Finds or makes the variables for memory that comes from outside; `ready` are the fences of its producer.
/// `origin` is called only where the origin matters: when a lease of that memory is open.
pub(crate) fn place(
    core: &CoreRef,
    space: AddressSpace,
    range: Range<usize>,
    ready: &FenceSet,
    origin: impl FnOnce() -> Origin,
) -> Placement {
    if let Some(placement) = try_place(core, space, range.clone(), ready, None) {
        return placement;
    }
    // `origin` may be foreign code, so no lock is held.
    let origin = origin();
    try_place(core, space, range, ready, Some(origin)).expect("the origin is known")
}

/// As [`place`]; `None` when the origin matters and is not known yet.
fn try_place(
    core: &CoreRef,
    space: AddressSpace,
    range: Range<usize>,
    ready: &FenceSet,
    origin: Option<Origin>,
) -> Option<Placement> {
    let mut keep = SmallVec::new();
    let mut merge: Option<OpGranted> = None;
    let (key, placed) = alias_map().resolve(space, range.clone(), |found| {
        let mut lent = |origin| {
            found.iter().find_map(|region| {
                region.covering(&range, origin, ready, &mut keep).map(|lease| (region, lease))
            })
        };
        let lent = match origin {
            None if lent(None).is_some() => return (Resolution::Nothing, None),
            None | Some(Origin::Owner) => None,
            origin => lent(origin),
        };
        if let Some((region, lease)) = lent {
            let vars = VarSet::from_iter([lease.scope(&range).clone()]);
            return (Resolution::Nothing, Some((vars, Arc::clone(region), Some(lease))));
        }
        let mut vars = VarSet::new();
        let mut known = BTreeSet::new();
        let mut inside = false;
        for region in found {
            let own = region.own();
            inside |= region.range.start <= range.start && range.end <= region.range.end;
            // Most tensors find few variables, which are not worth a set.
            let is_new = if vars.len() <= OVERLAP_MAX {
                vars.iter().all(|known| known.id() != own.id())
            } else {
                known.extend(vars[known.len()..].iter().map(OpVar::id));
                !known.contains(&own.id())
            };
            if is_new {
                vars.push(own);
            }
        }
        let own = if vars.len() > OVERLAP_MAX {
            let group = graph().var(VarState::default());
            for region in found {
                region.collapse_into(&group);
            }
            let members = std::mem::replace(&mut vars, VarSet::from_iter([group.clone()]));
            // Before another import finds the group: what it submits then comes after the members'
            // operations.
            merge = collapse(core, &group, &members);
            group
        } else if inside {
            vars[0].clone()
        } else {
            let own = graph().var(VarState::default());
            vars.push(own.clone());
            own
        };
        let equal = |known: &Arc<Region>| known.range == range && known.own().id() == own.id();
        if let Some(place) = found.iter().position(equal) {
            return (Resolution::Share(place), Some((vars, Arc::clone(&found[place]), None)));
        }
        let region = Region::new(range.clone(), own);
        (Resolution::Insert(Arc::clone(&region)), Some((vars, region, None)))
    });
    drop(keep);
    let (vars, region, lease) = placed?;
    if let Some(granted) = merge {
        run::dispatch_one(granted);
    }
    if !ready.is_empty() {
        carry(&vars[vars.len() - 1], ready);
    }
    if let Some(granted) = lease.as_ref().and_then(|lease| lease.granted_after()) {
        carry(&vars[0], &granted.clone().into());
    }
    Some(Placement { vars, placed: Placed { region, key }, lease })
}

/// The fences belong to the memory's present content, whichever variable stands for it.
pub(crate) fn carry(var: &OpVar, ready: &FenceSet) {
    let mut replaced = Replaced::default();
    var.with_ordering_state(|state, flags| state.add_writers(ready, flags, &mut replaced));
    thin_out(var.flags(), |look| var.with_ordering_state(look));
}

/// Enters the memory of a produced result, ordered by `own`. Returns its [strangers](strangers_of) instead,
/// if there are any.
pub(crate) fn place_result(
    space: AddressSpace,
    range: Range<usize>,
    own: &OpVar,
    allowed: &[OpVar],
) -> Result<Placed, VarSet> {
    let (key, result) = alias_map().resolve(space, range.clone(), |found| {
        let strangers = strangers(found, allowed);
        if !strangers.is_empty() {
            return (Resolution::Nothing, Err(strangers));
        }
        let region = Region::new(range, own.clone());
        (Resolution::Insert(Arc::clone(&region)), Ok(region))
    });
    result.map(|region| Placed { region, key })
}

/// The variables of entries that overlap a produced result and that `allowed` does not order: one for each
/// entry.
pub(crate) fn strangers_of(space: AddressSpace, range: Range<usize>, allowed: &[OpVar]) -> VarSet {
    alias_map().resolve(space, range, |found| (Resolution::Nothing, strangers(found, allowed))).1
}

fn strangers(found: &[Arc<Region>], allowed: &[OpVar]) -> VarSet {
    // The group variable orders a tensor that was collapsed meanwhile.
    let owners = found.iter().map(|region| region.own());
    owners.filter(|known| allowed.iter().all(|var| !var.is_ordered_with(known))).collect()
}

/// Enters memory that another process alone writes, ordered by `own`. What else is at the same place are
/// other versions, which that process keeps apart.
#[cfg(feature = "links")]
pub(crate) fn place_apart(space: AddressSpace, range: Range<usize>, own: OpVar) -> Placed {
    let region = Region::new(range.clone(), own);
    let (key, ()) = alias_map().resolve(space, range, |_| (Resolution::Insert(Arc::clone(&region)), ()));
    Placed { region, key }
}

/// From now on `members` are ordered as one variable. Returns the operation that merges their states, if it
/// is granted.
fn collapse(core: &CoreRef, group: &OpVar, members: &[OpVar]) -> Option<OpGranted> {
    let state = OpState::new(core.clone(), Name::Static("collapse"), OpKind::Merge);
    let members: SmallVec<[&OpVar; 32]> = members.iter().collect();
    graph().collapse(state, &members, group)
}

/// Handles a granted collapse: the state that the members still carry moves to the group.
pub(crate) fn merge_granted(granted: OpGranted, ready: &mut ReadyList) {
    let mut sum = VarState::default();
    for access in granted.accesses() {
        debug_assert!(access.mode() != AccessMode::Read, "a collapse writes all its variables");
        sum.add(&access.with_state(|state, _| state.copy()));
    }
    // Every variable of the collapse gets the sum: the group for later uses, the members for queries.
    let mut replaced = Replaced::default();
    for access in granted.accesses() {
        access.with_state(|state, flags| state.adopt(&sum, flags, &mut replaced));
    }
    run::complete(granted, &Ending::Polled, None, ready);
}
