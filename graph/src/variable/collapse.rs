//! Collapse: many variables become one, for tensors that overlap very many others.
//!
//! A collapsed variable forwards to its group. Every access submitted through the variable from then on
//! queues on the group. Accesses that were queued before stay in the variable's own queue; the collapsing
//! operation, a write of all members, waits behind them. A group may itself be collapsed into a larger one,
//! so forwards chain, always towards one root.

use std::collections::VecDeque;
use std::ptr::NonNull;

use crate::graph::{Graph, GraphRef};
use crate::operation::access::{AccessMode, AccessPtr, Target};
use crate::operation::block::Block;
use crate::operation::granted::Granted;
use crate::operation::submit;
use crate::operation::targets::{self, Targets};
use crate::variable::retired::RetiredVars;
use crate::variable::var::{Var, VarGuard, VarNode};

/// The state of a variable that is a group.
///
/// When the last handle of a member is dropped, its `V` must live until the accesses submitted through the
/// member have completed, and those are in the group's queue now. So the member is *parked* here until every
/// access that is queued at that moment has completed. A write that is appended later is granted only then,
/// so the member ends once such a write has completed, or the queue is empty.
pub(crate) struct Group<V, T> {
    finished: u64,
    /// Members without handles, each with the number of writes that had been appended when it was parked. A
    /// member ends when more writes have finished. Ascending.
    parked: VecDeque<(u64, NonNull<VarNode<V, T>>)>,
}

impl<V, T> Graph<V, T> {
    /// Submits an operation that writes all `members` and `group`; from then on every access to a member is
    /// an access to `group`, atomically: an access submitted by another thread is queued before the
    /// collapsing operation on the member, or behind it on the group.
    ///
    /// [`Var::queued`] and [`Graph::waiting`] do not contain the operation, and it cannot be withdrawn.
    ///
    /// Each variable keeps its own `V`: [`Var::with_state`] of a member reaches the member's, accesses of a
    /// [`Granted`] submitted after the collapse reach the group's. Dropping a member's last handle drops its
    /// `V` when the accesses submitted through it have completed (at the latest when the group's queue is
    /// empty once, or when a write of the group that was submitted later completes). A member that was
    /// collapsed before brings its whole group along. A second collapse of the same variables is a plain
    /// write of the group.
    ///
    /// # Panics
    /// If a variable belongs to another graph.
    pub fn collapse(&self, payload: T, members: &[&Var<V, T>], group: &Var<V, T>) -> Option<Granted<V, T>> {
        for var in members.iter().chain([&group]) {
            // SAFETY: the handle keeps the node.
            self.assert_mine(unsafe { var.node().as_ref() });
        }
        let (block, id) = self.state.slab.take();
        let mut fresh = Some(Box::new(Group { finished: 0, parked: VecDeque::new() }));
        // SAFETY: the handles in `members` and `group` keep all nodes and their roots alive; the block is
        // ours until it is appended, and is not accessed after the last lock is released unless the operation
        // is granted.
        unsafe {
            Block::begin(block, id, GraphRef::new(&self.state), |place| place.write(payload), 1);
            block.as_ref().keep_out_of_lists();
            let section = self.state.biased.acquire();
            let (targets, root) = loop {
                let root = VarNode::resolve(group.node());
                let mut targets: Targets<V, T> = members
                    .iter()
                    .map(|member| Target::new(VarNode::resolve(member.node()), AccessMode::Write))
                    .chain([Target::new(root, AccessMode::Write)])
                    .collect();
                targets::normalize(&mut targets);
                Block::set_targets(block, &targets);
                if submit::lock_all(Block::accesses(block), &section) {
                    break (targets, root);
                }
            };
            let granted = submit::link_all(block, Block::accesses(block));
            root.as_ref().group.with_mut(|place| {
                if (*place).is_none() {
                    *place = fresh.take();
                }
            });
            // The root first: a thread that sees a member forwarded must already see the unfinished write on
            // the root.
            let word = root.as_ref().lock.load_locked();
            root.as_ref().lock.unlock(word.with_group().with_unfinished_write(true));
            for member in targets.iter().map(|target| target.node()).filter(|node| *node != root) {
                VarNode::set_forward(member, root);
                let word = member.as_ref().lock.load_locked();
                member.as_ref().lock.unlock(word.with_forwarded().with_unfinished_write(true));
            }
            granted.then(|| Granted::new(block))
        }
    }
}

impl<V, T> Group<V, T> {
    /// If `node` was collapsed and accesses are queued on the variable that orders it now, parks `node` until
    /// they have completed. True: parked.
    ///
    /// # Safety
    /// As for [`VarNode::retire`].
    pub(crate) unsafe fn park_if_busy(node: NonNull<VarNode<V, T>>) -> bool {
        // SAFETY: the caller owns the end of `node`, whose forward keeps the chain of targets alive.
        unsafe {
            let mut root = node;
            loop {
                let next = VarNode::resolve(root);
                if next == node {
                    return false;
                }
                root = next;
                let mut guard = VarNode::lock(root);
                if guard.word.forwarded() {
                    // Collapsed since it was resolved; its queue is ahead of the collapsing operation.
                    continue;
                }
                let (empty, writes) = guard.queue(|queue| (queue.is_empty(), u64::from(queue.writes())));
                if !empty {
                    root.as_ref().group.with_mut(|group| {
                        let group = (*group).as_mut().expect("a target of forwards is a group");
                        group.parked.push_back((group.finished + writes, node));
                    });
                }
                drop(guard);
                return !empty;
            }
        }
    }

    /// Notes a write that was inserted ahead of the end of the queue (a split): parked members wait for one
    /// more.
    ///
    /// # Safety
    /// The lock is held.
    pub(crate) unsafe fn inserted(guard: &VarGuard<V, T>) {
        // SAFETY: the lock is held, so this thread owns the group.
        unsafe {
            guard.node.as_ref().group.with_mut(|group| {
                let group = (*group).as_mut().expect("a word that says group has one");
                group.parked.iter_mut().for_each(|(appended, _)| *appended += 1);
            });
        }
    }

    /// Notes that a write leaves the queue without having been completed. Members that were parked behind it
    /// wait for one write less; members that were parked before it was appended wait for as many as before.
    ///
    /// # Safety
    /// The lock is held, and the access is still linked.
    #[cold]
    pub(crate) unsafe fn withdraws(guard: &mut VarGuard<V, T>, write: AccessPtr<V, T>) {
        // SAFETY: the lock is held, so this thread owns the queue and the group.
        unsafe {
            let ahead = guard.queue(|queue| queue.writes_ahead_of(write));
            guard.node.as_ref().group.with_mut(|group| {
                let group = (*group).as_mut().expect("a word that says group has one");
                let finished = group.finished;
                // The writes that a member was parked behind are the first ones of the queue.
                let behind = group.parked.iter_mut().filter(|(appended, _)| ahead < *appended - finished);
                behind.for_each(|(appended, _)| *appended -= 1);
            });
        }
    }

    /// Notes a completed access of a group and collects the members that end.
    ///
    /// # Safety
    /// The lock is held, the access is unlinked, and `dead` is dropped when no lock is held.
    #[cold]
    pub(crate) unsafe fn completed(
        guard: &mut VarGuard<V, T>,
        mode: AccessMode,
        dead: &mut RetiredVars<V, T>,
    ) {
        // SAFETY: the lock is held, so this thread owns the group and its parked members.
        unsafe {
            let empty = guard.queue(|queue| queue.is_empty());
            guard.node.as_ref().group.with_mut(|group| {
                let group = (*group).as_mut().expect("a word that says group has one");
                group.finished += u64::from(mode.is_exclusive());
                while let Some((appended, node)) = group.parked.front().copied()
                    && (empty || group.finished > appended)
                {
                    group.parked.pop_front();
                    dead.destroy(node);
                }
            });
        }
    }
}
