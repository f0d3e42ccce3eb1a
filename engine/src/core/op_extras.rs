//! Rare data of operations, behind one pointer that is null for most.

use std::ptr;

use estafette_devices::FenceSet;
use estafette_sync::sync::atomic::{AtomicPtr, Ordering};
use estafette_sync::sync::{Mutex, OnceLock};

use crate::core::error::OperationError;
use crate::core::operation::{OutcomeSignal, Role};

/// Called in place of the body where an operation is skipped.
pub(crate) type OnSkip = Box<dyn FnOnce(&OperationError) + Send>;

/// Parts that an operation has by its role, or may get while it is in flight.
#[derive(Default)]
pub(crate) struct OpExtras {
    /// Set before the operation is submitted.
    pub(crate) role: Option<Role>,
    /// Set before the operation is submitted, and taken by the thread that skips the operation.
    pub(crate) on_skip: Mutex<Option<OnSkip>>,
    pub(crate) failure: OnceLock<OperationError>,
    pub(crate) one_shot: OnceLock<OutcomeSignal>,
    /// The device work that the operation has left, for those who have a handle of it.
    pub(crate) left: OnceLock<Box<FenceSet>>,
}

/// An [`OpExtras`] that its first user makes.
pub(crate) struct OpExtrasCell {
    /// Null, or from a box; set once.
    place: AtomicPtr<OpExtras>,
}

impl OpExtrasCell {
    #[inline(always)]
    pub(crate) fn new() -> Self {
        Self { place: AtomicPtr::new(ptr::null_mut()) }
    }

    #[inline]
    pub(crate) fn get(&self) -> Option<&OpExtras> {
        // SAFETY: what is there stays until `self` is dropped; Acquire shows its content.
        unsafe { self.place.load(Ordering::Acquire).as_ref() }
    }

    #[cold]
    pub(crate) fn get_or_make(&self) -> &OpExtras {
        if self.place.load(Ordering::Acquire).is_null() {
            let made = Box::into_raw(Box::default());
            let set = self.place.compare_exchange(ptr::null_mut(), made, Ordering::AcqRel, Ordering::Acquire);
            if set.is_err() {
                // SAFETY: another thread was first, so this box was never shared.
                drop(unsafe { Box::from_raw(made) });
            }
        }
        self.get().expect("set above, and never again")
    }

    /// The content, for exclusive access to the operation.
    pub(crate) fn get_mut(&mut self) -> &mut OpExtras {
        self.get_or_make();
        // SAFETY: set above, and borrowed as `self` is.
        unsafe { &mut *self.place.load(Ordering::Relaxed) }
    }
}

impl Drop for OpExtrasCell {
    #[inline(always)]
    fn drop(&mut self) {
        if !self.place.load(Ordering::Relaxed).is_null() {
            self.end();
        }
    }
}

impl OpExtrasCell {
    #[cold]
    fn end(&mut self) {
        // SAFETY: the pointer came from a box, no other reference is left, and this function is called once.
        drop(unsafe { Box::from_raw(self.place.load(Ordering::Relaxed)) });
    }
}
