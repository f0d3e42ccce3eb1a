//! Running granted operations: settle what their variables still carry, run the body, complete, hand on.
//!
//! ```text
//! granted ─► start ─┬─ an input failed, or cancelled ──────────────► complete(skipped) ─► newly granted …
//!                   ├─ host body, fences pending ─► parked (reactor) ─► pushed to a worker ─► start
//!                   ├─ device body ─► device-side waits, then the body enqueues, then one fence is recorded
//!                   └─ body ─► complete(ran) ─► newly granted …
//! ```
//!
//! Probes and leases have no body of their own: they are handled at once on the thread that granted them. Everything
//! else is pushed to its engine's pool, but for the first operation that a worker has just granted (that one runs next
//! on the same worker, in a loop and not by recursion) and for what a thread without workers runs as it submits it.

use std::cmp::Reverse;
use std::panic::{AssertUnwindSafe, catch_unwind};

use estafette_devices::cpu::{self, Pool};
use estafette_devices::{DeviceError, Fence, FenceSet, Order, Queue, Reactor};
use estafette_graph::{Completed, GrantedAccess};
use smallvec::SmallVec;

use crate::core::context::{self, Current};
use crate::core::core_ref::CoreRef;
use crate::core::error::{BodyError, FailureKind, OperationError};
use crate::core::operation::{self, Kind, OpGranted, OpHandle, OpState, OpTag};
use crate::core::var_state::{Asked, Ending, FAILED, READ_FENCES, Replaced, VarState, WRITE_FENCES};
use crate::operation::cancellation;
use crate::program::Earlier;
use crate::trace::{events, hooks};

/// Newly granted operations on their way to where they run.
///
/// More than fit here are granted at once only where a writer had many readers waiting.
pub(crate) type ReadyList = SmallVec<[OpGranted; 32]>;

/// A granted operation in a pool's queue.
pub(crate) struct ReadyOp(pub(crate) OpGranted);

impl cpu::Job for ReadyOp {
    fn run(self, _pool: &Pool<Self>) {
        execute(self.0);
    }
}

/// Operations that a worker runs one after the other, each granted by the one before, until it looks at its pool again:
/// a long chain must not keep operations of higher priority waiting.
const INLINE_MAX: usize = 32;

/// Runs `granted` and, one after the other, the first operation that each one granted.
pub(crate) fn execute(granted: OpGranted) {
    execute_while(granted, |_| true);
}

/// As [`execute`], on a thread that may run only what `mine` says.
pub(crate) fn execute_while(granted: OpGranted, mine: impl Fn(&OpGranted) -> bool) {
    run_chain(start::<false>(granted), mine);
}

/// Runs what an operation has granted, as [`execute_while`].
#[inline]
fn run_chain(mut next: Option<OpGranted>, mine: impl Fn(&OpGranted) -> bool) {
    for _ in 1..INLINE_MAX {
        match next {
            None => return,
            Some(granted) if mine(&granted) => next = start::<false>(granted),
            Some(_) => break,
        }
    }
    next.into_iter().for_each(push);
}

/// Runs `granted`; what it granted goes to the pool.
pub(crate) fn execute_one(granted: OpGranted) {
    start::<false>(granted).into_iter().for_each(push);
}

/// As [`dispatch`], for one that was granted as it was submitted.
#[inline]
pub(crate) fn dispatch_one(granted: OpGranted) {
    match granted.payload().kind {
        Kind::Work | Kind::WorkerOnly if granted.payload().core.runs_at_once(&granted) => {
            run_at_once(granted)
        }
        Kind::Work | Kind::WorkerOnly => {
            if granted.payload().noted {
                hooks::ready_at_once(granted.id());
            }
            push_noted(granted);
        }
        Kind::Probe | Kind::Lease | Kind::Merge => dispatch(ReadyList::from_iter([granted])),
    }
}

/// Runs an operation on the thread that has submitted it.
#[inline]
fn run_at_once(granted: OpGranted) {
    if !granted.payload().core.is_flowing() {
        let core = granted.payload().core.clone();
        core.flow();
        return execute(granted);
    }
    if granted.payload().core.pool.has_priorities() {
        // No other thread takes them, and what is submitted would overtake them until a thread waits.
        let core = granted.payload().core.clone();
        execute(granted);
        core.help_any();
        return;
    }
    run_chain(start::<true>(granted), |_| true);
}

/// Pushes a granted operation to its engine's pool.
#[inline]
pub(crate) fn push(granted: OpGranted) {
    if granted.payload().noted {
        hooks::ready(granted.id());
    }
    push_noted(granted);
}

/// As [`push`], after the journal was told.
#[inline]
fn push_noted(granted: OpGranted) {
    let core = granted.payload().core.clone();
    let priority = granted.payload().priority;
    if priority == 0 {
        core.pool.push_unnoticed(ReadyOp(granted));
    } else {
        core.pool.push_priority_unnoticed(ReadyOp(granted), priority);
    }
    core.work_arrived();
}

/// Hands granted operations to where they run.
pub(crate) fn dispatch(mut ready: ReadyList) {
    let next = dispatch_keeping_first(&mut ready, None);
    debug_assert!(next.is_none(), "nothing was kept back");
}

/// As [`dispatch`], but may keep the first host operation of the engine `keep_for` for the calling thread.
fn dispatch_keeping_first(ready: &mut ReadyList, keep_for: Option<u64>) -> Option<OpGranted> {
    let mut first = None;
    let mut at = 0;
    while at < ready.len() {
        // Probes and leases may grant more while they are handled: the list grows behind `at`.
        match ready[at].payload().kind {
            Kind::Probe => {
                let granted = ready.remove(at);
                crate::wait::ready::probe_granted(granted, ready);
            }
            Kind::Lease => {
                let granted = ready.remove(at);
                crate::lease::lease_granted(granted, ready);
            }
            Kind::Merge => {
                let granted = ready.remove(at);
                crate::tensor::alias_map::merge_granted(granted, ready);
            }
            Kind::Work | Kind::WorkerOnly => at += 1,
        }
    }
    let urgent = ready.iter().any(|granted| granted.payload().priority > 0);
    if urgent {
        // A worker that is awake takes what it finds, so the urgent ones must be there first.
        ready.sort_by_key(|granted| Reverse(granted.payload().priority));
    }
    // The engine whose pool has got operations and no wake-up yet: one for all of them.
    let mut unwoken: Option<CoreRef> = None;
    for granted in ready.drain(..) {
        if !urgent && first.is_none() && granted.payload().handle_outlives_call(keep_for) {
            first = Some(granted);
        } else if granted.payload().priority != 0 {
            push(granted);
        } else {
            if granted.payload().noted {
                hooks::ready(granted.id());
            }
            let core = granted.payload().core.clone();
            core.pool.push_unnoticed(ReadyOp(granted));
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

/// Outcome of looking at what an operation's variables carry.
pub(crate) struct Inspection {
    /// Root cause of the first input that failed.
    pub(crate) failure: Option<OperationError>,
    /// Fences that are not done.
    pub(crate) pending: FenceSet,
    /// Those among them whose failure would be that of an input.
    inputs: FenceSet,
}

/// Looks at every access. Fences are asked outside the variable's bit, since asking may call a driver.
pub(crate) fn inspect(granted: &OpGranted) -> Inspection {
    let mut found = Inspection { failure: None, pending: FenceSet::default(), inputs: FenceSet::default() };
    let queue = granted.payload().queue().filter(|queue| queue.in_order());
    for access in granted.accesses() {
        let mode = access.mode();
        let relevant = FAILED | WRITE_FENCES | if mode.is_exclusive() { READ_FENCES } else { 0 };
        if access.flags() & relevant == 0 {
            continue;
        }
        if let Some(queue) = queue
            && comes_after(queue.as_ref(), &access)
        {
            continue;
        }
        let (writers, readers) = access.with_state(|state, _| state.fences());
        let writers = Asked::ask(&writers);
        let readers = if mode.is_exclusive() { Asked::ask(&readers) } else { Asked::default() };
        if mode.reads() {
            found.inputs.merge(&writers.pending);
        }
        found.pending.merge(&writers.pending);
        found.pending.merge(&readers.pending);
        let mut replaced = Replaced::default();
        let failure = access.with_state(|state, flags| {
            state.note(&writers, &readers, flags, &mut replaced);
            state.failure().cloned()
        });
        // A pure write does not look at the version it replaces, so its failure does not matter.
        if mode.reads() && found.failure.is_none() {
            found.failure = failure;
        }
    }
    found
}

/// Whether work on `queue`, which is in order, comes after everything that the access has to wait for, so that nobody need be
/// asked: what a chain of operations on one queue is made of. A failure that nobody has seen yet is one of the queue, and so
/// this operation's too.
fn comes_after(queue: &dyn Queue, access: &GrantedAccess<'_, VarState, OpState>) -> bool {
    let mode = access.mode();
    if access.flags() & FAILED != 0 {
        return false;
    }
    let fence = access.with_state(|state, _| state.only_on(mode, queue.id()).cloned());
    // A queue that has failed says so, and then its fences tell who failed.
    fence.is_some_and(|fence| matches!(queue.order_after(&fence), Ok(Order::Nothing)))
}

/// Starts one granted operation; gives the one to run next on this thread. `AT_ONCE` if this thread has submitted it just now.
#[inline]
fn start<const AT_ONCE: bool>(granted: OpGranted) -> Option<OpGranted> {
    let quiet = granted.accesses().all(|access| access.flags() == 0);
    if quiet { begin::<AT_ONCE>(granted) } else { start_after_inputs(granted) }
}

/// As [`start`], where the variables carry something.
#[cold]
fn start_after_inputs(granted: OpGranted) -> Option<OpGranted> {
    match resolve_inputs(&granted) {
        Inputs::Ready => begin::<false>(granted),
        Inputs::Skip(cause) => skip(granted, cause),
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

/// As [`begin`], of which the journal is told.
#[cold]
fn begin_noted<const AT_ONCE: bool>(granted: OpGranted) -> Option<OpGranted> {
    if AT_ONCE {
        // One reading of the clock serves both moments.
        hooks::begins_at_once(&granted);
    } else {
        hooks::begins(&granted);
    }
    if !events::are_emitted() {
        return run(granted);
    }
    let span = events::body(&granted);
    let _entered = span.enter();
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

/// What a granted operation does about the work that its variables still carry.
enum Inputs {
    /// All of it is done, or the operation's queue is ordered after it.
    Ready,
    /// An input has failed, or the queue refuses.
    Skip(OperationError),
    /// Only the host can wait for these.
    Park(FenceSet),
}

fn resolve_inputs(granted: &OpGranted) -> Inputs {
    let mut pending_before = usize::MAX;
    loop {
        let found = inspect(granted);
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
            // A fence that has failed since it was looked at is the failure of its writer, and none of a pure write's: that is
            // for another look to say. It is the queue that refuses when the same fences are still pending.
            Err(_) if found.pending.len() < pending_before => pending_before = found.pending.len(),
            Err(error) => return Inputs::Skip(OpTag::of(granted).device_failure(error)),
        }
    }
}

/// Makes the queue wait for `pending` where it can, and gives back what only the host can wait for.
fn order_on(queue: &dyn Queue, pending: &FenceSet) -> Result<FenceSet, DeviceError> {
    let mut host = FenceSet::default();
    for fence in pending {
        if queue.order_after(fence)? == Order::Host {
            host.insert(fence.clone());
        }
    }
    Ok(host)
}

/// Sets the operation aside until `fence_set` has settled. No thread blocks.
fn park(granted: OpGranted, fence_set: FenceSet) {
    // Whether the fences failed is seen when the operation starts again and inspects its inputs.
    Reactor::global().when_settled(&fence_set, move |_settled| {
        push(granted);
    });
}

/// Ends an operation whose body never ran.
fn skip(granted: OpGranted, cause: OperationError) -> Option<OpGranted> {
    // From here on it cannot be cancelled.
    if !operation::begin(&granted) {
        // Whoever cancelled it was told so, and may not have noted the failure yet; `cause` is that of its inputs.
        granted.payload().fail(OpTag::of(&granted).cancellation());
        cancellation::cancelled_leaves(&granted.to_ref());
    } else {
        operation::drop_body(&granted);
    }
    end(granted, &Ending::Skipped { failure: &cause }, Some(cause.clone()))
}

/// Completes, and gives the operation to run next on this thread; others go to where they run.
fn end(granted: OpGranted, ending: &Ending<'_>, failure: Option<OperationError>) -> Option<OpGranted> {
    let core = granted.payload().core.id;
    let mut ready = ReadyList::new();
    complete(granted, ending, failure, &mut ready);
    dispatch_keeping_first(&mut ready, Some(core))
}

/// The same for an operation that ran well and left no work behind, as nearly all do.
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
    if !completed.has_granted() && first.payload().handle_outlives_call(Some(core)) {
        // What most operations grant, and what a chain is made of.
        return Some(first);
    }
    let mut ready = ReadyList::from_iter([first]);
    ready.extend(std::iter::from_fn(|| completed.next_granted()));
    dispatch_keeping_first(&mut ready, Some(core))
}

/// Completes in the graph, then makes the outcome known.
pub(crate) fn complete(
    granted: OpGranted,
    ending: &Ending<'_>,
    failure: Option<OperationError>,
    ready: &mut ReadyList,
) {
    let state = granted.payload();
    if let Some(failure) = failure {
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
        // Somebody holds the operation by name; otherwise the end is counted where it is dropped.
        notify_end(handle);
    }
}

#[cold]
fn notify_end(handle: OpHandle) {
    handle.payload().done();
    handle.payload().count_ended();
}

/// A running operation: the right, and the duty, to say how it ended.
pub(crate) struct Running {
    granted: Option<OpGranted>,
}

impl Running {
    #[inline]
    pub(crate) fn new(granted: OpGranted) -> Self {
        Self { granted: Some(granted) }
    }

    fn granted(&self) -> &OpGranted {
        self.granted.as_ref().expect("present until finished, and finishing consumes")
    }

    pub(crate) fn op(&self) -> &OpGranted {
        self.granted()
    }

    /// Ends a host operation, handing on the operation that this thread should run next.
    #[inline]
    pub(crate) fn finish(mut self, result: Result<(), OperationError>) -> Option<OpGranted> {
        match result {
            Ok(()) => end_well(self.granted.take().expect("present until finished, and finishing consumes")),
            Err(_) => self.finish_with(None, result),
        }
    }

    /// Ends an operation; `fence` marks the device work it left, even when it then failed.
    pub(crate) fn finish_with(
        self,
        fence: Option<&Fence>,
        result: Result<(), OperationError>,
    ) -> Option<OpGranted> {
        self.finish_with_all(fence.map(std::slice::from_ref).unwrap_or_default(), result)
    }

    /// As [`finish_with`](Self::finish_with), for an operation that left work on several queues.
    pub(crate) fn finish_with_all(
        mut self,
        fences: &[Fence],
        result: Result<(), OperationError>,
    ) -> Option<OpGranted> {
        let granted = self.granted.take().expect("present until finished, and finishing consumes");
        let failure = result.err();
        // Who wrote is asked only where work goes on behind a fence.
        let tag = (!fences.is_empty()).then(|| OpTag::of(&granted));
        let ending = Ending::Ran { left: tag.as_ref().map(|tag| (fences, tag)), failure: failure.as_ref() };
        end(granted, &ending, failure.clone())
    }

    /// Ends an operation without running its body, as if an input had failed by `cause`.
    pub(crate) fn skip(mut self, cause: OperationError) -> Option<OpGranted> {
        skip(self.granted.take().expect("present until finished, and finishing consumes"), cause)
    }

    pub(crate) fn tag(&self) -> OpTag {
        OpTag::of(self.granted())
    }

    /// Runs user code as this operation, turning errors and panics into the operation's failure.
    #[inline]
    pub(crate) fn call<R>(&self, body: impl FnOnce() -> Result<R, BodyError>) -> Result<R, OperationError> {
        let _current = context::enter(Current::of(self.granted()));
        match catch_unwind(AssertUnwindSafe(body)) {
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

/// Ends an operation that nobody has finished.
#[cold]
fn abandoned(granted: OpGranted) {
    let why = if std::thread::panicking() {
        "its thread panicked before it had ended"
    } else {
        "its completion was dropped without being used"
    };
    let failure = OpTag::of(&granted).failure(FailureKind::Error, why, None);
    let mut ready = ReadyList::new();
    let ending = Ending::Ran { left: None, failure: Some(&failure) };
    complete(granted, &ending, Some(failure.clone()), &mut ready);
    dispatch(ready);
}
