//! Copies of tensors, each of which is an operation that occupies no thread while a device is at it.
//!
//! | from | to | how |
//! |---|---|---|
//! | memory that the host reads | memory that the host writes | by the host |
//! | a device, without gaps | the same device, or one that its queues [copy to](Device::can_copy_to) | one copy on a queue, behind what is pending there; the result is pending as well |
//! | a device | the host | on a queue, behind what is pending there; memory with gaps as the stretch that it spans, which the host packs |
//! | the host | a device | on a queue, packed first where it has gaps |
//! | anything else | | by way of the host |
//!
//! What only the host can read or write is settled there before the operation begins. So is what was not there yet when the copy
//! was asked for, as nobody knew which queue to wait on.

mod pack;
mod queue_pool;
pub(crate) mod staging;
mod transfer;

use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use estafette_devices::{DLDevice, Device, Fence, Order};

use self::queue_pool::Turn;
use self::transfer::{Address, Kept, download, upload};
use crate::core::core_ref::CoreRef;
use crate::core::engine_core::Core;
use crate::core::error::Error;
use crate::core::operation::Name;
use crate::engine::Engine;
use crate::exchange::{DType, Layout, Storage};
use crate::import::{Produced, fresh, host_can_use};
use crate::operation::builder::OpBuilder;
use crate::operation::completion::Completion;
use crate::tensor::handle::Tensor;

pub(crate) use self::pack::to_contiguous;

impl Engine {
    /// A promise of a copy of `tensor`, row-major and without gaps, in memory of `device`. No thread waits for a device: neither the
    /// caller's nor a worker.
    ///
    /// # Errors
    /// As [`OpBuilder::run`]; [`Error::Device`] when the device gives no queue. A device that the engine does not have fails the
    /// operation.
    pub fn copy(&self, tensor: &Tensor, device: DLDevice) -> Result<Tensor, Error> {
        copy(self.core(), tensor, device)
    }

    /// As [`copy`](Self::copy), waiting for a permit without blocking the thread.
    ///
    /// # Errors
    /// As [`copy`](Self::copy).
    pub async fn copy_async(&self, tensor: &Tensor, device: DLDevice) -> Result<Tensor, Error> {
        self.core().check_usable()?;
        let (builder, job) = describe(self.core(), tensor, device)?;
        builder.permit().await?.produce_external(|end| start(end, job))
    }
}

/// As [`Engine::copy`].
pub(crate) fn copy(core: &CoreRef, tensor: &Tensor, device: DLDevice) -> Result<Tensor, Error> {
    // Before anything is made: in a forked child locks may be held for ever.
    core.check_usable()?;
    let (builder, job) = describe(core, tensor, device)?;
    builder.produce_external(|end| start(end, job))
}

/// What is copied, and where to.
struct Job {
    source: Tensor,
    to: DLDevice,
    /// On the queue that the operation was submitted on.
    turn: Option<Turn>,
}

fn describe<'a>(
    core: &'a CoreRef,
    tensor: &Tensor,
    to: DLDevice,
) -> Result<(OpBuilder<'a, [Tensor; 1]>, Job), Error> {
    let builder = OpBuilder::new(core, Name::Static("copy")).reads([tensor]);
    let job = |turn| Job { source: tensor.clone(), to, turn };
    let on_a_device = tensor.inner.definition().is_ok_and(|definition| !definition.host);
    match tensor.device().ok().filter(|_| on_a_device).and_then(|device| core.device(device)) {
        Some(device) => {
            let turn = Turn::on(&device)?;
            Ok((builder.on(turn.queue()), job(Some(turn))))
        }
        None => Ok((builder, job(None))),
    }
}

/// Begins on this thread, as far as nothing has to be waited for; what is left goes on in the engine's asynchronous runtime.
fn start(end: Completion, job: Job) {
    let Some(core) = end.scope().core() else { return };
    let mut task = Box::pin(run(core.clone(), job));
    // Waiters take the waker of the last poll, so this one is forgotten.
    match task.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(outcome) => finish(end, outcome),
        Poll::Pending => {
            // If it refuses, the engine is gone, and the completion tells.
            if let Err(error) = core.spawn(async move { finish(end, task.await) }) {
                tracing::debug!(%error, "a copy could not go on");
            }
        }
    }
}

fn finish(end: Completion, outcome: Result<Copied, Error>) {
    match outcome {
        Ok(Copied { layout, storage, fence: Some(fence) }) => {
            end.produce_after(&fence, Ok(Produced::ready(layout, storage)));
        }
        Ok(Copied { layout, storage, fence: None }) => end.produce(Ok(Produced::ready(layout, storage))),
        Err(error) => end.produce(Err(error.into())),
    }
}

/// A row-major copy in fresh memory of the same device, of what is there when `ready` is done, and the fence of it; `None` where a
/// device cannot do that by itself.
pub(crate) fn within_device(
    core: &Core,
    layout: &Layout,
    data: *const u8,
    ready: &Fence,
) -> Result<Option<(Layout, Storage, Fence)>, Error> {
    let Some(device) = core.device(layout.device()).filter(|_| layout.is_contiguous()) else {
        return Ok(None);
    };
    let mut turn = Turn::on(&device)?;
    if !matches!(turn.queue().order_after(ready), Ok(Order::Nothing | Order::Device)) {
        return Ok(None);
    }
    let target = row_major(layout, layout.device())?;
    let storage = fresh(core, &target, false)?;
    // SAFETY: the queue comes after what makes the content; the target is ours, and as long. Whoever called keeps both until the
    // fence is done.
    unsafe { device.copy(&**turn.queue(), data, storage.data(), target.byte_len()) }?;
    Ok(Some((target, storage, turn.record())))
}

/// A copy, there when the fence is done.
struct Copied {
    layout: Layout,
    storage: Storage,
    fence: Option<Fence>,
}

async fn run(core: CoreRef, job: Job) -> Result<Copied, Error> {
    let Job { source, to, turn } = job;
    let mut source = Kept::new(source);
    let definition = source.get().inner.definition()?;
    let from = From { layout: definition.layout.clone(), data: Address(definition.data) };
    let layout = row_major(&from.layout, to)?;
    let (mut target, at) = kept(&core, &layout)?;
    let bytes = layout.byte_len();
    let device = from.layout.device();
    let reads = host_can_use(&core, device, from.data.0);
    let fence = if bytes == 0 {
        None
    } else if is_of_the_host(&core, to) {
        to_host(&core, &mut source, &from, turn, (&mut target, at)).await?
    } else if !reads
        && from.layout.is_contiguous()
        && let Some(device) = core.device(device).filter(|device| device.can_copy_to(to))
    {
        let mut turn = turn.map_or_else(|| Turn::on(&device), Ok)?;
        // SAFETY: the operation reads the source until the fence; the target is ours, and as long.
        unsafe { device.copy(&**turn.queue(), from.data.0, at.0, bytes) }?;
        Some(turn.record())
    } else {
        let device = device_of(&core, to)?;
        let target = (&mut target, at);
        if reads && from.layout.is_contiguous() {
            // SAFETY: the operation reads the source until the fence; the target is ours, and as long.
            Some(unsafe { upload(&device, (&mut source, from.data), target, bytes) }.await?)
        } else {
            let (mut packed, packed_at) = kept(&core, &row_major(&from.layout, DLDevice::CPU)?)?;
            to_host(&core, &mut source, &from, turn, (&mut packed, packed_at)).await?;
            // SAFETY: both are ours, and as long.
            Some(unsafe { upload(&device, (&mut packed, packed_at), target, bytes) }.await?)
        }
    };
    Ok(Copied { layout, storage: target.take(), fence })
}

/// What is copied.
struct From {
    layout: Layout,
    data: Address,
}

/// Copies to memory of the host that is as long as a row-major layout is. Gives the last fence of a device, which is done.
async fn to_host(
    core: &CoreRef,
    source: &mut Kept<Tensor>,
    from: &From,
    turn: Option<Turn>,
    (target, at): (&mut Kept<Storage>, Address),
) -> Result<Option<Fence>, Error> {
    let From { layout, data } = from;
    if host_can_use(core, layout.device(), data.0) {
        // SAFETY: the operation may read the source, which a valid layout describes; the target is ours, and as long.
        unsafe { to_contiguous(layout, data.0, at.0) }?;
        return Ok(None);
    }
    let device = device_of(core, layout.device())?;
    let mut turn = turn.map_or_else(|| Turn::on(&device), Ok)?;
    if layout.is_contiguous() {
        let (source, target) = ((source, *data), (target, at));
        // SAFETY: the operation reads the source until the fence; the target is ours, and as long.
        return Ok(Some(unsafe { download(&device, &mut turn, source, target, layout.byte_len()) }.await?));
    }
    let span = layout.byte_range(data.0);
    let bytes = span.end - span.start;
    // The span may begin before the first element: strides can be negative.
    let before = data.0.addr() - span.start;
    let (mut stretch, stretch_at) =
        kept(core, &Layout::contiguous(DType::U8, DLDevice::CPU, &[bytes as i64])?)?;
    let begin = Address(data.0.wrapping_sub(before));
    // SAFETY: the layout is valid, so the span is inside the memory of the source; as above.
    let fence =
        unsafe { download(&device, &mut turn, (source, begin), (&mut stretch, stretch_at), bytes) }.await?;
    // SAFETY: the stretch holds the span, `before` bytes into which the first element is; the target is ours, and as long.
    unsafe { to_contiguous(layout, stretch_at.0.wrapping_add(before), at.0) }?;
    Ok(Some(fence))
}

/// Fresh memory for `layout`.
fn kept(core: &Core, layout: &Layout) -> Result<(Kept<Storage>, Address), Error> {
    let storage = fresh(core, layout, false)?;
    let at = Address(storage.data());
    Ok((Kept::new(storage), at))
}

fn row_major(layout: &Layout, device: DLDevice) -> Result<Layout, Error> {
    Ok(Layout::contiguous(layout.dtype(), device, layout.shape())?.with_padding(layout.is_padded()))
}

fn device_of(core: &Core, id: DLDevice) -> Result<Arc<dyn Device>, Error> {
    core.device(id).ok_or_else(|| {
        Error::Conflict(format!("cannot copy from or to {id}: this engine does not have the device"))
    })
}

/// Whether the host writes fresh memory of `device`: its own, and what devices share with it.
fn is_of_the_host(core: &Core, device: DLDevice) -> bool {
    device == DLDevice::CPU || core.device(device).is_none()
}
