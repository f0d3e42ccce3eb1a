//! A bell that rings whenever something may have changed; waiters look again after each ring.

use std::task::Waker;

use estafette_sync::barrier;
use estafette_sync::sync::atomic::{AtomicUsize, Ordering};
use estafette_sync::sync::{Condvar, Mutex, MutexGuard};
use estafette_sync::time::Instant;

use crate::wakers::{WakerKey, Wakers, locks_are_lost};

/// Ringing costs one load while nobody listens.
///
/// Protocol: a listener calls [`listen`](Self::listen), which counts it and fences, *then* checks its condition, then waits.
/// Whoever changes the condition rings afterwards, which fences as well. Whichever fence comes first, either the ringer
/// sees the listener or the listener's check sees the change. Listeners pay for both fences.
#[derive(Debug, Default)]
pub(crate) struct Bell {
    listeners: AtomicUsize,
    inner: Mutex<Rings>,
    rang: Condvar,
}

#[derive(Debug, Default)]
struct Rings {
    count: u64,
    wakers: Wakers,
}

impl Bell {
    fn lock(&self) -> MutexGuard<'_, Rings> {
        // Nothing foreign runs under this lock, so it cannot be poisoned by a panic that matters.
        self.inner.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Whether somebody listens, as far as this thread knows: after [`ring`](Self::ring) of another bell at the latest.
    #[inline]
    pub(crate) fn is_heard(&self) -> bool {
        self.listeners.load(Ordering::Relaxed) != 0
    }

    /// Tells every listener to look again.
    #[inline(always)]
    pub(crate) fn ring(&self) {
        barrier::light();
        if self.listeners.load(Ordering::Relaxed) != 0 {
            self.ring_aloud();
        }
    }

    #[cold]
    fn ring_aloud(&self) {
        let mut rings = self.lock();
        rings.count += 1;
        let wakers = rings.wakers.take();
        drop(rings);
        self.listeners.fetch_sub(wakers.len(), Ordering::SeqCst);
        self.rang.notify_all();
        wakers.wake();
    }

    /// Starts listening with the calling thread; check the condition between this and [`Listening::wait_until`].
    pub(crate) fn listen(&self) -> Listening<'_> {
        self.listeners.fetch_add(1, Ordering::SeqCst);
        barrier::heavy();
        let seen = self.lock().count;
        Listening { bell: self, seen }
    }

    /// Wakes `waker` at the next ring; check the condition after this. A future that [takes its waker out](Self::forget) when it is
    /// dropped has the `key`.
    pub(crate) fn wake_at_ring(&self, waker: &Waker, key: &mut WakerKey) {
        if self.lock().wakers.has(key, waker) {
            return;
        }
        // Cloning and dropping a waker is foreign code.
        let waker = waker.clone();
        let mut rings = self.lock();
        let replaced = rings.wakers.put(key, waker);
        if replaced.is_none() {
            self.listeners.fetch_add(1, Ordering::SeqCst);
        }
        barrier::heavy();
        drop(rings);
        drop(replaced);
    }

    /// Takes the waker of a future out that waits no longer.
    pub(crate) fn forget(&self, key: &mut WakerKey) {
        let key = std::mem::take(key);
        if !key.is_used() || locks_are_lost() {
            return;
        }
        let removed = self.lock().wakers.remove(&key);
        if removed.is_some() {
            self.listeners.fetch_sub(1, Ordering::SeqCst);
        }
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

/// A thread that listens.
#[derive(Debug)]
pub(crate) struct Listening<'a> {
    bell: &'a Bell,
    seen: u64,
}

impl Listening<'_> {
    /// Blocks until a ring that came after the last look, or `deadline`.
    pub(crate) fn wait_until(&mut self, deadline: Instant) {
        let mut rings = self.bell.lock();
        while rings.count == self.seen {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            (rings, _) =
                self.bell.rang.wait_timeout(rings, left).unwrap_or_else(|poisoned| poisoned.into_inner());
        }
        self.seen = rings.count;
    }
}

impl Drop for Listening<'_> {
    fn drop(&mut self) {
        self.bell.listeners.fetch_sub(1, Ordering::SeqCst);
    }
}
