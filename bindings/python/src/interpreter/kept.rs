//! Python objects that any thread may drop.

use std::ops::Deref;

use crate::interpreter::guard;

/// Drops Python objects with the Python lock. With the guard closed they are left to the interpreter that is
/// going away.
pub fn drop_with_lock<T>(mut objects: Option<T>) {
    guard::attach(|_| drop(objects.take()));
    std::mem::forget(objects);
}

/// Python objects that are dropped by [`drop_with_lock`].
pub struct Kept<T>(Option<T>);

impl<T> Kept<T> {
    pub fn new(value: T) -> Self {
        Self(Some(value))
    }
}

impl<T> Deref for Kept<T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.0.as_ref().expect("taken by its drop alone")
    }
}

impl<T> Drop for Kept<T> {
    fn drop(&mut self) {
        drop_with_lock(self.0.take());
    }
}
