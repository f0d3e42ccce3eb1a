//! The state of a lease, which its clones share, and the end of the lease.

use std::marker::PhantomPinned;
use std::ops::Range;
use std::sync::Arc;

use estafette_devices::host::Completer;
use estafette_devices::{Fence, FenceSet, Reactor};
use estafette_graph::{AccessMode, OpId};
use estafette_sync::sync::atomic::{AtomicBool, Ordering};
use estafette_sync::sync::{Mutex, OnceLock};
use smallvec::SmallVec;

use super::Access;
use super::consumer::{EndsAfter, may_release_before_completion};
use super::operation::{LeaseOp, end, end_as, end_unused, give_up};
use super::pins::Pin;
use super::request::submit;
use crate::core::clock::Coarse;
use crate::core::contained::Contained;
use crate::core::context;
use crate::core::engine_core::graph;
use crate::core::error::OperationError;
use crate::core::lease_info::{LeaseDetails, LeaseInfo, LeaseOwner};
use crate::core::operation::{self, Name, OpGranted, OpKind, OpState, OpTag, OpVar, Phase, Role};
use crate::core::var_state::{Replaced, VarState};
use crate::tensor::alias_map::Region;
use crate::tensor::handle::Tensor;
use crate::trace::hooks;

/// The state of a lease.
pub(crate) struct LeaseState {
    pub(crate) tensor: Tensor,
    pub(super) order: LeaseOrder,
    /// See [`scope`](Self::scope), with the range of the first tensor. Made at first use: tensors are
    /// imported from few leases.
    scope: OnceLock<(OpVar, Range<usize>)>,
    /// True for an alias, and for a view that became one: nothing waits for the lease, and nothing is derived
    /// from it.
    untracked: AtomicBool,
    /// Work at the end of the lease; most leases have none.
    at_end: Mutex<Option<Box<AtEnd>>>,
    /// The variable's list of pins points here until the destructor has removed the lease.
    _listed: PhantomPinned,
}

/// The order of a lease among operations.
pub(super) enum LeaseOrder {
    /// By an operation without a body.
    Operation {
        op: Arc<LeaseOp>,
        /// The running operation that the lease is a view of. The lease becomes an operation of its own when
        /// that operation ends.
        view_of: Option<OpId>,
    },
    /// By a pin: a read that was granted at once.
    Pin(Pin),
    /// Not at all.
    Alias(LeaseDetails),
    /// By another lease, which is requested and not granted yet.
    Pending(PendingLease),
}

/// Facts about a lease that was handed out before it is granted.
pub(super) struct PendingLease {
    details: LeaseDetails,
    /// Done when the lease is granted.
    ready: Fence,
    /// The granted lease, which lasts as long as what is derived from this one.
    granted: OnceLock<Arc<LeaseState>>,
}

/// Work at the end of a lease.
#[derive(Default)]
pub(super) struct AtEnd {
    /// Device work that the owner has named, which the end waits for.
    pub(super) used: FenceSet,
    /// True if the owner has named its last work so: then `after` does not matter.
    pub(super) is_named: bool,
    /// The work that the end waits for if the owner does not name its last work.
    after: Option<EndsAfter>,
    /// Fences of the end, settled after it.
    pub(super) notified: Vec<(Completer, Fence)>,
}

impl LeaseState {
    #[inline(always)]
    pub(super) fn new(tensor: Tensor, order: LeaseOrder) -> Self {
        let untracked = matches!(order, LeaseOrder::Alias(_));
        Self {
            tensor,
            order,
            scope: OnceLock::new(),
            untracked: AtomicBool::new(untracked),
            at_end: Mutex::new(None),
            _listed: PhantomPinned,
        }
    }

    /// A lease that keeps the tensor alive, and that nothing waits for.
    pub(crate) fn alias(tensor: &Tensor, owner: LeaseOwner) -> Arc<Self> {
        let details = LeaseDetails::new(Access::Alias, owner);
        Arc::new(Self::new(tensor.clone(), LeaseOrder::Alias(details)))
    }

    /// A lease that is handed out before it is granted, which is when `ready` is done. Tensors that are
    /// imported meanwhile with a fence are derived from it, and wait for `ready` too.
    pub(crate) fn pending(tensor: &Tensor, access: Access, owner: LeaseOwner, ready: Fence) -> Arc<Self> {
        let details = LeaseDetails::new(access, owner);
        let order = LeaseOrder::Pending(PendingLease { details, ready, granted: OnceLock::new() });
        Arc::new(Self::new(tensor.clone(), order))
    }

    /// A view of an operand of `running`. The operation itself orders the view until
    /// [`split_from`](Self::split_from).
    pub(crate) fn view_of(running: OpId, tensor: &Tensor, access: Access, owner: LeaseOwner) -> Arc<Self> {
        let op = Arc::new(LeaseOp::new(LeaseDetails::new(access, owner)));
        let order = LeaseOrder::Operation { op, view_of: Some(running) };
        Arc::new(Self::new(tensor.clone(), order))
    }

    /// The lease of an operation that is held, or that [`split_from`](Self::split_from) makes.
    pub(super) fn of_operation(tensor: Tensor, op: Arc<LeaseOp>) -> Arc<Self> {
        Arc::new(Self::new(tensor, LeaseOrder::Operation { op, view_of: None }))
    }

    /// A read lease, if it is granted at once and nothing is pending. Else nothing stays behind.
    #[inline]
    pub(crate) fn try_read(tensor: &Tensor, owner: impl FnOnce() -> LeaseOwner) -> Option<Arc<Self>> {
        match &tensor.inner.vars[..] {
            [var] => match Self::pin(tensor, var, owner()) {
                Ok(lease) => Some(lease),
                Err(owner) => Self::try_read_by_operation(tensor, owner, false),
            },
            _ => Self::try_read_by_operation(tensor, owner(), false),
        }
    }

    /// As [`try_read`](Self::try_read), also of a version that has failed, or whose device work pends.
    pub(crate) fn try_read_as_is(tensor: &Tensor, owner: LeaseOwner) -> Option<Arc<Self>> {
        Self::try_read_by_operation(tensor, owner, true)
    }

    #[cold]
    fn try_read_by_operation(tensor: &Tensor, owner: LeaseOwner, as_is: bool) -> Option<Arc<Self>> {
        let op = Arc::new(LeaseOp::new(LeaseDetails::new(Access::Read, owner)));
        let (handle, granted) = submit(&tensor.inner.core, &[(tensor.clone(), Access::Read)], &op);
        let Some(granted) = granted else {
            give_up(&handle, op);
            return None;
        };
        drop(handle);
        let is_quiet = as_is || granted.accesses().all(|access| access.flags() == 0);
        if !is_quiet || !operation::begin(&granted) {
            // Fences or a failure: the request must inspect them, and perhaps wait.
            end_unused(granted);
            return None;
        }
        if granted.payload().noted {
            hooks::begins(&granted);
        }
        op.hold(granted).expect("only this function has the operation");
        Some(Self::of_operation(tensor.clone(), op))
    }

    #[inline]
    fn details(&self) -> &LeaseDetails {
        match &self.order {
            LeaseOrder::Operation { op, .. } => &op.details,
            LeaseOrder::Pin(pin) => &pin.details,
            LeaseOrder::Alias(details) | LeaseOrder::Pending(PendingLease { details, .. }) => details,
        }
    }

    /// The owner's access.
    #[inline]
    pub(crate) fn access(&self) -> Access {
        self.details().access
    }

    pub(crate) fn since(&self) -> Coarse {
        self.details().since()
    }

    pub(crate) fn info(&self) -> LeaseInfo {
        match &self.order {
            LeaseOrder::Operation { op, .. } => op.info(),
            LeaseOrder::Pin(pin) => pin.details.info(true),
            LeaseOrder::Alias(details) | LeaseOrder::Pending(PendingLease { details, .. }) => {
                details.info(false)
            }
        }
    }

    /// True if a pin orders the lease.
    #[inline]
    pub(crate) fn is_pin(&self) -> bool {
        matches!(self.order, LeaseOrder::Pin(_))
    }

    /// True if this is a lease of the memory of `region`.
    pub(crate) fn is_of(&self, region: &Region) -> bool {
        let definition = self.tensor.inner.definition();
        let placed = definition.ok().and_then(|definition| definition.placed.as_ref());
        placed.is_some_and(|placed| std::ptr::eq(&*placed.region, region))
    }

    /// The variable that orders uses of tensors that were imported from inside this lease. One of these
    /// tensors is at `range`.
    pub(crate) fn scope(&self, range: &Range<usize>) -> &OpVar {
        let (scope, first) = self.scope.get_or_init(|| (graph().var(VarState::default()), range.clone()));
        if first != range {
            scope.with_state(|state, _| state.share());
        }
        scope
    }

    /// The fence of the grant, of a lease that was handed out [before](Self::pending).
    pub(crate) fn granted_after(&self) -> Option<&Fence> {
        match &self.order {
            LeaseOrder::Pending(pending) => Some(&pending.ready),
            _ => None,
        }
    }

    /// Links the granted `lease` to this pending one. The granted lease lasts as long, and its end reports
    /// the work that tensors derived from the pending one have left. A tensor may have been derived from
    /// `lease` only where both leases are for reading: readers need no order among each other.
    pub(crate) fn become_granted(&self, lease: &Arc<Self>) {
        if let LeaseOrder::Pending(pending) = &self.order {
            if let Some(scope) = self.scope.get() {
                let _ = lease.scope.set(scope.clone());
            }
            let _ = pending.granted.set(Arc::clone(lease));
        }
    }

    /// True if a tensor may have been derived from this lease.
    pub(crate) fn has_scope(&self) -> bool {
        self.scope.get().is_some()
    }

    /// True if the lease protects the memory inside it.
    pub(crate) fn protects(&self) -> bool {
        !self.untracked.load(Ordering::Acquire)
    }

    /// True if the calling code may have got memory from the lease's owner. The views of a running operation
    /// belong to that operation; other code that comes with the same memory has it from elsewhere.
    pub(crate) fn can_be_imported_from_here(&self) -> bool {
        match &self.order {
            LeaseOrder::Operation { op, view_of: Some(running) } => {
                op.is_held() || context::current() == Some(*running)
            }
            _ => true,
        }
    }

    pub(super) fn at_end(&self, add: impl FnOnce(&mut AtEnd)) {
        add(self.at_end.lock().get_or_insert_default());
    }

    /// Makes the end wait for the consumer's last work, unless the owner names that work.
    pub(crate) fn ends_after(&self, after: EndsAfter) {
        // Keepers may be foreign code's, and are dropped without the lock.
        let mut unneeded = Vec::new();
        self.at_end(|at_end| {
            at_end.after = Some(match at_end.after.take() {
                Some(known) => known.and(after, &mut unneeded),
                None => after,
            });
        });
        drop(Contained::new(unneeded));
    }

    /// Moves what [`ends_after`](Self::ends_after) has noted to another lease.
    pub(crate) fn take_after(&self) -> Option<EndsAfter> {
        self.at_end.lock().as_mut()?.after.take()
    }

    /// See `bindings::lease::note_object`.
    pub(crate) fn note_object(&self, kind: impl Into<Arc<str>>) {
        self.details().object.get_or_init(|| kind.into());
    }

    /// The id by which a trace knows the lease, if it is held.
    pub(crate) fn traced_id(&self) -> Option<OpId> {
        match &self.order {
            LeaseOrder::Operation { op, .. } => op.id(),
            LeaseOrder::Pin(pin) => pin.traced_id(),
            LeaseOrder::Alias(_) | LeaseOrder::Pending(_) => None,
        }
    }

    /// Makes the lease an alias. See [`Region::untrack`].
    pub(crate) fn untrack(&self) {
        self.untracked.store(true, Ordering::Release);
    }

    /// True if the lease was handed into the capture of a graph.
    pub(super) fn is_captured(&self) -> bool {
        matches!(
            self.at_end.lock().as_ref().and_then(|at_end| at_end.after.as_ref()),
            Some(EndsAfter::Captured(_))
        )
    }

    /// Splits an operation for this lease off `running`. The new operation stands beside `running` in every
    /// queue, so no other operation gets in between when `running` ends.
    pub(crate) fn split_from(&self, running: &OpGranted, mode: AccessMode) {
        let LeaseOrder::Operation { op, .. } = &self.order else { return };
        if may_release_before_completion(&self.tensor.inner) {
            // The owner may use the memory on other queues than the operation's.
            self.ends_after(EndsAfter::unknown(&self.tensor.inner));
        } else if let Some(queue) = running.payload().queue() {
            // Work that was pending when the operation began may still be pending when this lease ends.
            self.ends_after(EndsAfter::Queue(Arc::clone(queue), None));
        }
        let mut state = OpState::new(self.tensor.inner.core.clone(), Name::Static("lease"), OpKind::Lease);
        state.set_role(Role::Lease(Arc::clone(op)));
        state.begin_unsubmitted();
        let vars: SmallVec<[_; 2]> = self.tensor.inner.vars.iter().collect();
        // An update, since no new version begins: what `running` left stays, its failure included.
        let mode = if mode.is_exclusive() { AccessMode::Update } else { mode };
        let granted = running.split(state, &vars, mode);
        if granted.payload().noted {
            hooks::split_off(&granted);
        }
        if let Err(granted) = op.hold(granted) {
            // The last clone of the lease was dropped meanwhile.
            end(granted, &[]);
        }
    }
}

/// Device work left by uses of tensors derived from the lease. These tensors keep the lease, so all uses have
/// ended but for operations that were cancelled or are being skipped.
struct Derived {
    writers: FenceSet,
    /// Uses that do not change the version.
    readers: FenceSet,
    /// The operation whose work `writers` mark.
    writer: Option<OpTag>,
    /// The failure of the version. Under a lease for reading, only an import can fail it.
    failure: Option<OperationError>,
}

impl Derived {
    fn of(scope: &OpVar) -> Self {
        // First: an operation that leaves meanwhile leaves its failure.
        let unfinished = if scope.has_unfinished_write() { failure_of_unfinished(scope) } else { None };
        let ([writers, mut readers, broken], writer, failure) = scope.with_ordering_state(|state, _| {
            (state.all_fences(), state.writer_tag(), state.failure_of_any().cloned())
        });
        readers.merge(&broken);
        Self { writers, readers, writer, failure: unfinished.or(failure) }
    }
}

/// The failure of the last operation that writes in the scope, or waits to, and that was cancelled or is
/// being skipped.
#[cold]
fn failure_of_unfinished(scope: &OpVar) -> Option<OperationError> {
    let has_failed =
        |op: &OpState| op.kind.has_body() && (op.phase() == Phase::Cancelled || op.failure().is_some());
    let op = scope.queued_writes().into_iter().rfind(|op| has_failed(op.payload()))?;
    let cancellation = || OpTag { name: op.payload().name.clone(), id: op.id() }.cancellation();
    Some(op.payload().failure().cloned().unwrap_or_else(cancellation))
}

impl Drop for LeaseState {
    fn drop(&mut self) {
        if self.tensor.inner.core.generation.is_inherited() {
            // A forked child: threads that do not exist here may hold the graph's locks.
            let op = match &self.order {
                LeaseOrder::Operation { op, .. } => Some(Arc::clone(op)),
                LeaseOrder::Pin(_) | LeaseOrder::Alias(_) | LeaseOrder::Pending(_) => None,
            };
            let at_end = self.at_end.get_mut().take();
            std::mem::forget((self.tensor.clone(), op, self.scope.take(), at_end));
            return;
        }
        match (self.at_end.get_mut().take(), self.scope.get()) {
            (None, None) => self.end(&[], None),
            (at_end, scope) => {
                let derived = scope.map(|(scope, _)| Derived::of(scope));
                self.end_with(at_end.map(|at_end| *at_end).unwrap_or_default(), derived);
            }
        }
    }
}

impl LeaseState {
    /// Ends the lease; operations that waited for it continue after `done`.
    #[inline]
    fn end(&self, done: &[Fence], derived: Option<Derived>) {
        let granted = match &self.order {
            LeaseOrder::Pin(pin) if pin.is_listed() => return self.unpin(pin, done),
            LeaseOrder::Operation { op, .. } => op.abandon(),
            LeaseOrder::Pin(_) | LeaseOrder::Alias(_) | LeaseOrder::Pending(_) => None,
        };
        if let Some(granted) = granted {
            match derived {
                None => end(granted, done),
                Some(Derived { writer, failure, .. }) => end_as(granted, done, writer, failure.as_ref()),
            }
        } else if done.is_empty() && derived.as_ref().is_none_or(|derived| derived.failure.is_none()) {
            // The lease leaves no device work.
        } else if let LeaseOrder::Operation { view_of: Some(running), .. } = &self.order
            && self.access() == Access::Write
        {
            self.end_view(*running, done, derived);
        } else {
            self.keep_memory_until(done);
        }
    }

    /// Ends a view that became no lease. While `running`, the operation that the view belongs to, writes,
    /// what the view leaves decides about the version that the operation makes. After the end of the
    /// operation another version may be the current one, and only the memory waits.
    #[cold]
    fn end_view(&self, running: OpId, done: &[Fence], derived: Option<Derived>) {
        let (writer, failure) = derived.map_or((None, None), |derived| (derived.writer, derived.failure));
        let mut replaced = Replaced::default();
        let mut is_added = true;
        for var in &self.tensor.inner.vars {
            let added = var.with_state_of_writer(running, |op, state, flags| {
                let of_operation = || OpTag { name: op.name.clone(), id: running };
                let writer = writer.clone().unwrap_or_else(of_operation);
                state.add_view((done, writer), failure.as_ref(), flags, &mut replaced);
            });
            is_added &= added.is_some();
        }
        if !is_added {
            self.keep_memory_until(done);
        }
    }

    /// Keeps the memory until `done`, where no queue knows the lease.
    fn keep_memory_until(&self, done: &[Fence]) {
        for fence in done {
            let _ = self.tensor.used_until(fence);
        }
    }

    #[cold]
    fn end_with(&self, at_end: AtEnd, mut derived: Option<Derived>) {
        let AtEnd { used: mut fences, is_named, after, notified } = at_end;
        // Dropped after the end: a keeper may be foreign code, and may use the tensor.
        let after = after.map(Contained::new);
        if !is_named && let (Some(after), Ok(definition)) = (&after, self.tensor.inner.definition()) {
            fences.extend(after.fences(&self.tensor.inner.core, definition.layout.device()));
        }
        if let Some(derived) = &mut derived {
            if !fences.is_empty() {
                // The owner of the lease has work of its own.
                derived.writer = None;
            }
            fences.merge(&derived.writers);
            for fence in &derived.readers {
                let _ = self.tensor.used_until(fence);
            }
        }
        let fences: SmallVec<[Fence; 1]> = fences.into_iter().collect();
        self.end(&fences, derived);
        if !notified.is_empty() {
            Reactor::global().when_settled(&fences, move |outcome| {
                notified.into_iter().for_each(|(completer, _)| completer.settle(outcome.clone()));
            });
        }
    }
}
