//! A thread that polls asynchronous bodies, for engines without tokio.
//!
//! A task is in the queue at most once for each time that it was woken, and a finished one is polled no more.
//! The thread ends when the engine and every task are gone.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Wake, Waker};

use estafette_devices::log_panic;
use estafette_sync::stack;
use estafette_sync::sync::Mutex;
use estafette_sync::sync::mpsc::{Sender, channel};

use crate::core::error::Error;

/// The thread of an engine.
#[derive(Default)]
pub(crate) struct Runtime {
    /// The way to the thread; none before the first use, and when closed.
    queue: Mutex<Option<Sender<Arc<Task>>>>,
}

type BodyFuture = Pin<Box<dyn Future<Output = ()> + Send>>;

struct Task {
    /// None when it has ended.
    body: Mutex<Option<BodyFuture>>,
    queue: Sender<Arc<Task>>,
}

impl Wake for Task {
    fn wake(self: Arc<Self>) {
        let queue = self.queue.clone();
        // The thread is there as long as anything can be sent to it.
        let _ = queue.send(self);
    }
}

impl Runtime {
    /// Runs an asynchronous body; `stack_size` is for the thread that is made for it.
    ///
    /// # Errors
    /// [`Error::Start`] when the system refuses a thread.
    pub(crate) fn spawn(
        &self,
        task: impl Future<Output = ()> + Send + 'static,
        stack_size: usize,
    ) -> Result<(), Error> {
        let body = Mutex::new(Some(Box::pin(task) as BodyFuture));
        let queue = {
            let mut queue = self.queue.lock();
            match &*queue {
                Some(queue) => queue.clone(),
                None => queue.insert(start(stack_size)?).clone(),
            }
        };
        Arc::new(Task { body, queue }).wake();
        Ok(())
    }

    /// As [`spawn`](Self::spawn), of work of the engine.
    pub(crate) fn spawn_internal(
        &self,
        task: impl Future<Output = ()> + Send + 'static,
        stack_size: usize,
    ) -> Result<(), Error> {
        self.spawn(task, stack_size)
    }

    /// Calls `make`, as no future needs this runtime to be made.
    pub(crate) fn within<R>(&self, make: impl FnOnce() -> R, _stack_size: usize) -> Result<R, Error> {
        Ok(make())
    }

    /// Nothing is known of the runtimes that a thread belongs to.
    pub(crate) fn warn_if_blocked(&self) {}

    /// Lets the thread end after the last task.
    pub(crate) fn close(&self) {
        let queue = self.queue.lock().take();
        drop(queue);
    }
}

/// Runs `sleep`, which blocks the thread, and with it all bodies of the engine.
pub(crate) fn block<R>(sleep: impl FnOnce() -> R) -> R {
    sleep()
}

fn poll(task: Arc<Task>) {
    // No other thread polls a task, so the lock is free. A wake-up of the task meanwhile only sends it.
    let Some(mut body) = task.body.lock().take() else { return };
    let waker = Waker::from(Arc::clone(&task));
    if body.as_mut().poll(&mut Context::from_waker(&waker)).is_pending() {
        *task.body.lock() = Some(body);
    }
}

fn start(stack_size: usize) -> Result<Sender<Arc<Task>>, Error> {
    let (queue, woken) = channel::<Arc<Task>>();
    let work = move || {
        while let Ok(task) = woken.recv() {
            // A body's own panic is a failure already, but what the body leaves may panic in its destructor.
            log_panic("an asynchronous body", || poll(task));
        }
    };
    let thread = stack::thread("estafette-async").stack_size(stack_size).spawn(work);
    thread.map_err(|error| Error::Start(format!("thread of asynchronous bodies: {error}")))?;
    Ok(queue)
}

#[cfg(test)]
mod tests {
    use futures::channel::oneshot;

    use super::*;

    const STACK: usize = 1 << 20;

    #[test]
    fn a_body_that_another_thread_wakes_is_polled_to_its_end_also_after_the_engine_has_closed() {
        let runtime = Runtime::default();
        for close in [false, true] {
            let (send_value, value) = oneshot::channel();
            let (send_end, end) = channel();
            let body = async move { send_end.send(value.await).expect("the test waits") };
            runtime.spawn(body, STACK).expect("a thread can be made");
            if close {
                runtime.close();
            }
            send_value.send(7).expect("the body waits");
            assert_eq!(end.recv(), Ok(Ok(7)));
        }
    }

    #[test]
    fn a_body_that_panics_as_it_is_dropped_leaves_the_thread_to_others() {
        struct Panics;
        impl Drop for Panics {
            fn drop(&mut self) {
                panic!("a destructor");
            }
        }
        let runtime = Runtime::default();
        for number in 0..3 {
            let (panics, (send_end, end)) = (Panics, channel());
            let body = async move {
                let _panics = panics;
                send_end.send(number).expect("the test waits");
            };
            runtime.spawn(body, STACK).expect("a thread can be made");
            assert_eq!(end.recv(), Ok(number));
        }
    }

    #[test]
    fn bodies_take_turns_on_one_thread() {
        let runtime = Runtime::default();
        let (send_end, end) = channel();
        let (send_value, value) = oneshot::channel();
        let waits = send_end.clone();
        let first = async move { waits.send(value.await).expect("the test waits") };
        runtime.spawn(first, STACK).expect("a thread can be made");
        let second = async move {
            send_value.send(2).expect("the first body waits");
            send_end.send(Ok(1)).expect("the test waits");
        };
        runtime.spawn(second, STACK).expect("a thread can be made");
        assert_eq!((end.recv(), end.recv()), (Ok(Ok(1)), Ok(Ok(2))));
    }
}
