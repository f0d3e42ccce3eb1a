//! Statics that begin anew with each execution.

use std::ops::Deref;

use shuttle::lazy_static::Lazy;

/// The type of what [`statics`](crate::statics) declares.
///
/// A value is leaked at the end of its execution: a real static is never dropped, and values refer to each other.
pub struct PerExecution<T: Sync + 'static>(Lazy<&'static T>);

impl<T: Sync> std::fmt::Debug for PerExecution<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PerExecution").finish_non_exhaustive()
    }
}

impl<T: Sync> PerExecution<T> {
    /// For [`statics`](crate::statics): `init` leaks a new value.
    pub const fn new(init: fn() -> &'static T) -> Self {
        Self(Lazy::new(init))
    }

    /// The value of this execution.
    pub fn get(this: &'static Self) -> &'static T {
        this.0.get()
    }
}

impl<T: Sync> Deref for PerExecution<T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: only `statics` makes such a value, as a static.
        Self::get(unsafe { &*std::ptr::from_ref(self) })
    }
}

/// Statics that hold synchronization primitives; each execution has values of its own, made at their first use.
#[macro_export]
macro_rules! statics {
    ($($(#[$attribute:meta])* $visible:vis static $name:ident: $type:ty = $value:expr;)+) => {
        $($(#[$attribute])* $visible static $name: $crate::simulated::PerExecution<$type> =
            $crate::simulated::PerExecution::new(|| Box::leak(Box::new($value)));)+
    };
}
