//! One step along the queues: which operations look at what an operation writes, and whose writes it looks at itself.
//!
//! Steps and [walks](crate::inspect::walk) go from an operation to its queues by [`each_queue`]. It holds one lock at a time, so what it shows is
//! no picture of one moment, and the registry's lock only while it takes that lock, so it holds up no other thread for longer than a
//! submission does. While the registry is locked no variable is freed, and an operation that is not over by then was in all its queues
//! when the lock was taken. Whether it still is in a queue is asked again under that queue's lock.

use std::ptr::NonNull;

use estafette_sync::thread;

use crate::biased_lock::CriticalSection;
use crate::graph::{Graph, GraphState};
use crate::operation::access::{Access, AccessPtr, Mode};
use crate::operation::block::{Block, BlockPtr};
use crate::operation::op_ref::OpRef;
use crate::reentry::Lending;
use crate::variable::queue::Queue;
use crate::variable::var::VarNode;

impl<V, T> Graph<V, T> {
    /// # Panics
    /// If the operation belongs to another graph.
    pub(crate) fn assert_own(&self, op: &OpRef<V, T>) {
        // SAFETY: the reference keeps the operation.
        let graph = unsafe { op.as_block().graph() };
        assert!(std::ptr::eq(graph, &raw const *self.state), "{} belongs to another graph", op.id());
    }
}

impl<V, T> OpRef<V, T> {
    /// Adds to `found` what comes after the writes of this operation and before, or with, the next write of the same variable, if it
    /// is `wanted`. Nothing, once the operation has been completed or withdrawn.
    ///
    /// `wanted` runs under a lock, by the rules of [`Var::with_state`](crate::Var::with_state).
    ///
    /// # Panics
    /// If `wanted` uses the graph, as [`Var::with_state`](crate::Var::with_state).
    pub fn dependents(&self, mut wanted: impl FnMut(&T, Mode) -> bool, found: &mut Vec<Self>) {
        self.each_queue(|queue, access| {
            // SAFETY: the lock is held and the access linked, so everything in the queue is in flight.
            unsafe {
                if !access.as_ref().target().is_exclusive() {
                    return;
                }
                for behind in queue.behind(access) {
                    let mode = behind.as_ref().target().mode();
                    let op = Access::op(behind);
                    if wanted(op.as_ref().payload(), mode) {
                        found.push(Self::retain(op));
                    }
                    if mode.is_exclusive() {
                        return;
                    }
                }
            }
        });
    }

    /// Adds to `found` the last operation that writes ahead of each access of this one whose mode `looks` at what is there.
    /// Nothing, once this operation has been granted, completed or withdrawn.
    ///
    /// A search goes back over the reads in between, and ends without a result at one that is `known` to look at nothing of interest.
    /// Both closures run under a lock, by the rules of [`Var::with_state`](crate::Var::with_state).
    ///
    /// # Panics
    /// If a closure uses the graph, as [`Var::with_state`](crate::Var::with_state).
    pub fn sources(
        &self,
        looks: impl Fn(Mode) -> bool,
        mut known: impl FnMut(&T) -> bool,
        found: &mut Vec<Self>,
    ) {
        if self.as_block().is_granted() {
            return;
        }
        self.each_queue(|queue, access| {
            // SAFETY: the lock is held and the access linked, so everything in the queue is in flight.
            unsafe {
                let target = access.as_ref().target();
                let mut writes = queue.writes() - u32::from(target.is_exclusive());
                if !looks(target.mode()) || writes == 0 {
                    return;
                }
                // In step with it from the front: where all writes are far ahead, their last one is found there.
                let mut front = queue.iter();
                for (ahead, _) in queue.ahead_of(access) {
                    let op = Access::op(ahead);
                    if ahead.as_ref().target().is_exclusive() {
                        found.push(Self::retain(op));
                        return;
                    }
                    if known(op.as_ref().payload()) {
                        return;
                    }
                    let Some((first, _)) = front.next() else { return };
                    writes -= u32::from(first.as_ref().target().is_exclusive());
                    if writes == 0 {
                        found.push(Self::retain(Access::op(first)));
                        return;
                    }
                }
            }
        });
    }

    /// Lends the queue of each of the operation's variables, under its lock, with the access that is linked there, until the operation
    /// is over.
    fn each_queue(&self, mut f: impl FnMut(&Queue<V, T>, AccessPtr<V, T>)) {
        // SAFETY: our reference keeps the operation.
        let graph = unsafe { self.as_block().graph() };
        let lent = |node: &VarNode<V, T>, access| {
            let _lending = Lending::of(graph.address());
            f(&node.queue, access);
        };
        // SAFETY: our reference keeps the block.
        let _ = unsafe { each_queue(self.block(), graph, Block::is_over, lent) };
    }
}

/// Goes through the variables of an operation: each under its lock, with the access that is linked there. If reads are withdrawn
/// meanwhile, it begins again with those that are left. False if it ended because the operation `has_ended`, which is that it is
/// granted, or that it is over.
///
/// # Safety
/// The caller has a reference to the operation, which is of the graph `inner`.
pub(crate) unsafe fn each_queue<V, T>(
    op: BlockPtr<V, T>,
    graph: &GraphState<V, T>,
    has_ended: impl Fn(&Block<V, T>) -> bool,
    mut f: impl FnMut(&VarNode<V, T>, AccessPtr<V, T>),
) -> bool {
    let (mut at, mut len) = (0, None);
    loop {
        let live = graph.registry().lock();
        // SAFETY: the caller refers to the operation. Completing and withdrawing say that it is over before they take the first access
        // out. So while the registry is locked, the variables of one that is not over are alive, and its accesses stay: those that
        // wait are moved under this lock only, and those of a granted operation never. If it is not over when the lock of one of
        // them is held, its access stays in that queue, and the variable with it, after the lock is released.
        unsafe {
            if has_ended(op.as_ref()) {
                return false;
            }
            let accesses = Block::accesses(op);
            if len.replace(accesses.len()).is_some_and(|before| before != accesses.len()) {
                at = 0;
            }
            if at == accesses.len() {
                return true;
            }
            let access = accesses.get(at);
            let node = access.as_ref().target().node();
            let section = graph.biased.enter();
            // Who has the lock may keep it for long, as a snapshot does, and no thread shall wait for the registry meanwhile.
            if node.as_ref().lock.try_lock_within(&section).is_some() {
                let locked = LockedNode { node, _section: section };
                if has_ended(op.as_ref()) {
                    return false;
                }
                drop(live);
                f(locked.node.as_ref(), access);
                at += 1;
                continue;
            }
        }
        drop(live);
        thread::yield_now();
    }
}

/// A lock that was taken.
struct LockedNode<V, T> {
    node: NonNull<VarNode<V, T>>,
    /// Left after the lock was released.
    _section: CriticalSection,
}

impl<V, T> Drop for LockedNode<V, T> {
    fn drop(&mut self) {
        // SAFETY: the lock is held, and keeps the node alive.
        let lock = unsafe { &self.node.as_ref().lock };
        lock.unlock(lock.load_locked());
    }
}
