//! What one thread leaves for futures of others.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::task::{Context, Poll, Waker};

use estafette_sync::event_count::{EventCount, Wakers};
use estafette_sync::sync::Mutex;

/// The wakers of waiting futures, one of each task.
#[derive(Debug, Default)]
pub(crate) struct Waiting(Vec<Waker>);

impl Wakers for Waiting {
    fn count(&self) -> usize {
        self.0.len()
    }
}

/// Futures that check a condition again when they are woken.
pub(crate) type Futures = EventCount<Waiting>;

/// Registers the task of `context`. It then checks its condition.
pub(crate) fn register(futures: &Futures, context: &Context<'_>) {
    // A waker is foreign: cloned and dropped under no lock.
    let mut waker = Some(context.waker().clone());
    futures.with_wakers(|waiting| {
        if !waiting.0.iter().any(|known| known.will_wake(context.waker())) {
            waiting.0.extend(waker.take());
        }
    });
}

/// Wakes all.
pub(crate) fn wake(futures: &Futures) {
    let woken = futures.notify(std::mem::take).unwrap_or_default();
    woken.0.into_iter().for_each(Waker::wake);
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
