//! Owned access for asynchronous bodies: `'static`, sendable, and the access lasts as long as the guard.

use std::sync::Arc;

use crate::core::error::OperationError;
use crate::exchange::releasing;
use crate::operation::operands::OpenRef;
use crate::operation::run::{self, ReadyList, Running};
use crate::tensor::handle::Tensor;
use crate::tensor::views::{View, ViewMut};
use estafette_sync::sync::Mutex;

/// Keeps an asynchronous operation open. Its task and every guard share it; dropping the last share completes
/// the operation.
pub(crate) struct OpenOperation {
    /// Only taken out when the last holder goes; the lock makes guards shareable.
    running: Mutex<Option<Running>>,
    result: Mutex<Option<Result<(), OperationError>>>,
    /// Operands live until the operation has completed, so that its fences are known before their memory may
    /// go.
    operands: Vec<Tensor>,
}

impl OpenOperation {
    pub(crate) fn new(running: Running, operands: Vec<Tensor>) -> Arc<Self> {
        Arc::new(Self { running: Mutex::new(Some(running)), result: Mutex::new(None), operands })
    }

    /// True if `tensor` is an operand.
    pub(crate) fn holds(&self, tensor: &Tensor) -> bool {
        self.operands.iter().any(|operand| operand.same(tensor))
    }

    /// Notes how the body ended. The operation completes when the last guard is gone as well.
    pub(crate) fn conclude(&self, result: Result<(), OperationError>) {
        self.result.lock().get_or_insert(result);
    }
}

impl Drop for OpenOperation {
    fn drop(&mut self) {
        let running = self.running.get_mut().take();
        let result = self.result.get_mut().take();
        let Some(running) = running else { return };
        if running.op().payload().core.generation.is_inherited() {
            // A forked child: the operation ends in the parent, and a drop would end it here.
            return std::mem::forget(running);
        }
        let _releasing = releasing();
        match result {
            // A body that was dropped before it ended (its runtime went away) has no result: `Running`
            // reports that.
            None => drop(running),
            Some(result) => {
                // The last guard may be dropped anywhere, so what follows goes to a worker.
                running
                    .finish(result)
                    .into_iter()
                    .for_each(|next| run::dispatch(ReadyList::from_iter([next])));
            }
        }
        self.operands.clear();
    }
}

/// Read access of an asynchronous operation, until dropped.
pub struct ReadGuard {
    tensor: Tensor,
    _open: OpenRef,
}

/// Exclusive access of an asynchronous operation, until dropped.
pub struct WriteGuard {
    tensor: Tensor,
    _open: OpenRef,
}

impl ReadGuard {
    pub(crate) fn new(tensor: Tensor, open: OpenRef) -> Self {
        Self { tensor, _open: open }
    }

    /// The tensor as functions of [`run`](crate::operation::OpBuilder::run) get it: with its layout, and for
    /// elements with gaps too.
    pub fn view(&self) -> View<'_> {
        View::new(self.tensor.inner.granted_definition())
    }
}

impl WriteGuard {
    /// The operation has exclusive access to `tensor`.
    pub(crate) fn new(tensor: Tensor, open: OpenRef) -> Self {
        Self { tensor, _open: open }
    }

    /// As [`ReadGuard::view`], for writing.
    pub fn view_mut(&mut self) -> ViewMut<'_> {
        ViewMut::new(self.tensor.inner.granted_definition())
    }
}

impl std::fmt::Debug for ReadGuard {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("ReadGuard").field(&self.view()).finish()
    }
}

impl std::fmt::Debug for WriteGuard {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("WriteGuard").field(&View::new(self.tensor.inner.granted_definition())).finish()
    }
}
