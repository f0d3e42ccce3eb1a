//! Memory of devices that other processes can have without a copy.

use std::sync::{Arc, Weak};

pub use estafette_sync::platform::descriptor::Descriptor;
use estafette_sync::statics;
use estafette_sync::sync::Mutex;
use estafette_sync::sync::atomic::{AtomicU64, Ordering};

use crate::extents::Span;
use crate::{Allocation, DeviceError};

/// The identity of a device in every process of a machine: its kind as DLPack numbers it, in little endian,
/// and sixteen bytes of its runtime's own. [`table::identified`](crate::table::identified) finds the device.
pub type Identity = [u8; 20];

/// Operations of a device on memory that crosses processes:
/// [`Device::shared_memory`](crate::Device::shared_memory).
pub trait SharedMemory {
    /// The identity by which other processes know the device.
    fn identity(&self) -> Identity;

    /// As [`Device::allocate`](crate::Device::allocate), in a segment that other processes can be shown.
    ///
    /// # Errors
    /// As there.
    fn allocate(&self, bytes: usize, align: usize) -> Result<Allocation, DeviceError>;

    /// The segment of this process that has `bytes` bytes at `address`, and where in it they are; `None` for
    /// other memory.
    fn find(&self, address: *const u8, bytes: usize) -> Option<(Arc<SharedSegment>, usize)>;

    /// Makes a segment of another process usable here, for reading. It may take milliseconds, so it is done
    /// once for each segment.
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
    viewers: Mutex<Vec<Weak<dyn Viewer>>>,
}

/// The side that has shown a segment to another process.
pub trait Viewer: Send + Sync {
    /// This process releases the segment with that number, and others should, too. It must not block.
    fn is_over(&self, number: u64);
}

impl SharedSegment {
    /// A segment of a device with that identity; `descriptor` is how others open it.
    pub fn new(memory: Allocation, identity: Identity, descriptor: Descriptor) -> Self {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        Self { number, memory, identity, descriptor, viewers: Mutex::default() }
    }

    /// A number that no other segment of devices has in this process.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// All of it.
    pub fn memory(&self) -> &Allocation {
        &self.memory
    }

    /// The identity by which other processes know its device.
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// The descriptor by which other processes open it.
    pub fn descriptor(&self) -> &Descriptor {
        &self.descriptor
    }

    /// Tells `viewer` of the end.
    pub fn at_end(&self, viewer: Weak<dyn Viewer>) {
        let mut viewers = self.viewers.lock();
        viewers.retain(|viewer| viewer.strong_count() > 0);
        viewers.push(viewer);
    }
}

impl Span for SharedSegment {
    /// The alignment of every device's allocations.
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
        let viewers = std::mem::take(&mut *self.viewers.lock());
        viewers.iter().filter_map(Weak::upgrade).for_each(|viewer| viewer.is_over(self.number));
    }
}

debug_as!(segment: SharedSegment, "SharedSegment({}, {:?})", segment.number, segment.memory);
