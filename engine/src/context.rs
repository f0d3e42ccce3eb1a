//! Which operation the calling code runs as.
//!
//! A host body runs with its operation entered on its thread; an asynchronous body is wrapped so that the same holds
//! during each of its polls. So the answer follows the task, not the thread.

use std::cell::Cell;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use estafette_graph::OpId;

use crate::operation::OpGranted;

thread_local! {
    static CURRENT: Cell<Option<Current>> = const { Cell::new(None) };
    static HELP_DEPTH: Cell<u32> = const { Cell::new(0) };
    /// Whether this thread is polling an asynchronous body, so that it belongs to a tokio runtime.
    static ON_RUNTIME: Cell<bool> = const { Cell::new(false) };
}

/// How deep operations may run inside waits of operations that themselves run inside waits. Each level costs the
/// stack of one body; past the bound a wait blocks instead of helping.
const HELP_DEPTH_MAX: u32 = 16;

/// The same for a wait that has blocked for a while without anybody else taking what it needs: perhaps all others wait as well,
/// and a deep stack is better than a hang.
const HELP_DEPTH_LAST: u32 = 64;

/// An operation, and the number of the engine that it was submitted to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Current {
    pub(crate) op: OpId,
    pub(crate) core: u64,
}

impl Current {
    #[inline]
    pub(crate) fn of(granted: &OpGranted) -> Self {
        Self { op: granted.id(), core: granted.payload().core.id }
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
pub(crate) fn enter(op: Current) -> Entered {
    Entered { before: CURRENT.replace(Some(op)) }
}

/// Restores the operation that was current before.
pub(crate) struct Entered {
    before: Option<Current>,
}

impl Drop for Entered {
    #[inline]
    fn drop(&mut self) {
        CURRENT.set(self.before);
    }
}

/// Permission to run other operations inside a wait, while not too deep.
pub(crate) fn begin_help() -> Option<Helping> {
    help_up_to(HELP_DEPTH_MAX)
}

/// As [`begin_help`], for a wait that has been in vain so far.
pub(crate) fn begin_last_help() -> Option<Helping> {
    help_up_to(HELP_DEPTH_LAST)
}

fn help_up_to(max: u32) -> Option<Helping> {
    let depth = HELP_DEPTH.get();
    (depth < max).then(|| {
        HELP_DEPTH.set(depth + 1);
        Helping(())
    })
}

/// See [`begin_help`].
pub(crate) struct Helping(());

impl Drop for Helping {
    fn drop(&mut self) {
        HELP_DEPTH.set(HELP_DEPTH.get() - 1);
    }
}

/// Runs `sleep`, which blocks the thread. In an asynchronous body it lets other tasks of the thread go elsewhere
/// meanwhile, as far as the runtime can do that: it may have no other thread, and the wait may be for one of them.
pub(crate) fn blocking<R>(sleep: impl FnOnce() -> R) -> R {
    crate::quiet::tell();
    let covered = ON_RUNTIME.get()
        && tokio::runtime::Handle::try_current()
            .is_ok_and(|runtime| runtime.runtime_flavor() == tokio::runtime::RuntimeFlavor::MultiThread);
    if covered { tokio::task::block_in_place(sleep) } else { sleep() }
}

/// Restores what was known of the thread before.
struct OnRuntime {
    before: bool,
}

impl Drop for OnRuntime {
    fn drop(&mut self) {
        ON_RUNTIME.set(self.before);
    }
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
        let _entered = enter(self.op);
        let _on_runtime = OnRuntime { before: ON_RUNTIME.replace(true) };
        self.future.as_mut().poll(cx)
    }
}
