//! Deques for threads from outside of the pool: what such a thread pushes costs it no locked instruction, stays visible to
//! everybody, and is found by the thread itself first when it helps.
//!
//! A thread is a guest of the pool that it pushed to last. It leaves when it pushes to another pool, or ends; what is in
//! its deque then goes to everybody.

use std::any::Any;
use std::cell::RefCell;
use std::sync::Arc;

use crossbeam::deque::Worker as Deque;
use estafette_sync::abandoned::is_abandoned;
use estafette_sync::sync::Mutex;
use estafette_sync::thread_local;

use super::pool::{Job, Shared};

/// Threads that can be guests at once.
pub(super) const GUESTS: usize = if cfg!(estafette_shuttle) { 1 } else { 16 };

/// Deques that no guest has.
#[derive(Debug)]
pub(super) struct FreeDeques<J>(Mutex<Vec<Deque<J>>>);

impl<J> FreeDeques<J> {
    pub(super) fn new(deques: Vec<Deque<J>>) -> Self {
        Self(Mutex::new(deques))
    }

    /// A deque, and how many are out with it.
    fn take(&self) -> Option<(Deque<J>, usize)> {
        let mut free = self.0.lock();
        let deque = free.pop()?;
        Some((deque, GUESTS - free.len()))
    }

    fn give(&self, deque: Deque<J>) {
        self.0.lock().push(deque);
    }
}

/// The stay of one thread at one pool.
struct Guest<J: Job> {
    shared: Arc<Shared<J>>,
    /// `None` when all were taken, and after leaving.
    deque: Option<Deque<J>>,
}

thread_local! {
    /// Where this thread is a guest.
    static STAY: RefCell<Option<Box<dyn Any>>> = const { RefCell::new(None) };
}

impl<J: Job> Drop for Guest<J> {
    fn drop(&mut self) {
        let Some(deque) = self.deque.take() else { return };
        if is_abandoned() {
            // The locks of the pool may be held for ever: the deque is lost, with what is in it.
            return std::mem::forget(deque);
        }
        self.shared.share(&deque);
        self.shared.guests.give(deque);
    }
}

/// Calls `f` with the deque that this thread has as a guest of `shared`, if it has one.
pub(super) fn with_deque<J: Job, R>(shared: &Arc<Shared<J>>, f: impl FnOnce(&Deque<J>) -> R) -> Option<R> {
    let in_stay = |stay: &RefCell<Option<Box<dyn Any>>>| {
        // Borrowed while `f` runs, which only takes or pushes.
        let stay = stay.try_borrow().ok()?;
        let guest = stay.as_ref()?.downcast_ref::<Guest<J>>()?;
        if Arc::ptr_eq(&guest.shared, shared) { guest.deque.as_ref().map(f) } else { None }
    };
    STAY.try_with(in_stay).ok().flatten()
}

/// Makes this thread a guest of `shared`. It may get no deque.
pub(super) fn arrive<J: Job>(shared: &Arc<Shared<J>>) {
    let deque = shared.guests.take().map(|(deque, guests)| {
        // Before anything is pushed, so that whoever looks for work looks here too.
        shared.queues.guests_are(guests);
        deque
    });
    let guest = Guest { shared: shared.clone(), deque };
    let mut guest: Option<Box<dyn Any>> = Some(Box::new(guest));
    // A thread that ends has no stay any more; then the new guest leaves at once. So does the old one, outside of the borrow.
    let _ =
        STAY.try_with(|stay| stay.try_borrow_mut().map(|mut stay| std::mem::swap(&mut *stay, &mut guest)));
    drop(guest);
}

/// Whether this thread is a guest of `shared`, with a deque or without.
pub(super) fn is_here<J: Job>(shared: &Arc<Shared<J>>) -> bool {
    let here = |stay: &RefCell<Option<Box<dyn Any>>>| {
        let stay = stay.try_borrow();
        stay.is_ok_and(|stay| {
            let guest = stay.as_ref().and_then(|stay| stay.downcast_ref::<Guest<J>>());
            guest.is_some_and(|guest| Arc::ptr_eq(&guest.shared, shared))
        })
    };
    // A thread that ends is nobody's guest, and need not become one.
    STAY.try_with(here).unwrap_or(true)
}
