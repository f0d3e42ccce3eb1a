//! What a forked child finds of its parent: all memory, and one thread.
//!
//! A lock that another thread held at the fork stays held in the child for ever, no thread of the parent serves a queue there, and
//! the parent still owns the other half of its memory (driver contexts, reference counts of shared mappings). There are two
//! questions, each with one way to ask it:
//!
//! | question | asked by | what a child gets |
//! |---|---|---|
//! | may this process wait for the library's locks and threads? | [`check`], in calls that can fail | [`Forked`], before any lock is taken |
//! | | [`is_forked`], in code that cannot (a destructor, the end of a thread) | nothing is done, or a leak |
//! | was this value made in this process? | [`ProcessBound`], around what belongs to another library | [`Forked`]; a leak instead of a drop, counted |
//!
//! A child may use the library if its parent had not claimed it: before the first engine, reactor or call of the C interface.
//!
//! How a fork is noticed depends on the system: `platform/linux/fork.rs`, `platform/portable/fork.rs`.

use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::platform::fork;

/// The process was forked from one that had claimed the library, and cannot use it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Forked;

/// Called before locks or threads of the library come into use: children that are forked from now on cannot use the library.
///
/// # Errors
/// This process is such a child.
#[inline]
pub fn claim() -> Result<(), Forked> {
    fork::claim();
    check()
}

/// Whether the locks of this process may be held by threads that do not exist.
#[inline(always)]
pub fn is_forked() -> bool {
    fork::is_forked()
}

/// # Errors
/// As [`is_forked`].
#[inline(always)]
pub fn check() -> Result<(), Forked> {
    if is_forked() { Err(Forked) } else { Ok(()) }
}

/// Makes this process one whose locks are lost, for tests of what then waits for none.
#[doc(hidden)]
pub fn pretend_forked() {
    fork::pretend_forked();
}

static LEAKED: AtomicU64 = AtomicU64::new(0);

/// Number of values that this process leaked because its parent owns them.
pub fn leaked() -> u64 {
    LEAKED.load(Ordering::Relaxed)
}

/// Counts such a value, which the caller leaks.
pub fn count_leak() {
    LEAKED.fetch_add(1, Ordering::Relaxed);
}

/// The number of forks between the first process that used this library and this one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Generation(u32);

impl Generation {
    /// That of this process. From the first call on forks are noticed.
    #[inline(always)]
    pub fn current() -> Self {
        Self(fork::generation())
    }

    /// Whether what was made in this generation was made in this process.
    #[inline(always)]
    pub fn is_current(self) -> bool {
        self == Self::current()
    }
}

/// A value that may only be used and dropped in the process that made it. A forked child leaks its copy.
#[derive(Debug)]
pub struct ProcessBound<T> {
    value: ManuallyDrop<T>,
    generation: Generation,
}

impl<T> ProcessBound<T> {
    /// Binds `value` to this process.
    #[inline]
    pub fn new(value: T) -> Self {
        Self { value: ManuallyDrop::new(value), generation: Generation::current() }
    }

    /// # Errors
    /// This is a forked child.
    #[inline]
    pub fn get(&self) -> Result<&T, Forked> {
        if self.generation.is_current() { Ok(&self.value) } else { Err(Forked) }
    }

    /// # Errors
    /// This is a forked child.
    #[inline]
    pub fn get_mut(&mut self) -> Result<&mut T, Forked> {
        if self.generation.is_current() { Ok(&mut self.value) } else { Err(Forked) }
    }

    /// # Errors
    /// This is a forked child. The value is leaked then.
    #[inline]
    pub fn into_inner(self) -> Result<T, Forked> {
        self.get()?;
        let mut this = ManuallyDrop::new(self);
        // SAFETY: taken once, and the destructor of `self` will not run.
        Ok(unsafe { ManuallyDrop::take(&mut this.value) })
    }
}

impl<T> Drop for ProcessBound<T> {
    #[inline]
    fn drop(&mut self) {
        if self.generation.is_current() {
            // SAFETY: dropped here, once, and not used afterwards.
            unsafe { ManuallyDrop::drop(&mut self.value) };
        } else {
            count_leak();
        }
    }
}

#[cfg(all(test, unix, not(any(estafette_loom, estafette_shuttle))))]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::platform::child::in_forked_child;

    #[test]
    fn a_forked_child_neither_gets_nor_drops_what_its_parent_made() {
        let value = Arc::new(());
        let [dropped, taken] = [(); 2].map(|()| ProcessBound::new(Arc::clone(&value)));
        assert!(!in_forked_child(|| false), "a failure in the child is seen");
        assert!(in_forked_child(|| {
            let refused = dropped.get() == Err(Forked);
            // SAFETY: the child's copies; each is given up once in this process.
            let taken = unsafe {
                drop(std::ptr::read(&dropped));
                std::ptr::read(&taken).into_inner()
            };
            let own = ProcessBound::new(());
            refused
                && taken == Err(Forked)
                && leaked() == 2
                && Arc::strong_count(&value) == 3
                && own.get().is_ok()
        }));
        assert_eq!(leaked(), 0);
        assert!(taken.into_inner().is_ok() && dropped.get().is_ok());
        drop(dropped);
        assert_eq!(Arc::strong_count(&value), 1);
    }

    #[test]
    fn a_child_of_a_claimed_process_is_refused() {
        assert!(in_forked_child(|| is_forked() && claim() == Err(Forked) && check() == Err(Forked)));
        assert!(!is_forked() && claim().is_ok());
    }
}
