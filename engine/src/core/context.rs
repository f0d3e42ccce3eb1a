//! The operation that the calling code runs as.
//!
//! A host body runs with its operation entered on its thread; an asynchronous body is wrapped so that the
//! same holds during each of its polls. So the answer follows the task, not the thread.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use estafette_graph::OpId;
use estafette_sync::thread::LocalKey;
use estafette_sync::thread_local;

use crate::core::engine_core::{Core, Cover};
use crate::core::operation::OpGranted;
use crate::core::runtime;

thread_local! {
    static CURRENT: Cell<Option<Current>> = const { Cell::new(None) };
    static HELP_DEPTH: Cell<u32> = const { Cell::new(0) };
    /// True if this thread runs operations inside of waits and submissions: see [`set_helping`].
    static MAY_HELP: Cell<bool> = const { Cell::new(true) };
    /// True if this thread polls a future for a callback or a fence.
    static NOTIFYING: Cell<bool> = const { Cell::new(false) };
    /// True if this thread is polling an asynchronous body, so that it belongs to a tokio runtime.
    static ON_RUNTIME: Cell<bool> = const { Cell::new(false) };
    static AWAITS: Cell<BodyAwaits> = const { Cell::new(BodyAwaits::Outside) };
    /// One for each synchronous body on this thread that [has awaited](BodyAwaits::Covered), the innermost
    /// last.
    static COVERS: RefCell<Vec<Cover>> = const { RefCell::new(Vec::new()) };
}

/// State of the innermost synchronous body on a thread, which may poll futures of the engine in an executor
/// of its own (`block_on`, `asyncio.run`). The executor may sleep until other operations are done, and the
/// engine does not see it sleep.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BodyAwaits {
    /// The thread runs no synchronous body.
    Outside,
    /// No poll of the body has been pending.
    No,
    /// A poll has been pending. The thread counts as blocked until the body ends.
    Covered,
}

/// The depth to which operations may run inside waits of operations that run inside waits themselves. Each
/// level costs the stack of one body; past the bound a wait blocks instead of helping.
const HELP_DEPTH_MAX: u32 = 16;

/// The same bound for a wait that has blocked for a while without another thread running what it needs.
/// Perhaps all other threads wait as well, and a deep stack is better than a hang.
const HELP_DEPTH_LAST: u32 = 64;

/// An operation, and the number of the engine that it was submitted to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Current {
    pub(crate) op: OpId,
    pub(crate) core: u64,
}

impl Current {
    #[inline]
    pub(crate) fn of(granted: &OpGranted) -> Self {
        Self { op: granted.id(), core: granted.payload().core.id }
    }
}

/// Forgets what this thread was doing: it is the one thread of a forked child.
pub(crate) fn forget() {
    CURRENT.set(None);
    HELP_DEPTH.set(0);
    NOTIFYING.set(false);
    ON_RUNTIME.set(false);
    AWAITS.set(BodyAwaits::Outside);
    // Their drops would take locks that a thread of the parent may have held.
    let _ = COVERS.try_with(|covers| covers.take().into_iter().for_each(std::mem::forget));
}

/// Sets a value of this thread until the guard is dropped, by a panic too.
pub(crate) fn replace<T: Copy>(place: &'static LocalKey<Cell<T>>, value: T) -> Restore<T> {
    Restore { place, before: place.replace(value) }
}

/// See [`replace`].
pub(crate) struct Restore<T: Copy + 'static> {
    place: &'static LocalKey<Cell<T>>,
    before: T,
}

impl<T: Copy> Drop for Restore<T> {
    fn drop(&mut self) {
        self.place.set(self.before);
    }
}

/// The operation that the calling code runs as.
#[inline]
pub(crate) fn current() -> Option<OpId> {
    CURRENT.get().map(|current| current.op)
}

/// As [`current`], with its engine.
pub(crate) fn current_with_core() -> Option<Current> {
    CURRENT.get()
}

/// Runs as `op` until the guard is dropped.
#[inline]
pub(crate) fn make_current(op: Current) -> CurrentGuard {
    CurrentGuard { before: CURRENT.replace(Some(op)) }
}

/// Restores the operation that was current before.
pub(crate) struct CurrentGuard {
    before: Option<Current>,
}

impl Drop for CurrentGuard {
    #[inline]
    fn drop(&mut self) {
        CURRENT.set(self.before);
    }
}

/// The calling thread runs a synchronous body until the guard is dropped.
#[inline]
pub(crate) fn begin_synchronous() -> SynchronousBody {
    SynchronousBody { before: AWAITS.replace(BodyAwaits::No) }
}

/// See [`begin_synchronous`].
pub(crate) struct SynchronousBody {
    before: BodyAwaits,
}

impl Drop for SynchronousBody {
    #[inline]
    fn drop(&mut self) {
        if AWAITS.replace(self.before) == BodyAwaits::Covered {
            drop(COVERS.with_borrow_mut(Vec::pop));
        }
    }
}

/// True if the calling code is a synchronous body.
pub(crate) fn is_synchronous() -> bool {
    AWAITS.get() != BodyAwaits::Outside && !ON_RUNTIME.get() && !is_notification()
}

/// While the guard lives, polls on this thread are those of a blocking wait, which covers the thread itself
/// and no longer than it lasts.
pub(crate) fn polls_of_wait() -> Restore<BodyAwaits> {
    let polls = match AWAITS.get() {
        BodyAwaits::No => BodyAwaits::Covered,
        known => known,
    };
    replace(&AWAITS, polls)
}

/// Called where a poll of the calling code is pending: from here to its end, a synchronous body counts as
/// blocked. Returns true where another thread has to take the place of this one meanwhile.
pub(crate) fn cover_synchronous(core: &Core) -> bool {
    if !is_synchronous() {
        return false;
    }
    if AWAITS.get() == BodyAwaits::No {
        let cover = core.cover();
        // A thread that is ending has no list.
        if cover.is_needed() && COVERS.try_with(|covers| covers.borrow_mut().push(cover)).is_ok() {
            AWAITS.set(BodyAwaits::Covered);
        }
    }
    AWAITS.get() == BodyAwaits::Covered
}

/// Sets whether the calling thread may run operations inside of the engine's functions. Returns the previous
/// setting. The default is true.
pub fn set_helping(allowed: bool) -> bool {
    MAY_HELP.replace(allowed)
}

/// Calls `f`; meanwhile none of the engine's functions runs operations on this thread: helping is forbidden.
///
/// Where helping is allowed, these functions run operations on the thread that calls them:
/// - waits without a timeout: [`Tensor::wait`](crate::Tensor::wait) and [`to_vec`](crate::Tensor::to_vec),
///   [`Op::wait`](crate::Op::wait), [`Engine::wait_all`](crate::Engine::wait_all), and those that take a
///   lease or export. They run what they wait for; only `wait_all` runs any ready operation. Waits with a
///   timeout and futures run none. Without workers, a wait that has slept for some milliseconds has another
///   thread run what is ready.
/// - in an engine without workers: submissions, once many operations are ready or the engine is full,
///   [`Engine::run_ready`](crate::Engine::run_ready), and the drop of the last handle.
///
/// Forbid helping where the caller holds a lock that a body may take, or must not be held up by a body. The
/// engine's workers then do the work; an engine without workers starts a thread for the time of the wait.
///
/// ```
/// # let engine = estafette::Engine::builder().workers(0).build()?;
/// # let x = engine.from_vec(vec![1.0_f32], &[1])?;
/// let lock = std::sync::Mutex::new(());
/// let held = lock.lock();
/// engine.op("somewhere else").writes([&x]).run(|[], [_x]| Ok(()))?;
/// estafette::wait::without_helping(|| x.wait())?;
/// # drop(held);
/// # Ok::<(), estafette::Error>(())
/// ```
pub fn without_helping<T>(f: impl FnOnce() -> T) -> T {
    let _restore = replace(&MAY_HELP, false);
    f()
}

/// True if the calling thread may run operations.
pub(crate) fn may_help() -> bool {
    MAY_HELP.get()
}

/// Polls a future that no task awaits: its end notifies a callback or a fence, however long the wait takes.
pub(crate) fn while_notified<T>(poll: impl FnOnce() -> T) -> T {
    let _restore = replace(&NOTIFYING, true);
    poll()
}

/// True if the calling code polls inside of [`while_notified`].
pub(crate) fn is_notification() -> bool {
    NOTIFYING.get()
}

/// Permission to run other operations inside a wait, while not too deep.
pub(crate) fn begin_help() -> Option<Helping> {
    help_up_to(HELP_DEPTH_MAX)
}

/// As [`begin_help`], for a wait that has been in vain so far.
pub(crate) fn begin_last_help() -> Option<Helping> {
    help_up_to(HELP_DEPTH_LAST)
}

/// True if [`begin_last_help`] grants permission.
pub(crate) fn may_help_at_last() -> bool {
    may_help() && HELP_DEPTH.get() < HELP_DEPTH_LAST
}

fn help_up_to(max: u32) -> Option<Helping> {
    let depth = HELP_DEPTH.get();
    (depth < max && may_help()).then(|| {
        HELP_DEPTH.set(depth + 1);
        Helping(())
    })
}

/// See [`begin_help`].
pub(crate) struct Helping(());

impl Drop for Helping {
    fn drop(&mut self) {
        // A fork in between has set it to 0.
        HELP_DEPTH.set(HELP_DEPTH.get().saturating_sub(1));
    }
}

/// Runs `sleep`, which blocks the thread; in an asynchronous body by way of its runtime. While asleep, the
/// thread does not count as running its operation: it may run other work.
pub(crate) fn blocking<R>(sleep: impl FnOnce() -> R) -> R {
    crate::core::coalesced::wake_held_back();
    let _entered = CurrentGuard { before: CURRENT.replace(None) };
    if ON_RUNTIME.get() { runtime::block(sleep) } else { sleep() }
}

/// A future that runs as an operation.
pub(crate) struct RunAs<F> {
    op: Current,
    future: Pin<Box<F>>,
}

impl<F: Future> RunAs<F> {
    pub(crate) fn new(op: Current, future: F) -> Self {
        Self { op, future: Box::pin(future) }
    }
}

impl<F: Future> Future for RunAs<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let _current = make_current(self.op);
        let _on_runtime = replace(&ON_RUNTIME, true);
        self.future.as_mut().poll(cx)
    }
}
