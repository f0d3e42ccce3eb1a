//! Additions to loom: thread-locals and statics as engines use them, and sleeps.

pub use loom;

/// Threads. Loom has no clock: a sleep lets other threads go on, and may end at any time; no timeout ends a
/// wait.
pub mod thread {
    use std::time::Duration;

    pub use loom::thread::{
        AccessError, Builder, JoinHandle, Thread, ThreadId, current, park, spawn, yield_now,
    };

    /// As [`std::thread::park_timeout`].
    pub fn park_timeout(_timeout: Duration) {
        park();
    }

    /// As [`std::thread::sleep`].
    pub fn sleep(_duration: Duration) {
        yield_now();
    }

    /// As in `std`; a value without a destructor ends with its thread as well.
    #[derive(Debug)]
    pub struct LocalKey<T: 'static>(loom::thread::LocalKey<T>);

    impl<T> LocalKey<T> {
        /// For [`thread_local`](crate::thread_local).
        pub const fn new(init: fn() -> T) -> Self {
            Self(loom::thread::LocalKey { init, _p: std::marker::PhantomData })
        }

        /// As in `std`.
        pub fn with<R>(&'static self, f: impl FnOnce(&T) -> R) -> R {
            self.0.with(f)
        }

        /// As in `std`.
        ///
        /// # Errors
        /// When the thread has dropped its value.
        pub fn try_with<R>(&'static self, f: impl FnOnce(&T) -> R) -> Result<R, AccessError> {
            self.0.try_with(f)
        }
    }
}

/// Statics that start anew with each execution of a model.
#[macro_export]
macro_rules! statics {
    ($($(#[$attribute:meta])* $visible:vis static $name:ident: $type:ty = $value:expr;)+) => {
        $(
            $(#[$attribute])*
            #[allow(non_camel_case_types)]
            #[derive(Debug)]
            $visible struct $name { value: () }
            $(#[$attribute])*
            $visible static $name: $name = $name { value: () };
            impl std::ops::Deref for $name {
                type Target = $type;
                fn deref(&self) -> &$type {
                    fn value() -> $type {
                        $value
                    }
                    static VALUE: $crate::exhaustive::loom::lazy_static::Lazy<$type> =
                        $crate::exhaustive::loom::lazy_static::Lazy { init: value, _p: std::marker::PhantomData };
                    VALUE.get()
                }
            }
        )+
    };
}

/// A function that is constant without loom.
#[macro_export]
macro_rules! const_fn {
    ($(#[$attribute:meta])* $visible:vis fn $($rest:tt)+) => {
        $(#[$attribute])* $visible fn $($rest)+
    };
}

/// An array of equal values, which are constants without loom.
#[macro_export]
macro_rules! array {
    ($value:expr; $length:expr) => {
        std::array::from_fn::<_, { $length }, _>(|_| $value)
    };
}
