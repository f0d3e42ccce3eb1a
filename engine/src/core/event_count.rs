//! A bell that rings whenever something may have changed; waiters look again after each ring.

use std::task::Waker;

use estafette_sync::event_count::{self, EventCount, Waiter};

use crate::core::wakers::{WakerKey, Wakers, locks_are_lost};

/// The event count of threads and futures of an engine: ringing costs one load while nothing listens.
#[derive(Debug, Default)]
pub(crate) struct Bell(EventCount<Wakers>);

/// A thread that listens.
pub(crate) type Listening<'a> = Waiter<'a, Wakers>;

impl event_count::Wakers for Wakers {
    fn count(&self) -> usize {
        self.len()
    }
}

impl Bell {
    /// Whether anything listens, as far as this thread knows: after [`ring`](Self::ring) of another bell at the latest.
    #[inline]
    pub(crate) fn is_heard(&self) -> bool {
        self.0.has_waiters()
    }

    /// Has every listener look again.
    #[inline(always)]
    pub(crate) fn ring(&self) {
        if let Some(wakers) = self.0.notify(Wakers::take) {
            wakers.wake();
        }
    }

    /// Starts listening with the calling thread; check the condition between this and [`Waiter::wait_until`].
    pub(crate) fn listen(&self) -> Listening<'_> {
        self.0.listen()
    }

    /// Wakes `waker` at the next ring; check the condition after this. A future that [takes its waker out](Self::forget) when it is
    /// dropped has the `key`.
    pub(crate) fn wake_at_ring(&self, waker: &Waker, key: &mut WakerKey) {
        if self.0.with_wakers(|wakers| wakers.has(key, waker)) {
            return;
        }
        // Cloning and dropping a waker is foreign code.
        let waker = waker.clone();
        let replaced = self.0.with_wakers(|wakers| wakers.put(key, waker));
        drop(replaced);
    }

    /// Takes the waker of a future out that waits no longer.
    pub(crate) fn forget(&self, key: &mut WakerKey) {
        let key = std::mem::take(key);
        if !key.is_used() || locks_are_lost() {
            return;
        }
        let removed = self.0.with_wakers(|wakers| wakers.remove(&key));
        drop(removed);
    }

    /// Starts listening with a future that borrows the bell.
    pub(crate) fn listen_async(&self) -> ListeningAsync<'_> {
        ListeningAsync { bell: self, key: WakerKey::default() }
    }
}

/// A future that listens.
#[derive(Debug)]
pub(crate) struct ListeningAsync<'a> {
    bell: &'a Bell,
    key: WakerKey,
}

impl ListeningAsync<'_> {
    /// Wakes `waker` at the next ring; check the condition after this.
    pub(crate) fn wake_at_ring(&mut self, waker: &Waker) {
        self.bell.wake_at_ring(waker, &mut self.key);
    }
}

impl Drop for ListeningAsync<'_> {
    fn drop(&mut self) {
        self.bell.forget(&mut self.key);
    }
}
