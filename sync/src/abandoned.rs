//! Locks that are never released.
//!
//! A forked child has all the memory of its parent and one of its threads. A lock that another thread held at
//! the fork stays held in the child for ever. Calls that can fail are refused there before they take a lock.
//! Code that cannot fail (a destructor, the end of a thread, the description of a refused operation) checks
//! here before it takes a lock that threads share, and leaks instead.
//!
//! These are plain `std` atomics: they take part in no protocol, and a fork handler runs outside of model
//! checkers.

use std::sync::atomic::{AtomicBool, Ordering};

static ABANDONED: AtomicBool = AtomicBool::new(false);

/// From now on no thread of this process may wait for a lock of its engines. Does nothing that a fork handler
/// must not do.
pub fn abandon() {
    ABANDONED.store(true, Ordering::Relaxed);
}

/// Whether locks may be held by threads that do not exist.
#[inline]
pub fn is_abandoned() -> bool {
    ABANDONED.load(Ordering::Relaxed)
}
