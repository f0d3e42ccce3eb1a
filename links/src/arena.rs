//! Memory of this process that peers can be shown, in segments that several blocks share.
//!
//! A segment costs a system call, a mapping in each process and a fault for each page, so there are few: each is twice as large as the one
//! before. Of those that are empty the largest stays, and the others go back to the system.

use std::collections::BTreeMap;
use std::sync::Arc;

use estafette_devices::host::HostMemory;
use estafette_devices::{Allocation, DLDevice, DeviceError, DeviceErrorKind};
use estafette_sync::per_process;
use estafette_sync::sync::Mutex;

use crate::Segment;

/// The first segment.
const SEGMENT_MIN: usize = 16 << 20;
/// Blocks begin and end at a multiple of this: a cache line, so that no two processes share one.
const GRAIN: usize = 64;

per_process! {
    static EXTENTS: Mutex<Vec<Extent>> = Mutex::new(Vec::new());
}

/// The shared memory of the process.
#[derive(Clone, Copy, Debug, Default)]
pub struct Arena;

/// A segment and what is free in it: lengths by offsets, no two of them adjacent.
#[derive(Debug)]
struct Extent {
    segment: Arc<Segment>,
    free: BTreeMap<usize, usize>,
}

impl Extent {
    fn start(&self) -> usize {
        self.segment.start().as_ptr().addr()
    }

    /// The offset of a block that was free. Pages are aligned as far as `align` goes; what is beyond is not for host memory.
    fn take(&mut self, bytes: usize, align: usize) -> Option<usize> {
        let fits = |(offset, length): (&usize, &usize)| {
            let begin = (self.segment.start().as_ptr().addr() + offset).next_multiple_of(align);
            let begin = begin - self.segment.start().as_ptr().addr();
            (begin + bytes <= offset + length).then_some((*offset, *length, begin))
        };
        let (offset, length, begin) = self.free.iter().find_map(fits)?;
        self.free.remove(&offset);
        if begin > offset {
            self.free.insert(offset, begin - offset);
        }
        let (end, free_end) = (begin + bytes, offset + length);
        if free_end > end {
            self.free.insert(end, free_end - end);
        }
        Some(begin)
    }

    fn give_back(&mut self, mut offset: usize, mut bytes: usize) {
        if let Some((before, length)) =
            self.free.range(..offset).next_back().map(|(before, length)| (*before, *length))
            && before + length == offset
        {
            self.free.remove(&before);
            (offset, bytes) = (before, length + bytes);
        }
        bytes += self.free.remove(&(offset + bytes)).unwrap_or(0);
        self.free.insert(offset, bytes);
    }

    fn is_empty(&self) -> bool {
        self.free.get(&0) == Some(&self.segment.bytes())
    }
}

impl Arena {
    /// The segment that has `bytes` bytes at `address`, and where in it they are; `None` for other memory.
    pub fn find(self, address: *const u8, bytes: usize) -> Option<(Arc<Segment>, usize)> {
        let extents = EXTENTS.lock();
        extents.iter().find_map(|extent| {
            let offset = address.addr().checked_sub(extent.start())?;
            let end = offset.checked_add(bytes)?;
            (end <= extent.segment.bytes()).then(|| (Arc::clone(&extent.segment), offset))
        })
    }
}

impl HostMemory for Arena {
    fn allocate(&self, bytes: usize, align: usize) -> Result<Allocation, DeviceError> {
        let full =
            |error| DeviceError::new(DeviceErrorKind::OutOfMemory, format!("{bytes} shared bytes: {error}"));
        let size = bytes.max(1).checked_next_multiple_of(GRAIN).ok_or_else(|| full("too many".to_owned()))?;
        let align = align.max(GRAIN);
        let mut extents = EXTENTS.lock();
        let found = extents
            .iter_mut()
            .find_map(|extent| Some((extent.take(size, align)?, Arc::clone(&extent.segment))));
        let (offset, segment) = match found {
            Some(found) => found,
            None => {
                let largest = extents.iter().map(|extent| extent.segment.bytes() * 2).max();
                let least = size.saturating_add(align);
                let segment = Segment::new(largest.unwrap_or(SEGMENT_MIN).max(least))
                    .or_else(|_| Segment::new(least))
                    .map_err(|error| full(error.to_string()))?;
                let segment = Arc::new(segment);
                let free = BTreeMap::from([(0, segment.bytes())]);
                let mut extent = Extent { segment: Arc::clone(&segment), free };
                let offset = extent.take(size, align).expect("a new segment is large enough");
                extents.push(extent);
                (offset, segment)
            }
        };
        drop(extents);
        // SAFETY: inside of the segment.
        let start = unsafe { segment.start().add(offset) };
        let release = move |_, _| {
            let mut extents = EXTENTS.lock();
            let known = extents.iter().position(|extent| Arc::ptr_eq(&extent.segment, &segment));
            // A segment stays while it has blocks. In a forked child those of its parent are not known.
            let Some(at) = known else { return };
            extents[at].give_back(offset, size);
            let empty = |other: &usize| *other != at && extents[*other].is_empty();
            let other = if extents[at].is_empty() { (0..extents.len()).find(empty) } else { None };
            let smaller =
                other.map(|other| [at, other].into_iter().min_by_key(|at| extents[*at].segment.bytes()));
            let emptied = smaller.flatten().map(|smaller| extents.swap_remove(smaller));
            drop(extents);
            drop(emptied);
        };
        // SAFETY: the block is this allocation's alone until it is released; the segment stays mapped, as the release has a share in it.
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
            assert!(block.ptr().as_ptr().addr().is_multiple_of(align.max(GRAIN)));
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
        let large = Arena.allocate(SEGMENT_MIN * 3, 64).expect("memory");
        drop((blocks, large));
        let extents = EXTENTS.lock();
        assert!(extents.len() == 1 && extents[0].is_empty(), "{extents:?}");
    }
}
