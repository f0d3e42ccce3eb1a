//! State that the Python lock protects.

use std::cell::UnsafeCell;

use pyo3::prelude::*;

/// A value that is reached with the Python lock only. Cheaper than a lock of its own, which would have to be taken under
/// that one.
pub struct Attached<T> {
    value: UnsafeCell<T>,
}

// SAFETY: the value is reached only through `with`, whose token shows that the calling thread has the Python lock, and whose
// caller promises not to let go of it meanwhile. The extension declares that it needs the lock, so an interpreter without one
// turns it on when it loads us.
unsafe impl<T: Send> Sync for Attached<T> {}

impl<T> Attached<T> {
    pub const fn new(value: T) -> Self {
        Self { value: UnsafeCell::new(value) }
    }

    /// Lends the value.
    ///
    /// # Safety
    /// `f` runs no Python code and drops no Python object, either of which could let go of the lock or come back here.
    pub unsafe fn with<R>(&self, _py: Python<'_>, f: impl FnOnce(&mut T) -> R) -> R {
        // SAFETY: the token and the caller's promise make this the only access.
        f(unsafe { &mut *self.value.get() })
    }
}
