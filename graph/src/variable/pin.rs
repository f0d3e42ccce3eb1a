//! Reads without an operation.
//!
//! Whoever looks at a variable for a while, and has nothing to run, needs no block, no payload and no token for it: being counted
//! among the granted readers is enough, as in MXNet's variables. A *hold* is had at once or not at all, so it never waits and
//! nobody ever has to grant it. Who holds is for the caller to note, in the variable's `V`.

use crate::graph::Graph;
use crate::id::OpId;
use crate::operation::access::Access;
use crate::operation::completed::Completed;
use crate::operation::granted::{DeliverGranted, Granted};
use crate::variable::var::{Var, VarGuard, VarNode};

impl<V, T> Var<V, T> {
    /// Joins the granted reads, if a read would be granted at once and `accept`, which gets the variable's state and user
    /// flags, says so; else nothing has happened. Every write that is submitted from then on waits until the hold
    /// [ends](Self::unpin). Variables that were collapsed, and their groups, cannot be held.
    ///
    /// `accept` runs under the bit: the rules of [`with_state`](Self::with_state) apply.
    #[must_use = "a hold that is not ended blocks every write for ever"]
    #[inline]
    pub fn try_pin(&self, accept: impl FnOnce(&mut V, u32) -> bool) -> bool {
        // SAFETY: our handle keeps the node.
        let mut guard = unsafe { VarNode::lock(self.node()) };
        if guard.word.forwarded() || guard.word.group() {
            return false;
        }
        // SAFETY: the bit is held.
        if !guard.queue(|queue| unsafe { queue.try_pin() }) {
            return false;
        }
        let mut counted = Counted { guard, kept: false };
        counted.kept = counted.guard.with_state(|state, flags| accept(state, *flags));
        counted.kept
    }

    /// Ends a [hold](self::try_pin) of this variable. `finish` gets the variable's state and user flags *under the bit*: the rules
    /// of [`with_state`](Self::with_state) apply. `ready` then gets what is granted by this, while no bit is held.
    ///
    /// # Panics
    /// If the variable is not held.
    #[inline]
    pub fn unpin(&self, finish: impl FnOnce(&mut V, &mut u32), ready: impl FnMut(Granted<V, T>)) {
        let mut ended = Completed::new();
        // SAFETY: our handle keeps the node. Operations in the queue are in flight while the bit is held; each is pushed once,
        // when it is granted.
        unsafe {
            let section = self.node().as_ref().graph.biased.enter();
            let mut guard = VarNode::lock_within(self.node(), &section);
            let flags_before = guard.word.user();
            guard.with_state(finish);
            if guard.word.user() != flags_before {
                // As at the end of an operation: who is granted here may look before the bit is given back.
                self.node().as_ref().lock.publish(guard.word);
            }
            guard.queue(|queue| {
                queue.unpin();
                queue.advance(false, |granted| {
                    let op = Access::op(granted);
                    if op.as_ref().grant_one(&section) {
                        ended.push(op);
                    }
                });
            });
        }
        DeliverGranted::new(&mut ended, ready).rest();
    }
}

/// A hold that is counted, and taken back unless it is kept: also if the closure that decides panics.
struct Counted<V, T> {
    guard: VarGuard<V, T>,
    kept: bool,
}

impl<V, T> Drop for Counted<V, T> {
    #[inline]
    fn drop(&mut self) {
        if !self.kept {
            // SAFETY: the bit is held, and was not given back since the hold was counted, so nothing waits for it.
            self.guard.queue(|queue| unsafe { queue.unpin() });
        }
    }
}

impl<V, T> Graph<V, T> {
    /// A number for a hold, from those of the operations, for [snapshots](Self::snapshot_with).
    pub fn next_id(&self) -> OpId {
        OpId::new(self.state.slab.number())
    }
}
