//! What one thread leaves for futures of others.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::task::{Context, Poll, Waker};

use estafette_sync::sync::Mutex;

/// Futures that check a condition again when they are woken: the waker of each task. A lock for both sides, as notifications are no more
/// frequent here than waits: neither a barrier of other threads nor a wake-up that wakes no thread.
#[derive(Debug, Default)]
pub(crate) struct Futures(Mutex<Vec<Waker>>);

impl Futures {
    pub(crate) fn has_waiters(&self) -> bool {
        !self.0.lock().is_empty()
    }
}

/// Registers the task of `context`. It then checks its condition.
pub(crate) fn register(futures: &Futures, context: &Context<'_>) {
    // A waker is foreign: cloned and dropped under no lock.
    let mut waker = Some(context.waker().clone());
    let mut waiting = futures.0.lock();
    if !waiting.iter().any(|known| known.will_wake(context.waker())) {
        waiting.extend(waker.take());
    }
    drop(waiting);
}

pub(crate) fn wake(futures: &Futures) {
    let woken = std::mem::take(&mut *futures.0.lock());
    woken.into_iter().for_each(Waker::wake);
}

/// A queue of things that come from time to time.
#[derive(Debug)]
pub(crate) struct Mailbox<T> {
    items: Mutex<VecDeque<T>>,
    futures: Futures,
}

impl<T> Default for Mailbox<T> {
    fn default() -> Self {
        Self { items: Mutex::default(), futures: Futures::default() }
    }
}

impl<T> Mailbox<T> {
    pub(crate) fn put(&self, item: T) {
        self.items.lock().push_back(item);
        wake(&self.futures);
    }

    pub(crate) fn len(&self) -> usize {
        self.items.lock().len()
    }

    /// Has the futures that wait check again.
    pub(crate) fn wake(&self) {
        wake(&self.futures);
    }

    pub(crate) async fn take(&self) -> T {
        poll_fn(|context| {
            let now = self.items.lock().pop_front();
            if let Some(item) = now {
                return Poll::Ready(item);
            }
            register(&self.futures, context);
            self.items.lock().pop_front().map_or(Poll::Pending, Poll::Ready)
        })
        .await
    }
}
