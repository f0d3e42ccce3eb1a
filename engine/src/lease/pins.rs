//! Leases that hold a variable without an operation.
//!
//! They hang in a list of the variable's, each by a link of its own, so that taking one and giving it back costs no search and no
//! memory. The list belongs to the holder of the variable's bit. A lease leaves it in its destructor, so whoever finds one
//! in the list finds it whole, if perhaps about to end.

use std::cell::UnsafeCell;
use std::mem::ManuallyDrop;
use std::ptr::NonNull;
use std::sync::{Arc, Weak};

use estafette_graph::OpId;

use crate::lease::LeaseState;
use crate::wait::ready::ReadySignal;

/// The leases that hold a variable.
#[derive(Debug, Default)]
pub(crate) struct PinList {
    newest: Option<NonNull<LeaseState>>,
}

// SAFETY: a list of places in leases, which are shared between threads; it is touched under the variable's bit only.
unsafe impl Send for PinList {}

/// A lease's place in such a list. Belongs to the holder of the variable's bit.
#[derive(Default)]
pub(crate) struct Link(UnsafeCell<Linked>);

// SAFETY: touched under the bit of the variable that the lease holds only, through `PinList`.
unsafe impl Send for Link {}
// SAFETY: as above.
unsafe impl Sync for Link {}

#[derive(Default)]
struct Linked {
    newer: Option<NonNull<LeaseState>>,
    older: Option<NonNull<LeaseState>>,
    /// The lease's number among the operations.
    number: Option<OpId>,
    /// To be told of the end.
    observer: Option<Arc<ReadySignal>>,
}

impl PinList {
    /// Lends a lease's place in this list.
    ///
    /// # Safety
    /// `lease` is in this list, or being put there or taken out, under the bit.
    unsafe fn linked(&mut self, lease: NonNull<LeaseState>) -> &mut Linked {
        // SAFETY: by contract: a lease in the list is alive, and the exclusive borrow of the list stands for the bit.
        unsafe { &mut *lease.as_ref().link().0.get() }
    }

    /// Puts a lease in.
    ///
    /// # Safety
    /// The place is one that `Arc::as_ptr` has given. The lease is in no list, and is taken out of this one by its destructor.
    pub(crate) unsafe fn add(&mut self, lease: NonNull<LeaseState>, number: OpId) {
        let older = self.newest.replace(lease);
        // SAFETY: both are in this list.
        unsafe {
            let linked = self.linked(lease);
            linked.older = older;
            linked.number = Some(number);
            if let Some(older) = older {
                self.linked(older).newer = Some(lease);
            }
        }
    }

    /// Takes a lease out, and gives whom to tell of its end.
    ///
    /// # Safety
    /// The lease is in this list.
    pub(crate) unsafe fn remove(&mut self, lease: NonNull<LeaseState>) -> Option<Arc<ReadySignal>> {
        // SAFETY: the lease and its neighbours are in this list.
        unsafe {
            let Linked { newer, older, observer, .. } = std::mem::take(self.linked(lease));
            match newer {
                Some(newer) => self.linked(newer).older = older,
                None => self.newest = older,
            }
            if let Some(older) = older {
                self.linked(older).newer = newer;
            }
            observer
        }
    }

    /// Shows each lease.
    pub(crate) fn each(&mut self, mut f: impl FnMut(Holder<'_>)) {
        self.find(|holder| {
            f(holder);
            None::<()>
        });
    }

    /// Shows each lease, the newest first, until `f` gives something.
    pub(crate) fn find<R>(&mut self, mut f: impl FnMut(Holder<'_>) -> Option<R>) -> Option<R> {
        let mut next = self.newest;
        while let Some(lease) = next {
            // SAFETY: the lease is in this list.
            let linked = unsafe { self.linked(lease) };
            next = linked.older;
            let found = f(Holder { place: lease, linked });
            if found.is_some() {
                return found;
            }
        }
        None
    }
}

/// A lease in the list, under the bit. It may be about to end.
pub(crate) struct Holder<'a> {
    /// As `Arc::as_ptr` gave it.
    place: NonNull<LeaseState>,
    linked: &'a mut Linked,
}

impl Holder<'_> {
    /// The lease.
    pub(crate) fn lease(&self) -> &LeaseState {
        // SAFETY: the lease is in the list, under the bit.
        unsafe { self.place.as_ref() }
    }

    /// The lease's number among the operations.
    pub(crate) fn number(&self) -> OpId {
        self.linked.number.expect("it got one when it was added")
    }

    /// What is told of the lease's end, made with `new` if there is none yet.
    pub(crate) fn observer(&mut self, new: impl FnOnce() -> Arc<ReadySignal>) -> Arc<ReadySignal> {
        Arc::clone(self.linked.observer.get_or_insert_with(new))
    }

    /// A share in the lease, unless it is ending. To be dropped outside of the bit: it may be the last.
    pub(crate) fn share(&self) -> Option<Arc<LeaseState>> {
        // SAFETY: the place is that of an `Arc`, whose memory stays as long as its value's destructor runs, hence while the lease
        // is in the list. The weak reference is not ours, and not dropped.
        let weak = ManuallyDrop::new(unsafe { Weak::from_raw(self.place.as_ptr().cast_const()) });
        weak.upgrade()
    }
}
