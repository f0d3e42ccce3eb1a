//! Taking a snapshot: which locks to hold so that the picture is of one moment.
//!
//! The locks of a set of variables are taken in lock order, as by every submitter, so a snapshot cannot be
//! part of a deadlock. If an operation found in their queues also waits elsewhere, the locks of those
//! variables are taken as well, without waiting for them, which could be for ever. If another thread has one
//! of them, the snapshot releases all locks and starts again with the larger set. When nothing is missing,
//! the held locks show one moment.
//!
//! A snapshot first finds the variables that have something in their queues, one after the other. The
//! registry is locked only to copy parts of its list: nodes that end meanwhile are
//! [kept](crate::registry::RegistryScan) until the scan ends.

use std::collections::HashMap;
use std::ptr::NonNull;

use crate::addresses::{Map, Set};
use crate::biased_lock::CriticalSection;
use crate::graph::{Graph, GraphState};
use crate::id::{OpId, VarId};
use crate::inspect::snapshot::{OpView, Snapshot, VarView};
use crate::operation::access::{AccessMode, AccessNode};
use crate::operation::block::{Block, BlockPtr};
use crate::operation::op_ref::OpRef;
use crate::reentry::Lending;
use crate::variable::var::VarNode;

type VarNodePtr<V, T> = NonNull<VarNode<V, T>>;

impl<V, T> Graph<V, T> {
    /// A consistent picture of everything that is queued.
    ///
    /// Submissions and completions on the variables in the picture spin meanwhile, so this is for diagnosis.
    /// `describe` is called afterwards, under no lock, once per operation; the operations may have completed
    /// by then.
    pub fn snapshot<D>(&self, describe: impl Fn(&T) -> D) -> Snapshot<D> {
        self.snapshot_with(describe, |_, _| ())
    }

    /// As [`snapshot`](Self::snapshot), with [pins](crate::Var::try_pin): `describe_pins` gets the state of
    /// each pinned variable, under the lock, and adds an id (from [`Graph::next_id`]) and a description for
    /// each pin. Pins appear as granted operations that read the variable, ahead of its queue.
    pub fn snapshot_with<D>(
        &self,
        describe: impl Fn(&T) -> D,
        describe_pins: impl Fn(&mut V, &mut Vec<(OpId, D)>),
    ) -> Snapshot<D> {
        let raw = self.collect(describe_pins);
        let ops = raw.ops.iter().map(|found| {
            let label = describe(found.op.payload());
            OpView { id: found.op.id(), label, granted: found.granted, accesses: found.accesses.clone() }
        });
        let mut ops: Vec<_> = ops.collect();
        ops.extend(raw.pins.into_iter().map(|(var, id, label)| {
            let accesses = vec![(var, AccessMode::Read, true)];
            OpView { id, label, granted: true, accesses }
        }));
        ops.sort_unstable_by_key(|op| op.id);
        Snapshot { ops, vars: raw.vars }
    }

    fn collect<D>(&self, describe_pins: impl Fn(&mut V, &mut Vec<(OpId, D)>)) -> RawSnapshot<V, T, D> {
        let mut set: Vec<VarNodePtr<V, T>> = Vec::new();
        let scan = self.state.registry().scan();
        // SAFETY: the scan keeps the nodes.
        scan.each(|node| set.extend(unsafe { VarNode::is_busy(node) }.then_some(node)));
        loop {
            // SAFETY: the scan keeps the nodes.
            let mut vars_locked = unsafe { LockedVars::new(&mut set, &self.state) };
            let missing = vars_locked.grow();
            if missing.is_empty() {
                return vars_locked.read(describe_pins);
            }
            drop(vars_locked);
            set.extend(missing);
        }
    }
}

/// The content of a snapshot before its description. Operations are referenced, so that they can be described
/// under no lock.
struct RawSnapshot<V, T, D> {
    ops: Vec<Found<V, T>>,
    vars: Vec<VarView>,
    pins: Vec<(VarId, OpId, D)>,
}

struct Found<V, T> {
    op: OpRef<V, T>,
    granted: bool,
    accesses: Vec<(VarId, AccessMode, bool)>,
}

struct LockedVars<'a, V, T> {
    set: &'a mut Vec<VarNodePtr<V, T>>,
    members: Set<VarNodePtr<V, T>>,
    /// Left after the locks were released.
    section: CriticalSection,
}

impl<'a, V, T> LockedVars<'a, V, T> {
    /// # Safety
    /// The memory of the nodes, and of the variables of operations in their queues, is kept until the locks
    /// are released.
    unsafe fn new(set: &'a mut Vec<VarNodePtr<V, T>>, graph: &GraphState<V, T>) -> Self {
        // SAFETY: forwarded to the caller.
        set.sort_unstable_by_key(|node| unsafe { VarNode::lock_rank(*node) });
        set.dedup();
        let members = set.iter().copied().collect();
        let section = graph.biased.acquire();
        for node in &*set {
            // SAFETY: forwarded to the caller. The word is read again when the lock is released.
            let _ = unsafe { node.as_ref() }.lock.lock_within(&section, || graph.address());
        }
        Self { set, members, section }
    }

    /// Adds the variables on which operations in the queues of the set wait, and so on. Returns those whose
    /// locks another thread has.
    ///
    /// A granted operation may be completing: some of its variables may be gone already, and none of them
    /// explains a wait. A waiting operation can only become granted through a variable outside of the set. If
    /// that happens now, and the operation has already completed its access to a variable, that variable's
    /// queue does not contain it.
    fn grow(&mut self) -> Vec<VarNodePtr<V, T>> {
        let (mut seen, mut missing) = (Set::default(), Vec::new());
        let mut at = 0;
        while let Some(node) = self.set.get(at).copied() {
            at += 1;
            // SAFETY: the node's lock is held, so the operations in its queue are in flight. An operation
            // that waits has completed no access, so its variables were alive just now, and the scan keeps
            // their memory.
            unsafe {
                for (access, _) in node.as_ref().queue.iter() {
                    let op = AccessNode::op(access);
                    if op.as_ref().is_granted() || !seen.insert(op) {
                        continue;
                    }
                    for access in Block::accesses(op) {
                        let other = access.as_ref().target().node();
                        if !self.members.insert(other) {
                            continue;
                        }
                        match other.as_ref().lock.try_lock_within(&self.section) {
                            Some(_) => self.set.push(other),
                            None => missing.push(other),
                        }
                    }
                }
            }
        }
        missing
    }

    /// The queues of the set, and references to every operation in them.
    fn read<D>(&self, describe_pins: impl Fn(&mut V, &mut Vec<(OpId, D)>)) -> RawSnapshot<V, T, D> {
        let mut ops: Vec<Found<V, T>> = Vec::new();
        let mut vars: HashMap<VarId, VarView> = HashMap::new();
        let mut pins = Vec::new();
        let mut indices: Map<BlockPtr<V, T>, usize> = Map::default();
        self.each_pinned(|var, state| {
            let mut found = Vec::new();
            describe_pins(state, &mut found);
            let queue = found.iter().map(|(id, _)| (*id, AccessMode::Read, true)).collect();
            vars.insert(var, VarView { id: var, queue });
            pins.extend(found.into_iter().map(|(id, label)| (var, id, label)));
        });
        self.each(|node, op, mode, granted| {
            // SAFETY: the node's lock is held, and the operation is in its queue.
            let (var, id): (VarId, OpId) = unsafe { (node.as_ref().id(), op.as_ref().id()) };
            let view = vars.entry(var).or_insert_with(|| VarView { id: var, queue: Vec::new() });
            view.queue.push((id, mode, granted));
            let index = *indices.entry(op).or_insert_with(|| {
                // SAFETY: as above.
                let op = unsafe { OpRef::retain(op) };
                ops.push(Found { granted: op.is_granted(), op, accesses: Vec::new() });
                ops.len() - 1
            });
            ops[index].accesses.push((var, mode, granted));
        });
        let mut vars: Vec<VarView> = vars.into_values().filter(|view| !view.queue.is_empty()).collect();
        vars.sort_unstable_by_key(|view| view.id);
        for found in &mut ops {
            found.accesses.sort_unstable_by_key(|(var, _, _)| *var);
        }
        RawSnapshot { ops, vars, pins }
    }

    /// Calls `f` with the state of every pinned variable in the set.
    fn each_pinned(&self, mut f: impl FnMut(VarId, &mut V)) {
        for node in &*self.set {
            // SAFETY: the lock is held.
            unsafe {
                let node = node.as_ref();
                if node.queue.pins() > 0 {
                    let _lending = Lending::of(node.graph.address());
                    node.value(|state| f(node.id(), state));
                }
            }
        }
    }

    fn each(&self, mut f: impl FnMut(VarNodePtr<V, T>, BlockPtr<V, T>, AccessMode, bool)) {
        for node in &*self.set {
            // SAFETY: the lock is held, and accesses in the queue are in flight.
            unsafe {
                for (access, granted) in node.as_ref().queue.iter() {
                    f(*node, AccessNode::op(access), access.as_ref().target().mode(), granted);
                }
            }
        }
    }
}

impl<V, T> Drop for LockedVars<'_, V, T> {
    fn drop(&mut self) {
        for node in &*self.set {
            // SAFETY: the lock is held within our section, and no guard has it.
            drop(unsafe { VarNode::guard_locked(*node) });
        }
    }
}
