//! Threads that sleep until woken: for long, while the [watcher](crate::wait::awaits) inspects what they wait
//! for; and in engines without workers, until there is work.

use std::sync::Arc;
use std::task::{Context, Waker};

use estafette_sync::sleeper::Sleeper;
use estafette_sync::time::{Duration, Instant};
use smallvec::SmallVec;

use crate::core::context;
use crate::core::core_ref::CoreRef;
use crate::core::one_shot::{Delivered, OneShot};
use crate::core::operation::OpHandle;
use crate::core::wakers::WakerKey;
use crate::wait::awaits::{Awaited, Pending};

/// Sleeps until `one_shot` is set, until there is work in one of the `engines`, which have no workers, until the host of
/// sleepers has done something, or until `deadline`. Sleeps only if `is_idle` returns true; the thread already listens when this function
/// calls `is_idle`.
pub(crate) fn sleep_until_work<'a, V: Clone + Delivered>(
    one_shot: &OneShot<V>,
    engines: impl Iterator<Item = &'a CoreRef>,
    deadline: Instant,
    is_idle: impl FnOnce() -> bool,
) {
    let sleeper = Arc::<Sleeper>::default();
    let waker = Waker::from(Arc::clone(&sleeper));
    let mut listeners: SmallVec<[_; 1]> = engines.map(|engine| engine.notifier.listen_async()).collect();
    listeners.iter_mut().for_each(|listener| listener.register_waker(&waker));
    let mut key = WakerKey::default();
    if !one_shot.is_set(&mut Context::from_waker(&waker), &mut key) && is_idle() {
        context::blocking(|| sleeper.sleep(Some(deadline)));
    }
    one_shot.forget(&mut key);
}

/// A blocked thread that the watcher inspects for.
pub(crate) struct Watched<'a, V: Clone + Delivered> {
    one_shot: &'a OneShot<V>,
    op: &'a OpHandle,
    pause: Duration,
    helps: bool,
    sleeper: Arc<Sleeper>,
    key: WakerKey,
    pending: Pending,
}

impl<'a, V: Clone + Delivered> Watched<'a, V> {
    /// The calling thread waits for `one_shot`, which `op` will set; `helps` says whether the thread may run
    /// what it needs. The first inspection happens after `pause`.
    pub(crate) fn new(one_shot: &'a OneShot<V>, op: &'a OpHandle, pause: Duration, helps: bool) -> Self {
        let (key, pending) = (WakerKey::default(), Pending::default());
        Self { one_shot, op, pause, helps, sleeper: Arc::default(), key, pending }
    }

    /// Sleeps until the one-shot is set, until the thread has to inspect for itself, or until `deadline`.
    /// Returns true where the thread has to inspect.
    pub(crate) fn wait_until(&mut self, deadline: Option<Instant>) -> bool {
        let waker = Waker::from(Arc::clone(&self.sleeper));
        let cx = &mut Context::from_waker(&waker);
        loop {
            if self.one_shot.is_set(cx, &mut self.key) {
                return false;
            }
            let (op, pause, helps) = (self.op, self.pause, self.helps);
            // The entry of a thread has no verdict: a woken thread inspects for itself.
            let _ = self.pending.poll(cx, || Awaited::by_thread(op, pause, helps));
            if !self.sleeper.sleep(deadline) {
                return false;
            }
            if self.pending.was_woken() {
                self.pending.over();
                return !self.one_shot.is_set(cx, &mut self.key);
            }
        }
    }
}

impl<V: Clone + Delivered> Drop for Watched<'_, V> {
    fn drop(&mut self) {
        self.one_shot.forget(&mut self.key);
    }
}
