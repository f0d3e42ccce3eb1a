//! A lease as an operation without a body.
//!
//! The operation is appended like any other. Once it is granted, and the fences of earlier uses are done, it
//! is *held*: it stays granted until the lease ends.

use std::sync::Arc;

use estafette_devices::{Fence, FenceSet, Reactor};
use estafette_graph::OpId;
use estafette_sync::sync::Mutex;
use estafette_sync::sync::atomic::{AtomicBool, Ordering};

use crate::core::error::{Error, OperationError};
use crate::core::lease_info::{LeaseDetails, LeaseInfo};
use crate::core::one_shot::OneShot;
use crate::core::one_shot::ReadyOneShot;
use crate::core::operation::{self, OpGranted, OpHandle, OpTag};
use crate::core::var_state::Ending;
use crate::operation::cancellation;
use crate::operation::run::{self, ReadyList};
use crate::operation::withdraw::withdraw;
use crate::trace::hooks;

/// The operation of a lease, shared by the graph's operation and the lease or its request.
#[derive(Debug)]
pub(crate) struct LeaseOp {
    pub(crate) details: LeaseDetails,
    stage: Mutex<LeaseStage>,
    /// True if the consumer orders its work after earlier work. The lease is then held with that work
    /// pending.
    consumer_orders: bool,
    /// The fences that were pending when such a lease was held.
    pending: Mutex<Option<Box<FenceSet>>>,
    is_held: AtomicBool,
    /// Notifies the request; `None` for a lease that no request waits for.
    pub(super) one_shot: Option<ReadyOneShot>,
}

#[derive(Debug)]
enum LeaseStage {
    /// Not granted, or granted and about to be held.
    Waiting,
    /// Granted, while fences of earlier uses are pending.
    Settling(OpGranted),
    /// Granted and settled.
    Held(OpGranted),
    /// Given up: the operation completes as soon as it is granted.
    Abandoned,
}

impl LeaseOp {
    /// The operation of a lease that no request waits for.
    pub(super) fn new(details: LeaseDetails) -> Self {
        Self {
            details,
            stage: Mutex::new(LeaseStage::Waiting),
            consumer_orders: false,
            pending: Mutex::new(None),
            is_held: AtomicBool::new(false),
            one_shot: None,
        }
    }

    /// The operation of a request.
    pub(super) fn requested(details: LeaseDetails, consumer_orders: bool) -> Self {
        Self { consumer_orders, one_shot: Some(OneShot::new()), ..Self::new(details) }
    }

    /// The operation of one lease of the set that this one is of.
    pub(super) fn of_one(&self, details: LeaseDetails) -> Self {
        Self { consumer_orders: self.consumer_orders, ..Self::new(details) }
    }

    pub(crate) fn info(&self) -> LeaseInfo {
        self.details.info(self.is_held())
    }

    /// True if only the lease's owner keeps others waiting.
    pub(crate) fn is_held(&self) -> bool {
        self.is_held.load(Ordering::Acquire)
    }

    /// The fences that were pending when the lease was held. A second call returns none.
    pub(super) fn take_pending(&self) -> FenceSet {
        let pending = self.pending.lock().take();
        pending.map(|pending| *pending).unwrap_or_default()
    }

    /// The id of the operation, once it is held.
    pub(super) fn id(&self) -> Option<OpId> {
        match &*self.stage.lock() {
            LeaseStage::Held(granted) => Some(granted.id()),
            LeaseStage::Waiting | LeaseStage::Settling(_) | LeaseStage::Abandoned => None,
        }
    }

    /// Holds a granted operation. Returns it if the lease was given up meanwhile.
    pub(super) fn hold(&self, granted: OpGranted) -> Result<(), OpGranted> {
        let mut stage = self.stage.lock();
        if !matches!(*stage, LeaseStage::Waiting) {
            return Err(granted);
        }
        *stage = LeaseStage::Held(granted);
        self.is_held.store(true, Ordering::Release);
        Ok(())
    }

    /// Gives up the lease. Returns the operation if it was held; the caller completes it.
    pub(super) fn abandon(&self) -> Option<OpGranted> {
        match self.replace_by_abandoned() {
            LeaseStage::Held(granted) => Some(granted),
            LeaseStage::Waiting | LeaseStage::Settling(_) | LeaseStage::Abandoned => None,
        }
    }

    fn replace_by_abandoned(&self) -> LeaseStage {
        std::mem::replace(&mut *self.stage.lock(), LeaseStage::Abandoned)
    }

    /// Keeps a granted operation while fences of earlier uses are pending. Returns it if the lease was given
    /// up.
    fn begin_settling(&self, granted: OpGranted) -> Result<(), OpGranted> {
        let mut stage = self.stage.lock();
        if !matches!(*stage, LeaseStage::Waiting) {
            return Err(granted);
        }
        *stage = LeaseStage::Settling(granted);
        Ok(())
    }

    /// Takes the operation that [`begin_settling`](Self::begin_settling) keeps; `None` if the lease was given
    /// up.
    fn end_settling(&self) -> Option<OpGranted> {
        let mut stage = self.stage.lock();
        if !matches!(*stage, LeaseStage::Settling(_)) {
            return None;
        }
        match std::mem::replace(&mut *stage, LeaseStage::Waiting) {
            LeaseStage::Settling(granted) => Some(granted),
            LeaseStage::Waiting | LeaseStage::Held(_) | LeaseStage::Abandoned => None,
        }
    }

    pub(crate) fn notify(&self, outcome: Result<(), Error>) {
        if let Some(one_shot) = &self.one_shot {
            one_shot.set(outcome);
        }
    }
}

/// Counts a request that was not granted at once, so that a cancel notifies it, until [`end_waiting`].
#[cold]
pub(super) fn begin_waiting(handle: &OpHandle) {
    cancellation::count_query();
    cancellation::query_waits(handle);
}

pub(super) fn end_waiting() {
    cancellation::uncount_query();
}

/// Gives up a requested lease: its operation leaves its queues, or ends if it is granted.
#[cold]
pub(super) fn give_up(handle: &OpHandle, op: Arc<LeaseOp>) {
    if handle.payload().core.generation.is_inherited() {
        // A forked child: threads that do not exist here may hold the graph's locks.
        return std::mem::forget(op);
    }
    if withdraw(handle) {
        return;
    }
    handle.payload().cancel();
    match op.replace_by_abandoned() {
        LeaseStage::Held(granted) => end(granted, &[]),
        LeaseStage::Settling(granted) => end_unused(granted),
        LeaseStage::Waiting | LeaseStage::Abandoned => {}
    }
}

/// Dispatches a lease that was granted at its submission.
pub(super) fn dispatch(granted: OpGranted) {
    run::dispatch_one(granted);
}

/// Handles the grant of a lease's operation: the lease is held once the fences of earlier uses are done.
pub(crate) fn lease_granted(granted: OpGranted, ready: &mut ReadyList) {
    let state = granted.payload();
    let op = state.lease().cloned().expect("every lease is submitted with its `LeaseOp`");
    if !operation::begin(&granted) {
        let failure = state.failure().cloned();
        run::complete(granted, &Ending::Polled, None, ready);
        if let Some(failure) = failure {
            op.notify(Err(failure.into()));
        }
        return;
    }
    settle(granted, op, ready);
}

/// Holds the lease once the fences of earlier uses are done, or refuses it if the version has failed. A
/// failed *reader* does not fail the lease.
fn settle(granted: OpGranted, op: Arc<LeaseOp>, ready: &mut ReadyList) {
    let found = run::inspect(&granted, op.consumer_orders);
    if let Some(failure) = found.failure {
        refuse(granted, &op, failure, ready);
    } else if found.pending.is_empty() {
        hold(granted, &op, ready);
    } else if op.consumer_orders {
        let pending = Some(Box::new(found.pending));
        *op.pending.lock() = pending;
        hold(granted, &op, ready);
    } else {
        if let Err(granted) = op.begin_settling(granted) {
            return run::complete(granted, &Ending::Polled, None, ready);
        }
        Reactor::global().when_settled(&found.pending, move |_settled| {
            let Some(granted) = op.end_settling() else { return };
            let mut ready = ReadyList::new();
            settle(granted, op, &mut ready);
            run::dispatch(ready);
        });
    }
}

fn refuse(granted: OpGranted, op: &LeaseOp, failure: OperationError, ready: &mut ReadyList) {
    run::complete(granted, &Ending::Polled, None, ready);
    op.notify(Err(failure.into()));
}

fn hold(granted: OpGranted, op: &LeaseOp, ready: &mut ReadyList) {
    if granted.payload().noted {
        hooks::begins(&granted);
    }
    match op.hold(granted) {
        Ok(()) => op.notify(Ok(())),
        Err(granted) => run::complete(granted, &Ending::Polled, None, ready),
    }
}

/// Ends the operation of a lease that was granted and never used.
pub(super) fn end_unused(granted: OpGranted) {
    complete(granted, &Ending::Polled);
}

/// Ends the operation of a held lease. Operations that waited for it are granted; device work until `done`
/// stays pending.
pub(super) fn end(granted: OpGranted, done: &[Fence]) {
    end_as(granted, done, None, None);
}

/// As [`end`]. `writer` is blamed for a failure of `done`, or the lease; `failure` is that of what the
/// consumer has written.
pub(super) fn end_as(
    granted: OpGranted,
    done: &[Fence],
    writer: Option<OpTag>,
    failure: Option<&OperationError>,
) {
    let tag = writer.unwrap_or_else(|| OpTag::of(&granted));
    let consumer_orders = granted.payload().lease().is_some_and(|op| op.consumer_orders);
    let ending = if done.is_empty() && failure.is_none() && consumer_orders {
        // The consumer was never ordered after earlier work, and did not use the memory.
        Ending::Polled
    } else {
        Ending::Ran { left: (!done.is_empty()).then_some((done, &tag)), failure }
    };
    complete(granted, &ending);
}

fn complete(granted: OpGranted, ending: &Ending<'_>) {
    let core = granted.payload().core.clone();
    let mut ready = ReadyList::new();
    run::complete(granted, ending, None, &mut ready);
    run::dispatch(ready);
    core.notifier.notify();
}
