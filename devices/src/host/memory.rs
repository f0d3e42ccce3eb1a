//! Memory of the host.
//!
//! A large block comes from the system, where that is possible, and goes back to it: its pages are zero and
//! cost nothing until they are touched, and what was freed is not kept resident. Smaller blocks come from the
//! program's allocator.

use std::alloc::{Layout, alloc, alloc_zeroed, dealloc};
use std::num::NonZeroUsize;
use std::ptr::NonNull;

use estafette_sync::platform::memory;

use crate::{Allocation, DLDevice, DeviceError, DeviceErrorKind};

/// Host memory is aligned at least like this: a cache line, and what DLPack asks of new allocations on the
/// host.
const ALIGN_MIN: usize = 64;

/// Blocks from here on come from the system. A new mapping costs a system call and a fault for each page, so
/// smaller blocks are cheaper to clear than to map; NumPy asks for huge pages from this size on as well.
const MAPPED_MIN: usize = 4 << 20;

/// Mappings begin at a page. Pages are larger on some machines, never smaller.
const PAGE_MIN: usize = 4096;

/// Host memory that claims to be memory of `device`; every byte is zero if it is to be `zeroed`.
pub(crate) fn allocate(
    bytes: usize,
    align: usize,
    device: DLDevice,
    zeroed: bool,
) -> Result<Allocation, DeviceError> {
    let layout = align
        .is_power_of_two()
        .then(|| Layout::from_size_align(bytes, align.max(ALIGN_MIN)).ok())
        .flatten()
        .ok_or_else(|| DeviceError::invalid(format!("cannot allocate {bytes} bytes aligned to {align}")))?;
    if bytes == 0 {
        let align = NonZeroUsize::new(layout.align()).expect("alignments are powers of two");
        return Ok(Allocation::empty(align, device));
    }
    let full =
        || DeviceError::new(DeviceErrorKind::OutOfMemory, format!("out of host memory for {bytes} bytes"));
    if memory::MAPS && bytes >= MAPPED_MIN && layout.align() <= PAGE_MIN {
        let ptr = memory::map(bytes).ok_or_else(full)?;
        // SAFETY: mapped right here with this length, released once.
        return Ok(unsafe {
            Allocation::from_raw(ptr, bytes, device, |ptr, bytes| memory::unmap(ptr, bytes))
        });
    }
    // SAFETY: the layout is not empty.
    let ptr = unsafe { if zeroed { alloc_zeroed(layout) } else { alloc(layout) } };
    let ptr = NonNull::new(ptr).ok_or_else(full)?;
    // SAFETY: allocated right here with this very layout, released once.
    Ok(unsafe { Allocation::from_raw(ptr, bytes, device, move |ptr, _| dealloc(ptr.as_ptr(), layout)) })
}
