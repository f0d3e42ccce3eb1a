//! Settings of the C library for memory that array libraries have freed.
//!
//! glibc gives freed memory back to the system where more than a threshold is free at the end of a heap, and
//! maps requests above another threshold one by one. Both grow by themselves, to 64 and 32 MiB, when a
//! program frees such arrays. Until then a pipeline of arrays of 1 MiB spends up to two thirds of its time in
//! page faults, on threads other than the main one above all. With the thresholds set, a batch of such a
//! pipeline took 671 µs in place of 1,728, and 1 page fault in place of 725
//! (`2026-11-27-python-pipelines.md`).

use std::sync::Once;

use estafette_sync::platform::memory;

/// The limit of glibc's own adjustment (`DEFAULT_MMAP_THRESHOLD_MAX` on 64 bits), in bytes.
const MMAP_THRESHOLD: i32 = 32 << 20;

/// Sets the thresholds to what glibc's own adjustment ends with, once in a process. A program that sets one
/// itself, in the environment, keeps its own.
pub fn keep_freed_arrays() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| memory::keep_freed(MMAP_THRESHOLD, 2 * MMAP_THRESHOLD));
}
