//! Queries of the driver whether streams still work, on a thread of their own.
//!
//! A broken context writes no values, and a thread that waits for one would wait for ever. So the driver is
//! queried now and then. That call can take long: it waits for the lock of its context, which a launch holds
//! while its stream takes no more work. The reactor, and other threads that poll, must not wait for it: they
//! mark the stream as suspect, and this thread queries the driver.

use std::sync::Arc;

use estafette_sync::essential::essential;
use estafette_sync::sync::{Condvar, Mutex};
use estafette_sync::{daemon, stack};

use super::context::Context;
use super::exit::is_driver_gone;

/// Contexts with suspect streams, and whether the thread runs.
struct Requests {
    contexts: Vec<Arc<Context>>,
    has_thread: bool,
}

estafette_sync::statics! {
    static REQUESTS: Mutex<Requests> = Mutex::new(Requests { contexts: Vec::new(), has_thread: false });
    static ARRIVED: Condvar = Condvar::new();
}

/// Requests an inspection of the suspect streams of `context`. The caller inspects them itself, which calls the
/// driver, only where no thread can be started.
pub(super) fn inspect_soon(context: &Arc<Context>) {
    if is_driver_gone() {
        return;
    }
    let mut requests = REQUESTS.lock();
    if !requests.has_thread {
        let body = || essential("the thread that asks CUDA for faults", run);
        requests.has_thread = stack::thread("estafette-cuda-faults").spawn(body).map(daemon).is_ok();
    }
    let has_thread = requests.has_thread;
    if has_thread && !requests.contexts.iter().any(|known| Arc::ptr_eq(known, context)) {
        requests.contexts.push(Arc::clone(context));
    }
    drop(requests);
    if has_thread {
        ARRIVED.notify_one();
    } else {
        inspect(context);
    }
}

fn inspect(context: &Context) {
    context.live_streams().iter().for_each(|stream| stream.inspect_if_suspect());
}

fn run() {
    let mut requests = REQUESTS.lock();
    loop {
        let contexts = std::mem::take(&mut requests.contexts);
        if contexts.is_empty() {
            requests = ARRIVED.wait(requests);
            continue;
        }
        drop(requests);
        contexts.iter().for_each(|context| inspect(context));
        requests = REQUESTS.lock();
    }
}
