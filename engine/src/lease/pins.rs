//! A read lease as a pin: one count at its tensor's variable, without an operation.
//!
//! A pin is granted at once or not at all. Each variable lists its pins. The list runs through the leases
//! themselves, so taking and ending a pin allocates nothing for it and searches nothing. The variable's lock
//! protects the list. A lease leaves the list in its destructor: every lease in the list is whole, but may be
//! about to end.

use std::cell::UnsafeCell;
use std::hint::unreachable_unchecked;
use std::mem::ManuallyDrop;
use std::ptr::NonNull;
use std::sync::{Arc, Weak};

use estafette_devices::Fence;
use estafette_graph::{AccessMode, OpId};
use estafette_sync::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::Access;
use super::state::{LeaseOrder, LeaseState};
use crate::core::engine_core::graph;
use crate::core::lease_info::{LeaseDetails, LeaseOwner};
use crate::core::one_shot::ReadyOneShot;
use crate::core::operation::{Name, OpTag, OpVar};
use crate::core::var_state::{Ending, Replaced, VarState, thin_out};
use crate::operation::run::{self, ReadyList};
use crate::tensor::handle::Tensor;
use crate::trace::{self, hooks};

/// A pin, as part of its lease.
pub(crate) struct Pin {
    pub(super) details: LeaseDetails,
    /// True once the variable counts the pin and lists it.
    is_listed: AtomicBool,
    /// The id of the pin among the operations, if a trace knows the pin; else 0.
    traced: AtomicU64,
    link: PinLink,
}

impl Pin {
    #[inline(always)]
    pub(super) fn new(owner: LeaseOwner) -> Self {
        Self {
            details: LeaseDetails::new(Access::Read, owner),
            is_listed: AtomicBool::new(false),
            traced: AtomicU64::new(0),
            link: PinLink::default(),
        }
    }

    /// The id by which a trace knows the pin.
    #[inline]
    pub(super) fn traced_id(&self) -> Option<OpId> {
        let id = self.traced.load(Ordering::Relaxed);
        (id != 0).then(|| OpId::new(id))
    }

    /// True once the pin is granted.
    #[inline]
    pub(super) fn is_listed(&self) -> bool {
        self.is_listed.load(Ordering::Relaxed)
    }
}

impl LeaseState {
    /// Pins `var`, the only variable of `tensor`, if a read is granted at once and nothing is pending. Else
    /// returns the owner.
    #[inline]
    pub(super) fn pin(tensor: &Tensor, var: &OpVar, owner: LeaseOwner) -> Result<Arc<Self>, LeaseOwner> {
        // Written in place: a move would cost as much as the construction.
        let place = Arc::<Self>::new_uninit();
        // SAFETY: no other thread has the `Arc` yet; `Arc::get_mut` would check that with a locked
        // instruction.
        let lease = unsafe {
            let lease = Arc::as_ptr(&place).cast_mut();
            (*lease).write(Self::new(tensor.clone(), LeaseOrder::Pin(Pin::new(owner))));
            place.assume_init()
        };
        // SAFETY: made as a pin above.
        let pin = unsafe { lease.as_pin() };
        // SAFETY: never null. The pointer is good as long as the lease lives.
        let place = unsafe { NonNull::new_unchecked(Arc::as_ptr(&lease).cast_mut()) };
        let number = graph().next_id();
        let granted = var.try_pin(|state, flags| {
            if flags != 0 {
                // Fences or a failure: the request must inspect them, and perhaps wait.
                return false;
            }
            // SAFETY: the lease is new, and its destructor removes it from the list.
            unsafe { state.pins().add(place, number) };
            pin.is_listed.store(true, Ordering::Relaxed);
            true
        });
        if !granted {
            return Err(pin.details.owner.clone());
        }
        if trace::is_open() {
            pin.traced.store(number.get(), Ordering::Relaxed);
            hooks::pinned(number, &pin.details.owner, tensor, var.id());
        }
        Ok(lease)
    }

    /// Ends a granted pin. Operations that waited for it are granted; device work until `done` stays pending.
    pub(super) fn unpin(&self, pin: &Pin, done: &[Fence]) {
        if let Some(id) = pin.traced_id() {
            hooks::unpinned(id, done);
        }
        let mut ready = ReadyList::new();
        let mut observer = None;
        let mut replaced = Replaced::default();
        let tag = (!done.is_empty()).then(|| OpTag { name: Name::Static("lease"), id: graph().next_id() });
        let left = tag.as_ref().map(|tag| (done, tag));
        let ending = Ending::Ran { left, failure: None };
        let finish = |state: &mut VarState, flags: &mut u32| {
            // SAFETY: the lease was listed when the pin was granted.
            observer = unsafe { state.pins().remove(NonNull::from(self)) };
            state.finish(AccessMode::Read, &ending, flags, &mut replaced);
        };
        let var = &self.tensor.inner.vars[0];
        var.unpin(finish, |granted| ready.push(granted));
        drop(replaced);
        thin_out(var.flags(), |look| var.with_ordering_state(look));
        if !ready.is_empty() {
            run::dispatch(ready);
        }
        if let Some(observer) = observer {
            observer.set(Ok(()));
        }
        self.tensor.inner.core.notifier.notify();
    }

    /// The pin of this lease.
    ///
    /// # Safety
    /// The lease is a pin.
    #[inline]
    unsafe fn as_pin(&self) -> &Pin {
        match &self.order {
            LeaseOrder::Pin(pin) => pin,
            // SAFETY: by contract. A checked branch would cost each export of a tensor some instructions.
            LeaseOrder::Operation { .. } | LeaseOrder::Alias(_) | LeaseOrder::Pending(_) => unsafe {
                unreachable_unchecked()
            },
        }
    }
}

/// The pins of a variable, newest first.
#[derive(Debug, Default)]
pub(crate) struct PinList {
    newest: Option<NonNull<LeaseState>>,
}

// SAFETY: the list points into leases, which threads share; it is used under the variable's lock only.
unsafe impl Send for PinList {}

/// A lease's neighbours in a [`PinList`]; protected by the variable's lock.
#[derive(Default)]
struct PinLink(UnsafeCell<Neighbours>);

// SAFETY: used through `PinList` only, under the lock of the pinned variable.
unsafe impl Send for PinLink {}
// SAFETY: as above.
unsafe impl Sync for PinLink {}

#[derive(Default)]
struct Neighbours {
    newer: Option<NonNull<LeaseState>>,
    older: Option<NonNull<LeaseState>>,
    /// The id of the pin among the operations.
    number: Option<OpId>,
    /// Notified of the pin's end.
    observer: Option<Arc<ReadyOneShot>>,
}

impl PinList {
    /// Lends the link of `lease`.
    ///
    /// # Safety
    /// `lease` is in this list, or is being added or removed, under the lock.
    unsafe fn neighbours(&mut self, lease: NonNull<LeaseState>) -> &mut Neighbours {
        // SAFETY: by contract: a lease in the list is alive and a pin, and the exclusive borrow of the list
        // stands for the lock.
        unsafe { &mut *lease.as_ref().as_pin().link.0.get() }
    }

    /// Adds a lease.
    ///
    /// # Safety
    /// `lease` comes from `Arc::as_ptr`. The lease is a pin, is in no list, and removes itself in its
    /// destructor.
    unsafe fn add(&mut self, lease: NonNull<LeaseState>, number: OpId) {
        let older = self.newest.replace(lease);
        // SAFETY: both leases are in this list.
        unsafe {
            let own = self.neighbours(lease);
            own.older = older;
            own.number = Some(number);
            if let Some(older) = older {
                self.neighbours(older).newer = Some(lease);
            }
        }
    }

    /// Removes a lease. Returns the observer of its end.
    ///
    /// # Safety
    /// The lease is in this list.
    unsafe fn remove(&mut self, lease: NonNull<LeaseState>) -> Option<Arc<ReadyOneShot>> {
        // SAFETY: the lease and its neighbours are in this list.
        unsafe {
            let Neighbours { newer, older, observer, .. } = std::mem::take(self.neighbours(lease));
            match newer {
                Some(newer) => self.neighbours(newer).older = older,
                None => self.newest = older,
            }
            if let Some(older) = older {
                self.neighbours(older).newer = newer;
            }
            observer
        }
    }

    /// Calls `f` with each pin, newest first.
    pub(crate) fn each(&mut self, mut f: impl FnMut(ListedPin<'_>)) {
        self.find(|pin| {
            f(pin);
            None::<()>
        });
    }

    /// Calls `f` with each pin, newest first, until `f` returns a value.
    pub(crate) fn find<R>(&mut self, mut f: impl FnMut(ListedPin<'_>) -> Option<R>) -> Option<R> {
        let mut next = self.newest;
        while let Some(lease) = next {
            // SAFETY: the lease is in this list.
            let neighbours = unsafe { self.neighbours(lease) };
            next = neighbours.older;
            let found = f(ListedPin { place: lease, neighbours });
            if found.is_some() {
                return found;
            }
        }
        None
    }
}

/// A pin in a list, under the variable's lock. Its lease may be about to end.
pub(crate) struct ListedPin<'a> {
    /// From `Arc::as_ptr`.
    place: NonNull<LeaseState>,
    neighbours: &'a mut Neighbours,
}

impl ListedPin<'_> {
    /// The lease.
    pub(crate) fn lease(&self) -> &LeaseState {
        // SAFETY: the lease is in the list, under the lock.
        unsafe { self.place.as_ref() }
    }

    /// The id of the pin among the operations.
    pub(crate) fn number(&self) -> OpId {
        self.neighbours.number.expect("`add` sets the number")
    }

    /// The one-shot of the pin's end; `new` makes it at the first call.
    pub(crate) fn observer(&mut self, new: impl FnOnce() -> Arc<ReadyOneShot>) -> Arc<ReadyOneShot> {
        Arc::clone(self.neighbours.observer.get_or_insert_with(new))
    }

    /// A clone of the lease, unless the lease is ending. The caller drops it outside of the lock, since it
    /// may be the last.
    pub(crate) fn share(&self) -> Option<Arc<LeaseState>> {
        // SAFETY: the pointer comes from an `Arc`, whose memory stays while the value's destructor runs,
        // hence while the lease is in the list. This code does not own the weak count, and does not drop it.
        let weak = ManuallyDrop::new(unsafe { Weak::from_raw(self.place.as_ptr().cast_const()) });
        weak.upgrade()
    }
}
