//! Counted references to operations.

use crate::id::OpId;
use crate::operation::block::{Block, BlockPtr};

/// A counted reference to an operation: keeps its payload alive, also after completion. The reference does
/// not show whether the operation may proceed, and delays nothing. Dropping it may drop the payload.
pub struct OpRef<V, T> {
    pub(crate) block: BlockPtr<V, T>,
}

impl<V, T> OpRef<V, T> {
    /// # Safety
    /// One of the block's references is the caller's, which passes to the result.
    pub(crate) unsafe fn new(block: BlockPtr<V, T>) -> Self {
        Self { block }
    }

    /// One more reference to an operation.
    ///
    /// # Safety
    /// The caller has a reference, or the operation's token, or holds the lock of a variable in whose queue
    /// the operation is: completing the operation needs that lock, so its reference to itself is still
    /// counted.
    pub(crate) unsafe fn retain(block: BlockPtr<V, T>) -> Self {
        // SAFETY: forwarded to the caller.
        unsafe { block.as_ref() }.retain();
        Self { block }
    }

    /// One more reference to an operation, unless lists of what is queued leave the operation out.
    ///
    /// # Safety
    /// The caller holds the lock of a variable in whose queue the operation is.
    pub(crate) unsafe fn of_listed(block: BlockPtr<V, T>) -> Option<Self> {
        // SAFETY: the lock keeps the operation in flight.
        unsafe { block.as_ref().is_listed().then(|| Self::retain(block)) }
    }

    /// True if no access waits: the operation is granted, or over.
    pub fn is_granted(&self) -> bool {
        self.as_block().is_granted()
    }

    /// The operation's name within its graph.
    #[inline]
    pub fn id(&self) -> OpId {
        // SAFETY: our reference keeps the operation.
        unsafe { self.as_block().id() }
    }

    /// The operation's payload.
    #[inline]
    pub fn payload(&self) -> &T {
        // SAFETY: our reference keeps the payload, and the result borrows the reference.
        unsafe { self.as_block().payload() }
    }

    #[inline]
    pub(crate) fn as_block(&self) -> &Block<V, T> {
        // SAFETY: our reference keeps the block.
        unsafe { self.block.as_ref() }
    }
}

impl<V, T> Clone for OpRef<V, T> {
    fn clone(&self) -> Self {
        self.as_block().retain();
        Self { block: self.block }
    }
}

impl<V, T> Drop for OpRef<V, T> {
    #[inline(always)]
    fn drop(&mut self) {
        // SAFETY: releases our reference. No lock is held where one is dropped.
        unsafe { Block::release(self.block) };
    }
}

impl<V, T> PartialEq for OpRef<V, T> {
    /// True if both refer to one operation.
    fn eq(&self, other: &Self) -> bool {
        self.block == other.block
    }
}

impl<V, T> Eq for OpRef<V, T> {}

debug_as!([V, T] op: OpRef<V, T>, "OpRef({})", op.id());

// SAFETY: a reference lends `&T` to any thread (`T: Sync`), and the last one drops `T` and perhaps the
// graph's memory with its `V`s wherever it is dropped (`Send`).
unsafe impl<V: Send, T: Send + Sync> Send for OpRef<V, T> {}
// SAFETY: as above.
unsafe impl<V: Send, T: Send + Sync> Sync for OpRef<V, T> {}
