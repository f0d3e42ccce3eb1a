//! The graph: handles of the memory behind variables and operations.

use std::fmt;

use estafette_sync::sync::Arc;

use crate::biased_lock::BiasedLock;
use crate::operation::slab::Slab;
use crate::reentry::{GraphAddress, panic_if_lent};
use crate::registry::Registry;
use crate::variable::var::{Var, VarNode};

/// Keeps the order of operations over variables.
///
/// `V` is what the user keeps per variable, `T` what the user keeps per operation. Clones are handles of the same
/// graph; variables and operations live on without one.
pub struct Graph<V, T> {
    pub(crate) state: Arc<GraphState<V, T>>,
}

/// The memory of a graph. Kept alive by graph handles, by every variable, and by operations that no queued access
/// pins (those without accesses, and those with an `OpRef`).
pub(crate) struct GraphState<V, T> {
    /// Never freed, so nothing need count who still uses it.
    pub(crate) immortal: bool,
    pub(crate) biased: BiasedLock,
    pub(crate) slab: Slab<V, T>,
    registry: Registry<V, T>,
}

impl<V, T> GraphState<V, T> {
    /// Names the graph for [`reentry`](crate::reentry).
    pub(crate) fn address(&self) -> GraphAddress {
        std::ptr::from_ref(self).cast()
    }

    /// Every live variable.
    ///
    /// # Panics
    /// In a closure that has borrowed state of the graph: the registry may be locked around it.
    pub(crate) fn registry(&self) -> &Registry<V, T> {
        panic_if_lent(self.address());
        &self.registry
    }
}

impl<V, T> Graph<V, T> {
    /// A graph without variables.
    pub fn new() -> Self {
        Self::with_lifetime(false)
    }

    /// A graph whose memory is never freed, for a process that has one graph. Saves counting who still uses it: two locked
    /// instructions per operation with a reference, and two per operation for a free list shared by threads. While only one
    /// thread uses it, that one saves nearly all others, too.
    pub fn immortal() -> Self {
        let graph = Self::with_lifetime(true);
        // An execution of a simulation has a graph of its own, which goes with the execution's other statics.
        #[cfg(not(estafette_shuttle))]
        std::mem::forget(Arc::clone(&graph.state));
        graph
    }

    /// As [`immortal`](Self::immortal) is, biased towards its first thread; for models, where nothing is immortal. It must
    /// outlive what every thread does with it.
    #[cfg(estafette_loom)]
    pub fn biased() -> Self {
        let (slab, registry) = (Slab::new(false), Registry::new());
        Self {
            state: Arc::new(GraphState { immortal: false, biased: BiasedLock::unclaimed(), slab, registry }),
        }
    }

    fn with_lifetime(immortal: bool) -> Self {
        let biased = if immortal { BiasedLock::unclaimed() } else { BiasedLock::shared() };
        Self {
            state: Arc::new(GraphState {
                immortal,
                biased,
                slab: Slab::new(immortal),
                registry: Registry::new(),
            }),
        }
    }

    /// Says that several threads will use the graph. They may without, but the second one is spared some microseconds, and an
    /// immortal graph's first thread saves its locked instructions until then.
    pub fn share(&self) {
        self.state.biased.share();
    }

    /// A new variable with its state.
    pub fn var(&self, state: V) -> Var<V, T> {
        Var::new(&self.state, state)
    }

    /// An operation in the queue of another graph's variable would outlive the memory of its own.
    #[inline]
    pub(crate) fn assert_mine(&self, node: &VarNode<V, T>) {
        assert!(
            std::ptr::eq(node.graph.get(), &raw const *self.state),
            "{} belongs to another graph",
            node.id()
        );
    }
}

impl<V, T> Clone for Graph<V, T> {
    fn clone(&self) -> Self {
        Self { state: Arc::clone(&self.state) }
    }
}

impl<V, T> Default for Graph<V, T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<V, T> fmt::Debug for Graph<V, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Graph").finish_non_exhaustive()
    }
}
