//! Cache prefetches.

use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
use std::ptr::NonNull;

/// Begins to fetch the first `LINES` cache lines of the target of `place`, if the processor has an
/// instruction for it. Reads nothing, so any address is legal.
#[inline(always)]
pub fn prefetch<const LINES: usize, P>(place: NonNull<P>) {
    for line in 0..LINES {
        // SAFETY: the instruction is part of the architecture's baseline, and does not fault.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(place.as_ptr().cast::<i8>().wrapping_add(64 * line)) };
    }
}
