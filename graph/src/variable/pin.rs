//! Pins: granted reads that are counted and have no operation.
//!
//! A thread that reads a variable for a while, and has nothing to run, needs no block, no payload and no
//! token: a count of readers is enough, as in MXNet's variables. A pin is granted at once or refused, so it
//! never waits and is never granted later. The caller notes the owner of a pin in the variable's `V`.

use crate::graph::Graph;
use crate::id::OpId;
use crate::operation::access::AccessNode;
use crate::operation::completed::Completed;
use crate::operation::granted::{DeliverGranted, Granted};
use crate::variable::var::{Var, VarGuard, VarNode};

impl<V, T> Var<V, T> {
    /// Joins the granted reads, if a read would be granted at once and `accept`, which gets the variable's
    /// state and user flags, returns true. Otherwise nothing changes. Every write that is submitted from then
    /// on waits until the caller [unpins](Self::unpin). Collapsed variables and their groups cannot be
    /// pinned.
    ///
    /// `accept` runs under the lock: the rules of [`with_state`](Self::with_state) apply.
    #[must_use = "a pin that is not released blocks every write for ever"]
    #[inline]
    pub fn try_pin(&self, accept: impl FnOnce(&mut V, u32) -> bool) -> bool {
        // SAFETY: our handle keeps the node.
        let mut guard = unsafe { VarNode::lock(self.node()) };
        if guard.word.forwarded() || guard.word.group() {
            return false;
        }
        // SAFETY: the lock is held.
        if !guard.queue(|queue| unsafe { queue.try_pin() }) {
            return false;
        }
        let mut counted = Counted { guard, kept: false };
        counted.kept = counted.guard.with_state(|state, flags| accept(state, *flags));
        counted.kept
    }

    /// Releases a [pin](Self::try_pin) of this variable. `finish` gets the variable's state and user flags
    /// *under the lock*: the rules of [`with_state`](Self::with_state) apply. `ready` then gets the
    /// operations that are granted by this, under no lock.
    ///
    /// # Panics
    /// If the variable is not pinned.
    #[inline]
    pub fn unpin(&self, finish: impl FnOnce(&mut V, &mut u32), ready: impl FnMut(Granted<V, T>)) {
        let mut ended = Completed::new();
        // SAFETY: our handle keeps the node. Operations in the queue are in flight while the lock is held;
        // each is pushed once, when it is granted.
        unsafe {
            let section = self.node().as_ref().graph.biased.acquire();
            let mut guard = VarNode::lock_within(self.node(), &section);
            let flags_before = guard.word.user();
            guard.with_state(finish);
            if guard.word.user() != flags_before {
                // An operation that is granted here may read the flags before the lock is released.
                self.node().as_ref().lock.publish(guard.word);
            }
            guard.queue(|queue| {
                queue.unpin();
                queue.advance(false, |granted| {
                    let op = AccessNode::op(granted);
                    if op.as_ref().grant_one(&section) {
                        ended.push(op);
                    }
                });
            });
        }
        DeliverGranted::new(&mut ended, ready).rest();
    }
}

/// A counted pin. Taken back when dropped, unless it is kept: also if `accept` panics.
struct Counted<V, T> {
    guard: VarGuard<V, T>,
    kept: bool,
}

impl<V, T> Drop for Counted<V, T> {
    #[inline]
    fn drop(&mut self) {
        if !self.kept {
            // SAFETY: the lock has been held since the pin was counted, so no operation waits for the pin.
            self.guard.queue(|queue| unsafe { queue.unpin() });
        }
    }
}

impl<V, T> Graph<V, T> {
    /// An id that no operation has: for a pin, in [snapshots](Self::snapshot_with).
    pub fn next_id(&self) -> OpId {
        OpId::new(self.state.slab.number())
    }
}
