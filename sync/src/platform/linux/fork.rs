//! Forks, noted by a handler of `pthread_atfork`: asking is one relaxed load, where `getpid` is a system
//! call.
//!
//! A raw `clone` without the C library does not run the handler; such a child cannot use the C library's
//! allocator either, so it cannot get here.
//!
//! These are plain `std` atomics: they take part in no protocol, and a fork handler runs outside of model
//! checkers.

use std::sync::atomic::{AtomicU32, Ordering};

/// No generation was queried so far.
const UNWATCHED: u32 = u32::MAX;

static GENERATION: AtomicU32 = AtomicU32::new(UNWATCHED);

/// Number of forks between the first process that asked and this one.
#[inline(always)]
pub fn generation() -> u32 {
    let generation = GENERATION.load(Ordering::Relaxed);
    if generation == UNWATCHED { watch() } else { generation }
}

#[cold]
fn watch() -> u32 {
    // SAFETY: the handler is an `extern "C"` function without arguments that only changes atomics and calls
    // hooks, which do what is allowed between fork and exec; it lives as long as this library is loaded (the
    // C library removes the handlers of a library it unloads). A second handler, of a thread that registers
    // at the same time, does no harm: it counts a fork twice.
    let status = unsafe { libc::pthread_atfork(None, None, Some(fork_in_child)) };
    if status != 0 {
        // Memory was short: the next call tries again.
        return 0;
    }
    let _ = GENERATION.compare_exchange(UNWATCHED, 0, Ordering::Relaxed, Ordering::Relaxed);
    GENERATION.load(Ordering::Relaxed)
}

extern "C" fn fork_in_child() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
    crate::process::forked();
}
