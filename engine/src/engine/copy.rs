//! Copies of tensors as operations.

use std::task::{Context, Poll, Waker};

use estafette_devices::DLDevice;
use estafette_sync::time::Duration;

use crate::copy::queue_pool::PooledQueue;
use crate::copy::{CopyJob, CopyResult, run};
use crate::core::core_ref::CoreRef;
use crate::core::error::Error;
use crate::core::operation::Name;
use crate::engine::Engine;
use crate::operation::builder::OpBuilder;
use crate::operation::completion::Completion;
use crate::operation::import::Produced;
use crate::tensor::handle::Tensor;

impl Engine {
    /// A promise of a copy of `tensor`, row-major and without gaps, in memory of `device`; `None`: of the
    /// tensor's own device, or plain host memory for a tensor that the host can read. No thread waits for a
    /// device: neither the caller's nor a worker.
    ///
    /// # Errors
    /// As [`OpBuilder::run`]; [`Error::Device`] when the device gives no queue. A device that the engine does
    /// not have fails the operation.
    pub fn copy(&self, tensor: &Tensor, device: impl Into<Option<DLDevice>>) -> Result<Tensor, Error> {
        copy(self.core(), tensor, device.into(), None)
    }

    /// As [`copy`](Self::copy), waiting for a permit without blocking the thread.
    pub async fn copy_async(
        &self,
        tensor: &Tensor,
        device: impl Into<Option<DLDevice>>,
    ) -> Result<Tensor, Error> {
        copy_async(self.core(), tensor, device.into()).await
    }
}

/// As [`Engine::copy_async`].
pub(crate) async fn copy_async(
    core: &CoreRef,
    tensor: &Tensor,
    device: Option<DLDevice>,
) -> Result<Tensor, Error> {
    core.check_usable()?;
    let (builder, job) = describe(core, tensor, device)?;
    builder.permit().await?.produce_external(|end| start(end, job))
}

/// As [`Engine::copy`], waiting for a permit for at most `timeout`.
pub(crate) fn copy(
    core: &CoreRef,
    tensor: &Tensor,
    device: Option<DLDevice>,
    timeout: Option<Duration>,
) -> Result<Tensor, Error> {
    // Checked first: in a forked child locks may be held for ever.
    core.check_usable()?;
    let (mut builder, job) = describe(core, tensor, device)?;
    core.acquire_permit_within(timeout)?;
    builder.hold_permit();
    builder.produce_external(|end| start(end, job))
}

fn describe<'a>(
    core: &'a CoreRef,
    tensor: &Tensor,
    to: Option<DLDevice>,
) -> Result<(OpBuilder<'a, [Tensor; 1]>, CopyJob), Error> {
    let builder = OpBuilder::new(core, Name::Static("copy")).reads([tensor]);
    let job = |pooled| CopyJob { source: tensor.clone(), to, pooled };
    let on_a_device = tensor.inner.definition().is_ok_and(|definition| !definition.host);
    match tensor.device().ok().filter(|_| on_a_device).and_then(|device| core.device(device)) {
        Some(device) => {
            let pooled = PooledQueue::for_copy(&device)?;
            Ok((builder.on(pooled.queue()), job(Some(pooled))))
        }
        None => Ok((builder, job(None))),
    }
}

fn start(end: Completion, job: CopyJob) {
    let Some(core) = end.scope().core() else { return };
    drive(&core, run(core.clone(), job), move |outcome| finish(end, outcome));
}

/// Runs a copy on this thread until the copy has to wait, and the rest in the engine's own asynchronous
/// runtime.
pub(crate) fn drive<T: 'static>(
    core: &CoreRef,
    copy: impl Future<Output = T> + Send + 'static,
    finish: impl FnOnce(T) + Send + 'static,
) {
    let mut task = Box::pin(copy);
    // A later poll replaces this waker.
    match task.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(outcome) => finish(outcome),
        Poll::Pending => {
            // A runtime that refuses belongs to an engine that is gone; the dropped completion reports that.
            if let Err(error) = core.spawn_internal(async move { finish(task.await) }) {
                tracing::debug!(%error, "a copy could not continue");
            }
        }
    }
}

fn finish(end: Completion, outcome: Result<CopyResult, Error>) {
    match outcome {
        Ok(CopyResult { layout, storage, fence: Some(fence) }) => {
            end.produce_after(&fence, Ok(Produced::ready(layout, storage)));
        }
        Ok(CopyResult { layout, storage, fence: None }) => end.produce(Ok(Produced::ready(layout, storage))),
        Err(error) => end.produce(Err(error.into())),
    }
}
