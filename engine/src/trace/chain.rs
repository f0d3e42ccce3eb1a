//! A list that one thread appends to while others read it. There is no lock in it but for its beginning, so
//! that a thread that appends never waits for one that reads.

// Plain std, and no mutex of `estafette_sync`: in models of the buffers it would be a further lock whose
// order loom explores, while what they check is the order that the buffers have without it.
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// One value, and what comes after it.
#[derive(Debug)]
pub(super) struct ChainLink<T> {
    pub(super) value: T,
    next: OnceLock<Arc<Self>>,
}

/// The beginning of the list.
#[derive(Debug)]
pub(super) struct Chain<T>(Mutex<Option<Arc<ChainLink<T>>>>);

impl<T> Default for Chain<T> {
    fn default() -> Self {
        Self(Mutex::new(None))
    }
}

impl<T> Chain<T> {
    /// Appends a value after `last`, which is what the same thread has appended before. Returns its link.
    pub(super) fn append(&self, last: Option<&ChainLink<T>>, value: T) -> Arc<ChainLink<T>> {
        let link = Arc::new(ChainLink { value, next: OnceLock::new() });
        match last {
            Some(last) => _ = last.next.set(Arc::clone(&link)),
            None => *self.lock() = Some(Arc::clone(&link)),
        }
        link
    }

    /// The first link, if there is one yet.
    pub(super) fn first(&self) -> Option<Arc<ChainLink<T>>> {
        self.lock().clone()
    }

    /// The links that there are, from the first one.
    pub(super) fn links(&self) -> impl Iterator<Item = Arc<ChainLink<T>>> + use<T> {
        std::iter::successors(self.first(), |link| link.next())
    }

    /// Takes the first link off the list if `is_over` returns true for it. A thread that goes on appending
    /// has to keep its last link.
    pub(super) fn pop(&self, is_over: impl FnOnce(&ChainLink<T>) -> bool) -> Option<Arc<ChainLink<T>>> {
        let mut first = self.lock();
        let link = first.take_if(|link| is_over(link))?;
        *first = link.next();
        Some(link)
    }

    fn lock(&self) -> MutexGuard<'_, Option<Arc<ChainLink<T>>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> ChainLink<T> {
    /// The element after it.
    pub(super) fn next(&self) -> Option<Arc<Self>> {
        self.next.get().cloned()
    }
}

impl<T> Drop for ChainLink<T> {
    fn drop(&mut self) {
        // One after the other: a long list dropped link by link from within would need a stack as long.
        let mut next = self.next.take();
        while let Some(mut link) = next.and_then(Arc::into_inner) {
            next = link.next.take();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_appended_is_seen_in_order_and_a_long_list_is_dropped() {
        let chain = Chain::default();
        assert!(chain.first().is_none());
        let mut last: Option<Arc<ChainLink<u32>>> = None;
        for value in 0..300_000 {
            last = Some(chain.append(last.as_deref(), value));
        }
        let second = chain.first().and_then(|first| first.next()).map(|link| link.value);
        assert_eq!(second, Some(1));
        assert!(chain.links().map(|link| link.value).eq(0..300_000));
        assert!(chain.pop(|first| first.value == 1).is_none());
        let (first, second) = (chain.pop(|_| true), chain.pop(|link| link.next().is_some()));
        assert_eq!([first, second].map(|link| link.map(|link| link.value)), [Some(0), Some(1)]);
        assert!(chain.links().map(|link| link.value).eq(2..300_000));
        drop(last);
        drop(chain);
    }
}
