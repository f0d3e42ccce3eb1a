//! Copies of tensors. Each copy is an operation that occupies no thread while a device works on it.
//!
//! | file | its one idea |
//! |---|---|
//! | `queue_pool` | the queues that copies and import streams use |
//! | `transfer` | copies between a device and the host |
//! | `blocking` | copies that a thread waits for |
//! | [`staging`] | pinned host memory that such copies go through |
//!
//! | from | to | how |
//! |---|---|---|
//! | memory that the host reads | memory that the host writes | by the host |
//! | a device, without gaps | the same device, or one that its queues [copy to](Device::can_copy_to) | one copy on a queue, behind what is pending there; the result is pending as well |
//! | a device | the host | on a queue, behind what is pending there; memory with gaps as one copy of its whole span, which the host packs |
//! | the host | a device | on a queue, packed first where it has gaps |
//! | anything else | | by way of the host |
//!
//! The host waits before the operation begins where only the host can read or write the memory, and where the
//! source was not defined at submission: the queue to wait on was unknown then.
//!
//! # Invariants
//!
//! - But for those of `blocking`, no thread waits for a copy, and no copy holds up a thread in the driver:
//!   plain host memory goes through staging chunks, whose number is bounded. A copy waits for a chunk only
//!   while it has none.
//! - What a copy that is given up leaves behind keeps the memory that it uses.

pub(crate) mod blocking;
pub(crate) mod queue_pool;
pub(crate) mod staging;
mod transfer;

use std::sync::Arc;

use estafette_devices::{DLDevice, Device, Fence, Order};
use estafette_sync::per_process;
use estafette_sync::sync::atomic::{AtomicU64, Ordering};

use self::queue_pool::PooledQueue;
pub(crate) use self::transfer::KeepAlive;
use self::transfer::{Address, ReleaseAfter, download, enqueue, upload};
use crate::core::core_ref::CoreRef;
use crate::core::engine_core::Core;
use crate::core::error::Error;
use crate::exchange::pack::to_contiguous;
use crate::exchange::{DType, Layout, Storage};
use crate::tensor::handle::Tensor;
use crate::tensor::memory::{fresh, host_can_use};

/// The tensor to copy, and the target device: `None` means the tensor's own, which may be unknown yet.
pub(crate) struct CopyJob {
    pub(crate) source: Tensor,
    pub(crate) to: Option<DLDevice>,
    /// The queue that the operation was submitted on.
    pub(crate) pooled: Option<PooledQueue>,
}

/// Copies the content that is there after `ready` into fresh row-major memory of the same device; `source`
/// keeps what is copied. Returns the copy and its fence; `None` where the device cannot copy without the
/// host.
pub(crate) fn within_device(
    core: &Core,
    source: &mut KeepAlive<Storage>,
    (layout, data): (&Layout, *const u8),
    ready: &Fence,
) -> Result<Option<(Layout, Storage, Fence)>, Error> {
    let Some(device) = core.device(layout.device()).filter(|_| layout.is_contiguous()) else {
        return Ok(None);
    };
    let mut pooled = PooledQueue::for_copy(&device)?;
    if !matches!(pooled.queue().order_after(ready), Ok(Order::Nothing | Order::Device)) {
        return Ok(None);
    }
    let copy = row_major(layout, layout.device())?;
    let (mut target, at) = allocated(core, &copy)?;
    let source = (source, Address(data.cast_mut()));
    // SAFETY: the queue is ordered after the writer of the content; the target is fresh, and as long. The
    // caller keeps it until the fence is done.
    let fence = unsafe { enqueue(&device, &mut pooled, source, (&mut target, at), copy.byte_len()) }?;
    Ok(Some((copy, target.take(), fence)))
}

/// A copy, complete when the fence is done.
pub(crate) struct CopyResult {
    pub(crate) layout: Layout,
    pub(crate) storage: Storage,
    pub(crate) fence: Option<Fence>,
}

/// Copies as `job` says. The future waits, where only the host can wait, without a thread.
pub(crate) async fn run(core: CoreRef, job: CopyJob) -> Result<CopyResult, Error> {
    let CopyJob { source, to, pooled } = job;
    let mut source = KeepAlive::new(source);
    let definition = source.get().inner.definition()?;
    let from = CopySource { layout: definition.layout.clone(), data: Address(definition.data) };
    let to = to.unwrap_or_else(|| match from.layout.device() {
        device if device.device_type.is_host_readable() => DLDevice::CPU,
        device => device,
    });
    let layout = row_major(&from.layout, to)?;
    let (mut target, at) = allocated(&core, &layout)?;
    let bytes = layout.byte_len();
    let device = from.layout.device();
    let reads = host_can_use(&core, device, from.data.0);
    let fence = if bytes == 0 {
        None
    } else if is_of_the_host(&core, to) {
        to_host(&core, &mut source, &from, pooled, (&mut target, at)).await?
    } else if !reads
        && from.layout.is_contiguous()
        && let Some(device) = core.device(device).filter(|device| device.can_copy_to(to))
    {
        let mut pooled = pooled.map_or_else(|| PooledQueue::for_copy(&device), Ok)?;
        // SAFETY: the operation reads the source until the fence; the target is fresh, and as long.
        unsafe { device.copy(&**pooled.queue(), from.data.0, at.0, bytes) }?;
        Some(pooled.record())
    } else {
        let device = device_of(&core, to)?;
        let target = (&mut target, at);
        if reads && from.layout.is_contiguous() {
            // SAFETY: the operation reads the source until the fence; the target is fresh, and as long.
            Some(unsafe { upload(&device, (&mut source, from.data), target, bytes) }.await?)
        } else {
            let (mut packed, packed_at) = allocated(&core, &row_major(&from.layout, DLDevice::CPU)?)?;
            to_host(&core, &mut source, &from, pooled, (&mut packed, packed_at)).await?;
            // SAFETY: both are fresh memory of this copy, and as long.
            Some(unsafe { upload(&device, (&mut packed, packed_at), target, bytes) }.await?)
        }
    };
    Ok(CopyResult { layout, storage: target.take(), fence })
}

/// Copies `source`, which the caller may read, into `target`: shared memory that nothing else uses, of the
/// length of the row-major layout. The future waits without a thread.
#[cfg(feature = "links")]
pub(crate) async fn for_processes(core: CoreRef, source: Tensor, target: Arc<Storage>) -> Result<(), Error> {
    let mut source = KeepAlive::new(source);
    let definition = source.get().inner.definition()?;
    let from = CopySource { layout: definition.layout.clone(), data: Address(definition.data) };
    let at = Address(target.data());
    if !from.layout.is_empty() {
        to_host(&core, &mut source, &from, None, (&mut KeepAlive::new(target), at)).await?;
        FOR_PROCESSES.fetch_add(from.layout.byte_len() as u64, Ordering::Relaxed);
    }
    Ok(())
}

per_process! {
    static FOR_PROCESSES: AtomicU64 = AtomicU64::new(0);
}

/// Bytes that this process has copied into shared memory for other processes.
pub(crate) fn bytes_for_processes() -> u64 {
    FOR_PROCESSES.load(Ordering::Relaxed)
}

/// The memory to copy.
struct CopySource {
    layout: Layout,
    data: Address,
}

/// Copies to host memory that is as long as the row-major layout. Returns the last fence of the device, which
/// is done.
async fn to_host<T: ReleaseAfter>(
    core: &CoreRef,
    source: &mut KeepAlive<Tensor>,
    from: &CopySource,
    pooled: Option<PooledQueue>,
    (target, at): (&mut KeepAlive<T>, Address),
) -> Result<Option<Fence>, Error> {
    let CopySource { layout, data } = from;
    if host_can_use(core, layout.device(), data.0) {
        // SAFETY: the operation may read the source, which a valid layout describes; the target is fresh, and
        // as long.
        unsafe { to_contiguous(layout, data.0, at.0) }?;
        return Ok(None);
    }
    let device = device_of(core, layout.device())?;
    let mut pooled = pooled.map_or_else(|| PooledQueue::for_copy(&device), Ok)?;
    if layout.is_contiguous() {
        let (source, target) = ((source, *data), (target, at));
        // SAFETY: the operation reads the source until the fence; the target is fresh, and as long.
        return Ok(Some(unsafe { download(&device, &mut pooled, source, target, layout.byte_len()) }.await?));
    }
    let span = Span::of(layout, *data);
    let (mut unpacked, unpacked_at) = span.allocated(core)?;
    let (source, unpacked) = ((source, span.begin), (&mut unpacked, unpacked_at));
    // SAFETY: the span is inside of the source; as above.
    let fence = unsafe { download(&device, &mut pooled, source, unpacked, span.bytes) }.await?;
    // SAFETY: the span's copy has the first element where the span has it; the target is fresh, and as long.
    unsafe { to_contiguous(layout, unpacked_at.0.wrapping_add(span.before), at.0) }?;
    Ok(Some(fence))
}

/// The bytes that a layout spans, inside of the memory that it is valid for.
struct Span {
    begin: Address,
    bytes: usize,
    /// Bytes before the first element: strides can be negative.
    before: usize,
}

impl Span {
    fn of(layout: &Layout, data: Address) -> Self {
        let range = layout.byte_range(data.0);
        let before = data.0.addr() - range.start;
        Self { begin: Address(data.0.wrapping_sub(before)), bytes: range.end - range.start, before }
    }

    /// Fresh memory of the host for the bytes.
    fn allocated(&self, core: &Core) -> Result<(KeepAlive<Storage>, Address), Error> {
        allocated(core, &Layout::contiguous(DType::U8, DLDevice::CPU, &[self.bytes as i64])?)
    }
}

/// Fresh memory for `layout`.
fn allocated(core: &Core, layout: &Layout) -> Result<(KeepAlive<Storage>, Address), Error> {
    let storage = fresh(core, layout, false)?;
    let at = Address(storage.data());
    Ok((KeepAlive::new(storage), at))
}

pub(crate) fn row_major(layout: &Layout, device: DLDevice) -> Result<Layout, Error> {
    Ok(Layout::contiguous(layout.dtype(), device, layout.shape())?.with_padding(layout.is_padded()))
}

fn device_of(core: &Core, id: DLDevice) -> Result<Arc<dyn Device>, Error> {
    core.device(id).ok_or_else(|| {
        Error::Conflict(format!("cannot copy from or to {id}: this engine does not have the device"))
    })
}

/// True if the host writes fresh memory of `device`: host memory, and memory that devices share with the
/// host.
fn is_of_the_host(core: &Core, device: DLDevice) -> bool {
    device == DLDevice::CPU || core.device(device).is_none()
}
