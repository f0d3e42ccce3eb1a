//! Synchronization primitives: every protocol of the project takes its atomics, locks, threads, cells, clocks
//! and statics from here. So the same lines run on `std`, under loom (`--cfg estafette_loom`, exhaustive,
//! small models) and under shuttle (`--cfg estafette_shuttle`, random schedules, whole engines).
//!
//! | part | what is in it |
//! |---|---|
//! | [`sync`], [`thread`], [`time`], [`hint`] | the modules of `std`, loom or shuttle; `Mutex` and `Condvar` are without poison |
//! | [`cell`] | `UnsafeCell` with loom's closure interface, so that loom sees each access |
//! | [`statics`] | statics that start anew with each execution of a model |
//! | [`barrier`] | a store-load fence that costs only one of two sides |
//! | [`event_count`], [`rundown`] | waiting for a condition; closing something that threads use |
//! | [`sleeper`] | where a thread sleeps, and meanwhile does what the process has for such threads |
//! | [`tagged_slot`] | values that any tag may be given for, at any time |
//! | [`sharded_counter`] | a counter of what is under way, without locked instructions |
//! | [`mod@panic`], [`essential`] | containing panics of foreign code; threads that must not panic |
//! | [`process`] | state that a forked child must not use, wait for or drop, and state of its own |
//! | [`platform`] | code for Linux or x86-64 only, and its portable forms |
//! | `debug` | the `Debug` of handles |
//! | `mutex`, `local_key` | the mutex without poison; the declaration and methods of `std`'s thread-locals for those of a model checker |
//! | [`stack`], [`valgrind`] | stack sizes; annotations for race detectors |
//! | `exhaustive` | under loom: thread-locals and statics as engines use them |
//! | `simulated` | under shuttle: a clock that tests move, timeouts that end by it, a scheduler with a seed |

#[cfg(estafette_loom)]
pub use exhaustive::thread;
#[cfg(estafette_loom)]
pub use loom::hint;
#[cfg(estafette_shuttle)]
pub use shuttle::hint;
#[cfg(estafette_shuttle)]
pub use simulated::{thread, time};
#[cfg(not(estafette_shuttle))]
pub use std::time;
#[cfg(not(any(estafette_loom, estafette_shuttle)))]
pub use std::{hint, thread, thread_local};

#[macro_use]
mod debug;

pub mod barrier;
pub mod essential;
pub mod event_count;
#[cfg(estafette_loom)]
pub mod exhaustive;
#[cfg(any(estafette_loom, estafette_shuttle))]
mod local_key;
mod mutex;
pub mod panic;
pub mod platform;
pub mod process;
pub mod rundown;
pub mod sharded_counter;
#[cfg(estafette_shuttle)]
pub mod simulated;
pub mod sleeper;
pub mod stack;
pub mod tagged_slot;
pub mod valgrind;

/// Locks and atomics: those of [`std::sync`], loom or shuttle, with a `Mutex` and a `Condvar` without poison.
pub mod sync {
    #[cfg(estafette_loom)]
    pub use loom::sync::*;
    /// Loom does not see it: nothing is ordered by it there.
    #[cfg(estafette_loom)]
    pub use std::sync::OnceLock;
    #[cfg(not(any(estafette_loom, estafette_shuttle)))]
    pub use std::sync::*;

    pub use crate::mutex::{Condvar, Mutex, MutexGuard, WaitTimeoutResult};
    #[cfg(estafette_shuttle)]
    pub use crate::simulated::sync::*;
}

/// Statics that hold synchronization primitives. Under a model checker each execution of a model has values
/// of its own, made at their first use: such a static is reached by method calls and by `&*NAME`.
#[cfg(not(any(estafette_loom, estafette_shuttle)))]
#[macro_export]
macro_rules! statics {
    ($($(#[$attribute:meta])* $visible:vis static $name:ident: $type:ty = $value:expr;)+) => {
        $($(#[$attribute])* $visible static $name: $type = $value;)+
    };
}

/// A function that is constant, but under loom, whose primitives are made at run time.
#[cfg(not(estafette_loom))]
#[macro_export]
macro_rules! const_fn {
    ($(#[$attribute:meta])* $visible:vis fn $($rest:tt)+) => {
        $(#[$attribute])* $visible const fn $($rest)+
    };
}

/// An array of equal constants, as a constant; under loom as a value.
#[cfg(not(estafette_loom))]
#[macro_export]
macro_rules! array {
    ($value:expr; $length:expr) => {
        [const { $value }; $length]
    };
}

/// Marks a thread that lives as long as the process: an execution of a model does not wait for its end.
#[cfg(not(estafette_shuttle))]
pub fn daemon<T>(thread: thread::JoinHandle<T>) -> thread::JoinHandle<T> {
    thread
}
#[cfg(estafette_shuttle)]
pub use simulated::thread::daemon;

/// Interior mutability that a model checker can watch.
pub mod cell {
    #[cfg(estafette_loom)]
    pub use loom::cell::UnsafeCell;

    /// [`std::cell::UnsafeCell`] with loom's interface: the pointer is lent to a closure.
    #[cfg(not(estafette_loom))]
    #[derive(Debug, Default)]
    #[repr(transparent)]
    pub struct UnsafeCell<T>(std::cell::UnsafeCell<T>);

    #[cfg(not(estafette_loom))]
    impl<T> UnsafeCell<T> {
        /// Wraps `value`.
        pub const fn new(value: T) -> Self {
            Self(std::cell::UnsafeCell::new(value))
        }

        /// Lends a pointer for reading. The caller keeps every writer away while `f` dereferences it.
        #[inline(always)]
        pub fn with<R>(&self, f: impl FnOnce(*const T) -> R) -> R {
            f(self.0.get())
        }

        /// Lends a pointer for writing. The caller keeps all other threads away while `f` dereferences it.
        #[inline(always)]
        pub fn with_mut<R>(&self, f: impl FnOnce(*mut T) -> R) -> R {
            f(self.0.get())
        }

        /// Returns the value.
        pub fn into_inner(self) -> T {
            self.0.into_inner()
        }
    }
}
