//! Threads from outside of the pool: deques of those that push, and slots of those that wait.
//!
//! A job that such a thread pushes to its deque costs it no locked instruction, stays visible to every
//! thread, and is found by the thread itself first when it helps. A thread is registered with the pool that
//! it pushed to last. Its registration ends when the thread pushes to another pool, or ends. The jobs in its
//! deque then move to the shared queue.
//!
//! A slot is the right of a thread that is no worker to run jobs which share a lock, while it waits for one
//! of them.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::marker::PhantomData;
use std::sync::Arc;

use estafette_sync::sync::Mutex;
use estafette_sync::thread_local;

use super::concurrency::Concurrency;
use super::deques::Worker as Deque;
use super::pool::{Job, Pool, PoolState};

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

impl<J: Job> Pool<J> {
    /// Called by a thread that is no worker and would run a job which needs the
    /// [`SharedLock`](super::SharedLock). `None` where as many threads run such jobs as should. A thread that
    /// has a slot, and waits for another job inside of one, keeps it.
    pub fn take_slot(&self) -> Option<ConcurrencySlot<'_, J>> {
        let concurrency = self.shared.concurrency()?;
        let before = SLOT.get();
        if before != self.shared.address() {
            if !concurrency.acquire() {
                return None;
            }
            SLOT.set(self.shared.address());
        }
        Some(ConcurrencySlot { shared: &self.shared, before, not_send: PhantomData })
    }

    /// Called by a thread that is no worker and waits for a job, until the guard is dropped. Where threads
    /// wait at once for what they have pushed, the next such job wakes no worker.
    pub fn begin_wait(&self) -> WaitGuard<'_, J> {
        let takes_slots = self.shared.concurrency().is_some_and(Concurrency::begin_wait);
        WaitGuard { shared: &self.shared, takes_slots }
    }

    /// The calling thread waits for jobs, and runs none: wakes a worker for a job that was left to it.
    #[inline]
    pub fn release_to_workers(&self) {
        if self.shared.concurrency().is_some_and(|concurrency| concurrency.waiters.gives_up()) {
            self.shared.notify();
        }
    }
}

impl<J> PoolState<J> {
    /// Releases a slot, and wakes another thread where jobs are left.
    pub(super) fn release_slot(&self) {
        if let Some(concurrency) = self.concurrency() {
            concurrency.release();
            if self.queues.has_work() {
                self.notify();
            }
        }
    }
}

/// The right of a thread that is no worker to run jobs which need the [`SharedLock`](super::SharedLock), one
/// after the other.
#[must_use = "workers may run a job in place of the thread while the guard lives"]
pub struct ConcurrencySlot<'a, J: Job> {
    shared: &'a Arc<PoolState<J>>,
    /// The former value of [`SLOT`].
    before: usize,
    not_send: PhantomData<*const ()>,
}

thread_local! {
    /// The address of the pool that this thread, which is none of its workers, has a slot of, or zero.
    pub(super) static SLOT: Cell<usize> = const { Cell::new(0) };
}

impl<J: Job> ConcurrencySlot<'_, J> {
    /// The thread has taken the job that it is about to run.
    pub fn has_job(&self) {
        if let Some(concurrency) = self.shared.concurrency() {
            concurrency.waiters.none_is_left();
            concurrency.starts();
        }
    }
}

impl<J: Job> Drop for ConcurrencySlot<'_, J> {
    fn drop(&mut self) {
        if SLOT.replace(self.before) != self.before {
            self.shared.release_slot();
        }
    }
}

debug_as!([J: Job] _slot: ConcurrencySlot<'_, J>, "ConcurrencySlot");

/// A thread that waits for a job: see [`Pool::begin_wait`].
#[must_use = "the wait lasts until the guard is dropped"]
pub struct WaitGuard<'a, J: Job> {
    shared: &'a PoolState<J>,
    takes_slots: bool,
}

impl<J: Job> WaitGuard<'_, J> {
    /// True if the thread should [take a slot](Pool::take_slot) for the job, if there is one.
    pub fn takes_slots(&self) -> bool {
        self.takes_slots
    }
}

impl<J: Job> Drop for WaitGuard<'_, J> {
    fn drop(&mut self) {
        self.shared.concurrency().into_iter().for_each(Concurrency::end_wait);
    }
}

debug_as!([J: Job] _guard: WaitGuard<'_, J>, "WaitGuard");
