//! Variables that ended while a lock was held.

use std::ptr::NonNull;

use crate::variable::var::VarNode;

/// Variables that ended while locks were held or granted operations were still to be handed over. Retires
/// them when dropped.
pub(crate) struct RetiredVars<V, T> {
    retired: Vec<NonNull<VarNode<V, T>>>,
    /// Members of a group whose accesses have completed.
    parked: Vec<NonNull<VarNode<V, T>>>,
}

impl<V, T> RetiredVars<V, T> {
    pub(crate) fn new() -> Self {
        Self { retired: Vec::new(), parked: Vec::new() }
    }

    /// # Safety
    /// The caller, and no other thread, found `node` orphaned and empty under its lock.
    pub(crate) unsafe fn retire(&mut self, node: NonNull<VarNode<V, T>>) {
        self.retired.push(node);
    }

    /// # Safety
    /// `node` was parked, the caller took it off the parked list, and its accesses have completed.
    pub(crate) unsafe fn destroy(&mut self, node: NonNull<VarNode<V, T>>) {
        self.parked.push(node);
    }
}

impl<V, T> Drop for RetiredVars<V, T> {
    fn drop(&mut self) {
        // SAFETY: the contracts of the two methods; the list is dropped when no lock is held.
        unsafe {
            let retired = self.retired.drain(..).filter_map(|node| VarNode::retire(node));
            let parked = self.parked.drain(..).filter_map(|node| VarNode::destroy(node));
            retired.chain(parked).for_each(|target| VarNode::release_handle(target));
        }
    }
}
