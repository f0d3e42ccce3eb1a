//! Memory of devices that other processes can have without a copy.

use std::fmt;
use std::sync::Arc;

use estafette_sync::statics;
use estafette_sync::sync::atomic::{AtomicU64, Ordering};

use crate::extents::Span;
use crate::host::{self, Completer};
use crate::{Allocation, DeviceError, Fence};

/// Something of the kernel's that crosses to other processes. It is closed on drop.
#[cfg(unix)]
pub type Descriptor = std::os::fd::OwnedFd;

/// Has no value.
#[cfg(not(unix))]
#[derive(Debug)]
pub enum Descriptor {}

/// What a device is called in every process of a machine: its kind as DLPack numbers it, in little endian, and sixteen bytes of its
/// runtime's own. [`table::identified`](crate::table::identified) finds the device.
pub type Identity = [u8; 20];

/// What a device does with memory that crosses processes: [`Device::shared_memory`](crate::Device::shared_memory).
pub trait SharedMemory {
    /// What other processes know the device by.
    fn identity(&self) -> Identity;

    /// As [`Device::allocate`](crate::Device::allocate), in a segment that other processes can be shown.
    ///
    /// # Errors
    /// As there.
    fn allocate(&self, bytes: usize, align: usize) -> Result<Allocation, DeviceError>;

    /// The segment of this process that has `bytes` bytes at `address`, and where in it they are; `None` for other memory.
    fn find(&self, address: *const u8, bytes: usize) -> Option<(Arc<SharedSegment>, usize)>;

    /// Makes a segment of another process usable here, for reading. It may take milliseconds, so it is done once for each segment.
    ///
    /// # Errors
    /// `Invalid` for a descriptor of something else, and for a segment that is shorter.
    fn open(&self, descriptor: &Descriptor, bytes: usize) -> Result<Allocation, DeviceError>;
}

statics! {
    static NEXT: AtomicU64 = AtomicU64::new(0);
}

/// Memory of a device that its process writes and others read. It lives for as long as any process has it.
pub struct SharedSegment {
    /// Of this process.
    number: u64,
    memory: Allocation,
    identity: Identity,
    descriptor: Descriptor,
    ended: Fence,
    end: Option<Completer>,
}

impl SharedSegment {
    /// A segment of a device with that identity; `descriptor` is how others open it.
    pub fn new(memory: Allocation, identity: Identity, descriptor: Descriptor) -> Self {
        let (end, ended) = host::promise("the end of a segment");
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        Self { number, memory, identity, descriptor, ended, end: Some(end) }
    }

    /// A number that no other segment of devices has in this process.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// All of it.
    pub fn memory(&self) -> &Allocation {
        &self.memory
    }

    /// What other processes know its device by.
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// How other processes open it.
    pub fn descriptor(&self) -> &Descriptor {
        &self.descriptor
    }

    /// Done when this process has let go of it, so that others should, too.
    pub fn ended(&self) -> &Fence {
        &self.ended
    }
}

impl Span for SharedSegment {
    /// What allocations of every device are aligned to.
    const GRAIN: usize = 256;

    fn start(&self) -> usize {
        self.memory.ptr().as_ptr().addr()
    }

    fn bytes(&self) -> usize {
        self.memory.len()
    }
}

impl Drop for SharedSegment {
    fn drop(&mut self) {
        if let Some(end) = self.end.take() {
            end.complete();
        }
    }
}

impl fmt::Debug for SharedSegment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SharedSegment({}, {:?})", self.number, self.memory)
    }
}
