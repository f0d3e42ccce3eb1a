//! The graph, the memory behind its variables and operations, and references that keep that memory alive.

use std::ops::Deref;
use std::ptr::NonNull;

use estafette_sync::process::Generation;
use estafette_sync::sync::Arc;

use crate::biased_lock::BiasedLock;
use crate::operation::slab::Slab;
use crate::reentry::{GraphAddress, panic_if_lent};
use crate::registry::Registry;
use crate::variable::var::{Var, VarNode};

/// Keeps the order of operations over variables.
///
/// `V` is the user's state of a variable, `T` the user's payload of an operation. Clones are handles of the
/// same graph; variables and operations live on without one.
pub struct Graph<V, T> {
    pub(crate) state: Arc<GraphState<V, T>>,
}

/// The memory of a graph. Kept alive by graph handles, by every variable, and by every operation in flight or
/// referenced.
pub(crate) struct GraphState<V, T> {
    /// Never freed, so references to the graph are not counted.
    pub(crate) immortal: bool,
    /// The process that made it. In a forked child its locks may be held for ever.
    pub(crate) generation: Generation,
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

/// Keeps a graph's memory alive: counted as an `Arc`, unless the graph is immortal.
pub(crate) struct GraphRef<V, T>(NonNull<GraphState<V, T>>);

impl<V, T> GraphRef<V, T> {
    pub(crate) fn new(graph: &Arc<GraphState<V, T>>) -> Self {
        if graph.immortal {
            Self(NonNull::from(&**graph))
        } else {
            let counted = Arc::into_raw(Arc::clone(graph)).cast_mut();
            // SAFETY: an `Arc` is not null.
            Self(unsafe { NonNull::new_unchecked(counted) })
        }
    }

    #[inline(always)]
    pub(crate) fn immortal(&self) -> Option<NonNull<GraphState<V, T>>> {
        self.immortal.then_some(self.0)
    }
}

impl<V, T> Deref for GraphRef<V, T> {
    type Target = GraphState<V, T>;

    #[inline(always)]
    fn deref(&self) -> &GraphState<V, T> {
        // SAFETY: an immortal graph's memory is never freed; any other is kept by our count.
        unsafe { self.0.as_ref() }
    }
}

impl<V, T> Clone for GraphRef<V, T> {
    fn clone(&self) -> Self {
        if !self.immortal {
            // SAFETY: made from a counted one in `new`.
            unsafe { Arc::increment_strong_count(self.0.as_ptr()) };
        }
        Self(self.0)
    }
}

impl<V, T> Drop for GraphRef<V, T> {
    fn drop(&mut self) {
        if !self.immortal {
            // SAFETY: made from a counted one in `new`.
            drop(unsafe { Arc::from_raw(self.0.as_ptr()) });
        }
    }
}

impl<V, T> Graph<V, T> {
    /// A graph without variables.
    pub fn new() -> Self {
        Self::made(false, BiasedLock::shared())
    }

    /// A graph whose memory is never freed, for a process that has one graph. Saves four locked instructions
    /// per operation: two that count references to the graph, and two for a free list shared by threads.
    /// While only one thread uses the graph, that thread saves nearly all others, too.
    pub fn immortal() -> Self {
        let graph = Self::made(true, BiasedLock::unclaimed());
        // Each execution of a simulation has its own graph, which is freed with the execution's other
        // statics.
        #[cfg(not(estafette_shuttle))]
        std::mem::forget(Arc::clone(&graph.state));
        graph
    }

    /// A graph that is freed, and biased towards its first thread as an [immortal](Self::immortal) one is;
    /// for models. The graph must outlive its use by every thread.
    #[cfg(estafette_loom)]
    pub fn biased() -> Self {
        Self::made(false, BiasedLock::unclaimed())
    }

    fn made(immortal: bool, biased: BiasedLock) -> Self {
        Self {
            state: Arc::new(GraphState {
                immortal,
                generation: Generation::current(),
                biased,
                slab: Slab::new(immortal),
                registry: Registry::new(),
            }),
        }
    }

    /// States that several threads will use the graph. Optional: the second thread saves some microseconds,
    /// and the first thread of an immortal graph takes locks from now on.
    pub fn share(&self) {
        self.state.biased.share();
    }

    /// A new variable with its state.
    pub fn var(&self, state: V) -> Var<V, T> {
        Var::new(&self.state, state)
    }

    /// # Panics
    /// If the variable belongs to another graph: an operation in its queue would outlive its own graph's
    /// memory.
    #[inline]
    pub(crate) fn assert_mine(&self, node: &VarNode<V, T>) {
        assert!(
            std::ptr::eq(&raw const *node.graph, &raw const *self.state),
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

debug_as!([V, T] _graph: Graph<V, T>, "Graph");
