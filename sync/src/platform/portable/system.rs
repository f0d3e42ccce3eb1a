//! The form for every operating system, by the standard library. See `platform`.
//!
//! | part | what it has |
//! |---|---|
//! | `clock` | clocks by `Instant` |
//! | `fork` | a fork is known by the process id |

#[path = "clock.rs"]
pub mod clock;
#[path = "fork.rs"]
pub mod fork;

/// A fence on both sides.
pub mod barrier {
    use crate::sync::atomic::{Ordering, fence};

    #[inline(always)]
    pub fn light() {
        fence(Ordering::SeqCst);
    }

    pub fn heavy() {
        fence(Ordering::SeqCst);
    }

    pub fn is_asymmetric() -> bool {
        false
    }
}

/// A loader of which nothing is known.
pub mod library {
    use std::ffi::{CStr, c_void};
    use std::path::PathBuf;
    use std::ptr::null_mut;

    /// No name: systems write versions in ways of their own.
    pub fn versioned(_stem: &str, _version: u32) -> Option<String> {
        None
    }

    /// NULL.
    pub fn symbol(_name: &CStr) -> *mut c_void {
        null_mut()
    }

    /// Nothing.
    pub fn loaded(_prefix: &str) -> Vec<PathBuf> {
        Vec::new()
    }
}

/// All memory comes from the program's allocator.
pub mod memory {
    use std::ptr::NonNull;

    /// True if [`map`] gives memory.
    pub const MAPS: bool = false;

    /// Nothing.
    pub fn map(_bytes: usize) -> Option<NonNull<u8>> {
        None
    }

    /// # Safety
    /// Never called.
    pub unsafe fn unmap(_ptr: NonNull<u8>, _bytes: usize) {
        unreachable!("nothing was mapped");
    }

    /// Does nothing.
    ///
    /// # Safety
    /// Always safe.
    pub unsafe fn prefer_large_pages(_ptr: NonNull<u8>, _bytes: usize) {}

    /// Does nothing.
    pub fn keep_freed(_request_bytes: i32, _free_bytes: i32) {}
}

/// No limit is known.
pub mod stack {
    pub fn limit() -> Option<u64> {
        None
    }
}

/// Threads as they are.
pub mod thread {
    /// Does nothing.
    pub fn nap_precisely() {}

    /// None.
    pub fn number() -> Option<u32> {
        None
    }
}
