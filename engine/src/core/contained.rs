//! Values of users whose destructors may do anything.

use std::ops::Deref;

use estafette_devices::log_panic;

/// Owns a user's value. A panic in the destructor is logged and goes no further: the last owner is often a
/// thread that has operations in hand, which unwinding would lose.
pub(crate) struct Contained<T>(Option<T>);

impl<T> Contained<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(Some(value))
    }
}

impl<T> Deref for Contained<T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.0.as_ref().expect("present until dropped")
    }
}

impl<T> Drop for Contained<T> {
    fn drop(&mut self) {
        let value = self.0.take();
        log_panic("a destructor", || drop(value));
    }
}
