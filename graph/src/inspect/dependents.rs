//! One step along the queues: which operations read what an operation writes, and whose writes an operation
//! reads.
//!
//! Steps and [walks](crate::inspect::walk) go from an operation to its queues by [`each_queue`], which holds
//! one lock at a time. So the result is no picture of one moment. The registry is locked only while that lock
//! is taken, so other threads wait no longer than for a submission. While the registry is locked no variable
//! is freed, and an operation that is not over by then was in all its queues when the registry was locked.
//! A queue's lock is held while the operation is checked again to be in that queue.

use estafette_sync::thread;

use crate::graph::{Graph, GraphState};
use crate::operation::access::{AccessMode, AccessNode, AccessPtr};
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
    /// Adds to `found` the `wanted` operations behind each write of this operation, up to and with the next
    /// write of the same variable by an operation that `makes_version`. Adds nothing once this operation has
    /// been completed or withdrawn.
    ///
    /// Both closures run under a lock, by the rules of [`Var::with_state`](crate::Var::with_state).
    ///
    /// # Panics
    /// If a closure uses the graph, as [`Var::with_state`](crate::Var::with_state).
    pub fn dependents(
        &self,
        mut wanted: impl FnMut(&T, AccessMode) -> bool,
        makes_version: impl Fn(&T) -> bool,
        found: &mut Vec<Self>,
    ) {
        self.each_queue(|queue, access| {
            // SAFETY: the lock is held and the access linked, so everything in the queue is in flight.
            unsafe {
                if !access.as_ref().target().is_exclusive() {
                    return;
                }
                for behind in queue.behind(access) {
                    let mode = behind.as_ref().target().mode();
                    let op = AccessNode::op(behind);
                    let payload = op.as_ref().payload();
                    if wanted(payload, mode) {
                        found.push(Self::retain(op));
                    }
                    if mode.is_exclusive() && makes_version(payload) {
                        return;
                    }
                }
            }
        });
    }

    /// Adds to `found` the last writer that `makes_version` ahead of each access of this operation for whose
    /// mode `depends` returns true. Adds nothing once this operation has been granted, completed or
    /// withdrawn.
    ///
    /// A search goes back over what makes no version, and ends without a result at an operation of those for
    /// which `known` returns true. The closures run under a lock, by the rules of
    /// [`Var::with_state`](crate::Var::with_state).
    ///
    /// # Panics
    /// If a closure uses the graph, as [`Var::with_state`](crate::Var::with_state).
    pub fn sources(
        &self,
        depends: impl Fn(AccessMode) -> bool,
        makes_version: impl Fn(&T) -> bool,
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
                if !depends(target.mode()) || writes == 0 {
                    return;
                }
                // In step with a search from the front: if all writes are far ahead, that one finds the last
                // write first.
                let (mut front, mut last) = (queue.iter(), None);
                for (ahead, _) in queue.ahead_of(access) {
                    let op = AccessNode::op(ahead);
                    let payload = op.as_ref().payload();
                    if ahead.as_ref().target().is_exclusive() && makes_version(payload) {
                        found.push(Self::retain(op));
                        return;
                    }
                    if known(payload) {
                        return;
                    }
                    let Some((first, _)) = front.next() else { return };
                    if first.as_ref().target().is_exclusive() {
                        writes -= 1;
                        let op = AccessNode::op(first);
                        last = if makes_version(op.as_ref().payload()) { Some(op) } else { last };
                    }
                    if writes == 0 {
                        found.extend(last.map(|op| Self::retain(op)));
                        return;
                    }
                }
            }
        });
    }

    /// Calls `f` with the queue of each of the operation's variables, under its lock, and the access that is
    /// linked there, until the operation is over.
    fn each_queue(&self, mut f: impl FnMut(&Queue<V, T>, AccessPtr<V, T>)) {
        // SAFETY: our reference keeps the operation.
        let graph = unsafe { self.as_block().graph() };
        let lent = |node: &VarNode<V, T>, access| {
            let _lending = Lending::of(graph.address());
            f(&node.queue, access);
        };
        // SAFETY: our reference keeps the block.
        let _ = unsafe { each_queue(self.block, graph, Block::is_over, lent) };
    }
}

/// Calls `f` with each variable of an operation, under its lock, and the access that is linked there. If
/// reads are withdrawn meanwhile, starts again with the accesses that are left. Returns false as soon as
/// `has_ended`, which asks whether the operation is granted, or over.
///
/// # Safety
/// The caller has a reference to the operation, which belongs to `graph`.
pub(crate) unsafe fn each_queue<V, T>(
    op: BlockPtr<V, T>,
    graph: &GraphState<V, T>,
    has_ended: impl Fn(&Block<V, T>) -> bool,
    mut f: impl FnMut(&VarNode<V, T>, AccessPtr<V, T>),
) -> bool {
    let (mut at, mut len) = (0, None);
    loop {
        let live = graph.registry().lock();
        // SAFETY: the caller refers to the operation. Completion and withdrawal mark the operation as over
        // before they unlink its first access. So while the registry is locked, the variables of an operation
        // that is not over are alive, and its accesses stay: accesses of a waiting operation are moved under
        // the registry's lock only, those of a granted operation never. If the operation is not over when the
        // lock of one of its variables is held, the access stays in that queue, and the variable alive, after
        // the registry is released.
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
            // Another holder may keep the lock for long, as a snapshot does; no thread must wait for the
            // registry meanwhile.
            if let Some(guard) = VarNode::try_lock(node) {
                if has_ended(op.as_ref()) {
                    return false;
                }
                drop(live);
                f(guard.node.as_ref(), access);
                at += 1;
                continue;
            }
        }
        drop(live);
        thread::yield_now();
    }
}
