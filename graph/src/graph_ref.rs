//! References that keep a graph's memory alive.

use std::ops::Deref;
use std::ptr::NonNull;

use estafette_sync::sync::Arc;

use crate::graph::GraphState;

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
