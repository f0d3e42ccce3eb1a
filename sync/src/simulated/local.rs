//! Thread-locals of the execution's threads, with the interface of `std`'s.

use shuttle::thread::AccessError;
use shuttle_engine::thread_support::DestroyedLastKey;

/// As in `std`: a value without a destructor is there as long as the thread, others until it drops them.
pub struct LocalKey<T: 'static>(Key<T>);

enum Key<T: 'static> {
    Dropped(shuttle::thread::LocalKey<T>),
    Lasting(DestroyedLastKey<T>),
}

debug_as!([T] _key: LocalKey<T>, "LocalKey");

impl<T> LocalKey<T> {
    /// For [`thread_local`](crate::thread_local).
    pub const fn new(init: fn() -> T) -> Self {
        Self(if std::mem::needs_drop::<T>() {
            Key::Dropped(shuttle::thread::LocalKey { init, _p: std::marker::PhantomData })
        } else {
            Key::Lasting(DestroyedLastKey::new(init))
        })
    }

    /// As in `std`.
    ///
    /// # Panics
    /// When the thread has dropped its value.
    pub fn with<R>(&'static self, f: impl FnOnce(&T) -> R) -> R {
        self.try_with(f).expect("the thread has dropped this value")
    }

    /// As in `std`.
    ///
    /// # Errors
    /// When the thread has dropped its value.
    pub fn try_with<R>(&'static self, f: impl FnOnce(&T) -> R) -> Result<R, AccessError> {
        match &self.0 {
            Key::Dropped(key) => key.try_with(f),
            Key::Lasting(key) => key.try_with(f),
        }
    }
}
