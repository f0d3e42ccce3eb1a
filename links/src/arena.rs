//! Memory of this process that peers can be shown, in segments that several blocks share.

use std::sync::Arc;

use estafette_devices::host::HostMemory;
use estafette_devices::{Allocation, DLDevice, DeviceError, DeviceErrorKind, Extents, Span};
use estafette_sync::per_process;

use crate::Segment;

per_process! {
    static EXTENTS: Extents<Segment> = Extents::new();
}

/// The shared memory of the process.
#[derive(Clone, Copy, Debug, Default)]
pub struct Arena;

impl Span for Segment {
    /// A cache line, so that no two processes share one.
    const GRAIN: usize = 64;

    fn start(&self) -> usize {
        self.start().as_ptr().addr()
    }

    fn bytes(&self) -> usize {
        self.bytes()
    }
}

impl Arena {
    /// The segment that has `bytes` bytes at `address`, and where in it they are; `None` for other memory.
    pub fn find(self, address: *const u8, bytes: usize) -> Option<(Arc<Segment>, usize)> {
        EXTENTS.find(address.addr(), bytes)
    }
}

impl HostMemory for Arena {
    fn allocate(&self, bytes: usize, align: usize) -> Result<Allocation, DeviceError> {
        let full =
            |error| DeviceError::new(DeviceErrorKind::OutOfMemory, format!("{bytes} shared bytes: {error}"));
        let (segment, offset) = EXTENTS.take(bytes, align, Segment::new).map_err(full)?;
        // SAFETY: inside of the segment.
        let start = unsafe { segment.start().add(offset) };
        let release = move |_, _| EXTENTS.release(&segment, offset, bytes);
        // SAFETY: the block is this allocation's alone until it is released; the segment stays mapped, as the
        // release has a share in it.
        Ok(unsafe { Allocation::from_raw(start, bytes, DLDevice::CPU, release) })
    }
}

#[cfg(all(test, not(any(estafette_portable, estafette_loom, estafette_shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn blocks_do_not_overlap_and_what_is_freed_is_used_again() {
        let mut blocks = Vec::new();
        let mut seed = 7_usize;
        for round in 0..3_000 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let (bytes, align) = (1 + (seed >> 33) % 200_000, 1 << ((seed >> 20) % 13));
            let block = Arena.allocate(bytes, align).expect("memory");
            assert!(block.ptr().as_ptr().addr().is_multiple_of(align.max(Segment::GRAIN)));
            // SAFETY: the block is this long.
            unsafe { block.ptr().write_bytes(round as u8, bytes) };
            blocks.push((block, round as u8));
            if blocks.len() > 100 {
                let (block, value) = blocks.swap_remove((seed >> 40) % blocks.len());
                // SAFETY: as above; written by this test alone.
                let bytes = unsafe { std::slice::from_raw_parts(block.ptr().as_ptr(), block.len()) };
                assert!(bytes.iter().all(|byte| *byte == value), "round {round}");
                assert!(Arena.find(block.ptr().as_ptr(), block.len()).is_some());
            }
        }
        assert!(Arena.find((&raw const seed).cast(), 8).is_none());
        let large = Arena.allocate(48 << 20, 64).expect("memory");
        drop((blocks, large));
        assert!(EXTENTS.is_one_empty(), "{:?}", *EXTENTS);
    }
}
