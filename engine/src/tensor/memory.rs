//! Memory for tensors: fresh memory of a device, and whether the host can use memory.

use estafette_devices::DLDevice;

use crate::core::engine_core::Core;
use crate::core::error::Error;
use crate::exchange::{Layout, Storage};

/// Whether the host may load and store in memory of `device` at `data`.
pub(crate) fn host_can_use(core: &Core, device: DLDevice, data: *const u8) -> bool {
    device.device_type.is_host_readable()
        || core.device(device).is_some_and(|device| device.host_accessible_at(data))
}

/// Alignment of fresh memory: what vectorizing libraries ask for, and a cache line.
pub(crate) const ALIGN: usize = 64;

/// Memory for `layout` that views may show before any write: zero where the host can use the memory, since safe
/// views must not show uninitialized bytes.
pub(crate) fn unwritten(core: &Core, layout: &Layout) -> Result<Storage, Error> {
    let id = layout.device();
    let zeroed =
        id.device_type.is_host_readable() || core.device(id).is_some_and(|device| device.host_accessible());
    let storage = fresh(core, layout, zeroed)?;
    // Views query the address, and the device may know more of the address than of its memory in general.
    if !zeroed && host_can_use(core, id, storage.data()) {
        // SAFETY: the memory is ours alone, at least this long, and the host may write it.
        unsafe { storage.data().write_bytes(0, layout.byte_len()) };
    }
    Ok(storage)
}

/// Memory for `layout` on its device. Unless the memory is `zeroed`, the caller overwrites it before any view
/// shows it.
pub(crate) fn fresh(core: &Core, layout: &Layout, zeroed: bool) -> Result<Storage, Error> {
    let id = layout.device();
    let owner = id.queue_device();
    let device = core.device(owner).ok_or_else(|| {
        let shared = if owner == id { String::new() } else { format!(", and memory of {id} with it") };
        Error::invalid(format!("device {owner} is not available in this engine{shared}"))
    })?;
    let bytes = layout.byte_len().max(1);
    let allocation = if owner != id {
        let allocation = device.allocate_kind(id.device_type, bytes, ALIGN)?;
        if zeroed {
            // SAFETY: the allocation is this function's alone and this long; a runtime shares it with the host, which may
            // write it until the device is given work with it.
            unsafe { allocation.ptr().as_ptr().write_bytes(0, bytes) };
        }
        allocation
    } else if !zeroed {
        match device.shared_memory().filter(|_| core.is_shared) {
            Some(shared) => shared.allocate(bytes, ALIGN)?,
            None => device.allocate(bytes, ALIGN)?,
        }
    } else if device.host_accessible() {
        device.allocate_zeroed(bytes, ALIGN)?
    } else {
        return Err(Error::invalid(format!(
            "zeros on {id}: the host cannot write there; use empty and an operation"
        )));
    };
    if allocation.len() < bytes {
        return Err(Error::invalid(format!(
            "device {id} was asked for {bytes} bytes and gave {}",
            allocation.len()
        )));
    }
    Ok(Storage::device(allocation))
}
