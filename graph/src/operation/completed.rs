//! The work that is left after the completion of an operation.

use std::ptr::NonNull;

use crate::operation::block::{Block, BlockPtr};
use crate::operation::granted::Granted;
use crate::operation::op_ref::OpRef;
use crate::variable::retired::RetiredVars;

/// The operations that a completion has granted, and the completed operation itself. Used and dropped under
/// no lock.
///
/// The caller must [take](Self::next_granted) every granted operation: no other thread has their tokens.
#[must_use = "an operation that is granted and never completed blocks everything behind it"]
pub struct Completed<V, T> {
    /// Granted operations that were not taken, linked through their blocks. The tail is meaningful only while
    /// there is a head.
    head: Option<BlockPtr<V, T>>,
    tail: Option<BlockPtr<V, T>>,
    /// The completed operation, with its reference to itself.
    pub(crate) own: Option<BlockPtr<V, T>>,
    /// Variables that ended with the operation, from a box.
    retired: Option<NonNull<RetiredVars<V, T>>>,
}

impl<V, T> Completed<V, T> {
    /// Nothing yet.
    #[inline(always)]
    pub const fn new() -> Self {
        Self { head: None, tail: None, own: None, retired: None }
    }

    /// The next operation that is granted now. Those that wait for the same variable come in the order of
    /// their submission.
    #[inline(always)]
    pub fn next_granted(&mut self) -> Option<Granted<V, T>> {
        let head = self.head?;
        // SAFETY: the head is ours; once its token is handed over, its block is not touched any more.
        unsafe {
            self.head = head.as_ref().next(Option::take);
            Some(Granted::new(head))
        }
    }

    /// True if [`next_granted`](Self::next_granted) returns an operation.
    #[inline(always)]
    pub fn has_granted(&self) -> bool {
        self.head.is_some()
    }

    /// Releases the completed operation. Returns it if other references exist, since their holders wait to be
    /// notified; otherwise drops its payload.
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
        if self.retired.is_some() {
            self.drop_retired();
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

    /// Variables that ended with the operation.
    #[cold]
    pub(crate) fn retired(&mut self) -> &mut RetiredVars<V, T> {
        let make = || NonNull::from(Box::leak(Box::new(RetiredVars::new())));
        // SAFETY: made from a box, and borrowed as `self` is.
        unsafe { self.retired.get_or_insert_with(make).as_mut() }
    }

    #[cold]
    fn drop_retired(&mut self) {
        if let Some(retired) = self.retired.take() {
            // SAFETY: made from a box, of which this was the only pointer.
            drop(unsafe { Box::from_raw(retired.as_ptr()) });
        }
    }

    /// Drops what the caller did not take, as on unwinding.
    #[cold]
    fn drop_rest(&mut self) {
        drop(self.take_shared());
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
        if self.head.is_some() || self.own.is_some() || self.retired.is_some() {
            self.drop_rest();
        }
    }
}

debug_as!([V, T] completed: Completed<V, T>, "Completed(has granted: {})", completed.has_granted());
