//! The state that a forked child has of its parent: all memory, and one thread.
//!
//! A lock that another thread held at the fork stays held in the child for ever, no thread of the parent
//! serves a queue there, and the parent still owns the other half of its memory (driver contexts, reference
//! counts of shared mappings). So each process has values of its own, and does not use those of its parent:
//!
//! | what | how | what a child has |
//! |---|---|---|
//! | a static with a lock, or what a thread serves | [`per_process!`](crate::per_process) | a fresh one; the parent's is leaked |
//! | a value that refers to such things | its [`Generation`], noted when it was made | in calls that can fail [`Forked`], before any lock is taken; elsewhere nothing is done, or a leak |
//! | a value of another library | [`ProcessBound`] around it | [`Forked`]; a leak instead of a drop, counted |
//! | a thread-local of the thread that forked | [`at_fork`] | what the hook makes of it |
//!
//! Each entry point checks for itself. A wrapper around whole handles does not replace the checks: what a
//! child gets (an error, nothing, a leak) differs from one call to the next, and only the call knows which.
//!
//! The detection of a fork depends on the system: `platform/linux/fork.rs`, `platform/portable/fork.rs`.

use std::mem::ManuallyDrop;
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use crate::platform::fork;

/// The value is of a process that this one was forked from, and cannot be used here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Forked;

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
    /// The generation of this process. From the first call on forks are noticed. One relaxed load.
    #[inline(always)]
    pub fn current() -> Self {
        Self(fork::generation())
    }

    /// True if what was made in this generation was made in this process.
    #[inline(always)]
    pub fn is_current(self) -> bool {
        self == Self::current()
    }

    /// True if what was made in this generation was made in a process that this one was forked from.
    #[inline(always)]
    pub fn is_inherited(self) -> bool {
        !self.is_current()
    }

    /// Calls `release`, which ends a value of this generation, in the process that made it. A forked child
    /// leaks the value instead, counted: its parts are the parent's, and a lock that `release` takes may be
    /// held by a thread that is not here.
    #[inline]
    pub fn release(self, release: impl FnOnce()) {
        if self.is_current() { release() } else { count_leak() }
    }

    /// # Errors
    /// As [`is_inherited`](Self::is_inherited).
    #[inline(always)]
    pub fn check(self) -> Result<(), Forked> {
        if self.is_current() { Ok(()) } else { Err(Forked) }
    }
}

/// Declares statics as [`statics!`](crate::statics), of which each process has its own: a forked child makes
/// a fresh value at its first use, and leaks the one that it inherited, whose lock may be held for ever.
#[cfg(not(any(estafette_loom, estafette_shuttle)))]
#[macro_export]
macro_rules! per_process {
    ($($(#[$attribute:meta])* $visible:vis static $name:ident: $type:ty = $value:expr;)+) => {
        $($(#[$attribute])* $visible static $name: $crate::process::PerProcess<$type> =
            $crate::process::PerProcess::new($value, || $value);)+
    };
}

/// As [`statics!`](crate::statics): executions of models do not fork.
#[cfg(any(estafette_loom, estafette_shuttle))]
#[macro_export]
macro_rules! per_process {
    ($($statics:tt)+) => { $crate::statics! { $($statics)+ } };
}

/// The type of what [`per_process!`](crate::per_process) declares.
#[derive(Debug)]
pub struct PerProcess<T: 'static> {
    /// The value of the first generation, which most processes are of: no pointer leads to it.
    first: T,
    later: AtomicPtr<Later<T>>,
    make: fn() -> T,
}

#[derive(Debug)]
struct Later<T> {
    generation: Generation,
    value: T,
}

impl<T> PerProcess<T> {
    /// For [`per_process!`](crate::per_process): `make` makes a new value.
    pub const fn new(first: T, make: fn() -> T) -> Self {
        Self { first, later: AtomicPtr::new(ptr::null_mut()), make }
    }

    #[cold]
    fn later(&self, generation: Generation) -> &T {
        let mut known = self.later.load(Ordering::Acquire);
        loop {
            // SAFETY: null, or made from a box below, which is never freed once it is here.
            if let Some(later) = unsafe { known.as_ref() }
                && later.generation == generation
            {
                return &later.value;
            }
            let fresh = Box::into_raw(Box::new(Later { generation, value: (self.make)() }));
            match self.later.compare_exchange(known, fresh, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => known = fresh,
                Err(by) => {
                    // SAFETY: made above, and no other thread has seen it.
                    drop(unsafe { Box::from_raw(fresh) });
                    known = by;
                }
            }
        }
    }
}

impl<T> std::ops::Deref for PerProcess<T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        let generation = Generation::current();
        if generation == Generation(0) { &self.first } else { self.later(generation) }
    }
}

struct Hook {
    run: fn(),
    next: *mut Hook,
}

static HOOKS: AtomicPtr<Hook> = AtomicPtr::new(ptr::null_mut());

/// Calls `hook` in each forked child, on its one thread, from within `fork`. It changes thread-locals and
/// atomics, and takes no lock. If the system has no such handlers, the hook is called as soon as the child
/// asks for its generation.
pub fn at_fork(hook: fn()) {
    Generation::current();
    let new = Box::into_raw(Box::new(Hook { run: hook, next: ptr::null_mut() }));
    let mut next = HOOKS.load(Ordering::Acquire);
    loop {
        // SAFETY: made above, and not seen by another thread before the exchange succeeds.
        unsafe { (*new).next = next };
        match HOOKS.compare_exchange(next, new, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => return,
            Err(other) => next = other,
        }
    }
}

/// This process has been forked just now.
pub(crate) fn forked() {
    // The parent has its own.
    LEAKED.store(0, Ordering::Relaxed);
    let mut next = HOOKS.load(Ordering::Acquire);
    // SAFETY: null, or made from a box in `at_fork`, and never freed.
    while let Some(hook) = unsafe { next.as_ref() } {
        (hook.run)();
        next = hook.next;
    }
}

impl Default for Generation {
    fn default() -> Self {
        Self::current()
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
        self.generation.check()?;
        Ok(&self.value)
    }

    /// # Errors
    /// This is a forked child.
    #[inline]
    pub fn get_mut(&mut self) -> Result<&mut T, Forked> {
        self.generation.check()?;
        Ok(&mut self.value)
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
        // SAFETY: dropped here, once, and not used afterwards.
        self.generation.release(|| unsafe { ManuallyDrop::drop(&mut self.value) });
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
    fn each_process_has_its_own_value_of_a_static() {
        per_process! {
            static OWN: crate::sync::Mutex<u8> = crate::sync::Mutex::new(1);
        }
        let held = OWN.lock();
        assert!(in_forked_child(|| {
            let fresh = std::mem::replace(&mut *OWN.lock(), 2) == 1;
            let kept = OWN.lock();
            fresh && *kept == 2 && in_forked_child(|| *OWN.lock() == 1)
        }));
        assert_eq!(*held, 1);
    }

    #[test]
    fn hooks_run_in_children_and_in_these_alone() {
        std::thread_local!(static FORKS: std::cell::Cell<u8> = const { std::cell::Cell::new(0) });
        at_fork(|| FORKS.set(FORKS.get() + 1));
        // On a system without handlers, the first question notices the fork.
        let forks = || {
            Generation::current();
            FORKS.get()
        };
        assert!(in_forked_child(|| forks() == 1 && in_forked_child(|| forks() == 2)));
        assert_eq!(FORKS.get(), 0);
    }

    #[test]
    fn what_was_made_before_a_fork_is_inherited_in_the_child() {
        let before = Generation::current();
        assert!(in_forked_child(|| before.check() == Err(Forked) && Generation::current().check().is_ok()));
        assert!(before.check().is_ok());
    }
}
