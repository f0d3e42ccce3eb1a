//! StepKind is left to do when an operation has ended.

use std::fmt;
use std::ptr::NonNull;

use crate::operation::block::{Block, BlockPtr, LeftOver};
use crate::operation::granted::Granted;
use crate::operation::op_ref::OpRef;
use crate::variable::retired::RetiredVars;

/// StepKind a completed operation leaves behind. Used and dropped outside of every bit.
///
/// Operations that are granted now are nobody else's, so they must all be [taken](Self::next_granted).
#[must_use = "an operation that is granted and never completed blocks everything behind it"]
pub struct Completed<V, T> {
    /// Operations granted and not handed over, linked through their blocks. The tail is meaningful only while there is a head.
    head: Option<BlockPtr<V, T>>,
    tail: Option<BlockPtr<V, T>>,
    /// The operation, with its reference to itself, while it owns its slab.
    pub(crate) own: Option<BlockPtr<V, T>>,
    /// From a box.
    rare: Option<NonNull<RareEffects<V, T>>>,
}

/// StepKind few operations leave behind.
pub(crate) struct RareEffects<V, T> {
    /// The payload of one that does not own its slab.
    pub(crate) remains: Option<LeftOver<V, T>>,
    pub(crate) dead: RetiredVars<V, T>,
}

impl<V, T> Completed<V, T> {
    /// Nothing yet.
    #[inline(always)]
    pub const fn new() -> Self {
        Self { head: None, tail: None, own: None, rare: None }
    }

    /// The next operation that is granted now. Those that wait for the same variable come in the order of their submission.
    #[inline(always)]
    pub fn next_granted(&mut self) -> Option<Granted<V, T>> {
        let head = self.head?;
        // SAFETY: the head is ours; once its token is handed over, its block is not touched any more.
        unsafe {
            self.head = head.as_ref().next(Option::take);
            Some(Granted::new(head))
        }
    }

    /// Whether there is a [next one](Self::next_granted).
    #[inline(always)]
    pub fn has_granted(&self) -> bool {
        self.head.is_some()
    }

    /// Lets go of the operation, and gives it if others have references: there is somebody to be told. Else its payload is
    /// dropped.
    #[inline(always)]
    pub fn take_shared(&mut self) -> Option<OpRef<V, T>> {
        let mut shared = None;
        if let Some(own) = self.own.take() {
            // SAFETY: the operation's own reference is ours, and blocks with one own their slab.
            unsafe {
                if own.as_ref().is_shared() {
                    shared = Some(OpRef::new(own));
                } else {
                    Block::recycle(own);
                }
            }
        }
        if self.rare.is_some() {
            self.drop_rare();
        }
        shared
    }

    /// # Safety
    /// The operation is granted, and has no token yet.
    #[inline(always)]
    pub(crate) unsafe fn push(&mut self, op: BlockPtr<V, T>) {
        // SAFETY: a granted operation without a token is ours, and so is its link.
        unsafe {
            op.as_ref().next(|next| *next = None);
            match (self.head, self.tail) {
                (Some(_), Some(tail)) => tail.as_ref().next(|next| *next = Some(op)),
                _ => self.head = Some(op),
            }
            self.tail = Some(op);
        }
    }

    #[cold]
    pub(crate) fn rare(&mut self) -> &mut RareEffects<V, T> {
        let make =
            || NonNull::from(Box::leak(Box::new(RareEffects { remains: None, dead: RetiredVars::new() })));
        // SAFETY: made from a box, and borrowed as `self` is.
        unsafe { self.rare.get_or_insert_with(make).as_mut() }
    }

    #[cold]
    fn drop_rare(&mut self) {
        if let Some(rare) = self.rare.take() {
            // SAFETY: it was made from a box, and nobody else has it.
            drop(unsafe { Box::from_raw(rare.as_ptr()) });
        }
    }

    /// StepKind is left when it was not used to the end, as on unwinding.
    #[cold]
    fn drop_rest(&mut self) {
        drop(self.take_shared());
        // As with any token that is dropped.
        while let Some(granted) = self.next_granted() {
            drop(granted);
        }
    }
}

impl<V, T> Default for Completed<V, T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<V, T> Drop for Completed<V, T> {
    #[inline(always)]
    fn drop(&mut self) {
        if self.head.is_some() || self.own.is_some() || self.rare.is_some() {
            self.drop_rest();
        }
    }
}

impl<V, T> fmt::Debug for Completed<V, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Completed").field("has_granted", &self.has_granted()).finish_non_exhaustive()
    }
}
