//! Taking a lease that may have to wait.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use estafette_devices::Reactor;
use estafette_graph::Mode;
use estafette_sync::sync::atomic::Ordering;

use super::inner::{Label, LeaseInner, end, end_unused};
use super::label::{LeaseLabel, Slot};
use super::{Access, Lease, check_writable};
use crate::core::error::{Error, OperationError};
use crate::core::oneshot::Signal;
use crate::core::operation::{self, Kind, Name, OpGranted, OpHandle, OpPending, Role};
use crate::core::var_state::Ending;
use crate::lease::consumer::Consumer;
use crate::lease::owner::Taker;
use crate::operation::run::{self, ReadyList};
use crate::operation::withdraw::withdraw;
use crate::tensor::handle::Tensor;
use crate::trace::hooks;
use crate::wait::awaits::{Awaited, Pending};
use crate::wait::blocking;
use crate::wait::ready::ReadySignal;

impl Lease {
    /// Starts to take a lease; resolves once the tensor is defined, ready, and free for this access.
    pub(crate) fn acquire(tensor: &Tensor, access: Access, taker: Taker) -> Result<Acquire, Error> {
        Self::acquire_for(tensor, access, taker, &Consumer::Host)
    }

    /// As [`acquire`](Self::acquire); what a `consumer` that orders itself must come after is left with the label, pending.
    fn acquire_for(
        tensor: &Tensor,
        access: Access,
        taker: Taker,
        consumer: &Consumer,
    ) -> Result<Acquire, Error> {
        tensor.inner.core.check_fork()?;
        if access == Access::Write {
            check_writable(tensor)?;
        }
        let signal = Arc::new(Signal::new());
        let label = LeaseLabel::new(access, taker, Some(Arc::clone(&signal)), false);
        let label = Arc::new(label.ordering_itself(consumer.orders_itself()));
        let mut pending_op = operation::pending_op(&tensor.inner.core, Name::Static("lease"), Kind::Lease);
        pending_op.payload_mut().set_role(Role::Lease(Arc::clone(&label)));
        let mode = if access == Access::Write { Mode::Update } else { Mode::Read };
        tensor.inner.vars.iter().for_each(|var| pending_op.access(var, mode));
        if pending_op.payload().noted {
            note_taking(&pending_op, &label, tensor);
        }
        let (handle, granted) = pending_op.submit();
        if let Some(granted) = granted {
            run::dispatch_one(granted);
        }
        Ok(Acquire {
            tensor: tensor.clone(),
            access,
            label: Some(label),
            signal,
            handle,
            pending: Pending::default(),
        })
    }

    /// As [`acquire`](Self::acquire), but gives up when it would have to wait.
    pub(crate) fn acquire_now(tensor: &Tensor, access: Access, taker: &str) -> Result<Option<Self>, Error> {
        let acquire = Self::acquire(tensor, access, taker.into())?;
        match acquire.signal.get() {
            Some(outcome) => outcome.map(|()| Some(acquire.into_lease())),
            None => Ok(None),
        }
    }

    /// As [`acquire`](Self::acquire), blocking for at most `timeout`.
    pub(crate) fn acquire_wait(
        tensor: &Tensor,
        access: Access,
        timeout: Option<Duration>,
    ) -> Result<Self, Error> {
        Self::acquire_wait_as(tensor, access, timeout, "a host reader".into(), &Consumer::Host)
    }

    fn acquire_wait_as(
        tensor: &Tensor,
        access: Access,
        timeout: Option<Duration>,
        taker: Taker,
        consumer: &Consumer,
    ) -> Result<Self, Error> {
        let acquire = Self::acquire_for(tensor, access, taker, consumer)?;
        let what = format!("a {access} lease");
        let waited = blocking::block(&tensor.inner.core, &acquire.handle, &what, &acquire.signal, timeout);
        acquire.note_resumed(true);
        waited??;
        Ok(acquire.into_lease())
    }

    /// A lease for `consumer` once it is granted, blocking for at most `timeout`.
    pub(crate) fn wait_granted(
        tensor: &Tensor,
        access: Access,
        timeout: Option<Duration>,
        taker: Taker,
        consumer: &Consumer,
    ) -> Result<Self, Error> {
        if access == Access::Alias {
            if !tensor.is_defined() {
                blocking::block_on_tensor(tensor, timeout)?;
            }
            return Ok(Self::alias(tensor, taker));
        }
        let lease = Self::acquire_wait_as(tensor, access, timeout, taker, consumer)?;
        check_still_writable(tensor, access)?;
        Ok(lease)
    }

    /// As [`wait_granted`](Self::wait_granted), without blocking a thread.
    pub(crate) async fn granted(
        tensor: &Tensor,
        access: Access,
        taker: Taker,
        consumer: &Consumer,
    ) -> Result<Self, Error> {
        if access == Access::Alias {
            if !tensor.is_defined() {
                tensor.ready().await?;
            }
            return Ok(Self::alias(tensor, taker));
        }
        let lease = Self::acquire_for(tensor, access, taker, consumer)?.await?;
        check_still_writable(tensor, access)?;
        Ok(lease)
    }

    /// As [`wait_granted`](Self::wait_granted), but gives up when it would have to wait.
    pub(crate) fn granted_now(
        tensor: &Tensor,
        access: Access,
        taker: &str,
        consumer: &Consumer,
    ) -> Result<Option<Self>, Error> {
        if !tensor.is_defined() {
            return tensor.inner.look().unwrap_or(Ok(())).map(|()| None);
        }
        if access == Access::Alias {
            return Ok(Some(Self::alias(tensor, taker.to_string().into())));
        }
        let acquire = Self::acquire_for(tensor, access, taker.into(), consumer)?;
        match acquire.signal.get() {
            Some(outcome) => outcome.map(|()| Some(acquire.into_lease())),
            None => Ok(None),
        }
    }

    fn alias(tensor: &Tensor, taker: Taker) -> Self {
        Self { inner: LeaseInner::unheld(tensor, Access::Alias, taker) }
    }
}

/// A tensor defined only while its lease was waited for may have turned out to be read-only.
fn check_still_writable(tensor: &Tensor, access: Access) -> Result<(), Error> {
    if access == Access::Write { check_writable(tensor) } else { Ok(()) }
}

/// A lease being taken. Dropping it gives up; the tensor is not affected.
#[must_use = "futures do nothing unless awaited"]
pub(crate) struct Acquire {
    tensor: Tensor,
    access: Access,
    /// `None` once the lease was handed over.
    label: Option<Arc<LeaseLabel>>,
    signal: Arc<ReadySignal>,
    handle: OpHandle,
    pending: Pending,
}

/// Tells the journal who is about to take a lease of what.
#[cold]
pub(super) fn note_taking(pending_op: &OpPending<'_>, label: &LeaseLabel, tensor: &Tensor) {
    hooks::submitted(pending_op);
    hooks::taken(pending_op.id(), &label.taker);
    hooks::uses(std::slice::from_ref(tensor));
}

impl Acquire {
    fn note_resumed(&self, blocking: bool) {
        if self.handle.payload().noted {
            hooks::resumed(self.handle.id().get(), blocking);
        }
    }

    fn into_lease(mut self) -> Lease {
        let label = self.label.take().expect("taken once, by value");
        Lease {
            inner: Arc::new(LeaseInner::with_label(self.tensor.clone(), self.access, Label::Shared(label))),
        }
    }
}

impl Future for Acquire {
    type Output = Result<Lease, Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match self.signal.poll_alone(cx) {
            Poll::Pending => {
                let Self { handle, pending, .. } = &mut *self;
                match pending.poll(cx, || Awaited::op("a lease", handle)) {
                    Some(error) => Poll::Ready(Err(error)),
                    None => Poll::Pending,
                }
            }
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            Poll::Ready(Ok(())) => {
                self.pending.over();
                self.note_resumed(false);
                let label = self.label.take().expect("a future is not polled after it has finished");
                let again = Acquire {
                    tensor: self.tensor.clone(),
                    access: self.access,
                    label: Some(label),
                    signal: Arc::clone(&self.signal),
                    handle: self.handle.clone(),
                    pending: Pending::default(),
                };
                Poll::Ready(Ok(again.into_lease()))
            }
        }
    }
}

impl Drop for Acquire {
    fn drop(&mut self) {
        if let Some(label) = self.label.take() {
            give_up(&self.handle, label);
        }
    }
}

/// Gives up a lease that is being taken: it leaves its queues, or ends if it has been granted meanwhile.
#[cold]
pub(crate) fn give_up(op: &OpHandle, label: Arc<LeaseLabel>) {
    if op.payload().core.check_fork().is_err() {
        // A forked child: the graph's locks may be held by threads that do not exist here.
        return std::mem::forget(label);
    }
    if withdraw(op) {
        return;
    }
    op.payload().cancel();
    match label.abandon_anywhere() {
        Slot::Held(granted) => end(granted, None),
        Slot::Settling(granted) => end_unused(granted),
        Slot::Waiting | Slot::Abandoned => {}
    }
}

/// Handles a granted lease: once its fences are done it is held.
pub(crate) fn lease_granted(granted: OpGranted, ready: &mut ReadyList) {
    let state = granted.payload();
    let label = state.lease().cloned().expect("every lease is submitted with its label");
    if !operation::begin(&granted) {
        let failure = state.failure().cloned();
        run::complete(granted, &Ending::Looked, None, ready);
        if let Some(failure) = failure {
            label.tell(Err(failure.into_error()));
        }
        return;
    }
    settle(granted, label, ready);
}

/// Holds the lease once the fences of earlier uses are done, or refuses it when the version has failed. A failed *reader*
/// concerns nobody.
fn settle(granted: OpGranted, label: Arc<LeaseLabel>, ready: &mut ReadyList) {
    let found = run::inspect(&granted);
    if let Some(failure) = found.failure {
        refuse(granted, &label, failure, ready);
    } else if found.pending.is_empty() {
        hold(granted, &label, ready);
    } else if label.orders_itself {
        label.leave_pending(found.pending);
        hold(granted, &label, ready);
    } else {
        if let Some(granted) = label.settles(granted) {
            return run::complete(granted, &Ending::Looked, None, ready);
        }
        Reactor::global().when_settled(&found.pending, move |_settled| {
            let Some(granted) = label.settled() else { return };
            let mut ready = ReadyList::new();
            settle(granted, label, &mut ready);
            run::dispatch(ready);
        });
    }
}

fn refuse(granted: OpGranted, label: &LeaseLabel, failure: OperationError, ready: &mut ReadyList) {
    run::complete(granted, &Ending::Looked, None, ready);
    label.tell(Err(failure.into_error()));
}

fn hold(granted: OpGranted, label: &LeaseLabel, ready: &mut ReadyList) {
    if granted.payload().noted {
        hooks::begins(&granted);
    }
    {
        let mut slot = label.slot();
        if matches!(*slot, Slot::Waiting) {
            *slot = Slot::Held(granted);
            label.held.store(true, Ordering::Release);
            drop(slot);
            label.tell(Ok(()));
            return;
        }
    }
    run::complete(granted, &Ending::Looked, None, ready);
}
