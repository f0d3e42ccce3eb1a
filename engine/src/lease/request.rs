//! Requests for leases: blocking, without waiting, and as a future.
//!
//! One operation requests all tensors of a set, so a set is taken in one step of the order of submission: two
//! sets of the same tensors in different orders cannot block each other. Once granted, the operation of a set
//! is split into one operation per tensor, so each lease ends by itself. A single lease is a set of one, and
//! keeps its operation.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use estafette_devices::{FenceSet, FenceState, Order};
use estafette_graph::AccessMode;
use estafette_sync::time::Duration;
use smallvec::{SmallVec, smallvec};

use super::consumer::Consumer;
use super::operation::{LeaseOp, begin_waiting, dispatch, end, end_waiting, give_up};
use super::state::LeaseState;
use super::{Access, Lease, check_writable};
use crate::core::clock;
use crate::core::core_ref::CoreRef;
use crate::core::error::Error;
use crate::core::lease_info::{LeaseDetails, LeaseOwner};
use crate::core::operation::{self, Name, OpGranted, OpHandle, OpKind, Role};
use crate::tensor::handle::Tensor;
use crate::trace::hooks;
use crate::wait::awaits::{Awaited, Pending};
use crate::wait::blocking;
use crate::wait::fence;
use crate::wait::stand_in::StandInSet;

impl Tensor {
    /// Requests a lease of the tensor, without an export: the tensor does not change (read), belongs to the
    /// owner alone (write), or is only kept alive (alias).
    ///
    /// Nothing happens before the request is awaited, [waited for](LeaseRequest::wait) or
    /// [tried](LeaseRequest::try_now).
    ///
    /// # Errors
    /// The request returns the root cause of a failed version; [`Error::Conflict`] for a write lease of
    /// memory that may not be written; [`Error::LeaseHeld`] when only other leases hold it up, as
    /// [`Tensor::wait`] and [`ready`](Self::ready) do; [`Error::WouldDeadlock`] when the wait leads back to
    /// the operation that makes it; [`Error::Device`] when a device fails, or the consumer's queue refuses to
    /// wait; [`Error::Forked`] in a forked child.
    pub fn lease(&self, access: Access, owner: impl Into<LeaseOwner>) -> LeaseRequest {
        LeaseRequest {
            engine: None,
            wanted: smallvec![(self.clone(), access)],
            owner: owner.into(),
            consumer: Some(Consumer::Host),
            step: RequestStage::Described,
            finish: only,
        }
    }

    /// As [`lease`](Self::lease), for the engine itself: no work of a consumer is left at the end.
    pub(crate) fn lease_within(&self, access: Access, owner: impl Into<LeaseOwner>) -> LeaseRequest {
        LeaseRequest { consumer: None, ..self.lease(access, owner) }
    }
}

impl LeaseRequest<Vec<Lease>> {
    /// As [`Engine::lease_all`](crate::Engine::lease_all).
    pub(crate) fn of_all(core: CoreRef, wanted: &[(Tensor, Access)], owner: LeaseOwner) -> Self {
        Self {
            engine: Some(core),
            wanted: wanted.into(),
            owner,
            consumer: Some(Consumer::Host),
            step: RequestStage::Described,
            finish: SmallVec::into_vec,
        }
    }
}

type Leases = SmallVec<[Lease; 1]>;

fn only(leases: Leases) -> Lease {
    leases.into_iter().next().expect("a set of one")
}

/// A request for a lease ([`Tensor::lease`]), or for a set of leases
/// ([`Engine::lease_all`](crate::Engine::lease_all)).
///
/// As a future, the request resolves once the lease is granted. A dropped request leaves the queues of its
/// tensors at once, and does not change the tensors.
#[must_use = "a request does nothing until it is awaited, waited for or tried"]
pub struct LeaseRequest<L = Lease> {
    /// The engine that was asked for a set; `None` for the lease of one tensor.
    engine: Option<CoreRef>,
    wanted: SmallVec<[(Tensor, Access); 1]>,
    owner: LeaseOwner,
    /// `None` if the engine itself uses the memory, and where consumers are named later.
    consumer: Option<Consumer>,
    step: RequestStage,
    finish: fn(Leases) -> L,
}

enum RequestStage {
    /// Nothing is submitted.
    Described,
    /// The operation is submitted.
    Submitted(Submitted),
    /// Waits that few requests need.
    Rest(Pin<Box<dyn Future<Output = Result<Leases, Error>> + Send>>),
    /// The future has returned.
    Finished,
}

impl<L> LeaseRequest<L> {
    /// Takes the lease for `consumer`, which is [`Consumer::Host`] by default: the request then waits only
    /// for work that the consumer's queue cannot wait for. A queue that does not belong to this engine must
    /// stay valid until the lease is granted.
    pub fn for_consumer(mut self, consumer: &Consumer) -> Self {
        self.consumer = Some(consumer.clone());
        self
    }

    /// Takes the lease for consumers that are named later: by exports of the lease, or by
    /// `bindings::lease::hand_to`. The request waits as for the host. The end of a lease that is
    /// never handed out waits for no device.
    pub(crate) fn for_later_consumers(mut self) -> Self {
        self.consumer = None;
        self
    }

    /// Blocks until the lease is granted, for at most `timeout`; `None` is without limit.
    ///
    /// # Errors
    /// As [`Tensor::lease`] or [`Engine::lease_all`](crate::Engine::lease_all), and those of
    /// [`Tensor::wait`]; [`Error::Timeout`].
    pub fn wait(mut self, timeout: Option<Duration>) -> Result<L, Error> {
        if self.wanted.is_empty() {
            return Ok((self.finish)(Leases::new()));
        }
        let deadline = timeout.and_then(clock::deadline);
        let (leases, pending) = match self.alias() {
            Some(tensor) => {
                if !tensor.is_defined() {
                    blocking::block_on_tensor(tensor, timeout)?;
                }
                (self.alias_of(tensor), FenceSet::default())
            }
            None => {
                let submitted = self.take_submitted()?;
                self.hand_over(submitted.wait(&self, timeout)?)?
            }
        };
        let mut left = hand_to_consumer(&leases, self.consumer.as_ref(), &pending)?;
        while !left.is_empty() {
            fence::wait_on_host(self.core(), &left, deadline, timeout)?;
            left = order_consumer(&leases, self.consumer.as_ref(), &left)?;
        }
        Ok((self.finish)(leases))
    }

    /// Returns the lease if it is granted at once; else `None`, and the request is given up.
    ///
    /// # Errors
    /// As [`Tensor::lease`] or [`Engine::lease_all`](crate::Engine::lease_all); [`Error::NotDefined`] for a
    /// tensor that its operation has not made, and whose failure was cleared.
    pub fn try_now(mut self) -> Result<Option<L>, Error> {
        if self.wanted.is_empty() {
            return Ok(Some((self.finish)(Leases::new())));
        }
        for (tensor, _) in &self.wanted {
            if !tensor.is_defined() {
                let Some(outcome) = tensor.inner.poll() else { return Ok(None) };
                outcome?;
                // The tensor may be defined by now. A tensor whose failure was cleared never will be.
                if !tensor.is_defined() {
                    return Err(tensor.inner.not_defined());
                }
            }
        }
        let (leases, pending) = match self.alias() {
            Some(tensor) => (self.alias_of(tensor), FenceSet::default()),
            None => {
                let submitted = self.take_submitted()?;
                let Some(outcome) = submitted.outcome() else { return Ok(None) };
                outcome?;
                self.hand_over(submitted)?
            }
        };
        let left = hand_to_consumer(&leases, self.consumer.as_ref(), &pending)?;
        Ok(left.is_empty().then(|| (self.finish)(leases)))
    }

    fn core(&self) -> &CoreRef {
        match &self.engine {
            Some(core) => core,
            None => &self.wanted[0].0.inner.core,
        }
    }

    /// The tensor, of a request for an alias.
    fn alias(&self) -> Option<&Tensor> {
        match &self.wanted[..] {
            [(tensor, Access::Alias)] if self.engine.is_none() => Some(tensor),
            _ => None,
        }
    }

    fn alias_of(&self, tensor: &Tensor) -> Leases {
        smallvec![Lease { inner: LeaseState::alias(tensor, self.owner.clone()) }]
    }

    fn submit(&self) -> Result<Submitted, Error> {
        let core = self.core();
        core.generation.check()?;
        for (tensor, access) in &self.wanted {
            tensor.inner.core.generation.check()?;
            match access {
                Access::Read => {}
                Access::Write => check_writable(tensor)?,
                Access::Alias => return Err(Error::invalid("an alias is not a lease")),
            }
        }
        let exclusive = self.wanted.iter().any(|(_, access)| *access == Access::Write);
        let details =
            LeaseDetails::new(if exclusive { Access::Write } else { Access::Read }, self.owner.clone());
        let consumer_orders = self.consumer.as_ref().is_some_and(Consumer::is_stream_ordered);
        let op = Arc::new(LeaseOp::requested(details, consumer_orders));
        let (handle, granted) = submit(core, &self.wanted, &op);
        let is_counted = granted.is_none();
        match granted {
            Some(granted) => dispatch(granted),
            None => begin_waiting(&handle),
        }
        Ok(Submitted { op: Some(op), handle, pending: Pending::default(), is_counted })
    }

    /// The operation that a poll has submitted, or a new one. Leases of an earlier poll are dropped first,
    /// since the new operation would wait for them.
    fn take_submitted(&mut self) -> Result<Submitted, Error> {
        self.core().generation.check()?;
        match std::mem::replace(&mut self.step, RequestStage::Described) {
            RequestStage::Submitted(mut submitted) => {
                submitted.pending.over();
                return Ok(submitted);
            }
            polled => drop(polled),
        }
        self.submit()
    }

    /// Turns the held operation into one lease per tensor. Returns also the fences that are pending.
    fn hand_over(&self, mut submitted: Submitted) -> Result<(Leases, FenceSet), Error> {
        let op = submitted.op.take().expect("handed over once");
        let pending = op.take_pending();
        let leases: Leases = if let [(tensor, _)] = &self.wanted[..] {
            smallvec![Lease { inner: LeaseState::of_operation(tensor.clone(), op) }]
        } else {
            let granted = op.abandon().expect("the one-shot is set once the operation is held");
            let split = |(tensor, access): &(Tensor, Access)| {
                let one = op.of_one(LeaseDetails::new(*access, self.owner.clone()));
                let lease = LeaseState::of_operation(tensor.clone(), Arc::new(one));
                lease.split_from(&granted, mode_of(*access));
                Lease { inner: lease }
            };
            let leases = self.wanted.iter().map(split).collect();
            end(granted, &[]);
            leases
        };
        for (tensor, access) in &self.wanted {
            // A tensor that was undefined at submission may have turned out to be read-only.
            if *access == Access::Write {
                check_writable(tensor)?;
            }
        }
        Ok((leases, pending))
    }

    /// Submits the request now. Returns the number of the lease.
    #[cfg(feature = "links")]
    pub(crate) fn submitted(mut self) -> Result<(Self, u64), Error> {
        let submitted = self.submit()?;
        let number = submitted.handle.id().get();
        self.step = RequestStage::Submitted(submitted);
        Ok((self, number))
    }

    fn begin(&self) -> Result<RequestStage, Error> {
        let Some(tensor) = self.alias() else { return Ok(RequestStage::Submitted(self.submit()?)) };
        let (tensor, leases) = (tensor.clone(), self.alias_of(tensor));
        let consumer = self.consumer.clone();
        Ok(RequestStage::Rest(Box::pin(async move {
            if !tensor.is_defined() {
                tensor.ready().await?;
            }
            let left = hand_to_consumer(&leases, consumer.as_ref(), &FenceSet::default())?;
            settle_on_host(leases, consumer, left).await
        })))
    }

    /// Continues after the grant. Returns the leases if nothing is left to wait for.
    fn granted(&mut self, submitted: Submitted) -> Result<Option<Leases>, Error> {
        let (leases, pending) = self.hand_over(submitted)?;
        let left = hand_to_consumer(&leases, self.consumer.as_ref(), &pending)?;
        if left.is_empty() {
            return Ok(Some(leases));
        }
        self.step = RequestStage::Rest(Box::pin(settle_on_host(leases, self.consumer.clone(), left)));
        Ok(None)
    }

    fn poll_leases(&mut self, cx: &mut Context<'_>) -> Poll<Result<Leases, Error>> {
        if self.wanted.is_empty() {
            return Poll::Ready(Ok(Leases::new()));
        }
        self.core().generation.check()?;
        loop {
            match &mut self.step {
                RequestStage::Described => self.step = self.begin()?,
                RequestStage::Submitted(submitted) => {
                    let what = if self.engine.is_some() { "a scoped lease" } else { "a lease" };
                    let outcome = ready!(submitted.poll(cx, what));
                    let step = std::mem::replace(&mut self.step, RequestStage::Finished);
                    outcome?;
                    if let RequestStage::Submitted(submitted) = step
                        && let Some(leases) = self.granted(submitted)?
                    {
                        return Poll::Ready(Ok(leases));
                    }
                }
                RequestStage::Rest(rest) => return rest.as_mut().poll(cx),
                RequestStage::Finished => panic!("a lease request was polled after it had ended"),
            }
        }
    }
}

impl<L> Future for LeaseRequest<L> {
    type Output = Result<L, Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let leases = ready!(self.poll_leases(cx))?;
        Poll::Ready(Ok((self.finish)(leases)))
    }
}

impl<L> std::fmt::Debug for LeaseRequest<L> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LeaseRequest").field("wanted", &self.wanted).field("owner", &self.owner).finish()
    }
}

/// A request's operation in its queues. Dropping it gives up the request.
struct Submitted {
    /// `None` once handed over.
    op: Option<Arc<LeaseOp>>,
    handle: OpHandle,
    pending: Pending,
    /// Cancels count it.
    is_counted: bool,
}

impl Submitted {
    fn op(&self) -> &LeaseOp {
        self.op.as_ref().expect("not handed over")
    }

    fn outcome(&self) -> Option<Result<(), Error>> {
        self.op().one_shot.as_ref().expect("a request has a one-shot").get()
    }

    fn wait<L>(self, request: &LeaseRequest<L>, timeout: Option<Duration>) -> Result<Self, Error> {
        let what = match &request.engine {
            Some(_) => "a scoped lease".into(),
            None => format!("a {} lease", self.op().details.access),
        };
        let one_shot = self.op().one_shot.as_ref().expect("a request has a one-shot");
        let waited = blocking::block(request.core(), &self.handle, &what, one_shot, timeout);
        self.note_resumed(true);
        waited??;
        Ok(self)
    }

    fn poll(&mut self, cx: &mut Context<'_>, what: &'static str) -> Poll<Result<(), Error>> {
        let Self { op, handle, pending, .. } = self;
        let one_shot = op.as_ref().and_then(|op| op.one_shot.as_ref()).expect("a request has a one-shot");
        match one_shot.poll_alone(cx) {
            Poll::Pending => match pending.poll(cx, || Awaited::op(Some(what), handle)) {
                Some(error) => Poll::Ready(Err(error)),
                None => Poll::Pending,
            },
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            Poll::Ready(Ok(())) => {
                pending.over();
                self.note_resumed(false);
                Poll::Ready(Ok(()))
            }
        }
    }

    fn note_resumed(&self, blocking: bool) {
        if self.handle.payload().noted {
            hooks::resumed(self.handle.id().get(), blocking);
        }
    }
}

impl Drop for Submitted {
    fn drop(&mut self) {
        if self.is_counted && self.handle.payload().core.generation.is_current() {
            end_waiting();
        }
        if let Some(op) = self.op.take() {
            give_up(&self.handle, op);
        }
    }
}

fn mode_of(access: Access) -> AccessMode {
    if access == Access::Write { AccessMode::Update } else { AccessMode::Read }
}

/// Submits the operation of a lease. Returns the operation itself if it is granted at once; the caller begins
/// it.
pub(super) fn submit(
    core: &CoreRef,
    wanted: &[(Tensor, Access)],
    op: &Arc<LeaseOp>,
) -> (OpHandle, Option<OpGranted>) {
    let mut pending_op = operation::pending_op(core, Name::Static("lease"), OpKind::Lease);
    pending_op.payload_mut().set_role(Role::Lease(Arc::clone(op)));
    for (tensor, access) in wanted {
        tensor.inner.vars.iter().for_each(|var| pending_op.access(var, mode_of(*access)));
    }
    if pending_op.payload().noted {
        hooks::submitted(&pending_op);
        wanted.iter().for_each(|(tensor, _)| hooks::uses(std::slice::from_ref(tensor)));
    }
    pending_op.submit()
}

/// Notes what the ends of the leases wait for, and orders the consumer's queue after pending fences. Returns
/// the fences that only the host can wait for.
fn hand_to_consumer(
    leases: &Leases,
    consumer: Option<&Consumer>,
    pending: &FenceSet,
) -> Result<FenceSet, Error> {
    if let Some(consumer) = consumer {
        for lease in leases {
            lease.note_end(consumer)?;
        }
    }
    order_consumer(leases, consumer, pending)
}

fn order_consumer(
    leases: &Leases,
    consumer: Option<&Consumer>,
    pending: &FenceSet,
) -> Result<FenceSet, Error> {
    let mut host = FenceSet::default();
    let Some(queue) = consumer.and_then(Consumer::queue) else { return Ok(host) };
    for fence in pending {
        match queue.order_after(fence) {
            Ok(Order::Nothing | Order::Device) => {}
            Ok(Order::Host) => host.insert(fence.clone()),
            Err(refused) => match fence.state() {
                // A failed writer is the failure of the version; a failed reader does not fail the lease.
                FenceState::Failed(_) => {
                    for lease in leases {
                        lease.tensor().inner.poll().unwrap_or(Ok(()))?;
                    }
                }
                FenceState::Done => {}
                FenceState::Pending => return Err(refused.into()),
            },
        }
    }
    Ok(host)
}

/// Waits for the fences that the consumer's queue cannot wait for.
async fn settle_on_host(
    leases: Leases,
    consumer: Option<Consumer>,
    mut left: FenceSet,
) -> Result<Leases, Error> {
    // An operation of the engine may be what completes a host promise.
    let _stand_ins = leases
        .first()
        .filter(|_| !left.is_empty())
        .map(|lease| StandInSet::for_waiter(&lease.tensor().inner.core));
    while !left.is_empty() {
        for fence in &left {
            // `order_consumer` inspects the outcome.
            let _ = fence.settled().await;
        }
        left = order_consumer(&leases, consumer.as_ref(), &left)?;
    }
    Ok(leases)
}
