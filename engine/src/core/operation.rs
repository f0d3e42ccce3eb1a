//! State of an operation, and the public handle of an operation.
//!
//! # Life of an operation
//!
//! ```text
//! queued ──begin──► BEGUN ──finish──► DONE
//!    └──cancel──► CANCELLED ──(when granted: skipped)──► DONE
//! ```
//!
//! `begin` and `cancel` race for the same word, so an operation either runs or is cancelled, never both. Most
//! operations are never referred to by name. Then no thread can cancel the operation, and `begin` is a plain
//! store beside that word. A lease is an operation without a body that stays in `BEGUN` until its last holder
//! releases it.

use std::borrow::Cow;
use std::fmt;
use std::mem::MaybeUninit;
use std::sync::Arc;
use std::task::{Context, Poll};

use estafette_devices::{DeviceError, Fence, FenceSet, Queue};
use estafette_graph::{Granted, Graph, OpId, OpRef, PendingOp, Var};
use estafette_report::shown::shown;
use estafette_sync::cell::UnsafeCell;
pub(crate) use estafette_sync::panic::contain_panic;
use estafette_sync::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};

use crate::core::clock::Coarse;
use crate::core::core_ref::CoreRef;
use crate::core::error::{BodyError, Error, FailureKind, OperationError};
use crate::core::inputs::Inputs;
use crate::core::one_shot::OneShot;
use crate::core::op_extras::{OnSkip, OpExtrasCell};
use crate::core::var_state::VarState;
use crate::core::wakers::WakerKey;
use crate::operation::body::Body;
use crate::operation::cancellation;
use crate::operation::run::Running;
use crate::trace;
use crate::wait::awaits::Pending;

pub(crate) type OpGraph = Graph<VarState, OpState>;
pub(crate) type OpVar = Var<VarState, OpState>;
pub(crate) type OpPending<'a> = PendingOp<'a, VarState, OpState>;
pub(crate) type OpGranted = Granted<VarState, OpState>;
pub(crate) type OutcomeSignal = OneShot<Result<(), OperationError>>;
pub(crate) type OpHandle = OpRef<VarState, OpState>;

/// A granted operation in the queue of a pool.
pub(crate) struct ReadyOp(pub(crate) OpGranted);

/// Name of an operation. Static text costs nothing; other text is shared. The text stays where its `String`
/// has it: a clone allocates nothing.
#[derive(Debug, Clone)]
pub(crate) enum Name {
    Static(&'static str),
    Shared(Arc<String>),
}

impl Name {
    pub(crate) fn as_str(&self) -> &str {
        match self {
            Self::Static(text) => text,
            Self::Shared(text) => text,
        }
    }

    pub(crate) fn to_cow(&self) -> Cow<'static, str> {
        match self {
            Self::Static(text) => Cow::Borrowed(text),
            Self::Shared(text) => Cow::Owned(text.to_string()),
        }
    }
}

impl From<Cow<'static, str>> for Name {
    #[inline(always)]
    fn from(text: Cow<'static, str>) -> Self {
        match text {
            Cow::Borrowed(text) => Self::Static(text),
            Cow::Owned(text) => Self::Shared(Arc::new(text)),
        }
    }
}

/// Name and identity of an operation, for errors and diagnoses.
#[derive(Clone)]
pub(crate) struct OpTag {
    pub(crate) name: Name,
    pub(crate) id: OpId,
}

/// Ids from here on are those of imports. No process submits so many operations.
const IMPORTS: u64 = 1 << 63;

impl OpTag {
    pub(crate) fn of(granted: &OpGranted) -> Self {
        Self { name: granted.payload().name.clone(), id: granted.id() }
    }

    /// Memory from outside, which its fences fail: no operation has failed then. The id tells one import from
    /// the next.
    pub(crate) fn import() -> Self {
        estafette_sync::statics! {
            static NEXT: AtomicU64 = AtomicU64::new(IMPORTS);
        }
        Self { name: Name::Static("import"), id: OpId::new(NEXT.fetch_add(1, Ordering::Relaxed)) }
    }

    pub(crate) fn is_import(&self) -> bool {
        self.id.get() >= IMPORTS
    }

    /// A failure of this operation.
    pub(crate) fn failure(
        &self,
        kind: FailureKind,
        message: impl Into<String>,
        source: Option<BodyError>,
    ) -> OperationError {
        let id = if self.is_import() { OpId::new(0) } else { self.id };
        OperationError::new(&self.name, id, self.id, kind, message, source)
    }

    /// The failure of an operation that was cancelled before it began.
    pub(crate) fn cancellation(&self) -> OperationError {
        self.failure(FailureKind::Cancelled, "cancelled before it began", None)
    }

    pub(crate) fn body_failure(&self, error: BodyError) -> OperationError {
        self.failure(FailureKind::Error, text_of(&error), Some(error))
    }

    /// The failure of an operation whose awaited work was cancelled.
    pub(crate) fn called_off(&self, why: BodyError) -> OperationError {
        self.failure(FailureKind::Cancelled, text_of(&why), Some(why))
    }

    pub(crate) fn panic_failure(&self, panic: String) -> OperationError {
        self.failure(FailureKind::Panic, panic, None)
    }

    /// The failure of an operation whose result could not be adopted.
    pub(crate) fn result_failure(&self, error: Error) -> OperationError {
        self.failure(FailureKind::Result, error.to_string(), Some(Box::new(error)))
    }

    /// The failure of an operation whose device work could not be issued, or failed afterwards.
    pub(crate) fn device_failure(&self, error: DeviceError) -> OperationError {
        self.failure(FailureKind::Device, error.to_string(), Some(Box::new(error)))
    }
}

/// The text of a foreign error, whose `Display` may panic.
fn text_of(error: &BodyError) -> String {
    contain_panic(|| error.to_string()).unwrap_or_else(|_| "an error that panics when it is printed".into())
}

impl std::fmt::Debug for OpTag {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} `{}`", self.id, shown(self.name.as_str()))
    }
}

/// The kind of an operation, by its use of variables.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OpKind {
    /// Runs a body.
    Work,
    /// Runs a body that only workers may run: waiting threads do not help with such a body.
    WorkerOnly,
    /// Runs a body that needs the engine's shared lock: a thread takes that for several such bodies. A
    /// waiting thread helps where fewer threads run such bodies than should.
    NeedsLock,
    /// Observes readiness, and leaves the graph.
    ReadinessQuery,
    /// Joins variables into one group.
    Merge,
    /// An external use, from export until its last holder releases it.
    Lease,
}

impl OpKind {
    pub(crate) fn has_body(self) -> bool {
        matches!(self, Self::Work | Self::WorkerOnly | Self::NeedsLock)
    }
}

/// The body has begun, or the lease is granted.
const BEGUN: u8 = 1;
/// Cancelled before it began; excludes `BEGUN` at the moment it is set.
const CANCELLED: u8 = 2;
/// Completed in the graph; the outcome is final.
const DONE: u8 = 4;
/// A waiter has installed a one-shot, which `DONE` shall set. Both `OBSERVED` and `DONE` are set by a
/// read-modify-write, so one of the two sides always sees the other.
const OBSERVED: u8 = 8;

/// The phase of an operation, for diagnoses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    Queued,
    Begun,
    Cancelled,
    Done,
}

/// State of an operation (the graph's `T`). The state is small, since a million operations may be in flight:
/// what few operations have is behind a pointer.
pub(crate) struct OpState {
    pub(crate) core: CoreRef,
    pub(crate) name: Name,
    /// Belongs to the owner of the granted operation. The body of a cancelled operation belongs to the thread
    /// that cancelled the operation.
    body: UnsafeCell<Body>,
    /// Made for a role, by the first failure, or by the first waiter. Most operations are plain work, end
    /// well, and are never waited for by name.
    extras: OpExtrasCell,
    /// The time at which it was submitted, for "since when".
    pub(crate) since: Coarse,
    /// True if tracing was on when the operation was described: then every event of the operation is traced.
    pub(crate) noted: bool,
    pub(crate) priority: i32,
    pub(crate) kind: OpKind,
    /// True if the operation has a permit and counts as in flight.
    counted: AtomicBool,
    phase: AtomicU8,
    /// As `BEGUN`, for an operation without references.
    begun_unseen: AtomicBool,
    /// The submission fails where no permit is free, instead of waiting for one.
    pub(crate) without_waiting: bool,
    /// A variable is of a process that this one was forked from, so the submission is refused.
    pub(crate) is_forked: bool,
    /// Cached answer to whether a cancelled operation makes this one fail. Only
    /// [`cancellation`](crate::operation::cancellation) uses it.
    pub(crate) verdict: AtomicU64,
}

/// Keys of the wakers of a future that waits for the end of an operation.
#[derive(Debug, Default)]
pub(crate) struct EndKeys {
    outcome: WakerKey,
    /// At the engine's notifier, for a cancelled operation.
    notifier: WakerKey,
}

/// Data of some kinds of operation.
pub(crate) enum Role {
    /// The queue that the body enqueues on.
    Device(Arc<dyn Queue>),
    /// Set early when the version that a readiness query waits for can no longer come; and whether the waiter
    /// is a thread, which blocks.
    ReadinessQuery(Arc<OneShot<Result<(), Error>>>, bool),
    /// The lease and its owner.
    Lease(Arc<crate::lease::LeaseOp>),
    /// A replay whose nodes settle the fences and failures of its variables: where the nodes find these.
    Replay(Arc<Inputs>),
    /// A helper: an operation that does work of another operation. A thread that waits for that operation may
    /// run the helper.
    Helper(OpId),
}

impl OpState {
    /// The operation's name in errors.
    pub(crate) fn in_words(&self) -> impl fmt::Display {
        fmt::from_fn(|f| write!(f, "operation `{}`", shown(self.name.as_str())))
    }

    /// An operation without a body yet, and without a permit.
    pub(crate) fn new(core: CoreRef, name: Name, kind: OpKind) -> Self {
        let mut state = MaybeUninit::uninit();
        // SAFETY: `init` writes every field.
        unsafe {
            Self::init(state.as_mut_ptr(), &core, name, kind);
            state.assume_init()
        }
    }

    /// Makes an operation at `place`, field by field. Moving a finished operation to `place` would double the
    /// cost.
    ///
    /// # Safety
    /// `place` may be written; nothing there is dropped.
    #[inline(always)]
    pub(crate) unsafe fn init(place: *mut Self, core: &CoreRef, name: Name, kind: OpKind) {
        // SAFETY: the place is the caller's.
        unsafe {
            (&raw mut (*place).core).write(core.clone());
            (&raw mut (*place).name).write(name);
            (&raw mut (*place).body).write(UnsafeCell::new(Body::NONE));
            (&raw mut (*place).extras).write(OpExtrasCell::new());
            (&raw mut (*place).since).write(Coarse::now());
            (&raw mut (*place).noted).write(trace::is_open());
            (&raw mut (*place).priority).write(0);
            (&raw mut (*place).kind).write(kind);
            (&raw mut (*place).counted).write(AtomicBool::new(false));
            (&raw mut (*place).phase).write(AtomicU8::new(0));
            (&raw mut (*place).begun_unseen).write(AtomicBool::new(false));
            (&raw mut (*place).without_waiting).write(false);
            (&raw mut (*place).is_forked).write(false);
            (&raw mut (*place).verdict).write(AtomicU64::new(cancellation::UNKNOWN));
        }
    }

    /// Notes that the operation has a permit and counts as in flight.
    #[inline(always)]
    pub(crate) fn hold_permit(&mut self) {
        self.counted.store(true, Ordering::Relaxed);
    }

    /// Sets what the operation does, before it is submitted.
    #[inline(always)]
    pub(crate) fn set_body(&mut self, body: Body) {
        self.body = UnsafeCell::new(body);
    }

    /// Sets the role of the operation, before it is submitted.
    pub(crate) fn set_role(&mut self, role: Role) {
        self.extras.get_mut().role = Some(role);
    }

    /// Sets what is called in place of the body where the operation is skipped, before it is submitted.
    pub(crate) fn set_on_skip(&mut self, on_skip: OnSkip) {
        *self.extras.get_mut().on_skip.get_mut() = Some(on_skip);
    }

    /// True if the operation takes its turn even if it is skipped.
    pub(crate) fn has_on_skip(&self) -> bool {
        self.extras.get().is_some_and(|extras| extras.on_skip.lock().is_some())
    }

    /// Takes what is called in place of the body.
    pub(crate) fn take_on_skip(&self) -> Option<OnSkip> {
        self.extras.get()?.on_skip.lock().take()
    }

    fn role(&self) -> Option<&Role> {
        self.extras.get()?.role.as_ref()
    }

    /// The queue its body enqueues on; `None` for host operations.
    pub(crate) fn queue(&self) -> Option<&Arc<dyn Queue>> {
        match self.role()? {
            Role::Device(queue) => Some(queue),
            _ => None,
        }
    }

    /// The one-shot that a readiness query sets.
    pub(crate) fn query(&self) -> Option<&Arc<OneShot<Result<(), Error>>>> {
        match self.role()? {
            Role::ReadinessQuery(one_shot, _) => Some(one_shot),
            _ => None,
        }
    }

    /// True if it is a readiness query for which a thread blocks.
    pub(crate) fn blocks(&self) -> bool {
        matches!(self.role(), Some(Role::ReadinessQuery(_, true)))
    }

    /// The lease of the operation, if it is one.
    pub(crate) fn lease(&self) -> Option<&Arc<crate::lease::LeaseOp>> {
        match self.role()? {
            Role::Lease(label) => Some(label),
            _ => None,
        }
    }

    /// The list in which the nodes of a replay find the fences and failures of its variables, if the nodes
    /// settle these.
    pub(crate) fn inputs(&self) -> Option<&Arc<Inputs>> {
        match self.role()? {
            Role::Replay(inputs) => Some(inputs),
            _ => None,
        }
    }

    /// The operation whose work this helper does.
    pub(crate) fn helped_op(&self) -> Option<OpId> {
        match self.role()? {
            Role::Helper(op) => Some(*op),
            _ => None,
        }
    }

    /// True if a thread that works for the engine `core` may run this operation next instead of polling its
    /// pool.
    #[inline]
    pub(crate) fn may_follow(&self, core: Option<u64>) -> bool {
        self.kind.has_body() && self.priority == 0 && core == Some(self.core.id)
    }

    /// True if the body enqueues work on a device, in the order of submission as far as the inputs allow.
    #[inline]
    pub(crate) fn enqueues_in_order(&self) -> bool {
        self.queue().is_some() && self.priority == 0
    }

    /// Begins an operation that was not submitted yet.
    pub(crate) fn begin_unsubmitted(&mut self) {
        self.phase.store(self.phase.load(Ordering::Relaxed) | BEGUN, Ordering::Relaxed);
    }

    /// Notes where references see it that the operation has begun: before the first reference is made of an
    /// operation that runs.
    pub(crate) fn note_begun(&self) {
        self.phase.fetch_or(BEGUN, Ordering::AcqRel);
    }

    /// True if the operation has a permit.
    pub(crate) fn is_counted(&self) -> bool {
        self.counted.load(Ordering::Relaxed)
    }

    /// Releases the permit, if the operation has one. Called by the thread that completes the operation, or
    /// else by the thread that drops the operation.
    #[inline(always)]
    pub(crate) fn count_ended(&self) {
        if self.counted.load(Ordering::Relaxed) {
            self.counted.store(false, Ordering::Relaxed);
            self.core.count_ended();
            self.core.notify_ended();
        }
    }

    pub(crate) fn phase(&self) -> Phase {
        let bits = self.phase.load(Ordering::Acquire);
        if bits & DONE != 0 {
            Phase::Done
        } else if bits & CANCELLED != 0 {
            Phase::Cancelled
        } else if bits & BEGUN != 0 || self.begun_unseen.load(Ordering::Relaxed) {
            Phase::Begun
        } else {
            Phase::Queued
        }
    }

    /// Cancels the right to run. Returns false when the operation has begun, was cancelled before, or has
    /// ended.
    pub(crate) fn cancel(&self) -> bool {
        self.phase
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |bits| {
                (bits & (BEGUN | CANCELLED | DONE) == 0).then_some(bits | CANCELLED)
            })
            .is_ok()
    }

    /// Cancels the operation if it has not begun, notifies its waiters, and drops its body. Returns whether
    /// the operation was cancelled.
    pub(crate) fn cancel_and_notify(&self, id: OpId) -> bool {
        // In a forked child the operation is the parent's.
        if self.core.generation.is_inherited() || !self.cancel() {
            return false;
        }
        let tag = OpTag { name: self.name.clone(), id };
        self.fail(tag.cancellation());
        // A waiter of this operation need not wait until the operation would have been granted. This is a
        // read-modify-write, as the waiter's: one of the two sides sees the other.
        if self.phase.fetch_or(0, Ordering::AcqRel) & OBSERVED != 0 {
            self.notify_waiters();
        }
        // SAFETY: the body belongs to the thread that has cancelled the operation.
        unsafe { self.drop_body() };
        true
    }

    /// Notes why the operation failed. The first cause stands: a cancelled operation reports its cancellation
    /// at once and is skipped later.
    pub(crate) fn fail(&self, cause: OperationError) {
        let _ = self.extras.get_or_make().failure.set(cause);
    }

    pub(crate) fn failure(&self) -> Option<&OperationError> {
        self.extras.get()?.failure.get()
    }

    /// Notes the device work that the operation leaves, before its end is published.
    pub(crate) fn note_left(&self, fences: &[Fence]) {
        let _ = self.extras.get_or_make().left.set(Box::new(fences.iter().cloned().collect()));
    }

    /// The device work that the operation has left.
    pub(crate) fn left(&self) -> Option<&FenceSet> {
        self.extras.get()?.left.get().map(|left| &**left)
    }

    /// Makes the outcome final, releases the permit, and notifies the waiters. Called once, after the graph
    /// has released the operation.
    pub(crate) fn done(&self) {
        let is_observed = self.phase.fetch_or(DONE, Ordering::AcqRel) & OBSERVED != 0;
        // A wait for all finds the operation done, and a waiter that wakes finds the permit free.
        self.count_ended();
        if is_observed {
            self.notify_waiters();
        }
    }

    /// Drops the body, which owns the operands. User code may run in the destructor, so a panic is contained.
    ///
    /// # Safety
    /// The body belongs to the caller.
    unsafe fn drop_body(&self) {
        // SAFETY: forwarded to the caller.
        let body = self.body.with_mut(|body| unsafe { std::mem::replace(&mut *body, Body::NONE) });
        if let Err(panic) = contain_panic(|| drop(body)) {
            tracing::error!(operation = self.name.as_str(), panic, "dropping the skipped body panicked");
        }
    }

    fn notify_waiters(&self) {
        if let Some(one_shot) = self.extras.get().and_then(|extras| extras.one_shot.get()) {
            one_shot.set(self.failure().cloned().map_or(Ok(()), Err));
        }
    }

    /// Polls the end of the operation, however the operation ends. The future [takes its wakers
    /// out](Self::forget) when it is dropped.
    pub(crate) fn poll_done(&self, cx: &mut Context<'_>, keys: &mut EndKeys) -> Poll<()> {
        match self.one_shot().peek(cx, &mut keys.outcome) {
            // A cancelled operation has its outcome before it leaves the graph, which is what counts here.
            Poll::Ready(_) if self.phase() == Phase::Done => Poll::Ready(()),
            Poll::Ready(_) => {
                self.core.notifier.register_waker(cx.waker(), &mut keys.notifier);
                if self.phase() == Phase::Done { Poll::Ready(()) } else { Poll::Pending }
            }
            Poll::Pending => Poll::Pending,
        }
    }

    /// Removes the wakers of a future that no longer waits for the end.
    pub(crate) fn forget(&self, keys: &mut EndKeys) {
        self.forget_outcome(&mut keys.outcome);
        self.core.notifier.forget(&mut keys.notifier);
    }

    fn forget_outcome(&self, key: &mut WakerKey) {
        if key.is_used()
            && let Some(one_shot) = self.extras.get().and_then(|extras| extras.one_shot.get())
        {
            one_shot.forget(key);
        }
    }

    /// The one-shot of the outcome, made on first use.
    pub(crate) fn one_shot(&self) -> &OutcomeSignal {
        let one_shot = self.extras.get_or_make().one_shot.get_or_init(OneShot::new);
        let before = self.phase.fetch_or(OBSERVED, Ordering::AcqRel);
        if before & DONE != 0 || (before & CANCELLED != 0 && self.failure().is_some()) {
            self.notify_waiters();
        }
        one_shot
    }
}

// SAFETY: shared parts are atomics and once-cells; the body is reached only through the token of the granted
// operation, of which there is one, and which is not shared between threads.
unsafe impl Sync for OpState {}

/// Begins to describe an operation of any kind.
#[inline(always)]
pub(crate) fn pending_op<'a>(core: &CoreRef, name: Name, kind: OpKind) -> OpPending<'a> {
    // SAFETY: `init` writes every field.
    unsafe { crate::core::engine_core::graph().begin_op(|place| OpState::init(place, core, name, kind)) }
}

/// Takes the right to run. Returns false when the operation was cancelled first.
///
/// A thread that may cancel has a reference, made at submission or while the operation waited
/// ([`Graph::waiting`]). Without a reference no thread cancels the operation.
#[inline(always)]
pub(crate) fn begin(granted: &OpGranted) -> bool {
    let state = granted.payload();
    if granted.is_referenced() {
        return state.phase.fetch_or(BEGUN, Ordering::AcqRel) & CANCELLED == 0;
    }
    state.begun_unseen.store(true, Ordering::Relaxed);
    // A reference that is gone may have cancelled the operation.
    state.phase.load(Ordering::Acquire) & CANCELLED == 0
}

/// Runs the body, where it is.
#[inline(always)]
pub(crate) fn run_body(granted: OpGranted) -> Option<OpGranted> {
    let body = granted.payload().body.with_mut(|body| body);
    // SAFETY: a granted operation has one token, which is here, so no other thread uses the body. The body
    // stays in its place until the operation is completed; the body completes the operation with the token,
    // after its content was taken out.
    unsafe { Body::run_in_place(body, Running::new(granted)) }
}

/// Drops the body of an operation that is skipped and was not cancelled, if it has not run.
pub(crate) fn drop_body(granted: &OpGranted) {
    // SAFETY: a granted operation has one token; it is borrowed here and cannot be shared with another
    // thread. The operation was begun, so it was not cancelled and no other thread uses the body.
    unsafe { granted.payload().drop_body() };
}

/// The state of an operation without references ends here: the operation was completed, or never submitted.
impl Drop for OpState {
    #[inline(always)]
    fn drop(&mut self) {
        self.count_ended();
    }
}

/// A submitted operation, which can be awaited, waited for and cancelled. Dropping the handle does not affect
/// the operation. A failure that the program has not retrieved is reported when its last handle and version
/// are gone.
///
/// A clone is another handle. Each clone that is awaited waits on its own.
pub struct Op {
    pub(crate) handle: OpHandle,
    pub(crate) pending: Pending,
    /// Key of the waker at the one-shot of the outcome.
    pub(crate) key: WakerKey,
}

impl Clone for Op {
    fn clone(&self) -> Self {
        Self::new(self.handle.clone())
    }
}

impl Op {
    /// Wraps a counted reference taken at submission, before the operation could end.
    pub(crate) fn new(handle: OpHandle) -> Self {
        Self { handle, pending: Pending::default(), key: WakerKey::default() }
    }

    /// The name given at submission.
    pub fn name(&self) -> &str {
        self.handle.payload().name.as_str()
    }

    /// Identity in traces, diagnoses and errors.
    pub fn id(&self) -> u64 {
        self.handle.id().get()
    }

    /// True if the operation has ended, well or not. One that leaves device work has ended when the work was
    /// issued.
    pub fn is_done(&self) -> bool {
        matches!(self.handle.payload().phase(), Phase::Done | Phase::Cancelled)
    }
}

impl Drop for Op {
    #[inline(always)]
    fn drop(&mut self) {
        if self.key.is_used() {
            self.handle.payload().forget_outcome(&mut self.key);
        }
    }
}

impl std::fmt::Debug for Op {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let phase = self.handle.payload().phase();
        f.debug_struct("Op")
            .field("id", &self.id())
            .field("name", &self.name())
            .field("phase", &phase)
            .finish()
    }
}
