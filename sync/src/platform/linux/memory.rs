//! Memory from the kernel, and settings of glibc's allocator.

use std::ptr::{NonNull, null_mut};

/// True if [`map`] gives memory.
pub const MAPS: bool = true;

/// `bytes` bytes of new pages, all zero, in large pages where the system has them. `None` if there is no
/// room.
pub fn map(bytes: usize) -> Option<NonNull<u8>> {
    let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: a new mapping, at an address of the system's choice, replaces no other mapping.
    let address = unsafe { libc::mmap(null_mut(), bytes, protection, flags, -1, 0) };
    if address == libc::MAP_FAILED {
        return None;
    }
    let pages = NonNull::new(address.cast())?;
    // SAFETY: the mapping was just made with this length.
    unsafe { prefer_large_pages(pages, bytes) };
    Some(pages)
}

/// Unmaps a mapping.
///
/// # Safety
/// `ptr` is a mapping of `bytes` bytes that [`map`] made, which is not used any more.
pub unsafe fn unmap(ptr: NonNull<u8>, bytes: usize) {
    // SAFETY: as this function's own contract says.
    let freed = unsafe { libc::munmap(ptr.as_ptr().cast(), bytes) };
    debug_assert_eq!(freed, 0, "a whole mapping can be unmapped");
}

/// Advises the system to back memory by large pages. The advice changes its speed alone; it may be refused.
///
/// # Safety
/// The caller owns these whole pages.
pub unsafe fn prefer_large_pages(ptr: NonNull<u8>, bytes: usize) {
    // SAFETY: as this function's own contract says. Refused advice changes nothing.
    let _ = unsafe { libc::madvise(ptr.as_ptr().cast(), bytes, libc::MADV_HUGEPAGE) };
}

/// Sets how much freed memory the C library's allocator keeps: below `request_bytes` a request takes it from
/// a heap, and a heap releases its end from `free_bytes` on. A program that has settings of its own in the
/// environment keeps them.
#[cfg(all(target_env = "gnu", target_pointer_width = "64"))]
pub fn keep_freed(request_bytes: i32, free_bytes: i32) {
    let tunables = std::env::var_os("GLIBC_TUNABLES").unwrap_or_default();
    let names = ["MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TOP_PAD_", "MALLOC_MMAP_MAX_"];
    let is_tuned = tunables.to_string_lossy().contains("glibc.malloc.")
        || names.iter().any(|name| std::env::var_os(name).is_some());
    if !is_tuned {
        // SAFETY: `mallopt` may be called at any time, from any thread.
        unsafe {
            libc::mallopt(libc::M_MMAP_THRESHOLD, request_bytes);
            libc::mallopt(libc::M_TRIM_THRESHOLD, free_bytes);
        }
    }
}

/// This C library's allocator has no such setting.
#[cfg(not(all(target_env = "gnu", target_pointer_width = "64")))]
pub fn keep_freed(_request_bytes: i32, _free_bytes: i32) {}
