//! Forks, noted by a handler of `pthread_atfork`: asking is one relaxed load, where `getpid` is a system call.
//!
//! A raw `clone` without the C library does not run the handler; such a child cannot use the C library's allocator either, so it cannot
//! get here.
//!
//! These are plain `std` atomics: they take part in no protocol, and a fork handler runs outside of model checkers.

use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};

const UNCLAIMED: u8 = 0;
const CLAIMED: u8 = 1;
const FORKED: u8 = 2;

static STATE: AtomicU8 = AtomicU8::new(UNCLAIMED);

/// Notes that children which are forked from now on are [`is_forked`].
#[inline]
pub fn claim() {
    if STATE.load(Ordering::Relaxed) == UNCLAIMED {
        generation();
        let _ = STATE.compare_exchange(UNCLAIMED, CLAIMED, Ordering::Relaxed, Ordering::Relaxed);
    }
}

/// Whether this process is a child of one that had claimed.
#[inline(always)]
pub fn is_forked() -> bool {
    STATE.load(Ordering::Relaxed) == FORKED
}

/// Makes [`is_forked`] true.
pub fn pretend_forked() {
    STATE.store(FORKED, Ordering::Relaxed);
}

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
    // SAFETY: the handler is an `extern "C"` function without arguments that only changes atomics, which is allowed between
    // fork and exec; it lives as long as this library is loaded (the C library removes the handlers of a library it unloads).
    // A second handler, of a thread that registers at the same time, does no harm.
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
    let _ = STATE.compare_exchange(CLAIMED, FORKED, Ordering::Relaxed, Ordering::Relaxed);
}
