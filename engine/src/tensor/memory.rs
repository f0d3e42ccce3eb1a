//! Memory for tensors: fresh memory of a device, and whether the host can use memory.

#[cfg(feature = "links")]
use std::sync::Arc;

use estafette_devices::{DLDevice, DeviceErrorKind, table};
#[cfg(feature = "links")]
use estafette_devices::{Device, host::HostDevice};
#[cfg(feature = "links")]
use estafette_links::{Arena, Segment};
use estafette_sync::essential::is_essential_thread;
use estafette_sync::time::{Duration, Instant};

use crate::core::context;
use crate::core::engine_core::Core;
use crate::core::error::Error;
use crate::core::program_lock::without_program_lock;
pub(crate) use crate::exchange::abi::table::ALIGN;
use crate::exchange::{Layout, Storage, reaper};

/// True if the host may load and store in memory of `device` at `data`.
pub(crate) fn host_can_use(core: &Core, device: DLDevice, data: *const u8) -> bool {
    device.device_type.is_host_readable()
        || core.device(device).is_some_and(|device| device.host_accessible_at(data))
}

/// The memory that a tensor is made in. A [`DLDevice`] stands for `On` that device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Memory {
    /// Memory of a device.
    On(DLDevice),
    /// Memory of the host or of a device that other processes can be shown, whatever the engine's other
    /// memory is.
    #[cfg(feature = "links")]
    Shared(DLDevice),
    /// Host memory that another process can also be lent for writing:
    /// [`Link::lend`](crate::remote::Link::lend). Each such tensor has a segment of its own.
    #[cfg(feature = "links")]
    SharedForWriting,
}

impl From<DLDevice> for Memory {
    fn from(device: DLDevice) -> Self {
        Self::On(device)
    }
}

impl Memory {
    pub(crate) fn device(self) -> DLDevice {
        match self {
            Self::On(device) => device,
            #[cfg(feature = "links")]
            Self::Shared(device) => device,
            #[cfg(feature = "links")]
            Self::SharedForWriting => DLDevice::CPU,
        }
    }

    /// Memory for `layout`, which is on [the device](Self::device).
    pub(crate) fn allocate(self, core: &Core, layout: &Layout) -> Result<Storage, Error> {
        match self {
            Self::On(_) => unwritten(core, layout),
            #[cfg(feature = "links")]
            Self::Shared(DLDevice::CPU) => Ok(Storage::device(
                HostDevice::with_memory(Arc::new(Arena)).allocate_zeroed(layout.byte_len().max(1), ALIGN)?,
            )),
            #[cfg(feature = "links")]
            Self::Shared(device) => {
                let there = core.device(device);
                let shared = there.as_ref().and_then(|there| there.shared_memory()).ok_or_else(|| {
                    Error::NotShared(format!("memory of {device} cannot be shown to other processes").into())
                })?;
                let bytes = layout.byte_len().max(1);
                retried(core, || Ok(Storage::device(shared.allocate(bytes, ALIGN)?)))
            }
            #[cfg(feature = "links")]
            Self::SharedForWriting => {
                Ok(Storage::segment(Arc::new(Segment::new_writable(layout.byte_len().max(1))?)))
            }
        }
    }
}

/// Memory for `layout` that views may show before any write: zero where the host can use the memory, since
/// safe views must not show uninitialized bytes.
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

/// The time that an allocation for which there is no room waits for memory that comes back.
const RETURNING: Duration = Duration::from_secs(5);

/// The time between the first two tries. It doubles up to [`PAUSE_MAX`].
const PAUSE: Duration = Duration::from_millis(5);
const PAUSE_MAX: Duration = Duration::from_millis(80);

/// Allocates again where there was no room, while memory comes back that waits for its last device work. The
/// thread of an event loop does not wait for that, nor does a thread that polls fences, which memory that
/// comes back waits for.
pub(crate) fn retried<T>(core: &Core, allocate: impl Fn() -> Result<T, Error>) -> Result<T, Error> {
    let is_full = |done: &Result<T, Error>| match done {
        Err(Error::Device(error)) => error.kind() == DeviceErrorKind::OutOfMemory,
        _ => false,
    };
    let mut done = allocate();
    let others_wait = || context::is_notification() || is_essential_thread();
    if !is_full(&done) || reaper().stats().pending == 0 || others_wait() || !core.may_sleep() {
        return done;
    }
    // Ctrl-C ends a wait of the program, and not an operation that such a wait runs.
    let is_interruptible = context::current().is_none();
    without_program_lock(|| {
        let _cover = core.cover();
        let deadline = Instant::now() + RETURNING;
        let (mut waits, mut pause) = (true, PAUSE);
        while waits && is_full(&done) {
            let next = Instant::now() + pause;
            let is_all_back = context::blocking(|| reaper().flush(pause));
            // A deleter cannot wait for the reaper, which returns at once.
            waits = !is_all_back && (next..deadline).contains(&Instant::now());
            if is_interruptible {
                core.check_interrupt(&|_| None)?;
            }
            done = allocate();
            pause = (2 * pause).min(PAUSE_MAX);
        }
        done
    })
}

/// Memory for `layout` on its device. Unless the memory is `zeroed`, the caller overwrites it before any view
/// shows it. May wait for memory that comes back.
pub(crate) fn fresh(core: &Core, layout: &Layout, zeroed: bool) -> Result<Storage, Error> {
    retried(core, || allocated(core, layout, zeroed))
}

fn allocated(core: &Core, layout: &Layout, zeroed: bool) -> Result<Storage, Error> {
    let id = layout.device();
    let owner = table::owner(id);
    let device = core.device(owner).ok_or_else(|| {
        let shared = if owner == id { String::new() } else { format!(", and memory of {id} with it") };
        Error::invalid(format!("device {owner} is not available in this engine{shared}"))
    })?;
    let bytes = layout.byte_len().max(1);
    let allocation = if owner != id {
        let allocation = device.allocate_kind(id.device_type, bytes, ALIGN)?;
        if zeroed {
            // SAFETY: the allocation is this function's alone and this long; a runtime shares it with the
            // host, which may write it until the device is given work with it.
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
