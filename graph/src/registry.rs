//! Every live variable of a graph, for snapshots of all of them.

use std::ptr::NonNull;
use std::sync::PoisonError;

use estafette_sync::abandoned::is_abandoned;
use estafette_sync::sync::{Mutex, MutexGuard};

use crate::graph::Graph;
use crate::op_ref::OpRef;
use crate::var::VarNode;

/// A list touched when a variable is made or destroyed, and never by an operation.
///
/// A node is freed only after it was taken off this list, so whoever holds the lock can look at every node on it.
/// The lock is taken before any variable's bit, never while one is held.
pub(crate) struct Registry<V, T> {
    live: Mutex<Live<V, T>>,
}

pub(crate) struct Live<V, T> {
    pub(crate) nodes: Vec<NonNull<VarNode<V, T>>>,
    next_id: u64,
}

impl<V, T> Registry<V, T> {
    pub(crate) fn new() -> Self {
        Self { live: Mutex::new(Live { nodes: Vec::new(), next_id: 1 }) }
    }

    /// Puts a node on the list that `make` builds from its number and its place.
    pub(crate) fn add(
        &self,
        make: impl FnOnce(u64, usize) -> NonNull<VarNode<V, T>>,
    ) -> NonNull<VarNode<V, T>> {
        if is_abandoned() {
            // The lock may be held for ever. Nobody looks at the list any more, so the variable need not be on it.
            return make(0, 0);
        }
        let mut live = self.lock();
        let node = make(live.next_id, live.nodes.len());
        live.next_id += 1;
        live.nodes.push(node);
        node
    }

    /// Takes a node off the list. Afterwards nobody but the caller can reach it.
    ///
    /// # Safety
    /// The node is on the list.
    pub(crate) unsafe fn remove(&self, node: NonNull<VarNode<V, T>>) {
        let mut live = self.lock();
        // SAFETY: nodes on the list are alive, and places are only touched under this lock.
        unsafe {
            let place = node.as_ref().place.with(|place| *place);
            debug_assert_eq!(live.nodes.get(place), Some(&node));
            live.nodes.swap_remove(place);
            if let Some(moved) = live.nodes.get(place) {
                moved.as_ref().place.with_mut(|its| *its = place);
            }
        }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Live<V, T>> {
        // A closure of a snapshot may have panicked under it; that touches neither the list nor its places.
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<V, T> Graph<V, T> {
    /// References to every operation that waits anywhere, ascending by id, without those that cannot be referenced (see
    /// [`Var::queued`](crate::Var::queued)). Looks at every live variable, one after the other.
    ///
    /// Each reference is made before the operation is granted, so whoever is granted it finds it
    /// [referenced](crate::Granted::is_referenced).
    #[must_use]
    pub fn waiting(&self) -> Vec<OpRef<V, T>> {
        let mut found: Vec<OpRef<V, T>> = Vec::new();
        let live = self.inner.registry().lock();
        for node in &live.nodes {
            // SAFETY: a node on the list is alive while its lock is held, and is locked before it is looked at.
            unsafe { VarNode::queued_into(*node, false, &mut found) };
        }
        drop(live);
        found.sort_by_key(OpRef::id);
        found.dedup_by_key(|op| op.id());
        found
    }
}

// SAFETY: the pointers are used under the lock or a variable's bit; what they reach is `V` and `T`.
unsafe impl<V: Send, T: Send + Sync> Send for Registry<V, T> {}
// SAFETY: as above.
unsafe impl<V: Send, T: Send + Sync> Sync for Registry<V, T> {}
