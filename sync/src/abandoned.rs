//! Locks that nobody will ever give back.
//!
//! A forked child has all the memory of its parent and one of its threads. A lock that another thread held at
//! that moment stays held in the child for ever. What can fail is refused there before it takes a lock; what
//! cannot fail (a destructor, the end of a thread, the description of an operation that is about to be
//! refused) asks here first, where it would take a lock that is shared between threads, and leaks instead.
//!
//! These are plain `std` atomics: they take part in no protocol, and a fork handler runs where no model
//! checker does.

use std::sync::atomic::{AtomicBool, Ordering};

static ABANDONED: AtomicBool = AtomicBool::new(false);

/// From now on no lock of this process's engines may be waited for. Does nothing that a fork handler must not
/// do.
pub fn abandon() {
    ABANDONED.store(true, Ordering::Relaxed);
}

/// Whether locks may be held by threads that do not exist.
#[inline]
pub fn is_abandoned() -> bool {
    ABANDONED.load(Ordering::Relaxed)
}
