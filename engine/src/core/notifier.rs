//! An event count: notified whenever something may have changed. Waiters check their condition again after
//! each notification.

use std::task::Waker;

use estafette_sync::event_count::{self, EventCount, Waiter};
use estafette_sync::process::Generation;

use crate::core::wakers::{WakerKey, Wakers};

/// The event count of threads and futures of an engine. A notification costs one load while nothing listens.
#[derive(Debug, Default)]
pub(crate) struct Notifier(EventCount<Wakers>, Generation);

/// A thread that listens.
pub(crate) type Listening<'a> = Waiter<'a, Wakers>;

impl event_count::Wakers for Wakers {
    fn count(&self) -> usize {
        self.len()
    }
}

impl Notifier {
    /// True if anything listens, as far as this thread knows: after [`notify`](Self::notify) of another
    /// notifier at the latest.
    #[inline]
    pub(crate) fn has_waiters(&self) -> bool {
        self.0.has_waiters()
    }

    /// Makes every listener check its condition again.
    #[inline(always)]
    pub(crate) fn notify(&self) {
        if let Some(wakers) = self.0.notify(Wakers::take) {
            wakers.wake();
        }
    }

    /// Starts listening with the calling thread; check the condition between this and [`Waiter::wait_until`].
    pub(crate) fn listen(&self) -> Listening<'_> {
        self.0.listen()
    }

    /// Wakes `waker` at the next notification; check the condition after this call. A future that [takes its
    /// waker out](Self::forget) when it is dropped has the `key`.
    pub(crate) fn register_waker(&self, waker: &Waker, key: &mut WakerKey) {
        if self.0.with_wakers(|wakers| wakers.has(key, waker)) {
            return;
        }
        // Cloning and dropping a waker is foreign code.
        let waker = waker.clone();
        let replaced = self.0.with_wakers(|wakers| wakers.put(key, waker));
        drop(replaced);
    }

    /// Removes the waker of a future that no longer waits.
    pub(crate) fn forget(&self, key: &mut WakerKey) {
        let Some(key) = key.take_used(self.1) else { return };
        let removed = self.0.with_wakers(|wakers| wakers.remove(&key));
        drop(removed);
    }

    /// Starts listening with a future that borrows the notifier.
    pub(crate) fn listen_async(&self) -> ListeningAsync<'_> {
        ListeningAsync { notifier: self, key: WakerKey::default() }
    }
}

/// A future that listens.
#[derive(Debug)]
pub(crate) struct ListeningAsync<'a> {
    notifier: &'a Notifier,
    key: WakerKey,
}

impl ListeningAsync<'_> {
    /// Wakes `waker` at the next notification; check the condition after this call.
    pub(crate) fn register_waker(&mut self, waker: &Waker) {
        self.notifier.register_waker(waker, &mut self.key);
    }
}

impl Drop for ListeningAsync<'_> {
    fn drop(&mut self) {
        self.notifier.forget(&mut self.key);
    }
}
