//! Withdrawal: an operation that waits leaves its queues as if it had not been submitted.
//!
//! An operation that is no longer needed (a request that timed out, a readiness query that was dropped) must
//! not keep others waiting. While the locks of all its variables are held, none of its accesses can be
//! granted. So the operation either waits, and is taken out, or has been granted already, and stays.

use crate::biased_lock::CriticalSection;
use crate::operation::access::{AccessMode, AccessPtr, Accesses};
use crate::operation::block::Block;
use crate::operation::completed::Completed;
use crate::operation::granted::{DeliverGranted, Granted, grant_next};
use crate::operation::op_ref::OpRef;
use crate::operation::submit;
use crate::variable::collapse::Group;
use crate::variable::var::VarNode;

impl<V, T> OpRef<V, T> {
    /// Takes the operation out of its queues if it waits: it will never be granted, and operations behind it
    /// may be. False, and without effect, if the operation is granted or over, or was withdrawn before.
    ///
    /// `ready` gets every operation that is granted by this, under no lock; operations that wait for the same
    /// variable come in the order of their submission. The variables' `V` and flags are not touched; last,
    /// the `V` of variables that ended with this operation are dropped, as by [`Granted::complete`].
    ///
    /// If `ready` panics, the remaining operations are still handed to it.
    ///
    /// # Panics
    /// If the operation is a [collapse](crate::Graph::collapse) that waits.
    #[must_use = "an operation that was not withdrawn is granted, or will be"]
    pub fn withdraw(&self, ready: impl FnMut(Granted<V, T>)) -> bool {
        self.withdraw_what(WithdrawScope::All, ready)
    }

    /// As [`withdraw`](Self::withdraw), if the operation only reads. An operation that also writes leaves the
    /// queues of the variables that it reads, and stays in the others: it is granted as soon as its writes
    /// are, perhaps at once, and then `ready` gets it, too. The result is then false.
    ///
    /// # Panics
    /// As [`withdraw`](Self::withdraw).
    pub fn withdraw_reads(&self, ready: impl FnMut(Granted<V, T>)) -> bool {
        self.withdraw_what(WithdrawScope::Reads, ready)
    }

    fn withdraw_what(&self, what: WithdrawScope, ready: impl FnMut(Granted<V, T>)) -> bool {
        // SAFETY: our reference keeps the operation.
        let generation = unsafe { self.as_block().graph() }.generation;
        // True for withdrawn and completed operations, too. In a forked child, locks may be held for ever.
        if self.as_block().is_granted() || generation.is_inherited() {
            return false;
        }
        let mut ended = Completed::new();
        let withdrawn = self.withdraw_from_queues(what, &mut ended);
        DeliverGranted::new(&mut ended, ready).rest();
        // Releases the operation's reference to itself; ours keeps the payload.
        drop(ended.take_shared());
        withdrawn
    }

    fn withdraw_from_queues(&self, what: WithdrawScope, ended: &mut Completed<V, T>) -> bool {
        // SAFETY: our reference keeps the operation.
        let graph = unsafe { self.as_block().graph() };
        let live = graph.registry().lock();
        if self.as_block().is_granted() {
            return false;
        }
        // SAFETY: an operation that waits is in flight.
        assert!(unsafe { self.as_block().is_listed() }, "a collapse cannot be withdrawn");
        // SAFETY: no access of an operation that waits has been completed, so each of its variables was alive
        // just now, and none can be freed while the registry is locked. All locks are taken in the order of
        // submitters, each is released once, and while they are held no other thread grants or completes an
        // access of the operation.
        let withdrawn = unsafe {
            let accesses = Block::accesses(self.block);
            let section = submit::begin_section(accesses);
            for access in accesses {
                // The word is read again when the lock is released.
                let _ =
                    access.as_ref().target().node().as_ref().lock.lock_within(&section, || graph.address());
            }
            if self.as_block().is_granted() {
                unlock_all(accesses);
                false
            } else if what == WithdrawScope::All || accesses.clone().all(|access| reads(access)) {
                self.as_block().set_over();
                ended.own = Some(self.block);
                accesses.for_each(|access| withdraw_from_queue(&section, access, ended));
                true
            } else {
                self.withdraw_from_read_queues(accesses, &section, ended);
                false
            }
        };
        drop(live);
        withdrawn
    }

    /// Unlinks the reads, and releases all locks.
    ///
    /// # Safety
    /// The caller has taken the locks of all accesses, within `section`, and has locked the registry. The
    /// operation waits.
    unsafe fn withdraw_from_read_queues(
        &self,
        accesses: Accesses<V, T>,
        section: &CriticalSection,
        ended: &mut Completed<V, T>,
    ) {
        // SAFETY: forwarded to the caller.
        unsafe {
            let waits = |access: &AccessPtr<V, T>| {
                !reads(*access) && !access.as_ref().target().node().as_ref().queue.is_granted_write(*access)
            };
            let pending = accesses.filter(waits).count() as u32;
            self.as_block().set_pending(pending);
            accesses
                .filter(|access| reads(*access))
                .for_each(|access| withdraw_from_queue(section, access, ended));
            Block::keep_writes(self.block);
            if pending == 0 {
                ended.push(self.block);
            }
            unlock_all(Block::accesses(self.block));
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum WithdrawScope {
    All,
    Reads,
}

/// # Safety
/// The access is of an operation that waits, and its variable's lock is held.
unsafe fn reads<V, T>(access: AccessPtr<V, T>) -> bool {
    // SAFETY: forwarded to the caller.
    unsafe { !access.as_ref().target().is_exclusive() }
}

/// # Safety
/// The caller has taken them, and uses no access afterwards.
unsafe fn unlock_all<V, T>(accesses: Accesses<V, T>) {
    // SAFETY: forwarded to the caller. An iterator does not access the block.
    accesses.for_each(|access| unsafe { drop(VarNode::guard_locked(access.as_ref().target().node())) });
}

/// Unlinks one access, granted or not, grants what may go next, and releases the lock.
///
/// # Safety
/// The caller has taken the lock of the access's variable, within `section`, and owns the operation, which is
/// not granted. `ended` is used when no lock is held.
unsafe fn withdraw_from_queue<V, T>(
    section: &CriticalSection,
    access: AccessPtr<V, T>,
    ended: &mut Completed<V, T>,
) {
    // SAFETY: forwarded to the caller.
    unsafe {
        let target = access.as_ref().target();
        let mut guard = VarNode::guard_locked(target.node());
        if guard.word.group() && target.is_exclusive() {
            Group::withdraws(&mut guard, access);
        }
        guard.queue(|queue| queue.withdraw(access, target.is_exclusive()));
        let empty = grant_next(section, &mut guard, target.is_exclusive(), ended);
        if guard.word.group() {
            // No write was completed, but the queue may be empty now.
            Group::completed(&mut guard, AccessMode::Read, ended.retired());
        }
        if empty && guard.word.orphaned() {
            ended.retired().retire(target.node());
        }
    }
}
