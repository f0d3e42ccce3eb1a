//! Values that one thread leaves for futures of others.

use std::collections::{BTreeMap, VecDeque};
use std::future::poll_fn;
use std::task::{Context, Poll, Waker};

use estafette_devices::log_panic;
use estafette_sync::process::Generation;
use estafette_sync::statics;
use estafette_sync::sync::Mutex;
use estafette_sync::sync::atomic::{AtomicU64, Ordering};

statics! {
    static NEXT: AtomicU64 = AtomicU64::new(1);
}

/// Futures that check a condition again when they are woken: the waker of each task, by the number of the
/// future. A lock for both sides, as notifications are no more frequent here than waits: neither a barrier of
/// other threads nor a wake-up that wakes no thread.
#[derive(Debug, Default)]
pub(crate) struct Futures(Mutex<BTreeMap<u64, Waker>>);

impl Futures {
    pub(crate) fn has_waiters(&self) -> bool {
        !self.0.lock().is_empty()
    }

    /// Registers a future in place of the one with the same number, 0 for the descriptor of a link. It then
    /// checks its condition.
    pub(crate) fn register(&self, number: u64, waker: &Waker) {
        // A waker is foreign: cloned and dropped under no lock.
        let waker = waker.clone();
        let former = self.0.lock().insert(number, waker);
        drop(former);
    }

    /// Wakers are foreign code: one that panics ends no thread that others rely on, and keeps no other one
    /// from being called.
    pub(crate) fn wake(&self) {
        let woken = std::mem::take(&mut *self.0.lock());
        for waker in woken.into_values() {
            log_panic("a waker", || waker.wake());
        }
    }
}

/// A future that waits, and leaves nothing when it is dropped. Two futures of one task have equal wakers, so
/// each has a number.
pub(crate) struct Registration<'a> {
    futures: &'a Futures,
    /// Once it is registered.
    number: Option<u64>,
    generation: Generation,
}

impl<'a> Registration<'a> {
    pub(crate) fn new(futures: &'a Futures) -> Self {
        Self { futures, number: None, generation: Generation::current() }
    }

    pub(crate) fn register(&mut self, context: &Context<'_>) {
        let number = *self.number.get_or_insert_with(|| NEXT.fetch_add(1, Ordering::Relaxed));
        self.futures.register(number, context.waker());
    }
}

impl Drop for Registration<'_> {
    fn drop(&mut self) {
        // In a forked child the lock may be held for ever.
        if let Some(number) = self.number
            && self.generation.is_current()
        {
            let waker = self.futures.0.lock().remove(&number);
            drop(waker);
        }
    }
}

/// A queue of things that come from time to time, until it is closed.
#[derive(Debug)]
pub(crate) struct Mailbox<T> {
    /// None once it is closed.
    items: Mutex<Option<VecDeque<T>>>,
    futures: Futures,
}

/// The mailbox is closed.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct IsClosed;

impl<T> Default for Mailbox<T> {
    fn default() -> Self {
        Self { items: Mutex::new(Some(VecDeque::new())), futures: Futures::default() }
    }
}

impl<T> Mailbox<T> {
    /// Drops the item where the mailbox is closed.
    pub(crate) fn put(&self, item: T) {
        // Items are dropped under no lock.
        let mut item = Some(item);
        if let Some(items) = self.items.lock().as_mut() {
            items.extend(item.take());
        }
        self.futures.wake();
    }

    pub(crate) fn len(&self) -> usize {
        self.items.lock().as_ref().map_or(0, VecDeque::len)
    }

    /// Drops what was not taken, and ends the futures that wait.
    pub(crate) fn close(&self) {
        let items = self.items.lock().take();
        self.futures.wake();
        drop(items);
    }

    pub(crate) async fn take(&self) -> Result<T, IsClosed> {
        let mut registration = Registration::new(&self.futures);
        let next = || match self.items.lock().as_mut() {
            Some(items) => items.pop_front().map_or(Poll::Pending, |item| Poll::Ready(Ok(item))),
            None => Poll::Ready(Err(IsClosed)),
        };
        poll_fn(|context| {
            let now = next();
            if now.is_ready() {
                return now;
            }
            registration.register(context);
            next()
        })
        .await
    }
}

#[cfg(all(test, not(any(estafette_loom, estafette_shuttle))))]
mod tests {
    use std::pin::{Pin, pin};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

    #[cfg(not(estafette_portable))]
    use estafette_sync::platform::child::in_forked_child;

    use super::*;

    #[derive(Default)]
    struct Task(AtomicUsize);

    impl Wake for Task {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Other threads have the lock for a moment at each wake-up.
    #[cfg(not(estafette_portable))]
    #[test]
    fn a_future_that_is_given_up_in_a_forked_child_waits_for_no_lock() {
        let mailbox = Mailbox::<u32>::default();
        let mut future = Some(Box::pin(mailbox.take()));
        let polled =
            future.as_mut().map(|future| future.as_mut().poll(&mut Context::from_waker(Waker::noop())));
        assert_eq!(polled, Some(Poll::Pending));
        let held = mailbox.futures.0.lock();
        assert!(in_forked_child(|| {
            // SAFETY: takes an integer. A child that hangs ends by the signal.
            unsafe { libc::alarm(5) };
            drop(future.take());
            true
        }));
        drop(held);
    }

    #[test]
    fn a_future_that_is_given_up_leaves_no_waker_and_others_of_its_task_are_woken() {
        let mailbox = Mailbox::default();
        let task = Arc::<Task>::default();
        let waker = Waker::from(Arc::clone(&task));
        let poll = |future: Pin<&mut dyn Future<Output = Result<u32, IsClosed>>>| {
            future.poll(&mut Context::from_waker(&waker))
        };
        let mut stays = pin!(mailbox.take());
        for _ in 0..2 {
            assert!(poll(stays.as_mut()).is_pending());
            assert!(poll(pin!(mailbox.take())).is_pending());
        }
        mailbox.put(7);
        assert_eq!(task.0.load(Ordering::Relaxed), 1);
        assert_eq!(poll(stays), Poll::Ready(Ok(7)));
        assert!(poll(pin!(mailbox.take())).is_pending());
        assert!(!mailbox.futures.has_waiters());
    }
}
