//! What keeps a graph's memory alive: of variables, and of blocks that no queued access pins.

use std::ops::Deref;
use std::ptr::NonNull;

use estafette_sync::sync::Arc;

use crate::graph::Inner;

/// What keeps a graph's memory alive: counted as an `Arc`, unless the graph is immortal.
pub(crate) struct Owner<V, T>(NonNull<Inner<V, T>>);

impl<V, T> Owner<V, T> {
    pub(crate) fn new(inner: &Arc<Inner<V, T>>) -> Self {
        if inner.immortal {
            Self(NonNull::from(&**inner))
        } else {
            let counted = Arc::into_raw(Arc::clone(inner)).cast_mut();
            // SAFETY: an `Arc` is not null.
            Self(unsafe { NonNull::new_unchecked(counted) })
        }
    }

    /// What need not be counted.
    #[inline(always)]
    pub(crate) fn immortal(&self) -> Option<NonNull<Inner<V, T>>> {
        self.inner().immortal.then_some(self.0)
    }

    #[inline(always)]
    pub(crate) fn inner(&self) -> &Inner<V, T> {
        // SAFETY: an immortal graph's memory is never freed; any other is kept by our count.
        unsafe { self.0.as_ref() }
    }
}

impl<V, T> Deref for Owner<V, T> {
    type Target = Inner<V, T>;

    #[inline(always)]
    fn deref(&self) -> &Inner<V, T> {
        self.inner()
    }
}

impl<V, T> Clone for Owner<V, T> {
    fn clone(&self) -> Self {
        if !self.inner().immortal {
            // SAFETY: made from a counted one in `new`.
            unsafe { Arc::increment_strong_count(self.0.as_ptr()) };
        }
        Self(self.0)
    }
}

impl<V, T> Drop for Owner<V, T> {
    fn drop(&mut self) {
        if !self.inner().immortal {
            // SAFETY: made from a counted one in `new`.
            drop(unsafe { Arc::from_raw(self.0.as_ptr()) });
        }
    }
}
