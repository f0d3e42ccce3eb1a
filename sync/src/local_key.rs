//! Thread-locals of a model checker: their declaration, and the methods that those of `std` have for cells.

use std::cell::{Cell, RefCell};

use crate::thread::LocalKey;

impl<T> LocalKey<Cell<T>> {
    /// As in `std`.
    pub fn get(&'static self) -> T
    where
        T: Copy,
    {
        self.with(Cell::get)
    }

    /// As in `std`.
    pub fn set(&'static self, value: T) {
        self.with(|cell| cell.set(value));
    }

    /// As in `std`.
    pub fn take(&'static self) -> T
    where
        T: Default,
    {
        self.with(Cell::take)
    }

    /// As in `std`.
    pub fn replace(&'static self, value: T) -> T {
        self.with(|cell| cell.replace(value))
    }
}

impl<T> LocalKey<RefCell<T>> {
    /// As in `std`.
    pub fn with_borrow<R>(&'static self, f: impl FnOnce(&T) -> R) -> R {
        self.with(|cell| f(&cell.borrow()))
    }

    /// As in `std`.
    pub fn with_borrow_mut<R>(&'static self, f: impl FnOnce(&mut T) -> R) -> R {
        self.with(|cell| f(&mut cell.borrow_mut()))
    }

    /// As in `std`.
    pub fn set(&'static self, value: T) {
        self.replace(value);
    }

    /// As in `std`.
    pub fn take(&'static self) -> T
    where
        T: Default,
    {
        self.with(RefCell::take)
    }

    /// As in `std`.
    pub fn replace(&'static self, value: T) -> T {
        self.with(|cell| cell.replace(value))
    }
}

/// As in `std`, for threads of the execution.
#[macro_export]
macro_rules! thread_local {
    ($($(#[$attribute:meta])* $visible:vis static $name:ident: $type:ty = const $value:expr);+ $(;)?) => {
        $crate::thread_local! { $($(#[$attribute])* $visible static $name: $type = $value;)+ }
    };
    ($($(#[$attribute:meta])* $visible:vis static $name:ident: $type:ty = $value:expr);+ $(;)?) => {
        $($(#[$attribute])* $visible static $name: $crate::thread::LocalKey<$type> =
            $crate::thread::LocalKey::new(|| $value);)+
    };
}
