//! Submission: an operation joins the queues of all its variables in one atomic step.

use crate::access::{Mode, Target};
use crate::block::{Block, BlockPtr};
use crate::granted::Granted;
use crate::graph::Graph;
use crate::op_ref::OpRef;
use crate::targets::Targets;
use crate::var::{Var, VarNode};

impl<V, T> Graph<V, T> {
    /// Appends an operation to the queues of all its variables, atomically with regard to every other submission,
    /// and grants what can be granted. `Some`: all accesses may proceed at once. `None`: a later
    /// [`Granted::complete`] hands the operation to its `ready`.
    ///
    /// `accesses` may name a variable several times; a read and a write of one variable are an update. An operation
    /// without accesses is granted at once. Callable from any number of threads.
    ///
    /// # Panics
    /// If a variable belongs to another graph.
    pub fn submit<'a>(
        &self,
        payload: T,
        accesses: impl IntoIterator<Item = (&'a Var<V, T>, Mode)>,
    ) -> Option<Granted<V, T>>
    where
        V: 'a,
        T: 'a,
    {
        let mut targets = self.targets(accesses);
        let block = self.begin(payload, 1);
        if targets.as_slice().is_empty() {
            // No queue will pin the slab for this operation.
            // SAFETY: the block is ours.
            unsafe { block.as_ref().own(&self.inner) };
        }
        // SAFETY: the block is ours, and the handles behind `accesses` outlive the call.
        unsafe { append(block, &mut targets) }
    }

    /// [`submit`](Self::submit) that also gives a reference to the operation.
    ///
    /// # Panics
    /// If a variable belongs to another graph.
    pub fn submit_ref<'a>(
        &self,
        payload: T,
        accesses: impl IntoIterator<Item = (&'a Var<V, T>, Mode)>,
    ) -> (OpRef<V, T>, Option<Granted<V, T>>)
    where
        V: 'a,
        T: 'a,
    {
        let mut targets = self.targets(accesses);
        let block = self.begin(payload, 2);
        // SAFETY: the block is ours until it is appended; the reference is counted before, so that it outlives a
        // completion on another thread. The handles behind `accesses` outlive the call.
        unsafe {
            block.as_ref().own_early(&self.inner);
            let reference = OpRef::new(block);
            (reference, append(block, &mut targets))
        }
    }

    /// Checked, sorted and merged.
    fn targets<'a>(&self, accesses: impl IntoIterator<Item = (&'a Var<V, T>, Mode)>) -> Targets<V, T>
    where
        V: 'a,
        T: 'a,
    {
        let mut targets = Targets::new();
        for (var, mode) in accesses {
            // SAFETY: the handle keeps the node.
            self.assert_mine(unsafe { var.node().as_ref() });
            // What it forwards to is found when its bit is taken.
            targets.push(Target::new(var.node(), mode));
        }
        // SAFETY: as above.
        unsafe { targets.normalize() };
        targets
    }

    /// A block for a new operation, without accesses, that counts `refs` references to it.
    #[inline(always)]
    pub(crate) fn begin(&self, payload: T, refs: u32) -> BlockPtr<V, T> {
        let (block, id) = self.inner.slab.take();
        // SAFETY: the slab gave the block to us.
        unsafe { Block::begin(block, id, payload, refs) };
        block
    }
}

/// Appends the operation to `targets` and to whatever orders them.
///
/// # Safety
/// The caller owns the block, holds a handle of every target, and has `targets` normalized. Afterwards the block
/// belongs to whoever has its `Granted`.
#[inline]
pub(crate) unsafe fn append<V, T>(block: BlockPtr<V, T>, list: &mut Targets<V, T>) -> Option<Granted<V, T>> {
    // SAFETY: the caller's handles keep the nodes and what they forward to; the block is ours until the first bit is
    // given back, and again if it is granted.
    unsafe {
        while !lock_all(list.as_slice()) {
            follow_forwards(list);
        }
        let targets = list.as_slice();
        Block::aim(block, targets);
        let granted = link_all(block, targets);
        for target in targets.iter() {
            let state = &target.node().as_ref().state;
            let word = state.load_locked();
            state.unlock(if target.mode().is_exclusive() { word.with_unfinished_write(true) } else { word });
        }
        granted.then(|| Granted::new(block))
    }
}

/// Somebody collapsed a variable. Each round follows at least one new forward, and forwards never cycle.
///
/// # Safety
/// The caller's handles keep the nodes.
#[cold]
unsafe fn follow_forwards<V, T>(list: &mut Targets<V, T>) {
    // SAFETY: the handles keep the nodes and what they forward to.
    unsafe {
        for target in list.as_mut_slice() {
            *target = Target::new(VarNode::resolve(target.node()), target.mode());
        }
        list.normalize();
    }
}

/// Takes the bits of all targets in the order of their ranks, or none: false if one of them is forwarded.
///
/// All submitters take bits in the same order and hold them together, so submissions happen one after the other
/// wherever they share a variable, and no circle of waiting submitters can form.
///
/// # Safety
/// The caller keeps the nodes alive; `targets` is normalized. If true, the caller must give every bit back.
#[inline(always)]
pub(crate) unsafe fn lock_all<V, T>(targets: &[Target<V, T>]) -> bool {
    // SAFETY: forwarded to the caller.
    debug_assert!(targets.is_sorted_by_key(|target| unsafe { VarNode::rank(target.node()) }));
    for (index, target) in targets.iter().enumerate() {
        // SAFETY: forwarded to the caller.
        unsafe {
            let word = target.node().as_ref().state.lock();
            if word.forwarded() {
                target.node().as_ref().state.unlock(word);
                for taken in &targets[..index] {
                    let state = &taken.node().as_ref().state;
                    state.unlock(state.load_locked());
                }
                return false;
            }
        }
    }
    true
}

/// Links the operation's accesses at the ends of their queues. True: all are granted.
///
/// # Safety
/// The caller holds the bits of `targets` and owns the block, which is aimed at them and in no queue.
#[inline(always)]
pub(crate) unsafe fn link_all<V, T>(block: BlockPtr<V, T>, targets: &[Target<V, T>]) -> bool {
    let mut pending = 0;
    for (index, target) in targets.iter().enumerate() {
        // SAFETY: the block is ours and aimed; its variables' bits are held.
        unsafe {
            let access = Block::access(block, index);
            let granted =
                target.node().as_ref().queue.with_mut(|queue| (*queue).append(access, target.mode()));
            pending += u32::from(!granted);
        }
    }
    // SAFETY: the block is ours. All bits are held, so nobody grants before this plain store.
    unsafe { block.as_ref() }.set_pending(pending);
    pending == 0
}
