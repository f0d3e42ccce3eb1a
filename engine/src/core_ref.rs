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
use std::ptr::NonNull;

use estafette_devices::tally::Seat;
use estafette_sync::sync::atomic::{AtomicUsize, Ordering, fence};

use crate::core::Core;

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
    static DESK: Desk = const { Desk { core: Cell::new(None), stock: Cell::new(0), seat: Cell::new(None) } };
}

/// See the module's description.
struct Desk {
    /// Counts as one reference, and keeps the seat.
    core: Cell<Option<NonNull<Counted>>>,
    stock: Cell<usize>,
    seat: Cell<Option<NonNull<Seat>>>,
}

impl CoreRef {
    pub(crate) fn new(core: Core) -> Self {
        let counted = Box::new(Counted { refs: AtomicUsize::new(1), core });
        Self { counted: NonNull::from(Box::leak(counted)) }
    }

    pub(crate) fn same(&self, other: &Self) -> bool {
        self.counted == other.counted
    }

    /// Lends the calling thread's seat in the core's tally; `None` when there are more threads than seats.
    #[inline]
    pub(crate) fn with_seat<R>(&self, f: impl FnOnce(Option<&Seat>) -> R) -> R {
        let seat = DESK.try_with(|desk| {
            if desk.core.get() != Some(self.counted) {
                desk.go_to(self);
            }
            desk.seat.get()
        });
        // SAFETY: `self` keeps the core, and the core its seats; this one is ours while the desk is at this core, which only
        // this thread changes.
        f(seat.ok().flatten().map(|seat| unsafe { seat.as_ref() }))
    }

    /// As [`with_seat`](Self::with_seat), but does not take a seat for the purpose.
    #[inline]
    pub(crate) fn with_taken_seat<R>(&self, f: impl FnOnce(Option<&Seat>) -> R) -> R {
        let here = |desk: &Desk| if desk.core.get() == Some(self.counted) { desk.seat.get() } else { None };
        let seat = DESK.try_with(here).ok().flatten();
        // SAFETY: as in `with_seat`.
        f(seat.map(|seat| unsafe { seat.as_ref() }))
    }

    /// Takes this thread's desk away from this core, if it is there.
    pub(crate) fn leave(&self) {
        let _ = DESK.try_with(|desk| {
            if desk.core.get() == Some(self.counted) {
                desk.leave();
            }
        });
    }

    /// Gives up `count` references.
    ///
    /// # Safety
    /// They are the caller's.
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
    #[cold]
    fn go_to(&self, core: &CoreRef) {
        self.leave();
        core.counted().add(1 + BATCH);
        self.core.set(Some(core.counted));
        self.stock.set(BATCH);
        self.seat.set(core.tally.sit().map(NonNull::from));
    }

    fn leave(&self) {
        let Some(counted) = self.core.take() else { return };
        if let Some(seat) = self.seat.take() {
            // SAFETY: the desk's reference keeps the core and its seats; the seat is this thread's.
            unsafe { seat.as_ref() }.leave();
        }
        // SAFETY: the stock and one more are the desk's.
        unsafe { CoreRef::release(counted, 1 + self.stock.take()) };
    }
}

impl Drop for Desk {
    fn drop(&mut self) {
        self.leave();
    }
}

impl CoreRef {
    fn counted(&self) -> &Counted {
        // SAFETY: a reference is counted for `self`.
        unsafe { self.counted.as_ref() }
    }

    /// Takes a reference out of the stock of this thread's desk.
    #[inline]
    fn take_from_stock(&self) -> bool {
        let take = |desk: &Desk| {
            if desk.core.get() != Some(self.counted) {
                return false;
            }
            let stock = desk.stock.get();
            if stock == 0 {
                self.counted().add(BATCH);
            }
            desk.stock.set(if stock == 0 { BATCH } else { stock } - 1);
            true
        };
        DESK.try_with(take).unwrap_or(false)
    }

    /// Puts a reference into the stock of this thread's desk.
    #[inline]
    fn put_into_stock(&self) -> bool {
        let put = |desk: &Desk| {
            if desk.core.get() != Some(self.counted) {
                return false;
            }
            let stock = desk.stock.get() + 1;
            desk.stock.set(stock);
            if stock >= 2 * BATCH {
                desk.stock.set(stock - BATCH);
                // SAFETY: these were in the stock; the desk has one more.
                unsafe { Self::release(self.counted, BATCH) };
            }
            true
        };
        DESK.try_with(put).unwrap_or(false)
    }
}

impl Clone for CoreRef {
    #[inline]
    fn clone(&self) -> Self {
        if !self.take_from_stock() {
            self.counted().add(1);
        }
        Self { counted: self.counted }
    }
}

impl Drop for CoreRef {
    #[inline]
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
