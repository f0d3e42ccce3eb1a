//! The one thread that blocks for events of somebody else's queues.
//!
//! What others enqueue they do not flush, and Intel's CPU driver (2026.2) crashes now and then when somebody flushes an
//! out-of-order queue beside its owner. A wait makes the runtime see to it that the work gets done. So such events are waited
//! for, one after the other, by a thread of the process; all others announce themselves or are polled.

use std::sync::{Arc, PoisonError, mpsc};

use estafette_sync::sync::Mutex;
use estafette_sync::thread;

use super::event::Event;

static WAITER: Mutex<Option<mpsc::Sender<Arc<Event>>>> = Mutex::new(None);

/// Has `event` waited for. False if there is no thread for it.
pub(super) fn hand(event: &Arc<Event>) -> bool {
    let mut waiter = WAITER.lock().unwrap_or_else(PoisonError::into_inner);
    if waiter.is_none() {
        let (sender, events) = mpsc::channel::<Arc<Event>>();
        let run = move || events.iter().for_each(|event| event.wait());
        let started = thread::Builder::new().name("estafette-sycl".to_owned()).spawn(run);
        match started {
            Ok(_) => *waiter = Some(sender),
            Err(error) => {
                tracing::error!(%error, "cannot start the thread that waits for SYCL events");
                return false;
            }
        }
    }
    waiter.as_ref().is_some_and(|waiter| waiter.send(Arc::clone(event)).is_ok())
}
