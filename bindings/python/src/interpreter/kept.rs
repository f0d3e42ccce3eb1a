//! Python objects that any thread may drop.

use std::ops::Deref;

use crate::interpreter::guard;

/// Python objects that are dropped with the Python lock. With the guard closed they are left to the interpreter that is going away.
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
        let mut value = self.0.take();
        guard::attach(|_| drop(value.take()));
        std::mem::forget(value);
    }
}
