//! Runs granted operations: waits for the fences on their variables, runs the body, completes the operation,
//! and dispatches its successors.
//!
//! ```text
//! granted ─► start ─┬─ an input failed, or cancelled ──────────────► complete(skipped) ─► newly granted …
//!                   │     `on_skip` is called before, in place of the body
//!                   ├─ host body, fences pending ─► parked (reactor) ─► pushed to a worker ─► start
//!                   ├─ device body ─► device-side waits, then the body enqueues, then one fence is recorded
//!                   └─ body ─► complete(ran) ─► newly granted …
//! ```
//!
//! Queries and leases have no body: the thread that granted them handles them at once. All other operations
//! are pushed to the pool of their engine, with two exceptions. A worker keeps the first operation that it
//! has just granted and runs that next, in a loop and not by recursion. A thread of an engine without workers
//! may run an operation as it submits it (caller-runs policy).

use std::cmp::Reverse;

use estafette_devices::cpu::{self, Pool};
use estafette_devices::{CurrentGuard, DeviceError, DeviceErrorKind, Fence, FenceSet, Order, Queue, Reactor};
use estafette_graph::{Completed, GrantedAccess};
use smallvec::SmallVec;

use crate::core::context::{self, Current};
use crate::core::core_ref::CoreRef;
use crate::core::error::{BodyError, FailureKind, OperationError};
use crate::core::inputs::Earlier;
use crate::core::operation::{self, OpGranted, OpHandle, OpKind, OpState, OpTag, ReadyOp, contain_panic};
use crate::core::var_state::{
    Ending, FAILED, Queried, READ_FENCES, Replaced, VarState, WRITE_FENCES, thin_out,
};
use crate::operation::{cancellation, parked};
use crate::trace::hooks;

/// Newly granted operations on their way to a thread.
///
/// More than these are granted at once only where a writer had many waiting readers.
pub(crate) type ReadyList = SmallVec<[OpGranted; 32]>;

impl cpu::Job for ReadyOp {
    fn run(self, _pool: &Pool<Self>) {
        if self.needs_lock() {
            execute_while(self.0, |next| next.payload().kind == OpKind::NeedsLock);
        } else {
            execute(self.0);
        }
    }

    fn needs_lock(&self) -> bool {
        self.0.payload().kind == OpKind::NeedsLock
    }

    fn waits_for_lock(&self) {
        if self.0.payload().noted {
            hooks::body_wants_lock(self.0.id().get());
        }
    }
}

/// Operations that a worker runs one after the other, each granted by the one before, before it polls its
/// pool again. A long chain must not delay operations of higher priority.
pub(crate) const INLINE_MAX: usize = 32;

/// Runs `granted` and then, one after the other, the first successor that each operation granted.
pub(crate) fn execute(granted: OpGranted) {
    execute_while(granted, |_| true);
}

/// As [`execute`], on a thread that may run only operations for which `mine` returns true.
pub(crate) fn execute_while(granted: OpGranted, mine: impl Fn(&OpGranted) -> bool) {
    run_chain(start::<false>(granted), mine);
}

/// Runs `next` and its first successors, as [`execute_while`].
#[inline]
fn run_chain(mut next: Option<OpGranted>, mine: impl Fn(&OpGranted) -> bool) {
    for _ in 1..INLINE_MAX {
        match next {
            None => return,
            Some(granted) if mine(&granted) => next = start::<false>(first_in_order(granted, &mine)),
            Some(_) => break,
        }
    }
    next.into_iter().for_each(push);
}

/// `granted`, or an operation that was submitted before it and waits to enqueue work on a device as `granted`
/// does: a chain of such operations is not enqueued to its end before the next chain.
#[inline]
fn first_in_order(granted: OpGranted, mine: impl Fn(&OpGranted) -> bool) -> OpGranted {
    if !granted.payload().enqueues_in_order() {
        return granted;
    }
    let (core, number, kind) = (granted.payload().core.clone(), granted.id().get(), granted.payload().kind);
    let wanted = |other: &ReadyOp| other.0.payload().kind == kind && mine(&other.0);
    core.pool.first_in_order(ReadyOp(granted), number, wanted).0
}

/// Runs `granted`, and pushes its first successor to the pool.
pub(crate) fn execute_one(granted: OpGranted) {
    start::<false>(granted).into_iter().for_each(push);
}

/// As [`dispatch`], for an operation that was granted as it was submitted.
#[inline]
pub(crate) fn dispatch_one(granted: OpGranted) {
    match granted.payload().kind {
        OpKind::Work | OpKind::WorkerOnly | OpKind::NeedsLock
            if granted.payload().core.runs_at_once(&granted) =>
        {
            run_at_once(granted)
        }
        OpKind::Work | OpKind::WorkerOnly | OpKind::NeedsLock => {
            if granted.payload().noted {
                hooks::ready(granted.id(), true);
            }
            push_noted(granted);
        }
        OpKind::ReadinessQuery | OpKind::Lease | OpKind::Merge => dispatch(ReadyList::from_iter([granted])),
    }
}

/// Runs an operation on the thread that submitted it.
#[inline]
fn run_at_once(granted: OpGranted) {
    if granted.payload().kind == OpKind::NeedsLock {
        let core = granted.payload().core.clone();
        push(granted);
        // The submission raises what a body has raised, since only the language with the lock submits such
        // operations.
        while core.help_any() && !core.has_raised() {}
        return;
    }
    if !granted.payload().core.is_caller_running() {
        let core = granted.payload().core.clone();
        core.begin_caller_runs();
        return execute(granted);
    }
    if granted.payload().core.pool.has_priorities() {
        // No other thread takes operations with a priority, and new operations would overtake them until a
        // thread waits.
        let core = granted.payload().core.clone();
        execute(granted);
        core.help_any();
        return;
    }
    run_chain(start::<true>(granted), |_| true);
}

/// Pushes a granted operation to the pool of its engine.
#[inline]
pub(crate) fn push(granted: OpGranted) {
    if granted.payload().noted {
        hooks::ready(granted.id(), false);
    }
    push_noted(granted);
}

/// As [`push`], after the trace was notified.
#[inline]
fn push_noted(granted: OpGranted) {
    let core = granted.payload().core.clone();
    push_to_pool(granted);
    core.work_arrived();
}

/// Queues an operation in the pool of its engine, and wakes no thread.
#[inline]
fn push_to_pool(granted: OpGranted) {
    let core = granted.payload().core.clone();
    match granted.payload().priority {
        0 if granted.payload().enqueues_in_order() => {
            let number = granted.id().get();
            core.pool.push_in_order_unnoticed(ReadyOp(granted), number);
        }
        0 => core.pool.push_unnoticed(ReadyOp(granted)),
        priority => core.pool.push_priority_unnoticed(ReadyOp(granted), priority),
    }
}

/// Dispatches granted operations: handles queries and leases, and pushes the rest.
pub(crate) fn dispatch(mut ready: ReadyList) {
    let next = dispatch_keeping_first(&mut ready, None);
    debug_assert!(next.is_none(), "nothing was kept back");
}

/// As [`dispatch`], but may keep the first host operation of the engine `keep_for` for the calling thread.
fn dispatch_keeping_first(ready: &mut ReadyList, keep_for: Option<u64>) -> Option<OpGranted> {
    let mut first = None;
    let mut at = 0;
    while at < ready.len() {
        // Queries and leases may grant more operations while they are handled, so the list may grow behind
        // `at`.
        match ready[at].payload().kind {
            OpKind::ReadinessQuery => {
                let granted = ready.remove(at);
                crate::operation::query::query_granted(granted, ready);
            }
            OpKind::Lease => {
                let granted = ready.remove(at);
                crate::lease::lease_granted(granted, ready);
            }
            OpKind::Merge => {
                let granted = ready.remove(at);
                crate::tensor::alias_map::merge_granted(granted, ready);
            }
            OpKind::Work | OpKind::WorkerOnly | OpKind::NeedsLock => at += 1,
        }
    }
    let urgent = ready.iter().any(|granted| granted.payload().priority > 0);
    if urgent {
        // A worker that is awake takes what it finds first, so operations with a priority go first.
        ready.sort_by_key(|granted| Reverse(granted.payload().priority));
    }
    // The engine whose pool has new operations and no wake-up yet. One wake-up is enough for all of them.
    let mut unwoken: Option<CoreRef> = None;
    for granted in ready.drain(..) {
        if !urgent && first.is_none() && granted.payload().may_follow(keep_for) {
            first = Some(granted);
        } else if granted.payload().priority != 0 {
            push(granted);
        } else {
            if granted.payload().noted {
                hooks::ready(granted.id(), false);
            }
            let core = granted.payload().core.clone();
            push_to_pool(granted);
            if !unwoken.as_ref().is_some_and(|last| last.same(&core))
                && let Some(other) = unwoken.replace(core)
            {
                other.work_arrived();
            }
        }
    }
    if let Some(core) = unwoken {
        core.work_arrived();
    }
    first
}

/// The failures, fences and leases that an operation's variables carry.
pub(crate) struct Inspection {
    /// Root cause of the first input that failed.
    pub(crate) failure: Option<OperationError>,
    /// Fences that are pending.
    pub(crate) pending: FenceSet,
    /// The pending fences of inputs: if one fails, an input has failed.
    inputs: FenceSet,
}

/// Inspects every access. With `observe` no driver is called, and a fence that only a driver could say more
/// about counts as pending: that is for work that can be ordered after a pending fence on its device, which
/// is cheaper than a query. Fences are asked outside of the variable's lock, since a query may call a driver.
pub(crate) fn inspect(granted: &OpGranted, observe: bool) -> Inspection {
    let mut found = Inspection { failure: None, pending: FenceSet::default(), inputs: FenceSet::default() };
    let queue = granted.payload().queue().filter(|queue| queue.in_order());
    for access in granted.accesses() {
        let mode = access.mode();
        thin_out(access.flags(), |look| access.with_state(look));
        let relevant = FAILED | WRITE_FENCES | if mode.is_exclusive() { READ_FENCES } else { 0 };
        if access.flags() & relevant == 0 {
            continue;
        }
        if let Some(queue) = queue
            && comes_after(queue.as_ref(), &access)
        {
            continue;
        }
        let (mut writers, mut readers) = access.with_state(|state, _| match mode.is_exclusive() {
            true => state.fences(),
            false => (state.writers(), FenceSet::default()),
        });
        let is_pending = |fence: &Fence| fence.observed_state().is_pending();
        let all_pending = || writers.iter().chain(&readers).all(is_pending);
        let nothing_new = observe && access.flags() & FAILED == 0 && all_pending();
        if !nothing_new {
            let query = if observe { Queried::observe } else { Queried::query };
            let asked = (query(&writers), query(&readers));
            let mut replaced = Replaced::default();
            let failure = access.with_state(|state, flags| {
                state.note(&asked.0, &asked.1, flags, &mut replaced);
                state.failure().cloned()
            });
            // A pure write does not use the version that it replaces, so the failure of that version does not
            // matter.
            if mode.reads() && found.failure.is_none() {
                found.failure = failure;
            }
            (writers, readers) = (asked.0.pending, asked.1.pending);
        }
        if mode.reads() {
            found.inputs.merge(&writers);
        }
        found.pending.merge(&writers);
        found.pending.merge(&readers);
    }
    found
}

/// True if work on the in-order `queue` comes after everything that the access has to wait for, so that no
/// fence needs a query: the common case of a chain of operations on one queue. A failure that was not seen
/// yet is then a failure of the queue, and so of this operation.
fn comes_after(queue: &dyn Queue, access: &GrantedAccess<'_, VarState, OpState>) -> bool {
    let mode = access.mode();
    if access.flags() & FAILED != 0 {
        return false;
    }
    let fence = access.with_state(|state, _| state.only_on(mode, queue.id()).cloned());
    // A failed queue returns an error here, and its fences then say which operation failed.
    fence.is_some_and(|fence| matches!(queue.order_after(&fence), Ok(Order::Nothing)))
}

/// Starts a granted operation. Returns the operation to run next on this thread. `AT_ONCE`: this thread has
/// just submitted the operation.
#[inline]
fn start<const AT_ONCE: bool>(granted: OpGranted) -> Option<OpGranted> {
    let quiet = granted.accesses().all(|access| access.flags() == 0);
    if quiet { begin::<AT_ONCE>(granted) } else { start_after_inputs(granted) }
}

/// As [`start`], where the variables carry fences or failures.
#[cold]
fn start_after_inputs(granted: OpGranted) -> Option<OpGranted> {
    // Queues may be foreign code, whose panic would lose the operation.
    let resolved = contain_panic(|| resolve_inputs(&granted)).unwrap_or_else(|panic| {
        let error = DeviceError::new(DeviceErrorKind::Fault, format!("ordering the queue panicked: {panic}"));
        Inputs::Skip(OpTag::of(&granted).device_failure(error))
    });
    match resolved {
        Inputs::Ready => begin::<false>(granted),
        Inputs::Skip(cause) => {
            let is_noted = granted.payload().noted && granted.payload().has_on_skip();
            let _body = is_noted.then(|| hooks::body_begins(&granted, false));
            skip(granted, cause)
        }
        Inputs::Park(fence_set) => {
            park(granted, fence_set);
            None
        }
    }
}

/// Runs the body, unless the operation was cancelled.
#[inline(always)]
fn begin<const AT_ONCE: bool>(granted: OpGranted) -> Option<OpGranted> {
    if granted.payload().noted {
        return begin_noted::<AT_ONCE>(granted);
    }
    run(granted)
}

/// As [`begin`], of an operation that the trace records.
#[cold]
fn begin_noted<const AT_ONCE: bool>(granted: OpGranted) -> Option<OpGranted> {
    let _body = hooks::body_begins(&granted, AT_ONCE);
    run(granted)
}

#[inline(always)]
fn run(granted: OpGranted) -> Option<OpGranted> {
    if operation::begin(&granted) { operation::run_body(granted) } else { skip_cancelled(granted) }
}

#[cold]
fn skip_cancelled(granted: OpGranted) -> Option<OpGranted> {
    let cause = granted.payload().failure().cloned().unwrap_or_else(|| OpTag::of(&granted).cancellation());
    skip(granted, cause)
}

/// The next step of a granted operation, after the fences on its variables.
enum Inputs {
    /// All fences are done, or the operation's queue is ordered after them.
    Ready,
    /// An input has failed, or the queue refuses to wait.
    Skip(OperationError),
    /// Only the host can wait for these fences.
    Park(FenceSet),
}

fn resolve_inputs(granted: &OpGranted) -> Inputs {
    let mut pending_before = usize::MAX;
    let mut observes = granted.payload().inputs().is_none() && granted.payload().queue().is_some();
    loop {
        let found = inspect(granted, observes);
        if let Some(cause) = found.failure {
            return Inputs::Skip(cause);
        }
        if found.pending.is_empty() {
            return Inputs::Ready;
        }
        if let Some(inputs) = granted.payload().inputs() {
            inputs.set(Earlier { writers: found.inputs, others: found.pending });
            return Inputs::Ready;
        }
        let Some(queue) = granted.payload().queue() else { return Inputs::Park(found.pending) };
        match order_on(queue.as_ref(), &found.pending) {
            Ok(host) if host.is_empty() => return Inputs::Ready,
            Ok(host) => return Inputs::Park(host),
            // A fence may have failed since the inspection. That is the failure of its writer, and matters
            // only to operations that read, so the next inspection decides. If the same fences are pending
            // again, the queue itself refuses.
            Err(_) if observes => observes = false,
            Err(_) if found.pending.len() < pending_before => pending_before = found.pending.len(),
            Err(error) => return Inputs::Skip(OpTag::of(granted).device_failure(error)),
        }
    }
}

/// Orders the queue after `pending`. Returns the fences that only the host can wait for.
fn order_on(queue: &dyn Queue, pending: &FenceSet) -> Result<FenceSet, DeviceError> {
    let mut host = FenceSet::default();
    // The events and waits that this may need find the context current, and do not each enter and leave it.
    let _current = CurrentGuard::queue(queue)?;
    for fence in pending {
        if queue.order_after(fence)? == Order::Host {
            host.insert(fence.clone());
        }
    }
    Ok(host)
}

/// Parks the operation until `fence_set` has settled. No thread blocks.
fn park(granted: OpGranted, fence_set: FenceSet) {
    parked::note(granted.id(), &fence_set);
    // The restarted operation inspects its inputs, and finds a fence that has failed.
    Reactor::global().when_settled(&fence_set, move |_settled| {
        parked::forget(granted.id());
        push(granted);
    });
}

/// Ends an operation whose body did not run.
fn skip(granted: OpGranted, mut cause: OperationError) -> Option<OpGranted> {
    // The operation cannot be cancelled from here on.
    if !operation::begin(&granted) {
        // The thread that cancelled the operation may not have noted the failure yet. `cause` is the failure
        // of an input.
        granted.payload().fail(OpTag::of(&granted).cancellation());
        // Those who wait may have the cancellation already. An input that fails later does not change it.
        cause = granted.payload().failure().cloned().unwrap_or(cause);
        cancellation::remove_cancelled(&granted.to_ref());
    } else {
        // The drop of an operand may end a lease, which asks how the writes under it have ended.
        granted.payload().fail(cause.clone());
        // A capture that waits when it is dropped must not wait for this operation.
        let _current = context::make_current(Current::of(&granted));
        operation::drop_body(&granted);
    }
    if let Some(on_skip) = granted.payload().take_on_skip() {
        let _current = context::make_current(Current::of(&granted));
        if granted.payload().noted {
            hooks::body_has_lock(granted.id().get());
        }
        if let Err(panic) = contain_panic(|| on_skip(&cause)) {
            tracing::error!(operation = granted.payload().name.as_str(), panic, "`on_skip` panicked");
        }
    }
    end(granted, &Ending::Skipped { failure: &cause }, Some(cause.clone()))
}

/// Completes an operation, and dispatches its successors. Returns the operation to run next on this thread.
fn end(granted: OpGranted, ending: &Ending<'_>, failure: Option<OperationError>) -> Option<OpGranted> {
    let core = granted.payload().core.id;
    let mut ready = ReadyList::new();
    complete(granted, ending, failure, &mut ready);
    dispatch_keeping_first(&mut ready, Some(core))
}

/// As [`end`], for an operation that has run.
fn end_as_run(granted: OpGranted, fences: &[Fence], failure: Option<OperationError>) -> Option<OpGranted> {
    if !fences.is_empty() && granted.is_referenced() {
        granted.payload().note_left(fences);
    }
    // The name of the writer is needed only with a fence.
    let tag = (!fences.is_empty()).then(|| OpTag::of(&granted));
    let ending = Ending::Ran { left: tag.as_ref().map(|tag| (fences, tag)), failure: failure.as_ref() };
    end(granted, &ending, failure.clone())
}

/// As [`end`], for an operation that succeeded and left no device work: the most frequent case.
fn end_well(granted: OpGranted) -> Option<OpGranted> {
    if granted.payload().noted {
        hooks::ends_well(&granted);
    }
    let core = granted.payload().core.id;
    let mut replaced = Replaced::default();
    let mut completed = Completed::new();
    granted.complete_into(
        |finish| finish.state.finish_well(finish.mode, finish.flags, &mut replaced),
        &mut completed,
    );
    replaced.clear();
    if let Some(handle) = completed.take_shared() {
        notify_end(handle);
    }
    let first = completed.next_granted()?;
    if !completed.has_granted() && first.payload().may_follow(Some(core)) {
        // The most frequent case, and the only one in a chain.
        return Some(first);
    }
    let mut ready = ReadyList::from_iter([first]);
    ready.extend(std::iter::from_fn(|| completed.next_granted()));
    dispatch_keeping_first(&mut ready, Some(core))
}

/// Completes the operation in the graph, and then publishes its outcome.
pub(crate) fn complete(
    granted: OpGranted,
    ending: &Ending<'_>,
    failure: Option<OperationError>,
    ready: &mut ReadyList,
) {
    let state = granted.payload();
    if let Some(failure) = failure {
        // The wait that this thread runs the operation in, or its submission, raises what the operation has
        // raised.
        if state.core.has_raised() {
            failure.fate().retrieve();
        }
        state.core.failures.add(&failure);
        state.fail(failure);
    }
    if state.noted {
        hooks::ends(&granted, ending);
    }
    let mut replaced = Replaced::default();
    let left = granted.complete(
        |finish| finish.state.finish(finish.mode, ending, finish.flags, &mut replaced),
        |next| ready.push(next),
    );
    replaced.clear();
    if let Some(handle) = left {
        // A handle of the operation exists. Otherwise the operation is counted where it is dropped.
        notify_end(handle);
    }
}

#[cold]
fn notify_end(handle: OpHandle) {
    handle.payload().done();
}

/// A running operation: the right and the duty to end it.
pub(crate) struct Running {
    granted: Option<OpGranted>,
}

impl Running {
    #[inline]
    pub(crate) fn new(granted: OpGranted) -> Self {
        Self { granted: Some(granted) }
    }

    pub(crate) fn op(&self) -> &OpGranted {
        self.granted.as_ref().expect("present until finished, and finishing consumes")
    }

    fn take(&mut self) -> OpGranted {
        self.granted.take().expect("present until finished, and finishing consumes")
    }

    /// Ends a host operation. Returns the operation to run next on this thread.
    #[inline]
    pub(crate) fn finish(self, result: Result<(), OperationError>) -> Option<OpGranted> {
        self.finish_with_all(&[], result)
    }

    /// Ends an operation. `fence` marks the device work that it left, also if the operation failed after
    /// that.
    pub(crate) fn finish_with(
        self,
        fence: Option<&Fence>,
        result: Result<(), OperationError>,
    ) -> Option<OpGranted> {
        self.finish_with_all(fence.map(std::slice::from_ref).unwrap_or_default(), result)
    }

    /// As [`finish_with`](Self::finish_with), for work on several queues.
    #[inline]
    pub(crate) fn finish_with_all(
        mut self,
        fences: &[Fence],
        result: Result<(), OperationError>,
    ) -> Option<OpGranted> {
        let granted = self.take();
        if fences.is_empty() && result.is_ok() {
            return end_well(granted);
        }
        end_as_run(granted, fences, result.err())
    }

    /// Ends the operation without running its body, as if an input had failed by `cause`.
    pub(crate) fn skip(mut self, cause: OperationError) -> Option<OpGranted> {
        skip(self.take(), cause)
    }

    /// As [`skip`](Self::skip), of an operation whose `body` was taken from its place. The body is dropped
    /// first, as one in its place is.
    pub(crate) fn skip_without<T>(self, cause: OperationError, body: T) -> Option<OpGranted> {
        self.op().payload().fail(cause.clone());
        let current = context::make_current(Current::of(self.op()));
        if let Err(panic) = contain_panic(|| drop(body)) {
            tracing::error!(
                operation = self.op().payload().name.as_str(),
                panic,
                "dropping the skipped body panicked"
            );
        }
        drop(current);
        self.skip(cause)
    }

    pub(crate) fn tag(&self) -> OpTag {
        OpTag::of(self.op())
    }

    /// Runs user code as this operation. Errors and panics become the failure of the operation.
    #[inline]
    pub(crate) fn call<R>(&self, body: impl FnOnce() -> Result<R, BodyError>) -> Result<R, OperationError> {
        let _current = context::make_current(Current::of(self.op()));
        let _synchronous = context::begin_synchronous();
        match contain_panic(body) {
            Ok(Ok(value)) => Ok(value),
            Ok(Err(error)) => Err(self.tag().body_failure(error)),
            Err(panic) => Err(self.tag().panic_failure(panic)),
        }
    }
}

impl Drop for Running {
    #[inline(always)]
    fn drop(&mut self) {
        if let Some(granted) = self.granted.take() {
            abandoned(granted);
        }
    }
}

/// Ends an operation that was dropped before its end.
#[cold]
fn abandoned(granted: OpGranted) {
    let why = if std::thread::panicking() {
        "its thread panicked before it had ended"
    } else {
        "its future was dropped before it had ended, as by a runtime that shuts down"
    };
    let failure = OpTag::of(&granted).failure(FailureKind::Error, why, None);
    let mut ready = ReadyList::new();
    let ending = Ending::Ran { left: None, failure: Some(&failure) };
    complete(granted, &ending, Some(failure.clone()), &mut ready);
    dispatch(ready);
}
