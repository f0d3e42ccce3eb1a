//! Variables that ended while somebody still held a bit.

use std::ptr::NonNull;

use crate::variable::var::VarNode;

/// Variables found dead while bits were held or operations still had to be handed over; retired when dropped.
pub(crate) struct RetiredVars<V, T> {
    retired: Vec<NonNull<VarNode<V, T>>>,
    /// Members of a group whose accesses are through.
    parked: Vec<NonNull<VarNode<V, T>>>,
}

impl<V, T> RetiredVars<V, T> {
    pub(crate) fn new() -> Self {
        Self { retired: Vec::new(), parked: Vec::new() }
    }

    /// # Safety
    /// The caller found `node` orphaned and empty under its bit, as the only one.
    pub(crate) unsafe fn retire(&mut self, node: NonNull<VarNode<V, T>>) {
        self.retired.push(node);
    }

    /// # Safety
    /// `node` was parked, the caller took it off the parked list, and its accesses are through.
    pub(crate) unsafe fn destroy(&mut self, node: NonNull<VarNode<V, T>>) {
        self.parked.push(node);
    }
}

impl<V, T> Drop for RetiredVars<V, T> {
    fn drop(&mut self) {
        // SAFETY: the contracts of the two methods; the list is dropped when no bit is held.
        unsafe {
            let retired = self.retired.drain(..).filter_map(|node| VarNode::retire(node));
            let parked = self.parked.drain(..).filter_map(|node| VarNode::destroy(node));
            retired.chain(parked).for_each(|target| VarNode::release_handle(target));
        }
    }
}
