//! Every live variable of a graph, for snapshots of all of them.

use std::ptr::NonNull;

use estafette_sync::process::Generation;
use estafette_sync::sync::{Mutex, MutexGuard};

use crate::graph::Graph;
use crate::operation::op_ref::OpRef;
use crate::variable::var::VarNode;

/// A list that changes when a variable is made or destroyed, never by an operation.
///
/// A node is freed only after its removal from this list, so a thread that holds the registry's lock may
/// access every node on the list. The registry's lock is taken before any variable's lock, never while one is
/// held.
///
/// A [`RegistryScan`] accesses nodes without the lock. Nodes that are removed meanwhile are freed by the last
/// scan's end.
pub(crate) struct Registry<V, T> {
    live: Mutex<RegistryState<V, T>>,
    generation: Generation,
}

pub(crate) struct RegistryState<V, T> {
    nodes: Vec<NonNull<VarNode<V, T>>>,
    next_id: u64,
    scans: usize,
    /// Nodes that were removed from the list during a scan.
    gone: Vec<NonNull<VarNode<V, T>>>,
}

/// While a scan lives, no node is freed that was alive at its beginning or later.
pub(crate) struct RegistryScan<'a, V, T> {
    registry: &'a Registry<V, T>,
}

/// Nodes that a scan copies from the list under one lock.
const CHUNK: usize = if cfg!(estafette_loom) { 2 } else { 1024 };

impl<V, T> Registry<V, T> {
    pub(crate) fn new() -> Self {
        let live = RegistryState { nodes: Vec::new(), next_id: 1, scans: 0, gone: Vec::new() };
        Self { live: Mutex::new(live), generation: Generation::current() }
    }

    /// Adds a node to the list, which `make` builds from its number and its index.
    pub(crate) fn add(
        &self,
        make: impl FnOnce(u64, usize) -> NonNull<VarNode<V, T>>,
    ) -> NonNull<VarNode<V, T>> {
        if self.generation.is_inherited() {
            // The lock may be held for ever. No thread reads the list any more, so the variable need not be
            // on it.
            return make(0, 0);
        }
        let mut live = self.lock();
        let node = make(live.next_id, live.nodes.len());
        live.next_id += 1;
        live.nodes.push(node);
        node
    }

    /// Removes a node from the list. True: no other thread can reach the node any more, and the caller frees
    /// it. False: a scan frees it.
    ///
    /// # Safety
    /// The node is on the list, and ends. The caller uses it afterwards only to free it.
    pub(crate) unsafe fn remove(&self, node: NonNull<VarNode<V, T>>) -> bool {
        let mut live = self.lock();
        // SAFETY: nodes on the list are alive, and indices are accessed under this lock only.
        unsafe {
            let index = node.as_ref().registry_index.with(|index| *index);
            debug_assert_eq!(live.nodes.get(index), Some(&node));
            live.nodes.swap_remove(index);
            if let Some(moved) = live.nodes.get(index) {
                moved.as_ref().registry_index.with_mut(|its| *its = index);
            }
        }
        let is_free = live.scans == 0;
        if !is_free {
            live.gone.push(node);
        }
        is_free
    }

    pub(crate) fn scan(&self) -> RegistryScan<'_, V, T> {
        self.lock().scans += 1;
        RegistryScan { registry: self }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, RegistryState<V, T>> {
        self.live.lock()
    }
}

impl<V, T> RegistryScan<'_, V, T> {
    /// Calls `f` with every node that is alive from now until that call, in no particular order and perhaps
    /// twice. The lock is not held during a call.
    pub(crate) fn each(&self, mut f: impl FnMut(NonNull<VarNode<V, T>>)) {
        // From the end to the beginning: the last node takes the index of a removed one.
        let mut end = usize::MAX;
        let mut chunk = Vec::with_capacity(CHUNK);
        while end > 0 {
            {
                let live = self.registry.lock();
                let nodes = &live.nodes[..end.min(live.nodes.len())];
                end = nodes.len().saturating_sub(CHUNK);
                chunk.extend_from_slice(&nodes[end..]);
            }
            chunk.drain(..).for_each(&mut f);
        }
    }
}

impl<V, T> Drop for RegistryScan<'_, V, T> {
    fn drop(&mut self) {
        let mut live = self.registry.lock();
        live.scans -= 1;
        let gone = if live.scans == 0 { std::mem::take(&mut live.gone) } else { Vec::new() };
        drop(live);
        for node in gone {
            // SAFETY: the node was removed from the list, and no scan is left that could have found it.
            unsafe { VarNode::free(node) };
        }
    }
}

impl<V, T> Graph<V, T> {
    /// References to every operation that waits anywhere, ascending by id, without collapses. Visits every
    /// live variable, one after the other, and each access once.
    ///
    /// Each reference is made before the operation is granted, so its token reports it as
    /// [referenced](crate::Granted::is_referenced).
    #[must_use]
    pub fn waiting(&self) -> Vec<OpRef<V, T>> {
        let mut found: Vec<OpRef<V, T>> = Vec::new();
        let scan = self.state.registry().scan();
        // SAFETY: the scan keeps the nodes. Nothing is queued on a node that has ended.
        scan.each(|node| unsafe { VarNode::queued_into(node, |_, granted| !granted, &mut found) });
        drop(scan);
        found.sort_by_key(OpRef::id);
        found.dedup_by_key(|op| op.id());
        found
    }
}

// SAFETY: the pointers are used under the lock or a variable's lock; what they reach is `V` and `T`.
unsafe impl<V: Send, T: Send + Sync> Send for Registry<V, T> {}
// SAFETY: as above.
unsafe impl<V: Send, T: Send + Sync> Sync for Registry<V, T> {}
