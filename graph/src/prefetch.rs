//! Cache prefetches.

/// Begins to fetch the first `LINES` cache lines of the target of `place`, if the processor has an
/// instruction for it. Reads nothing, so any address is legal.
#[inline(always)]
pub(crate) fn prefetch<const LINES: usize, P>(place: std::ptr::NonNull<P>) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    for line in 0..LINES {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: the instruction is part of the architecture's baseline, and does not fault.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(place.as_ptr().cast::<i8>().wrapping_add(64 * line)) };
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = place;
}
