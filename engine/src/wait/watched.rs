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

/// Sleeps until `one_shot` is set, until there is work in one of the `engines`, which have no workers, until
/// the host of sleepers has done something, or until `deadline`. Sleeps only if `is_idle` returns true; the
/// thread already listens when this function calls `is_idle`.
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
        let (op, pause, helps) = (self.op, self.pause, self.helps);
        loop {
            if self.one_shot.is_set(&mut Context::from_waker(&waker), &mut self.key) {
                return false;
            }
            if self.pending.was_woken(&waker, || Awaited::by_thread(op, pause, helps)) {
                self.pending.over();
                return true;
            }
            if !self.sleeper.sleep(deadline) {
                return false;
            }
        }
    }
}

impl<V: Clone + Delivered> Drop for Watched<'_, V> {
    fn drop(&mut self) {
        self.one_shot.forget(&mut self.key);
    }
}

#[cfg(test)]
mod tests {
    use estafette_sync::thread;

    use super::*;
    use crate::lease::Access;
    use crate::wait::ready::{Polled, poll_or_query};
    use crate::{DType, Engine};

    #[test]
    fn a_wake_up_between_two_sleeps_counts() {
        let engine = Engine::builder().workers(1).build().expect("it starts");
        let tensor = engine.zeros(&[4], DType::F32).expect("it is made");
        let lease = tensor.lease(Access::Write, "the test").wait(None).expect("it is granted");
        let Polled::Probing(query) = poll_or_query(&tensor.inner, true) else { panic!("the lease is held") };
        let mut watched = Watched::new(&query.one_shot, &query.handle, Duration::from_millis(300), false);
        // The thread is awake, as one that runs a signal handler, when the watcher finds that only a lease
        // holds it up.
        assert!(!watched.wait_until(Some(Instant::now())), "the wait has just begun");
        let waker = Waker::from(Arc::clone(&watched.sleeper));
        let start = Instant::now();
        while !watched.pending.was_woken(&waker, || unreachable!("it is registered")) {
            assert!(start.elapsed() < Duration::from_secs(30), "the watcher never looked");
            thread::yield_now();
        }
        assert!(watched.wait_until(Some(Instant::now() + Duration::from_secs(10))), "the wake-up is lost");
        drop(watched);
        drop(lease);
        tensor.wait().expect("the lease is over");
    }
}
