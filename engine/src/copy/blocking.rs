//! Copies that the calling thread waits for: what is exported as a copy, and results of operations that may
//! not keep their memory.

use std::sync::Arc;

use estafette_devices::{DLDevice, Device};

use super::queue_pool::PooledQueue;
use super::transfer::{Address, KeepAlive, ReleaseAfter, enqueue, wait};
use super::{Span, allocated, device_of, row_major};
use crate::core::engine_core::Core;
use crate::core::error::Error;
use crate::exchange::pack::to_contiguous;
use crate::exchange::{Layout, Storage};
use crate::tensor::memory::host_can_use;

/// A row-major copy, in fresh memory of the device `to`, of what `layout` describes at `data`; `source` keeps
/// that memory. It may be read once its fences are done, for which the thread waits, and until the copy is
/// made. Memory without gaps is copied on its own device; else, to another device than the host, it goes by
/// way of the host, which every context can be copied from and to.
///
/// # Errors
/// The work before has failed, the engine lacks one of the devices, or a device fails or has no memory. What
/// may still be in use then is kept.
pub(crate) fn copied(
    core: &Core,
    mut source: KeepAlive<impl ReleaseAfter>,
    (layout, data): (&Layout, *const u8),
    to: DLDevice,
) -> Result<(Layout, Storage), Error> {
    source.settle(core)?;
    let data = Address(data.cast_mut());
    if to != DLDevice::CPU && to == layout.device() && layout.is_contiguous() {
        return to_device(core, (&mut source, data), row_major(layout, to)?);
    }
    let (host, storage) = to_host(core, (&mut source, data), layout)?;
    if to == DLDevice::CPU {
        return Ok((host, storage));
    }
    let data = Address(storage.data());
    to_device(core, (&mut KeepAlive::new(storage), data), row_major(layout, to)?)
}

fn to_device(
    core: &Core,
    source: (&mut KeepAlive<impl ReleaseAfter>, Address),
    layout: Layout,
) -> Result<(Layout, Storage), Error> {
    let device = device_of(core, layout.device())?;
    let (mut target, at) = allocated(core, &layout)?;
    // SAFETY: the source is row-major, of the type and shape of `layout`, and may be read; the target is
    // fresh.
    unsafe { copy(core, &device, source, (&mut target, at), layout.byte_len()) }?;
    Ok((layout, target.take()))
}

/// The device copies what the layout spans, of memory that the host cannot read; the host packs it where it
/// has gaps.
fn to_host(
    core: &Core,
    (source, data): (&mut KeepAlive<impl ReleaseAfter>, Address),
    layout: &Layout,
) -> Result<(Layout, Storage), Error> {
    let packed = row_major(layout, DLDevice::CPU)?;
    let (mut target, at) = allocated(core, &packed)?;
    if host_can_use(core, layout.device(), data.0) {
        // SAFETY: a valid layout describes the source, which may be read; the target is fresh, and as long.
        unsafe { to_contiguous(layout, data.0, at.0) }?;
    } else if layout.is_contiguous() {
        let device = device_of(core, layout.device())?;
        // SAFETY: the source may be read; the target is fresh, and as long.
        unsafe { copy(core, &device, (source, data), (&mut target, at), packed.byte_len()) }?;
    } else {
        let device = device_of(core, layout.device())?;
        let span = Span::of(layout, data);
        let (mut unpacked, unpacked_at) = span.allocated(core)?;
        // SAFETY: the span is inside of the source, which may be read; its copy is fresh, and as long.
        unsafe { copy(core, &device, (source, span.begin), (&mut unpacked, unpacked_at), span.bytes) }?;
        // SAFETY: the span's copy has the first element where the span has it; the target is fresh, and as
        // long.
        unsafe { to_contiguous(layout, unpacked_at.0.wrapping_add(span.before), at.0) }?;
    }
    Ok((packed, target.take()))
}

/// Copies, and waits for the device.
///
/// # Safety
/// As for [`enqueue`].
unsafe fn copy(
    core: &Core,
    device: &Arc<dyn Device>,
    source: (&mut KeepAlive<impl ReleaseAfter>, Address),
    target: (&mut KeepAlive<Storage>, Address),
    bytes: usize,
) -> Result<(), Error> {
    if bytes == 0 {
        return Ok(());
    }
    let mut pooled = PooledQueue::for_copy(device)?;
    // SAFETY: by contract.
    let fence = unsafe { enqueue(device, &mut pooled, source, target, bytes) }?;
    wait(core, &fence)?;
    Ok(())
}
