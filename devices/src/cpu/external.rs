//! Deques for threads from outside of the pool: what such a thread pushes costs it no locked instruction, stays visible to every thread, and
//! is found by the thread itself first when it helps.
//!
//! A thread is registered with the pool that it pushed to last. Its registration ends when it pushes to another pool, or ends. The jobs in
//! its deque then move to the shared queue.

use std::any::Any;
use std::cell::RefCell;
use std::sync::Arc;

use estafette_sync::sync::Mutex;
use estafette_sync::thread_local;

use super::deques::Worker as Deque;
use super::pool::{Job, PoolState};

/// The number of threads outside of the pool that can have a deque at the same time.
pub(super) const EXTERNAL_QUEUES_MAX: usize =
    if cfg!(any(estafette_loom, estafette_shuttle)) { 1 } else { 16 };

/// Deques that no registered thread has.
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
        Some((deque, EXTERNAL_QUEUES_MAX - free.len()))
    }

    fn put_back(&self, deque: Deque<J>) {
        self.0.lock().push(deque);
    }
}

/// The registration of one outside thread with one pool.
struct ExternalQueue<J: Job> {
    shared: Arc<PoolState<J>>,
    /// `None` when all were taken, and after the registration has ended.
    deque: Option<Deque<J>>,
}

thread_local! {
    /// The pool that this thread is registered with.
    static REGISTERED: RefCell<Option<Box<dyn Any>>> = const { RefCell::new(None) };
}

impl<J: Job> Drop for ExternalQueue<J> {
    fn drop(&mut self) {
        let Some(deque) = self.deque.take() else { return };
        if self.shared.generation.is_inherited() {
            // The locks of the pool may be held for ever: the deque is lost, with what is in it.
            return std::mem::forget(deque);
        }
        self.shared.share(&deque);
        self.shared.external.put_back(deque);
    }
}

/// Calls `f` with the deque that this thread has by its registration with `shared`, if it has one.
pub(super) fn with_deque<J: Job, R>(shared: &Arc<PoolState<J>>, f: impl FnOnce(&Deque<J>) -> R) -> Option<R> {
    let in_registered = |place: &RefCell<Option<Box<dyn Any>>>| {
        // Borrowed while `f` runs, which only takes or pushes.
        let place = place.try_borrow().ok()?;
        let registered = place.as_ref()?.downcast_ref::<ExternalQueue<J>>()?;
        if Arc::ptr_eq(&registered.shared, shared) { registered.deque.as_ref().map(f) } else { None }
    };
    REGISTERED.try_with(in_registered).ok().flatten()
}

/// Registers this thread with `shared`. When all deques are taken, the registration has none.
pub(super) fn register<J: Job>(shared: &Arc<PoolState<J>>) {
    let deque = shared.external.take().map(|(deque, external)| {
        // Before anything is pushed, so that every search for work includes this deque.
        shared.queues.set_external_in_use(external);
        deque
    });
    let registered = ExternalQueue { shared: shared.clone(), deque };
    let mut registered: Option<Box<dyn Any>> = Some(Box::new(registered));
    // On a thread that ends the new registration is dropped at once. The old one is dropped outside of the
    // borrow.
    let _ = REGISTERED.try_with(|place| {
        place.try_borrow_mut().map(|mut place| std::mem::swap(&mut *place, &mut registered))
    });
    drop(registered);
}

/// True if this thread is registered with `shared`, with a deque or without.
pub(super) fn is_registered<J: Job>(shared: &Arc<PoolState<J>>) -> bool {
    let here = |place: &RefCell<Option<Box<dyn Any>>>| {
        let place = place.try_borrow();
        place.is_ok_and(|place| {
            let registered = place.as_ref().and_then(|place| place.downcast_ref::<ExternalQueue<J>>());
            registered.is_some_and(|registered| Arc::ptr_eq(&registered.shared, shared))
        })
    };
    // A thread that ends cannot register any more, and need not.
    REGISTERED.try_with(here).unwrap_or(true)
}
