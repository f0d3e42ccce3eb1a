//! Counted references to operations.

use std::fmt;

use crate::id::OpId;
use crate::operation::block::{Block, BlockPtr};

/// A counted reference to an operation: keeps its payload alive, also after it has completed. It says nothing about
/// whether the operation may proceed, and holds nothing up.
pub struct OpRef<V, T> {
    block: BlockPtr<V, T>,
}

impl<V, T> OpRef<V, T> {
    /// # Safety
    /// The block has an owner, and one of its references is the caller's, who gives it to the result.
    pub(crate) unsafe fn new(block: BlockPtr<V, T>) -> Self {
        Self { block }
    }

    /// One more reference to an operation that has, or had, one since its submission.
    ///
    /// # Safety
    /// The caller holds the bit of a variable in whose queue the operation is.
    pub(crate) unsafe fn of_queued(block: BlockPtr<V, T>) -> Option<Self> {
        // SAFETY: the bit keeps the operation in flight. An owner set at submission was published with the queue; one that
        // the operation's runner sets meanwhile may be missed, which `is_owned_since_submission` rules out.
        unsafe {
            if !block.as_ref().is_owned_since_submission() {
                return None;
            }
            block.as_ref().retain();
            Some(Self { block })
        }
    }

    /// The operation's name within its graph.
    #[inline]
    pub fn id(&self) -> OpId {
        // SAFETY: our reference keeps the operation.
        unsafe { self.as_block().id() }
    }

    /// StepKind was submitted with the operation.
    #[inline]
    pub fn payload(&self) -> &T {
        // SAFETY: our reference keeps the payload, and the result borrows the reference.
        unsafe { self.as_block().payload() }
    }

    /// The operation's block.
    pub(crate) fn block(&self) -> BlockPtr<V, T> {
        self.block
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
        // SAFETY: gives our reference up; blocks with an `OpRef` own their slab. No bit is held where one is dropped.
        unsafe { Block::release_owned(self.block) };
    }
}

impl<V, T> PartialEq for OpRef<V, T> {
    /// Whether both refer to one operation.
    fn eq(&self, other: &Self) -> bool {
        self.block == other.block
    }
}

impl<V, T> Eq for OpRef<V, T> {}

impl<V, T> fmt::Debug for OpRef<V, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OpRef").field("id", &self.id()).finish_non_exhaustive()
    }
}

// SAFETY: a reference lends `&T` to any thread (`T: Sync`), and the last one drops `T` and perhaps the graph's memory
// with its `V`s wherever it is dropped (`Send`).
unsafe impl<V: Send, T: Send + Sync> Send for OpRef<V, T> {}
// SAFETY: as above.
unsafe impl<V: Send, T: Send + Sync> Sync for OpRef<V, T> {}
