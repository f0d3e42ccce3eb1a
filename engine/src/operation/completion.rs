//! Operations that end elsewhere: the completion that reports the end, and the scope that lends operands
//! until then.

use std::cell::Cell;
use std::collections::HashMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use estafette_devices::{CurrentGuard, DLDevice, DeviceError, Fence, Queue};
use estafette_graph::AccessMode;
use estafette_sync::process::{Forked, ProcessBound};
use estafette_sync::sync::{Mutex, MutexGuard};
use estafette_sync::thread_local;
use smallvec::SmallVec;

use crate::core::context::{self, Current};
use crate::core::core_ref::CoreRef;
#[cfg(feature = "arrow")]
use crate::core::error::Error;
use crate::core::error::{BodyError, BodyResult, FailureKind, OperationError};
use crate::core::operation::{Op, OpTag, contain_panic};
use crate::exchange::releasing;
use crate::lease::{Access, LeaseState};
use crate::operation::active::{ActiveTask, Views};
#[cfg(feature = "arrow")]
use crate::operation::disjoint::check_pair;
use crate::operation::import::{Copying, Produced, define, discard};
use crate::operation::operands::Declared;
use crate::operation::run::{self, ReadyList, Running};
use crate::program::NodeRun;
use crate::tensor::handle::{Tensor, make_reachable};

/// The right and the duty to report how an operation ended. May be sent to any thread. Dropping a completion
/// that was not used fails the operation. In a forked child neither the report nor the drop does anything:
/// the operation ends in the process that runs it.
pub struct Completion {
    /// `None` once the end was reported.
    scope: Option<Scope>,
    id: u64,
}

/// Lends the operands of a running operation to other libraries.
///
/// A view taken here belongs to the operation, and taking it waits for nothing. A view that is still alive
/// when the operation ends becomes a lease of the same mode, with no gap in between.
#[derive(Clone)]
pub struct Scope {
    inner: Arc<ProcessBound<Mutex<ScopeState>>>,
    id: u64,
}

pub(crate) struct ScopeState {
    /// `None` before the body begins, and after the operation has ended.
    pub(crate) running: Option<ActiveTask>,
    operands: Declared,
    /// Modes by the address of the tensor. See [`mode_of`](Self::mode_of).
    modes: Option<HashMap<usize, AccessMode>>,
    produced: Promised,
    views: Views,
    /// The device of an operand that was lent to a consumer whose streams are unknown.
    pub(crate) lent_on: Option<DLDevice>,
}

/// A body whose start runs on this thread.
#[derive(Clone, Copy)]
struct Starting {
    /// Address of the scope; 0 for none.
    scope: usize,
    /// A panic has dropped the completion. The operation ends where the panic is caught, which has its text.
    is_lost: bool,
}

thread_local! {
    static STARTING: Cell<Starting> = const { Cell::new(Starting { scope: 0, is_lost: false }) };
}

/// The scope of an operation that has not begun.
pub(crate) struct Prepared(Arc<ProcessBound<Mutex<ScopeState>>>);

impl Prepared {
    pub(crate) fn new(operands: Declared, produced: Promised) -> Self {
        let state =
            ScopeState { running: None, operands, modes: None, produced, views: Views::new(), lent_on: None };
        Self(Arc::new(ProcessBound::new(Mutex::new(state))))
    }

    /// Starts the body of an operation. A panic in the body fails the operation.
    pub(crate) fn start<F>(self, running: Running, start: F)
    where
        F: FnOnce(Completion) + Send + 'static,
    {
        self.start_task(ActiveTask::Op(running), start);
    }

    /// As [`start`](Self::start), for a node of a replay. Returns the scope of the node.
    pub(crate) fn start_node(self, node: NodeRun, start: impl FnOnce(Completion)) -> Scope {
        let scope = Scope { inner: Arc::clone(&self.0), id: node.current().op.get() };
        self.start_task(ActiveTask::Node(node), start);
        scope
    }

    fn start_task(self, running: ActiveTask, start: impl FnOnce(Completion)) {
        let op = running.current();
        let id = op.op.get();
        let scope = Scope { inner: self.0, id };
        let queue = running.queue().cloned();
        let user = queue.as_deref().map(Queue::device);
        let is_of_peer = |tensor: &Tensor| user.is_some_and(|user| tensor.inner.is_of_peer(user));
        let of_peers: SmallVec<[Tensor; 2]> = match scope.lock() {
            Ok(mut inner) => {
                inner.running = Some(running);
                inner
                    .operands
                    .iter()
                    .map(|(tensor, _)| tensor)
                    .filter(|tensor| is_of_peer(tensor))
                    .cloned()
                    .collect()
            }
            // Its drop would end the operation.
            Err(Forked) => return std::mem::forget(running),
        };
        let fallback = scope.clone();
        let _current = match queue.as_deref().map(CurrentGuard::queue).transpose() {
            Ok(entered) => entered,
            Err(error) => {
                return scope.skip(error);
            }
        };
        let _current = context::make_current(op);
        let _synchronous = context::begin_synchronous();
        let starting = Starting { scope: fallback.address(), is_lost: false };
        let _starting = context::replace(&STARTING, starting);
        match contain_panic(|| {
            if let Some(queue) = queue.as_deref() {
                make_reachable(queue, &of_peers);
            }
            drop(of_peers);
            start(Completion { scope: Some(scope), id })
        }) {
            Ok(()) if STARTING.get().is_lost => fallback.end(None, Err(ITS_PANIC.into())),
            Ok(()) => {}
            // The panic has dropped the completion, or the body had moved it elsewhere.
            Err(panic) => fallback.end_by_panic(panic),
        }
    }
}

impl Completion {
    /// The operation's scope, for lending out its operands.
    pub fn scope(&self) -> &Scope {
        self.scope.as_ref().expect("a method that ends the operation consumes the completion")
    }

    /// The operation; `None` for a node of a program.
    pub(crate) fn op(&self) -> Option<Op> {
        match &self.scope().lock().ok()?.running {
            Some(ActiveTask::Op(running)) => {
                running.op().payload().note_begun();
                Some(Op::new(running.op().to_ref()))
            }
            _ => None,
        }
    }

    /// The scope, for reporting the end. The completion is used up.
    fn into_scope(mut self) -> Scope {
        self.scope.take().expect("the end is reported once")
    }

    /// Ends the operation. What an operation writes that was submitted
    /// [`on`](crate::operation::OpBuilder::on) a queue is ready when the work that it has enqueued there is
    /// done. For operations that produce a tensor use [`produce`](Self::produce).
    pub fn complete(self, result: BodyResult) {
        self.into_scope().end(None, result.map(|()| Given::new()));
    }

    /// Ends an operation that produces nothing, with the failure of a node that has a name of its own.
    pub(crate) fn conclude(self, result: OpResult) {
        self.conclude_after(&[], result);
    }

    /// As [`conclude`](Self::conclude), with the device work that `fences` mark.
    pub(crate) fn conclude_after(self, fences: &[Fence], result: OpResult) {
        self.into_scope().end_with(fences, |running, _none, _held, _fence| {
            running.note_settled();
            (Ends::new(), result)
        });
    }

    /// Ends an operation that produces a tensor, with its result.
    pub fn produce(self, result: BodyResult<Produced>) {
        self.into_scope().end(None, result.map(|produced| Given::from_iter([produced])));
    }

    /// As [`produce`](Self::produce), of an operation with several results.
    #[cfg(feature = "operators")]
    pub(crate) fn produce_all(self, results: BodyResult<Vec<Produced>>) {
        self.into_scope().end(None, results.map(Given::from_vec));
    }

    /// As [`produce`](Self::produce), with pending work that `fence` marks. Users of the result are ordered
    /// after that work.
    pub(crate) fn produce_after(self, fence: &Fence, result: BodyResult<Produced>) {
        self.into_scope().end(Some(fence), result.map(|produced| Given::from_iter([produced])));
    }

    /// Ends the operation as cancelled, because what it waited for was cancelled. `why` becomes the source of
    /// the failure.
    pub fn cancel(self, why: BodyError) {
        self.into_scope().end_with(&[], |running, _produced, _held, _fence| {
            (Ends::new(), Err(running.tag().called_off(why)))
        });
    }

    /// Ends the operation with the device work that `fence` marks. Successors on the same device are ordered
    /// after the work, and the host does not wait. If the work fails, what the operation writes fails.
    /// `result` is an error for a body that has failed after it enqueued work.
    pub fn complete_after(self, fence: &Fence, result: BodyResult) {
        self.into_scope().end(Some(fence), result.map(|()| Given::new()));
    }
}

/// The reason why an operation has failed whose completion a panic has dropped on another thread, or inside
/// of the body.
const ITS_PANIC: &str = "its body panicked";

impl Drop for Completion {
    fn drop(&mut self) {
        let Some(scope) = self.scope.take() else { return };
        if !scope.lock().is_ok_and(|inner| inner.running.is_some()) {
            return;
        }
        let panics = std::thread::panicking();
        if panics && STARTING.get().scope == scope.address() {
            return STARTING.set(Starting { is_lost: true, ..STARTING.get() });
        }
        let why = if panics { ITS_PANIC } else { "its completion was dropped without being used" };
        scope.end(None, Err(why.into()));
    }
}

impl std::fmt::Debug for Completion {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Completion").field("id", &self.id).finish()
    }
}

impl std::fmt::Debug for Scope {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Scope").field("id", &self.id).finish()
    }
}

impl Scope {
    /// # Errors
    /// This is a forked child of the process whose operation it is: the lock may be held for ever, and the
    /// operation ends there.
    pub(crate) fn lock(&self) -> Result<MutexGuard<'_, ScopeState>, Forked> {
        self.inner.get().map(Mutex::lock)
    }

    /// Identity of the operation.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// The queue of the operation, if it was submitted [`on`](crate::operation::OpBuilder::on) one and has
    /// not ended.
    pub fn queue(&self) -> Option<Arc<dyn Queue>> {
        self.lock().ok()?.running.as_ref()?.queue().cloned()
    }

    /// The operation and its engine, until the operation has ended.
    pub(crate) fn current(&self) -> Option<Current> {
        self.lock().ok()?.running.as_ref().map(ActiveTask::current)
    }

    /// Runs `f` as this operation. Waits inside of `f` then know that they must not wait for this operation.
    pub(crate) fn make_current<T>(&self, f: impl FnOnce() -> T) -> T {
        let _current = self.current().map(context::make_current);
        f()
    }

    /// The engine of the operation, until the operation has ended.
    pub(crate) fn core(&self) -> Option<CoreRef> {
        self.lock().ok()?.running.as_ref().map(|running| running.core().clone())
    }

    /// Keeps views of a node until the operation ends. The views become leases then.
    pub(crate) fn keep(&self, views: Views) {
        if let Ok(mut inner) = self.lock()
            && inner.running.is_some()
        {
            inner.views.extend(views.into_iter().filter(|(view, _)| view.strong_count() > 0));
        }
    }

    /// True if this is of a node of a program, whose views the nodes after it do not wait for.
    #[cfg(feature = "arrow")]
    pub(crate) fn is_of_node(&self) -> bool {
        self.lock().is_ok_and(|inner| matches!(inner.running, Some(ActiveTask::Node(_))))
    }

    /// Refuses a tensor whose memory the operation may write by another operand.
    #[cfg(feature = "arrow")]
    pub(crate) fn check_unwritten(&self, tensor: &Tensor) -> Result<(), Error> {
        let inner = self.lock()?;
        let written = inner.operands.iter().filter(|(_, mode)| mode.is_exclusive());
        written.map(|(operand, _)| operand).try_for_each(|operand| check_pair(operand, tensor))
    }

    /// The access that the operation has to `tensor`. `None` if the tensor is not an operand, or the
    /// operation has ended.
    pub(crate) fn access_of(&self, tensor: &Tensor) -> Option<Access> {
        self.lock().ok()?.access_of(tensor)
    }

    /// Ends the operation without its body, which cannot enqueue.
    fn skip(&self, error: DeviceError) {
        let Ok(mut inner) = self.lock() else { return };
        let running = inner.running.take();
        let operands = (std::mem::take(&mut inner.operands), std::mem::take(&mut inner.produced));
        drop(inner);
        if let Some(running) = running {
            let cause = running.tag().device_failure(error);
            dispatch_granted(running.skip(cause, operands));
        }
    }

    fn address(&self) -> usize {
        Arc::as_ptr(&self.inner).addr()
    }

    /// Ends the operation with a panic, unless the operation has ended.
    pub(crate) fn end_by_panic(&self, panic: String) {
        let Ok(mut inner) = self.lock() else { return };
        let Some(running) = inner.running.take() else { return };
        let failure = running.tag().panic_failure(panic);
        let operands = std::mem::take(&mut inner.operands);
        let views = std::mem::take(&mut inner.views);
        let lent_on = inner.lent_on;
        drop(inner);
        let left = running.left_on_queue().or_else(|| running.after_lending(lent_on?));
        running.hand_over(views, &[]);
        let _releasing = releasing();
        dispatch_granted(running.finish(left.as_slice(), Err(failure)));
        drop(operands);
    }

    pub(crate) fn end(&self, fence: Option<&Fence>, outcome: BodyResult<Given>) {
        self.end_with(
            fence.map(std::slice::from_ref).unwrap_or_default(),
            |running, produced, held, fence| {
                define_result(&running.tag(), Ok(outcome), produced, held, fence)
            },
        );
    }

    fn end_with(
        &self,
        fences: &[Fence],
        outcome: impl FnOnce(&ActiveTask, Target<'_>, MayRead<'_>, Option<&Fence>) -> Defined,
    ) {
        let Ok(mut inner) = self.lock() else { return };
        let Some(running) = inner.running.take() else { return };
        let operands = std::mem::take(&mut inner.operands);
        let views = std::mem::take(&mut inner.views);
        let produced = std::mem::take(&mut inner.produced);
        let lent_on = inner.lent_on;
        drop(inner);
        let left = if fences.is_empty() {
            running.left_on_queue().or_else(|| running.after_lending(lent_on?))
        } else {
            None
        };
        let fences = if fences.is_empty() { left.as_slice() } else { fences };
        let held = |tensor: &Tensor| operands.iter().any(|(operand, _)| operand.same(tensor));
        let (later, result) = outcome(&running, &produced, &held, fences.first());
        running.hand_over(views, &produced);
        // The fence of a copy follows the fence of its source.
        let fences = if later.is_empty() { fences } else { &later };
        let _releasing = releasing();
        dispatch_granted(running.finish(fences, result));
        // Drops the operands last: if a handle is the last of its memory, the drop must see what the
        // operation left on the variables.
        drop((operands, produced));
    }
}

/// Up to this many operands are searched one by one; more are found through a map.
const FEW_OPERANDS: usize = 8;

impl ScopeState {
    /// The mode in which the operation uses `tensor`. `None` if the tensor is not an operand. The map of many
    /// operands is made on first use.
    pub(crate) fn mode_of(&mut self, tensor: &Tensor) -> Option<AccessMode> {
        let merge = |a: AccessMode, b: AccessMode| if a == b { a } else { AccessMode::Update };
        if self.operands.len() <= FEW_OPERANDS {
            let modes = self.operands.iter().filter(|(operand, _)| operand.same(tensor));
            return modes.map(|(_, mode)| *mode).reduce(merge);
        }
        let operands = &self.operands;
        let modes = self.modes.get_or_insert_with(|| {
            let mut modes = HashMap::with_capacity(operands.len());
            for (operand, mode) in operands {
                modes
                    .entry(Arc::as_ptr(&operand.inner).addr())
                    .and_modify(|known| *known = merge(*known, *mode))
                    .or_insert(*mode);
            }
            modes
        });
        modes.get(&Arc::as_ptr(&tensor.inner).addr()).copied()
    }

    /// As [`Scope::access_of`].
    pub(crate) fn access_of(&mut self, tensor: &Tensor) -> Option<Access> {
        self.running.as_ref()?;
        self.mode_of(tensor).map(|mode| if mode == AccessMode::Read { Access::Read } else { Access::Write })
    }

    /// Notes a view. Views that are gone are removed when the list is full, so the cost per view is constant.
    pub(crate) fn note_view(&mut self, lease: &Arc<LeaseState>, mode: AccessMode) {
        if self.views.len() == self.views.capacity() {
            self.views.retain(|(view, _)| view.strong_count() > 0);
            self.views.reserve(self.views.len() + 1);
        }
        self.views.push((Arc::downgrade(lease), mode));
    }
}

/// Pushes the next operation to a worker, because the calling thread may be any thread.
fn dispatch_granted(next: Option<crate::core::operation::OpGranted>) {
    if let Some(next) = next {
        run::dispatch(ReadyList::from_iter([next]));
    }
}

/// The tensors that an operation produces.
pub(crate) type Promised = SmallVec<[(Tensor, Copying); 1]>;
type Target<'a> = &'a [(Tensor, Copying)];
/// The body's values for them.
pub(crate) type Given = SmallVec<[Produced; 1]>;
/// Returns true for a tensor that the operation may read.
type MayRead<'a> = &'a dyn Fn(&Tensor) -> bool;
/// The end of an operation.
pub(crate) type OpResult = Result<(), OperationError>;
/// The end of an operation, and the fences of copies, if results were copied.
type Defined = (Ends, OpResult);
type Ends = SmallVec<[Fence; 1]>;

/// Turns the outcome of a body into the result of the operation, and defines the produced tensors. `held`
/// says which tensors the operation may read; `ready` is the fence after which the results may be read.
pub(crate) fn define_result(
    tag: &OpTag,
    outcome: Result<BodyResult<Given>, String>,
    target: Target<'_>,
    held: MayRead<'_>,
    ready: Option<&Fence>,
) -> Defined {
    let given = match outcome {
        Ok(Ok(given)) => given,
        Ok(Err(error)) => return (Ends::new(), Err(tag.body_failure(error))),
        Err(panic) => return (Ends::new(), Err(tag.panic_failure(panic))),
    };
    let wrong = match (target.len(), given.len()) {
        (wanted, given) if wanted == given => None,
        (0, _) => Some("the operation was not submitted to produce"),
        (_, 0) => Some("the body ended without a result"),
        _ => Some("the body ended with another number of results"),
    };
    let mut failure = wrong.map(|why| tag.failure(FailureKind::Result, why, None));
    let mut copied = Ends::new();
    let mut target = target.iter();
    for produced in given {
        match target.next().filter(|_| failure.is_none()) {
            None => discard(produced, ready),
            Some((tensor, copying)) => match define(&tensor.inner, produced, *copying, tag.id, held, ready) {
                Ok(copy) => copied.extend(copy),
                Err(error) => failure = Some(tag.result_failure(error)),
            },
        }
    }
    (copied, failure.map_or(Ok(()), Err))
}

/// Catches the panics of a future.
pub(crate) fn catch<F: Future>(future: F) -> Catch<F> {
    Catch(Box::pin(future))
}

/// See [`catch`].
pub(crate) struct Catch<F>(Pin<Box<F>>);

impl<F: Future> Future for Catch<F> {
    type Output = Result<F::Output, String>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match contain_panic(|| self.0.as_mut().poll(cx)) {
            Ok(poll) => poll.map(Ok),
            Err(panic) => Poll::Ready(Err(panic)),
        }
    }
}
