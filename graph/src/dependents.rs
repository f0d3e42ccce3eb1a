//! One step along the queues: which operations look at what an operation writes, and whose writes it looks at itself.
//!
//! A walk takes such steps without holding more than one bit at a time, so it is no picture of one moment. What keeps a step sound
//! is the registry's lock: while it is held no variable is freed, and an operation that is not over by then was in all its queues
//! when the lock was taken. Whether it still is in a queue is asked again under that queue's bit.

use std::fmt;

use crate::access::{Access, AccessPtr, Mode};
use crate::block::{Block, BlockPtr};
use crate::graph::{Graph, Inner};
use crate::id::OpId;
use crate::op_ref::OpRef;
use crate::queue::Queue;
use crate::reentry::Lending;
use crate::var::VarNode;

/// A counted reference to an operation, of any that is found in a queue: also of one that was submitted without an [`OpRef`].
///
/// Dropping it may drop the operation's payload.
pub struct Pinned<'g, V, T> {
    block: BlockPtr<V, T>,
    inner: &'g Inner<V, T>,
}

impl<V, T> Graph<V, T> {
    /// Refers to `op` for a walk along the queues.
    ///
    /// # Panics
    /// If the operation belongs to another graph.
    pub fn pin(&self, op: &OpRef<V, T>) -> Pinned<'_, V, T> {
        // SAFETY: our reference keeps the operation, and the owner was set before there was one.
        let owner = unsafe { op.as_block().owner() };
        assert!(std::ptr::eq(owner, &raw const *self.inner), "{} belongs to another graph", op.id());
        op.as_block().retain();
        Pinned { block: op.block(), inner: &self.inner }
    }
}

impl<'g, V, T> Pinned<'g, V, T> {
    /// The operation's name within its graph.
    pub fn id(&self) -> OpId {
        // SAFETY: our reference keeps the operation.
        unsafe { self.as_block().id() }
    }

    /// What was submitted with the operation.
    pub fn payload(&self) -> &T {
        // SAFETY: our reference keeps the payload, and the result borrows the reference.
        unsafe { self.as_block().payload() }
    }

    /// Adds to `found` what comes after the writes of this operation and before, or with, the next write of the same variable, if it
    /// is `wanted`. Nothing, once the operation has been completed or withdrawn.
    ///
    /// `wanted` runs under a bit, by the rules of [`Var::with_state`](crate::Var::with_state).
    ///
    /// # Panics
    /// If `wanted` uses the graph, as [`Var::with_state`](crate::Var::with_state).
    pub fn dependents(&self, mut wanted: impl FnMut(&T, Mode) -> bool, found: &mut Vec<Self>) {
        self.each_queue(|queue, access| {
            // SAFETY: the bit is held and the access linked, so everything in the queue is in flight.
            unsafe {
                if !access.as_ref().target().is_exclusive() {
                    return;
                }
                for behind in queue.behind(access) {
                    let mode = behind.as_ref().target().mode();
                    let op = Access::op(behind);
                    if wanted(op.as_ref().payload(), mode) {
                        found.push(self.found(op));
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
    /// Both closures run under a bit, by the rules of [`Var::with_state`](crate::Var::with_state).
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
            // SAFETY: the bit is held and the access linked, so everything in the queue is in flight.
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
                        found.push(self.found(op));
                        return;
                    }
                    if known(op.as_ref().payload()) {
                        return;
                    }
                    let Some((first, _)) = front.next() else { return };
                    writes -= u32::from(first.as_ref().target().is_exclusive());
                    if writes == 0 {
                        found.push(self.found(Access::op(first)));
                        return;
                    }
                }
            }
        });
    }

    /// Lends the queue of each of the operation's variables, under its bit, with the access that is linked there.
    fn each_queue(&self, mut f: impl FnMut(&Queue<V, T>, AccessPtr<V, T>)) {
        let live = self.inner.registry().lock();
        // Completing and withdrawing say so before they take the first access out, so no variable of the operation has left the
        // registry, and none leaves it before the lock is given back.
        if self.as_block().is_over() {
            return;
        }
        // SAFETY: accesses that wait are moved only under the registry's lock, and those of a granted operation never.
        for access in unsafe { Block::accesses(self.block) } {
            // SAFETY: the variable is alive, as above.
            let mut locked = unsafe { VarNode::lock(access.as_ref().target().node()) };
            // Else the access may have been taken out before the bit was ours.
            if self.as_block().is_over() {
                return;
            }
            let _lending = Lending::of(self.inner.address());
            locked.queue(|queue| f(queue, access));
        }
        drop(live);
    }

    /// Refers to an operation.
    ///
    /// # Safety
    /// The bit of a variable in whose queue it is is held.
    unsafe fn found(&self, block: BlockPtr<V, T>) -> Self {
        // SAFETY: completing it needs the bit, so its reference to itself is still counted.
        unsafe { block.as_ref() }.retain();
        Self { block, inner: self.inner }
    }

    fn as_block(&self) -> &Block<V, T> {
        // SAFETY: our reference keeps the block.
        unsafe { self.block.as_ref() }
    }
}

impl<V, T> Drop for Pinned<'_, V, T> {
    fn drop(&mut self) {
        // SAFETY: gives our reference up; the graph behind `inner` outlives it.
        drop(unsafe { Block::release_pinned(self.block, self.inner) });
    }
}

impl<V, T> fmt::Debug for Pinned<'_, V, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pinned").field("id", &self.id()).finish_non_exhaustive()
    }
}
