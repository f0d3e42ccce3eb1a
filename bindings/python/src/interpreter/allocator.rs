//! How the C library keeps memory that array libraries have freed.
//!
//! glibc gives freed memory back to the system where more than a threshold is free at the end of a heap, and maps requests above another
//! threshold one by one. Both grow by themselves, to 64 and 32 MiB, when a program frees such arrays. Until then a pipeline of arrays of
//! 1 MiB spends up to two thirds of its time in page faults, on threads other than the main one above all.

use std::sync::Once;

/// The limit of glibc's own adjustment (`DEFAULT_MMAP_THRESHOLD_MAX` on 64 bits), in bytes.
#[cfg(all(target_os = "linux", target_env = "gnu", target_pointer_width = "64"))]
const MMAP_THRESHOLD: libc::c_int = 32 << 20;

/// Sets the thresholds to what glibc's own adjustment ends with, once in a process. A program that sets one itself, in the environment,
/// keeps its own.
pub fn keep_freed_arrays() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        #[cfg(all(target_os = "linux", target_env = "gnu", target_pointer_width = "64"))]
        if !is_tuned() {
            // SAFETY: `mallopt` may be called at any time, from any thread.
            unsafe {
                libc::mallopt(libc::M_MMAP_THRESHOLD, MMAP_THRESHOLD);
                libc::mallopt(libc::M_TRIM_THRESHOLD, 2 * MMAP_THRESHOLD);
            }
        }
    });
}

/// Whether the program has settings of its own.
#[cfg(all(target_os = "linux", target_env = "gnu", target_pointer_width = "64"))]
fn is_tuned() -> bool {
    let tunables = std::env::var_os("GLIBC_TUNABLES").unwrap_or_default();
    let names = ["MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TOP_PAD_", "MALLOC_MMAP_MAX_"];
    tunables.to_string_lossy().contains("glibc.malloc.")
        || names.iter().any(|name| std::env::var_os(name).is_some())
}
