//! A counted reference to a core that is copied and dropped without locked instructions, as every operation does twice.
//!
//! A thread has a *desk* at the core that it used last: one counted reference of its own, a stock of further ones to give
//! out and take back, and its seat in the tally of what is in flight. References are counted at the core only when the
//! stock runs out or over, [`BATCH`] at a time. When the thread goes to another core, or ends, everything goes back.
//!
//! So a core's memory may outlive its engine by as long as a thread that used it sits idle. What must not (threads, the
//! asynchronous runtime) is given up by [`Core::close`].

use std::cell::Cell;
use std::ops::Deref;
use std::ptr::{self, NonNull};

use estafette_devices::tally::Seat;
use estafette_sync::sync::atomic::{AtomicUsize, Ordering, fence};
use estafette_sync::thread_local;

use crate::core::engine_core::Core;

/// References that move between a desk and its core at once.
const BATCH: usize = 64;

/// Beyond it the process aborts, as with `Arc`: a counter that wraps would free memory in use.
const REFS_MAX: usize = usize::MAX / 2;

struct Counted {
    refs: AtomicUsize,
    core: Core,
}

impl Counted {
    fn add(&self, count: usize) {
        if self.refs.fetch_add(count, Ordering::Relaxed) > REFS_MAX {
            std::process::abort();
        }
    }
}

/// A reference to a core, which keeps it.
pub(crate) struct CoreRef {
    counted: NonNull<Counted>,
}

// SAFETY: a core is shared between threads (asserted below) and may be dropped by any.
unsafe impl Send for CoreRef {}
// SAFETY: as above.
unsafe impl Sync for CoreRef {}

const _: () = {
    const fn shared_between_threads<T: Send + Sync>() {}
    shared_between_threads::<Core>();
};

thread_local! {
    /// Has no destructor, which would have to be looked for at every use; [`CLEARING`] has it.
    static DESK: Desk = const { Desk { core: Cell::new(ptr::null()), stock: Cell::new(0), seat: Cell::new(None) } };
    static CLEARING: Clearing = const { Clearing };
}

/// See the module's description.
struct Desk {
    /// Counts as one reference, and keeps the seat. Null at the start and at the end of the thread.
    core: Cell<*const Counted>,
    stock: Cell<usize>,
    seat: Cell<Option<NonNull<Seat>>>,
}

/// Clears the desk of a thread that ends.
struct Clearing;

impl Drop for Clearing {
    fn drop(&mut self) {
        DESK.with(Desk::leave);
    }
}

impl CoreRef {
    pub(crate) fn new(core: Core) -> Self {
        let counted = Box::new(Counted { refs: AtomicUsize::new(1), core });
        Self { counted: NonNull::from(Box::leak(counted)) }
    }

    pub(crate) fn same(&self, other: &Self) -> bool {
        self.counted == other.counted
    }

    /// Lends the calling thread's seat in the core's tally; `None` when there are more threads than seats, and at the end of the
    /// thread.
    #[inline(always)]
    pub(crate) fn with_seat<R>(&self, f: impl FnOnce(Option<&Seat>) -> R) -> R {
        let seat = DESK.with(|desk| {
            if desk.core.get() == self.counted.as_ptr() { desk.seat.get() } else { desk.go_to(self) }
        });
        // SAFETY: `self` keeps the core, and the core its seats; this one is ours while the desk is at this core, which only
        // this thread changes.
        f(seat.map(|seat| unsafe { seat.as_ref() }))
    }

    /// As [`with_seat`](Self::with_seat), but does not take a seat for the purpose.
    #[inline(always)]
    pub(crate) fn with_taken_seat<R>(&self, f: impl FnOnce(Option<&Seat>) -> R) -> R {
        let seat = DESK.with(|desk| self.is_at(desk).then(|| desk.seat.get()).flatten());
        // SAFETY: as in `with_seat`.
        f(seat.map(|seat| unsafe { seat.as_ref() }))
    }

    /// Takes this thread's desk away from this core, if it is there.
    pub(crate) fn leave(&self) {
        DESK.with(|desk| {
            if self.is_at(desk) {
                desk.leave();
            }
        });
    }

    #[inline(always)]
    fn is_at(&self, desk: &Desk) -> bool {
        desk.core.get() == self.counted.as_ptr()
    }

    /// Gives up `count` references.
    ///
    /// # Safety
    /// They are the caller's.
    #[cold]
    unsafe fn release(counted: NonNull<Counted>, count: usize) {
        // SAFETY: there is at least one reference, the caller's.
        if unsafe { counted.as_ref() }.refs.fetch_sub(count, Ordering::Release) == count {
            fence(Ordering::Acquire);
            // SAFETY: made from a box, and that was the last reference.
            drop(unsafe { Box::from_raw(counted.as_ptr()) });
        }
    }
}

impl Desk {
    /// Takes a seat; `None` also when the thread is ending, which would leave it taken.
    #[cold]
    fn go_to(&self, core: &CoreRef) -> Option<NonNull<Seat>> {
        CLEARING.try_with(|_| ()).ok()?;
        self.leave();
        core.counted().add(1 + BATCH);
        self.core.set(core.counted.as_ptr());
        self.stock.set(BATCH);
        self.seat.set(core.tally.sit().map(NonNull::from));
        self.seat.get()
    }

    fn leave(&self) {
        let Some(counted) = NonNull::new(self.core.replace(ptr::null()).cast_mut()) else { return };
        if let Some(seat) = self.seat.take() {
            // SAFETY: the desk's reference keeps the core and its seats; the seat is this thread's.
            unsafe { seat.as_ref() }.leave();
        }
        // SAFETY: the stock and one more are the desk's.
        unsafe { CoreRef::release(counted, 1 + self.stock.take()) };
    }

    /// The stock has run out.
    #[cold]
    fn restock(&self, core: &CoreRef) {
        core.counted().add(BATCH);
        self.stock.set(BATCH);
    }

    /// There is too much in the stock.
    #[cold]
    fn reduce(&self, core: &CoreRef) {
        self.stock.set(self.stock.get() - BATCH);
        // SAFETY: these were in the stock; the desk has one more.
        unsafe { CoreRef::release(core.counted, BATCH) };
    }
}

impl CoreRef {
    fn counted(&self) -> &Counted {
        // SAFETY: a reference is counted for `self`.
        unsafe { self.counted.as_ref() }
    }

    /// Takes a reference out of the stock of this thread's desk.
    #[inline(always)]
    fn take_from_stock(&self) -> bool {
        DESK.with(|desk| {
            let here = self.is_at(desk);
            if here {
                if desk.stock.get() == 0 {
                    desk.restock(self);
                }
                desk.stock.set(desk.stock.get() - 1);
            }
            here
        })
    }

    /// Puts a reference into the stock of this thread's desk.
    #[inline(always)]
    fn put_into_stock(&self) -> bool {
        DESK.with(|desk| {
            let here = self.is_at(desk);
            if here {
                desk.stock.set(desk.stock.get() + 1);
                if desk.stock.get() >= 2 * BATCH {
                    desk.reduce(self);
                }
            }
            here
        })
    }
}

impl Clone for CoreRef {
    #[inline(always)]
    fn clone(&self) -> Self {
        if !self.take_from_stock() {
            self.counted().add(1);
        }
        Self { counted: self.counted }
    }
}

impl Drop for CoreRef {
    #[inline(always)]
    fn drop(&mut self) {
        if !self.put_into_stock() {
            // SAFETY: the reference of `self`, which ends.
            unsafe { Self::release(self.counted, 1) };
        }
    }
}

impl Deref for CoreRef {
    type Target = Core;

    #[inline]
    fn deref(&self) -> &Core {
        &self.counted().core
    }
}

impl std::fmt::Debug for CoreRef {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        (**self).fmt(f)
    }
}
