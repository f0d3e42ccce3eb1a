//! All accesses of one operation, inline or spilled.

use crate::operation::access::AccessPtr;

pub(crate) struct Accesses<V, T> {
    pub(crate) next: AccessPtr<V, T>,
    pub(crate) left: usize,
    /// The distance from one access to the next, in bytes.
    pub(crate) stride: usize,
}

impl<V, T> Accesses<V, T> {
    /// The access at index `place`.
    ///
    /// # Panics
    /// If there are fewer accesses.
    pub(crate) fn get(&self, place: usize) -> AccessPtr<V, T> {
        assert!(place < self.left, "a place within the list");
        // SAFETY: one of `left`.
        unsafe { self.next.byte_add(place * self.stride) }
    }
}

impl<V, T> Iterator for Accesses<V, T> {
    type Item = AccessPtr<V, T>;

    #[inline(always)]
    fn next(&mut self) -> Option<AccessPtr<V, T>> {
        self.left = self.left.checked_sub(1)?;
        let access = self.next;
        // SAFETY: at most one past the last of `left`.
        self.next = unsafe { access.byte_add(self.stride) };
        Some(access)
    }

    #[inline]
    fn nth(&mut self, count: usize) -> Option<AccessPtr<V, T>> {
        let skipped = count.min(self.left);
        // SAFETY: at most one past the last of `left`.
        self.next = unsafe { self.next.byte_add(skipped * self.stride) };
        self.left -= skipped;
        self.next()
    }

    #[inline(always)]
    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

impl<V, T> ExactSizeIterator for Accesses<V, T> {}

impl<V, T> Clone for Accesses<V, T> {
    #[inline(always)]
    fn clone(&self) -> Self {
        *self
    }
}

impl<V, T> Copy for Accesses<V, T> {}
