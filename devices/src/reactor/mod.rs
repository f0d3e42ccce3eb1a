//! The one thread of the process that observes fences which cannot announce themselves.
//!
//! | part | what it has |
//! |---|---|
//! | `gather` | one callback for several fences |
//! | `poll_list` | the list that the reactor polls: one entry for each in-order queue, and stand-alone events |
//! | `spin` | the time that a waiter polls before it sleeps |
//! | `thread` | the thread, its inbox and its naps |
//!
//! # Who needs the thread
//! Promises and simulated queues push: they call their subscribers themselves and the thread is not even
//! started for them. A fence of a driver must be polled: [`Watch::MustPoll`] puts it in the reactor's inbox.
//!
//! # Waiters that poll first
//! Work that is nearly done is not worth two changes of thread. Where a query is a load, and there are cores
//! to spare, a waiter polls for some microseconds before it leaves the fence to the thread (`spin.rs`).
//!
//! # Sleeping protocol
//! `armed` counts the subscriptions in the inbox and in the poll list.
//! 1. *Arm*: under the lock of the inbox, push into it and `armed += 1`. If it was 0, or the thread `naps`,
//!    which is read after a fence (SeqCst), unpark the thread.
//! 2. *Sleep*: the thread drains the inbox; if `armed` is 0 it parks, else it polls. Before a nap it sets
//!    `naps`, and after a fence (SeqCst) it looks at `armed` once more.
//! 3. *Settle*: `armed` goes down only after the settled subscriptions have left the poll list.
//!
//! The excluded race is a subscription that arrives while the thread decides to park. Then `armed` went from
//! 0 to 1 after the thread read 0, so the arming thread unparks it, and an unpark before a park makes the
//! park return at once. With a nap it is the same: either the thread sees the new `armed`, or the arming
//! thread sees `naps`, whichever fence comes first. The models in `thread.rs` check this with loom. An
//! arrival while the thread polls needs no unpark, which spares one futex call per fence on a busy device.

#[cfg(test)]
pub(crate) mod double;
mod gather;
mod poll_list;
mod spin;
mod thread;

use std::borrow::Borrow;
use std::sync::Arc;

use estafette_sync::sync::OnceLock;

use crate::fence::source::{Subscriber, Watch, deliver};
use crate::host::promise;
use crate::{DeviceError, DeviceErrorKind, Fence, Outcome};

pub(crate) use self::spin::spin;

use self::gather::Gather;
use self::poll_list::Armed;
use self::thread::ReactorState;

/// Watches pending fences and notifies their subscribers. One per process, started when first needed.
#[derive(Debug)]
pub struct Reactor {
    shared: Arc<ReactorState>,
}

impl Reactor {
    /// The reactor of the process. Asking for it starts no thread.
    pub fn global() -> &'static Reactor {
        estafette_sync::per_process! {
            static GLOBAL: OnceLock<Reactor> = OnceLock::new();
        }
        GLOBAL.get_or_init(|| Reactor { shared: Arc::default() })
    }

    /// Calls `f` once, when every one of `fences` has settled: with `Ok` if all are done, else with the
    /// failure that was observed first, and rather with a fault.
    ///
    /// `f` runs on the thread that observes the last one, which may be the caller, before this returns. It
    /// runs under no lock, must be short and must not block; a panic in it is logged.
    ///
    /// A pending fence that a forked child has inherited settles in the parent alone, so `f` gets an error at
    /// once there.
    pub fn when_settled<I, F>(&self, fences: I, f: F)
    where
        I: IntoIterator<Item: Borrow<Fence>>,
        F: FnOnce(Outcome) + Send + 'static,
    {
        self.when_settled_if(fences, || true, f);
    }

    /// As [`when_settled`](Self::when_settled), for a call that may become unwanted: once `wanted` says so,
    /// which it says under locks and for good, `f` is dropped at some time, or called with any outcome.
    pub fn when_settled_if<I, W, F>(&self, fences: I, wanted: W, f: F)
    where
        I: IntoIterator<Item: Borrow<Fence>>,
        W: Fn() -> bool + Send + Sync + 'static,
        F: FnOnce(Outcome) + Send + 'static,
    {
        let gather = Arc::new(Gather::new(f, wanted));
        for fence in fences {
            gather.expect_one();
            self.watch(fence.borrow(), gather.clone());
        }
        // The gather counts itself too, so that it cannot finish while fences are still being added.
        deliver(gather, Ok(()));
    }

    /// Notifies `subscriber` of `outcome` on the reactor's own thread: for callers that must not run
    /// callbacks, such as under a lock of another library.
    pub fn deliver_soon(&self, subscriber: Arc<dyn Subscriber>, outcome: Outcome) {
        let (completer, fence) = promise("a delivery");
        completer.settle(outcome.clone());
        match self.shared.arm(Armed { fence, subscriber }) {
            Ok(()) => self.shared.wake(),
            Err((armed, _)) => deliver(armed.subscriber, outcome),
        }
    }

    /// Notifies `subscriber` once how `fence` settled; at once and on this thread if it has already.
    pub fn watch(&self, fence: &Fence, subscriber: Arc<dyn Subscriber>) {
        if let Some(outcome) = fence.state().outcome() {
            return deliver(subscriber, outcome);
        }
        // Its locks may be held for ever by threads that did not survive a fork, so this is checked before
        // any.
        if fence.is_inherited() {
            return deliver(subscriber, Err(forked()));
        }
        match fence.watch(&subscriber) {
            Watch::Subscribed => {}
            Watch::Settled(outcome) => deliver(subscriber, outcome),
            Watch::MustPoll => {
                if let Err((armed, error)) = self.shared.arm(Armed { fence: fence.clone(), subscriber }) {
                    deliver(armed.subscriber, Err(error));
                }
            }
        }
    }
}

fn forked() -> DeviceError {
    DeviceError::new(
        DeviceErrorKind::Other,
        "forked child: the fence, and what settles it, belong to the parent process",
    )
}
