//! Submission: an operation joins the queues of all its variables in one atomic step.

use crate::biased_lock::CriticalSection;
use crate::operation::access::{AccessPtr, Accesses, Target};
use crate::operation::block::{Block, BlockPtr};
use crate::operation::granted::Granted;
use crate::operation::targets::{self, Targets};
use crate::variable::var::VarNode;

/// Appends the operation to the queues of its variables, or of the variables that order them.
///
/// # Safety
/// The caller owns the block, whose accesses are normalized, and holds a handle of each of its variables.
/// Afterwards the block belongs to the operation's `Granted`.
#[inline(always)]
pub(crate) unsafe fn append<V, T>(block: BlockPtr<V, T>) -> Option<Granted<V, T>> {
    // SAFETY: the caller's handles keep the nodes and what they forward to. The block is ours until the first
    // lock is released, and again if the operation is granted. Until the last lock is released, the operation
    // stays in flight with its accesses, since its completion needs every lock.
    unsafe {
        let mut accesses = Block::accesses(block);
        let section = begin_section(accesses);
        while !lock_all(accesses, &section) {
            follow_forwards(block);
            accesses = Block::accesses(block);
        }
        let granted = link_all(block, accesses);
        for access in accesses {
            let target = access.as_ref().target();
            let lock = &target.node().as_ref().lock;
            let word = lock.load_locked();
            lock.unlock(if target.is_exclusive() { word.with_unfinished_write(true) } else { word });
        }
        granted.then(|| Granted::new(block))
    }
}

/// Enters a critical section of the accesses' graph, if there are any.
///
/// # Safety
/// The caller owns the accesses, and keeps the nodes alive.
#[inline(always)]
pub(crate) unsafe fn begin_section<V, T>(mut accesses: Accesses<V, T>) -> CriticalSection {
    match accesses.next() {
        // SAFETY: forwarded to the caller.
        Some(access) => unsafe { access.as_ref().target().node().as_ref() }.graph.biased.acquire(),
        None => CriticalSection::NONE,
    }
}

/// Follows the forwards of collapsed variables. Each call follows at least one new forward, and forwards
/// never cycle.
///
/// # Safety
/// The caller owns the block, which is in no queue; its handles keep the nodes.
#[cold]
unsafe fn follow_forwards<V, T>(block: BlockPtr<V, T>) {
    // SAFETY: the handles keep the nodes and what they forward to; the block is ours.
    unsafe {
        let mut targets: Targets<V, T> = Block::accesses(block)
            .map(|access| access.as_ref().target())
            .map(|target| Target::new(VarNode::resolve(target.node()), target.mode()))
            .collect();
        targets::normalize(&mut targets);
        Block::set_targets(block, &targets);
    }
}

/// Takes the locks of all the accesses' variables in lock order, or none: false if one of them is forwarded.
///
/// All submitters take locks in the same order and hold them together, so submissions happen one after the
/// other if they share a variable, and no cycle of waiting submitters can form.
///
/// # Safety
/// The caller owns the accesses, which are normalized, and keeps the nodes alive. If true, the caller must
/// release every lock.
#[inline(always)]
pub(crate) unsafe fn lock_all<V, T>(accesses: Accesses<V, T>, section: &CriticalSection) -> bool {
    // SAFETY: forwarded to the caller.
    unsafe {
        let node = |access: AccessPtr<V, T>| access.as_ref().target().node();
        debug_assert!(accesses.is_sorted_by_key(|access| VarNode::lock_rank(node(access))));
        let mut left = accesses;
        while let Some(access) = left.next() {
            let lock = &node(access).as_ref().lock;
            let word = lock.lock_within(section, || node(access).as_ref().graph.address());
            if word.forwarded() {
                lock.unlock(word);
                for earlier in accesses.take(accesses.len() - left.len() - 1) {
                    drop(VarNode::guard_locked(node(earlier)));
                }
                return false;
            }
        }
        true
    }
}

/// Links the operation's accesses at the ends of their queues. True: all are granted.
///
/// # Safety
/// The caller holds the locks of the operation's variables and owns the block, which is in no queue and has
/// these accesses.
#[inline(always)]
pub(crate) unsafe fn link_all<V, T>(block: BlockPtr<V, T>, accesses: Accesses<V, T>) -> bool {
    let mut pending = 0;
    // SAFETY: the block is ours; its variables' locks are held, so no thread grants before the plain store.
    unsafe {
        for access in accesses {
            let target = access.as_ref().target();
            let granted = target.node().as_ref().queue.append(access, target.is_exclusive());
            pending += u32::from(!granted);
        }
        block.as_ref().set_pending(pending);
    }
    pending == 0
}
