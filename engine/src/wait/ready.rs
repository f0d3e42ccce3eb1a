//! Readiness: futures and queries.
//!
//! A *readiness query* is an operation that reads the tensor's variables and has no body. The query is
//! appended as any other operation, so it sees exactly the version that is current at the call. The query
//! leaves the graph as soon as it is granted, so it never holds up a writer. The reactor then watches the
//! fences of the version. A query that is dropped leaves at once.

use std::collections::HashSet;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use estafette_devices::{FenceSet, Reactor};
use estafette_graph::{AccessMode, OpId};
use smallvec::SmallVec;

use crate::core::error::Error;
use crate::core::one_shot::{OneShot, ReadyOneShot};
use crate::core::operation::{self, EndKeys, Name, OpHandle, OpKind, Role};
use crate::core::wakers::WakerKey;
use crate::operation::cancellation;
use crate::operation::run;
use crate::operation::withdraw::withdraw;
use crate::tensor::handle::{Tensor, TensorInner};
use crate::trace::hooks;
use crate::wait::awaits::{Awaited, Pending};

/// A pending readiness query. Dropping a waiting query takes it out of its queues.
pub(crate) struct ReadinessQuery {
    pub(crate) one_shot: Arc<ReadyOneShot>,
    pub(crate) handle: OpHandle,
    pending: Pending,
}

/// Either the outcome, if it is known, or a readiness query for the version that is current now. The enum is
/// small, since futures that contain it are moved.
pub(crate) enum Polled {
    Ready,
    Failed(Box<Error>),
    Probing(ReadinessQuery),
}

/// `blocks` says that the caller is a thread that will block for the query.
#[inline]
pub(crate) fn poll_or_query(tensor: &TensorInner, blocks: bool) -> Polled {
    if tensor.is_quiet() { Polled::Ready } else { poll_closely_or_query(tensor, blocks) }
}

#[cold]
fn poll_closely_or_query(tensor: &TensorInner, blocks: bool) -> Polled {
    match tensor.inspect() {
        Some(Ok(())) => return Polled::Ready,
        Some(Err(error)) => return Polled::Failed(Box::new(error)),
        None => {}
    }
    Polled::Probing(submit_query(tensor, blocks))
}

fn submit_query(tensor: &TensorInner, blocks: bool) -> ReadinessQuery {
    let one_shot = Arc::new(OneShot::new());
    let mut pending_op = operation::pending_op(&tensor.core, Name::Static("ready"), OpKind::ReadinessQuery);
    pending_op.payload_mut().set_role(Role::ReadinessQuery(Arc::clone(&one_shot), blocks));
    tensor.vars.iter().for_each(|var| pending_op.access(var, AccessMode::Read));
    if pending_op.payload().noted {
        hooks::submitted(&pending_op);
    }
    cancellation::count_query();
    let (handle, granted) = pending_op.submit();
    match granted {
        Some(granted) => run::dispatch_one(granted),
        None => cancellation::query_waits(&handle),
    }
    ReadinessQuery { one_shot, handle, pending: Pending::default() }
}

/// The end of the version that is current when the future is made. A failure stays unretrieved, and leases
/// alone never end the future.
pub(crate) enum VersionEnd {
    Known(Result<(), Error>),
    Probing(ReadinessQuery),
}

impl VersionEnd {
    /// `blocks` says that the caller is a thread that will block for it.
    pub(crate) fn new(tensor: &TensorInner, blocks: bool) -> Self {
        if tensor.is_quiet() {
            return Self::Known(Ok(()));
        }
        if let Some(outcome) = tensor.inspect() {
            return Self::Known(outcome);
        }
        Self::Probing(submit_query(tensor, blocks))
    }

    /// The query for the end, if that is not known.
    pub(crate) fn handle(&self) -> Option<OpHandle> {
        match self {
            Self::Known(_) => None,
            Self::Probing(query) => Some(query.handle.clone()),
        }
    }

    /// The outcome of the version, if it is known.
    pub(crate) fn outcome(&self) -> Option<Result<(), Error>> {
        match self {
            Self::Known(outcome) => Some(outcome.clone()),
            Self::Probing(query) => query.one_shot.glance(),
        }
    }
}

impl Future for VersionEnd {
    type Output = Result<(), Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match &*self {
            Self::Known(outcome) => Poll::Ready(outcome.clone()),
            Self::Probing(query) => query.one_shot.peek(cx, &mut WakerKey::alone()),
        }
    }
}

/// A future of the version that was current when the future was made. See [`Tensor::ready`].
#[must_use = "futures do nothing unless awaited"]
pub struct Ready {
    looked: Polled,
}

impl Ready {
    #[inline]
    pub(crate) fn new(tensor: &Tensor) -> Self {
        Self { looked: poll_or_query(&tensor.inner, false) }
    }
}

impl Future for Ready {
    type Output = Result<(), Error>;

    #[inline(always)]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match &mut self.looked {
            Polled::Ready => Poll::Ready(Ok(())),
            Polled::Failed(error) => {
                error.retrieve();
                Poll::Ready(Err((**error).clone()))
            }
            Polled::Probing(query) => query.poll(cx),
        }
    }
}

impl ReadinessQuery {
    /// A function of its own, so that the answer for a ready tensor is made where the future is awaited.
    #[inline(never)]
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        // What settles it is in the parent.
        self.handle.payload().core.generation.check()?;
        let polled = match self.one_shot.poll_alone(cx) {
            Poll::Ready(outcome) => Poll::Ready(outcome),
            Poll::Pending => match self.pending.poll(cx, || Awaited::op(Some("a tensor"), &self.handle)) {
                Some(error) => Poll::Ready(Err(error)),
                None => Poll::Pending,
            },
        };
        if polled.is_ready() {
            self.pending.over();
            if self.handle.payload().noted {
                hooks::resumed(self.handle.id().get(), false);
            }
        }
        polled
    }
}

impl Drop for ReadinessQuery {
    fn drop(&mut self) {
        if withdraw(&self.handle) {
            cancellation::uncount_query();
        }
    }
}

impl std::fmt::Debug for Ready {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let known = !matches!(self.looked, Polled::Probing(_));
        f.debug_struct("Ready").field("known", &known).finish()
    }
}

/// A future of the end of every use that was submitted before the future was made. See [`Tensor::writable`].
///
/// The future is an observer, not an access: it holds up no later reader. Only where a use has not ended when
/// the future is made, the future also waits for device work that later uses have begun by the end of that
/// use.
#[must_use = "futures do nothing unless awaited"]
pub struct Writable {
    tensor: Tensor,
    uses: Vec<OpHandle>,
    /// The ends of leases that have no operation.
    pins: Vec<Arc<ReadyOneShot>>,
    /// The device work of the uses, if all had ended when the future was made.
    left: Option<FenceSet>,
    fences: Option<Arc<ReadyOneShot>>,
    /// The numbers of the leases in `pins`.
    held: SmallVec<[OpId; 1]>,
    /// For the last of `uses`.
    use_keys: EndKeys,
    /// For the last of `pins`.
    hold_key: WakerKey,
    pending: Pending,
}

impl Writable {
    pub(crate) fn new(tensor: &Tensor) -> Self {
        // A queue has each operation once, but several queues may have the same ones.
        let (mut uses, mut seen): (Vec<OpHandle>, HashSet<OpId>) = Default::default();
        let is_one = tensor.inner.vars.len() == 1;
        let mut pins = Vec::new();
        let mut held = SmallVec::new();
        // Locks of what is inherited may be held for ever; the future refuses that when it is polled.
        let inherited = tensor.inner.core.generation.is_inherited();
        for var in tensor.inner.vars.iter().filter(|_| !inherited) {
            var.with_state(|state, _| {
                state.pins().each(|mut pin| {
                    held.push(pin.number());
                    pins.push(pin.observer(|| Arc::new(OneShot::new())));
                });
            });
            for handle in var.queued() {
                if handle.payload().kind != OpKind::ReadinessQuery && (is_one || seen.insert(handle.id())) {
                    uses.push(handle);
                }
            }
        }
        // Read after the queues: a use that has ended meanwhile has left its work.
        let have_ended = uses.is_empty() && pins.is_empty() && !inherited;
        Self {
            tensor: tensor.clone(),
            left: have_ended.then(|| tensor.inner.all_fences()),
            uses,
            pins,
            fences: None,
            held,
            use_keys: EndKeys::default(),
            hold_key: WakerKey::default(),
            pending: Pending::default(),
        }
    }
}

impl Future for Writable {
    type Output = Result<(), Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.tensor.inner.core.generation.check()?;
        let polled = self.poll_uses(cx);
        if polled.is_ready() {
            self.pending.over();
            return polled;
        }
        let Self { tensor, uses, held, pending, .. } = &mut *self;
        match pending.poll(cx, || Awaited::all(tensor, "the end of all uses of a tensor", uses, held)) {
            Some(error) => Poll::Ready(Err(error)),
            None => Poll::Pending,
        }
    }
}

impl Writable {
    fn poll_uses(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        while let Some(last) = self.uses.last() {
            // The end of a use counts, not its outcome.
            if last.payload().poll_done(cx, &mut self.use_keys).is_pending() {
                return Poll::Pending;
            }
            self.forget_wakers();
            self.uses.pop();
        }
        while let Some(last) = self.pins.last() {
            if last.poll(cx, &mut self.hold_key).is_pending() {
                return Poll::Pending;
            }
            self.forget_wakers();
            self.pins.pop();
        }
        if self.fences.is_none() {
            let one_shot = Arc::new(OneShot::new());
            let fences = self.left.take().unwrap_or_else(|| self.tensor.inner.all_fences());
            // As with a query: a subscription without a waiter leaves the reactor's lists.
            let (done, wanted) = (Arc::downgrade(&one_shot), Arc::downgrade(&one_shot));
            let wanted = move || wanted.strong_count() > 0;
            Reactor::global().when_settled_if(&fences, wanted, move |_settled| {
                if let Some(done) = done.upgrade() {
                    done.set(Ok(()));
                }
            });
            self.fences = Some(one_shot);
        }
        match &self.fences {
            Some(one_shot) => one_shot.poll_alone(cx),
            None => Poll::Ready(Ok(())),
        }
    }
}

impl Writable {
    /// Removes the wakers that wait for the last use.
    fn forget_wakers(&mut self) {
        if let Some(last) = self.uses.last() {
            last.payload().forget(&mut self.use_keys);
        }
        if let Some(last) = self.pins.last() {
            last.forget(&mut self.hold_key);
        }
    }
}

impl Drop for Writable {
    fn drop(&mut self) {
        self.forget_wakers();
    }
}

impl std::fmt::Debug for Writable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Writable").field("uses", &(self.uses.len() + self.pins.len())).finish()
    }
}
