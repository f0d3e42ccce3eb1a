//! Memory of the host.
//!
//! A large block comes from the system and goes back to it: its pages are zero and cost nothing until they
//! are touched, and what was freed is not kept resident. Smaller blocks come from the program's allocator.

use std::alloc::{Layout, alloc, alloc_zeroed, dealloc};
use std::num::NonZeroUsize;
use std::ptr::NonNull;

use crate::{Allocation, DLDevice, DeviceError, DeviceErrorKind};

/// Host memory is aligned at least like this: a cache line, and what DLPack asks of new allocations on the
/// host.
const ALIGN_MIN: usize = 64;

/// Blocks from here on come from the system. A new mapping costs a system call and a fault for each page, so
/// smaller blocks are cheaper to clear than to map; NumPy asks for huge pages from this size on as well.
const MAPPED_MIN: usize = 4 << 20;

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
        .ok_or_else(|| {
            let message = format!("cannot allocate {bytes} bytes aligned to {align}");
            DeviceError::new(DeviceErrorKind::Invalid, message)
        })?;
    if bytes == 0 {
        let align = NonZeroUsize::new(layout.align()).expect("alignments are powers of two");
        return Ok(Allocation::empty(align, device));
    }
    let full =
        || DeviceError::new(DeviceErrorKind::OutOfMemory, format!("out of host memory for {bytes} bytes"));
    if let Some(mapped) = mapped::allocate(layout) {
        let ptr = mapped.ok_or_else(full)?;
        // SAFETY: mapped right here with this length, given back once.
        return Ok(unsafe {
            Allocation::from_raw(ptr, bytes, device, |ptr, bytes| mapped::free(ptr, bytes))
        });
    }
    // SAFETY: the layout is not empty.
    let ptr = unsafe { if zeroed { alloc_zeroed(layout) } else { alloc(layout) } };
    let ptr = NonNull::new(ptr).ok_or_else(full)?;
    // SAFETY: allocated right here with this very layout, given back once.
    Ok(unsafe { Allocation::from_raw(ptr, bytes, device, move |ptr, _| dealloc(ptr.as_ptr(), layout)) })
}

#[cfg(target_os = "linux")]
mod mapped {
    use std::alloc::Layout;
    use std::ptr::{NonNull, null_mut};

    use super::MAPPED_MIN;

    /// Mappings begin at a page. Pages are larger on some machines, never smaller.
    const PAGE_MIN: usize = 4096;

    /// Pages from the system, all zero; `None` if `layout` is not for this, and in it `None` if there is no
    /// room.
    pub(super) fn allocate(layout: Layout) -> Option<Option<NonNull<u8>>> {
        if layout.size() < MAPPED_MIN || layout.align() > PAGE_MIN {
            return None;
        }
        let (protection, flags) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping, wherever the system likes, takes nothing from anybody.
        let address = unsafe { libc::mmap(null_mut(), layout.size(), protection, flags, -1, 0) };
        if address == libc::MAP_FAILED {
            return Some(None);
        }
        // SAFETY: the mapping was just made with this length. Refused advice changes nothing.
        unsafe { libc::madvise(address, layout.size(), libc::MADV_HUGEPAGE) };
        Some(NonNull::new(address.cast()))
    }

    /// Gives a mapping back.
    ///
    /// # Safety
    /// `ptr` is a mapping of `bytes` bytes that [`allocate`] made, which is not used any more.
    pub(super) unsafe fn free(ptr: NonNull<u8>, bytes: usize) {
        // SAFETY: as this function's own contract says.
        let freed = unsafe { libc::munmap(ptr.as_ptr().cast(), bytes) };
        debug_assert_eq!(freed, 0, "a whole mapping can be unmapped");
    }
}

#[cfg(not(target_os = "linux"))]
mod mapped {
    use std::alloc::Layout;
    use std::ptr::NonNull;

    /// No block comes from the system directly.
    pub(super) fn allocate(_layout: Layout) -> Option<Option<NonNull<u8>>> {
        None
    }

    /// # Safety
    /// Never called.
    pub(super) unsafe fn free(_ptr: NonNull<u8>, _bytes: usize) {
        unreachable!("nothing was mapped");
    }
}
