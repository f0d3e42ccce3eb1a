//! A processor of which nothing is known. See `platform`.

/// No prefetches.
pub mod prefetch {
    use std::ptr::NonNull;

    /// Does nothing.
    #[inline(always)]
    pub fn prefetch<const LINES: usize, P>(_place: NonNull<P>) {}
}

/// No counter.
pub mod ticks {
    /// False.
    pub fn are_steady() -> bool {
        false
    }

    /// Never called.
    pub fn read() -> u64 {
        unreachable!("the counter is used only where it is steady")
    }
}

/// No requests of valgrind.
pub mod valgrind {
    pub const BEFORE: usize = 0;
    pub const AFTER: usize = 1;

    #[inline(always)]
    pub fn note(_what: usize) {}

    pub fn request(_what: usize, _argument: usize) -> usize {
        0
    }
}
