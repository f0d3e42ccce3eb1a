//! An operation that is described and not submitted, in the block where it will live.
//!
//! The description is passed from call to call while it grows. A separate value would be copied each time,
//! and a copy reads wide what was just written narrow, which processors punish more than a locked
//! instruction.

use std::fmt;
use std::marker::PhantomData;
use std::mem;

use crate::graph::{Graph, GraphRef};
use crate::id::{OpId, VarId};
use crate::operation::access::{AccessMode, Target};
use crate::operation::block::{Block, BlockPtr};
use crate::operation::granted::Granted;
use crate::operation::op_ref::OpRef;
use crate::operation::submit;
use crate::variable::var::Var;

/// An operation that has not been submitted. Dropping it drops its payload.
#[must_use = "a pending_op does nothing until it is submitted"]
pub struct PendingOp<'a, V, T> {
    /// Owned, with one reference for the operation and one for the `OpRef`.
    block: BlockPtr<V, T>,
    /// The handles of its variables outlive the value. Only one pointer is passed from call to call: two
    /// words that are written one by one and read as one make the processor wait.
    handles: PhantomData<&'a Var<V, T>>,
}

impl<V, T> Graph<V, T> {
    /// Begins to describe an operation. `init` writes the payload to its place.
    ///
    /// # Safety
    /// `init` initializes the payload.
    #[inline(always)]
    pub unsafe fn begin_op(&self, init: impl FnOnce(*mut T)) -> PendingOp<'_, V, T> {
        let (block, id) = self.state.slab.take();
        // SAFETY: the slab gave the block to us, and the block is in no queue.
        unsafe { Block::begin(block, id, GraphRef::new(&self.state), init, 2) };
        PendingOp { block, handles: PhantomData }
    }

    /// Describes an operation with its accesses.
    ///
    /// # Panics
    /// If a variable belongs to another graph.
    pub fn op<'a>(
        &'a self,
        payload: T,
        accesses: impl IntoIterator<Item = (&'a Var<V, T>, AccessMode)>,
    ) -> PendingOp<'a, V, T> {
        // SAFETY: the payload is written.
        let mut op = unsafe { self.begin_op(|place| place.write(payload)) };
        accesses.into_iter().for_each(|(var, mode)| op.access(var, mode));
        op
    }
}

impl<'a, V, T> PendingOp<'a, V, T> {
    /// The payload.
    #[inline(always)]
    pub fn payload(&self) -> &T {
        // SAFETY: initialized by `begin`; the block is ours.
        unsafe { (*self.block.as_ptr()).payload() }
    }

    /// The payload.
    #[inline(always)]
    pub fn payload_mut(&mut self) -> &mut T {
        // SAFETY: as for `payload`, and we are borrowed exclusively.
        unsafe { (*self.block.as_ptr()).payload_mut() }
    }

    /// The operation's name from its submission on.
    pub fn id(&self) -> OpId {
        // SAFETY: `begin` has given it; the block is ours.
        unsafe { self.block.as_ref().id() }
    }

    /// The accesses added so far.
    pub fn accesses(&self) -> impl ExactSizeIterator<Item = (VarId, AccessMode)> {
        // SAFETY: the block is ours, and the handles of its variables outlive the value.
        let accesses = unsafe { Block::accesses(self.block) };
        accesses.map(|access| {
            // SAFETY: as above.
            let target = unsafe { access.as_ref().target() };
            // SAFETY: as above.
            (unsafe { target.node().as_ref() }.id(), target.mode())
        })
    }

    /// True if the variable belongs to the graph of the operation.
    #[inline(always)]
    pub fn may_access(&self, var: &Var<V, T>) -> bool {
        // SAFETY: the handle keeps the node; the block is ours.
        unsafe { self.block.as_ref().is_of_graph_of(var.node().as_ref()) }
    }

    /// Adds a variable; may be repeated. A read and a write of one variable are an update.
    ///
    /// # Panics
    /// If the variable belongs to another graph.
    #[inline(always)]
    pub fn access(&mut self, var: &'a Var<V, T>, mode: AccessMode) {
        // SAFETY: the handle keeps the node; the block is ours.
        unsafe {
            self.block.as_ref().assert_same_graph(var.node().as_ref());
            Block::add_target(self.block, Target::new(var.node(), mode));
        }
    }

    /// Appends the operation to the queues of all its variables, atomically with regard to every other
    /// submission, and grants what can be granted. `Some`: all accesses may proceed at once. `None`: a
    /// completion hands the operation out later.
    #[inline(always)]
    pub fn submit(self) -> (OpRef<V, T>, Option<Granted<V, T>>) {
        let block = self.block;
        mem::forget(self);
        // SAFETY: the block is ours until it is appended. One of its references is for the result, so that it
        // outlives a completion on another thread. The variables' handles outlive the value.
        unsafe { (OpRef::new(block), append_described(block)) }
    }

    /// As [`submit`](Self::submit), without a reference.
    #[inline(always)]
    pub fn submit_unreferenced(self) -> Option<Granted<V, T>> {
        let block = self.block;
        mem::forget(self);
        // SAFETY: the block is ours until it is appended, and so are both its references, of which one is
        // dropped.
        unsafe {
            block.as_ref().forget_reference();
            append_described(block)
        }
    }
}

/// # Safety
/// The caller owns the block, and holds handles of the variables of its targets.
#[inline(always)]
unsafe fn append_described<V, T>(block: BlockPtr<V, T>) -> Option<Granted<V, T>> {
    // SAFETY: forwarded to the caller.
    unsafe {
        Block::normalize(block);
        submit::append(block)
    }
}

impl<V, T> Drop for PendingOp<'_, V, T> {
    fn drop(&mut self) {
        // SAFETY: both references are ours, and no other thread has seen the block.
        unsafe {
            drop(OpRef::new(self.block));
            Block::release(self.block);
        }
    }
}

impl<V, T> fmt::Debug for PendingOp<'_, V, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // SAFETY: the block is ours.
        let accesses = unsafe { self.block.as_ref().len() };
        f.debug_struct("PendingOp").field("accesses", &accesses).finish_non_exhaustive()
    }
}

// SAFETY: the value owns its block, and borrows handles.
unsafe impl<V: Send, T: Send + Sync> Send for PendingOp<'_, V, T> {}
// SAFETY: a shared value lends its payload only.
unsafe impl<V: Send, T: Send + Sync> Sync for PendingOp<'_, V, T> {}
