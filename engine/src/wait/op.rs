//! Waits for an operation.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use estafette_devices::FenceSet;
use estafette_sync::time::Duration;

use crate::core::error::Error;
use crate::core::operation::Op;
use crate::core::wakers::WakerKey;
use crate::trace::hooks::WaitNoted;
use crate::wait::awaits::Awaited;
use crate::wait::blocking;

impl Op {
    /// Waits until the operation has ended, and returns its outcome. An operation that leaves device work has
    /// ended when that work was issued; its outputs are ready, or have failed, when the work is done. With a
    /// `timeout` of `None` the wait has no limit and may run operations on this thread, unless helping is
    /// [forbidden](crate::wait::without_helping). A wait with a timeout runs no operation, so that the
    /// timeout is kept. A timeout of zero only inspects the state.
    ///
    /// # Errors
    /// The failure of the operation; [`Error::Timeout`]; otherwise as [`Tensor::wait`](crate::Tensor::wait).
    pub fn wait_timeout(&self, timeout: Option<Duration>) -> Result<(), Error> {
        let state = self.handle.payload();
        let _noted = (!self.is_done()).then(|| WaitNoted::for_op(self.handle.id(), true)).flatten();
        blocking::block_on_op(&state.core, &self.handle, state.one_shot(), timeout)
    }

    /// Waits until the operation has ended, and returns its outcome. The wait may run operations on this
    /// thread, unless helping is [forbidden](crate::wait::without_helping).
    ///
    /// # Errors
    /// As [`wait_timeout`](Self::wait_timeout).
    pub fn wait(&self) -> Result<(), Error> {
        self.wait_timeout(None)
    }

    /// Fences of the device work that the operation, or the nodes of a replay, have left. Known when the
    /// operation has ended.
    pub(crate) fn left(&self) -> FenceSet {
        self.handle.payload().left().cloned().unwrap_or_default()
    }
}

impl Future for Op {
    type Output = Result<(), Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Self { handle, pending, key } = &mut *self;
        let state = handle.payload();
        state.core.generation.check()?;
        match state.one_shot().poll(cx, key) {
            Poll::Ready(outcome) => {
                pending.over();
                // A one-shot that is set has no wakers.
                *key = WakerKey::default();
                Poll::Ready(outcome.map_err(Error::from))
            }
            Poll::Pending => match pending.poll(cx, || Awaited::by_task(handle)) {
                Some(error) => Poll::Ready(Err(error)),
                None => Poll::Pending,
            },
        }
    }
}
