//! Slots: the right of a thread that is no worker to run jobs which share a lock, while it waits for one of them.

use std::cell::Cell;
use std::marker::PhantomData;
use std::sync::Arc;

use estafette_sync::thread_local;

use super::concurrency::Concurrency;
use super::pool::{Job, Pool, PoolState};

impl<J: Job> Pool<J> {
    /// Called by a thread that is no worker and would run a job which needs the [`SharedLock`](super::SharedLock). `None` where as many
    /// threads run such jobs as should. A thread that has a slot, and waits for another job inside of one, keeps it.
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

    /// Called by a thread that is no worker and waits for a job, until the guard is dropped. Where threads wait at once for what they have
    /// pushed, the next such job wakes no worker.
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

/// The right of a thread that is no worker to run jobs which need the [`SharedLock`](super::SharedLock), one after the other.
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
