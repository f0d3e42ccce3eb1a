//! Memory apart from its addresses, which other processes can have: blocks, descriptors of them, ranges of
//! addresses.
//!
//! A block is a memfd whose name says the device, so that another process's simulator knows it. Other
//! processes see what this one writes. What a device may do with a mapping is also what the host's processor
//! allows.

use std::collections::BTreeMap;
use std::ffi::{c_int, c_uint, c_void};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr;

use super::put;
use crate::codes::*;
use crate::command::Touch;
use crate::memory::MemoryKind;
use crate::state::{DriverState, Session};

const GRANULARITY: u64 = 2 << 20;
/// `CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR`, `CU_MEM_ALLOCATION_TYPE_PINNED` and
/// `CU_MEM_LOCATION_TYPE_DEVICE` are all 1.
const DESCRIPTOR: c_uint = 1;
const PINNED: c_int = 1;
const ON_DEVICE: c_int = 1;
/// `CU_MEM_ACCESS_FLAGS_PROT_READ` and `CU_MEM_ACCESS_FLAGS_PROT_READWRITE`.
const READ: c_int = 1;
const READ_WRITE: c_int = 3;

/// Memory of a device. It is there for as long as it has a handle, a mapping, or a descriptor in any process.
#[derive(Debug)]
struct PhysicalMemory {
    memory: OwnedFd,
    bytes: u64,
    device: usize,
    is_for_others: bool,
    /// Made here, and so part of what this process uses of the device.
    is_own: bool,
    handles: usize,
    mappings: usize,
}

/// Addresses.
#[derive(Debug)]
struct Range {
    bytes: u64,
    block: Option<u64>,
}

#[derive(Debug, Default)]
pub(crate) struct VirtualMemory {
    blocks: BTreeMap<u64, PhysicalMemory>,
    ranges: BTreeMap<u64, Range>,
}

impl DriverState {
    /// True if the device of a context may do this with memory that is mapped; true of other memory.
    pub(crate) fn mapping_allows(&self, context: usize, touch: &Touch) -> bool {
        let Some(allocation) = self.memory.live(touch.address) else { return true };
        let Some(access) = &allocation.access else { return true };
        let allowed = access.get(&self.contexts[context].device).copied().unwrap_or(0);
        touch.end() <= allocation.base + allocation.bytes
            && allowed >= if touch.write { READ_WRITE } else { READ }
    }

    fn block(&mut self, handle: u64) -> Result<&mut PhysicalMemory, Code> {
        self.virtual_memory.blocks.get_mut(&handle).filter(|block| block.handles > 0).ok_or(INVALID_VALUE)
    }

    /// Releases a block that nothing refers to any more.
    fn free_if_unused(&mut self, handle: u64) {
        let blocks = &mut self.virtual_memory.blocks;
        if blocks.get(&handle).is_some_and(|block| block.handles + block.mappings == 0)
            && let Some(block) = blocks.remove(&handle)
            && block.is_own
        {
            *self.memory.used.entry(block.device).or_default() -= block.bytes;
        }
    }

    /// The range of those addresses, whole.
    fn range(&mut self, start: u64, bytes: u64) -> Result<&mut Range, Code> {
        self.virtual_memory.ranges.get_mut(&start).filter(|range| range.bytes == bytes).ok_or(INVALID_VALUE)
    }
}

/// A program's demands on a block: its device, and whether it can be shown to others.
///
/// # Safety
///
/// `properties` is null or a `CUmemAllocationProp`.
unsafe fn wanted(session: &Session, properties: *const c_int) -> Result<(usize, bool), Code> {
    if properties.is_null() {
        return Err(INVALID_VALUE);
    }
    // SAFETY: it begins with four numbers.
    let [kind, handles, location, device] = unsafe { properties.cast::<[c_int; 4]>().read() };
    if kind != PINNED || location != ON_DEVICE || !matches!(handles, 0 | 1) {
        return Err(INVALID_VALUE);
    }
    Ok((session.device(device)?, handles == 1))
}

/// Puts something at addresses of a range.
///
/// # Safety
///
/// The range is the simulator's, and nothing uses what is there.
unsafe fn place(start: u64, bytes: u64, memory: Option<&OwnedFd>) -> Result<(), Code> {
    let anywhere = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    let (flags, descriptor) = memory.map_or((anywhere, -1), |memory| (libc::MAP_SHARED, memory.as_raw_fd()));
    // SAFETY: by contract.
    let at = unsafe {
        libc::mmap(
            start as *mut c_void,
            bytes as usize,
            libc::PROT_NONE,
            flags | libc::MAP_FIXED,
            descriptor,
            0,
        )
    };
    if at == libc::MAP_FAILED { Err(OUT_OF_MEMORY) } else { Ok(()) }
}

fn name(device: usize) -> String {
    format!("estafette-cuda-sim-device-{device}")
}

fn device_of(descriptor: c_int) -> Option<usize> {
    let target = std::fs::read_link(format!("/proc/self/fd/{descriptor}")).ok()?;
    let target = target.to_str()?.strip_prefix("/memfd:estafette-cuda-sim-device-")?;
    target.split(' ').next()?.parse().ok()
}

driver! {
    fn cuMemGetAllocationGranularity(granularity: *mut usize, properties: *const c_int, option: c_uint) |session| {
        let _ = option;
        wanted(session, properties)?;
        put(granularity, GRANULARITY as usize)
    }

    fn cuMemCreate(handle: *mut u64, bytes: usize, properties: *const c_int, flags: u64) |session| {
        let bytes = bytes as u64;
        let (device, is_for_others) = wanted(session, properties)?;
        if bytes == 0 || !bytes.is_multiple_of(GRANULARITY) || flags != 0 {
            return Err(INVALID_VALUE);
        }
        session.account(device, bytes)?;
        let name = std::ffi::CString::new(name(device)).expect("no zero byte");
        let memory = libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC);
        if memory < 0 || libc::ftruncate(memory, bytes as i64) != 0 {
            return Err(OUT_OF_MEMORY);
        }
        let memory = OwnedFd::from_raw_fd(memory);
        let block = PhysicalMemory { memory, bytes, device, is_for_others, is_own: true, handles: 1, mappings: 0 };
        let number = session.handle();
        session.virtual_memory.blocks.insert(number, block);
        put(handle, number)
    }

    fn cuMemRelease(handle: u64) |session| {
        session.block(handle)?.handles -= 1;
        session.free_if_unused(handle);
        Ok(())
    }

    fn cuMemExportToShareableHandle(out: *mut c_void, handle: u64, kind: c_uint, flags: u64) |session| {
        let block = session.block(handle)?;
        if kind != DESCRIPTOR || flags != 0 || !block.is_for_others {
            return Err(INVALID_VALUE);
        }
        // As the driver's, it stays open in programs that the process becomes.
        let copy = libc::dup(block.memory.as_raw_fd());
        if copy < 0 { Err(OUT_OF_MEMORY) } else { put(out.cast::<c_int>(), copy) }
    }

    fn cuMemImportFromShareableHandle(handle: *mut u64, descriptor: *mut c_void, kind: c_uint) |session| {
        let descriptor = descriptor as usize as c_int;
        if kind != DESCRIPTOR {
            return Err(INVALID_VALUE);
        }
        let device = device_of(descriptor).filter(|device| *device < session.script.devices).ok_or(INVALID_VALUE)?;
        let mut about: libc::stat = std::mem::zeroed();
        let memory = libc::fcntl(descriptor, libc::F_DUPFD_CLOEXEC, 0);
        if memory < 0 || libc::fstat(memory, &raw mut about) != 0 {
            return Err(INVALID_VALUE);
        }
        let (memory, bytes) = (OwnedFd::from_raw_fd(memory), about.st_size as u64);
        let block = PhysicalMemory { memory, bytes, device, is_for_others: true, is_own: false, handles: 1, mappings: 0 };
        let number = session.handle();
        session.virtual_memory.blocks.insert(number, block);
        put(handle, number)
    }

    fn cuMemAddressReserve(start: *mut u64, bytes: usize, alignment: usize, wish: u64, flags: u64) |session| {
        let _ = wish;
        let length = bytes as u64;
        if length == 0 || !length.is_multiple_of(GRANULARITY) || flags != 0 || alignment as u64 > GRANULARITY {
            return Err(INVALID_VALUE);
        }
        let more = bytes + GRANULARITY as usize;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        let base = libc::mmap(ptr::null_mut(), more, libc::PROT_NONE, flags, -1, 0);
        if base == libc::MAP_FAILED {
            return Err(OUT_OF_MEMORY);
        }
        // The rest beyond the aligned part goes back.
        let at = (base as u64).next_multiple_of(GRANULARITY);
        let (before, after) = (at - base as u64, base as u64 + more as u64 - (at + length));
        if before > 0 {
            libc::munmap(base, before as usize);
        }
        if after > 0 {
            libc::munmap((at + length) as *mut c_void, after as usize);
        }
        session.virtual_memory.ranges.insert(at, Range { bytes: length, block: None });
        put(start, at)
    }

    fn cuMemAddressFree(start: u64, bytes: usize) |session| {
        if session.range(start, bytes as u64)?.block.is_some() {
            return Err(INVALID_VALUE);
        }
        session.virtual_memory.ranges.remove(&start);
        session.memory.take_out(start);
        libc::munmap(start as *mut c_void, bytes);
        Ok(())
    }

    fn cuMemMap(start: u64, bytes: usize, offset: usize, handle: u64, flags: u64) |session| {
        let bytes = bytes as u64;
        let free = session.range(start, bytes)?.block.is_none();
        let block = session.block(handle)?;
        if !free || offset != 0 || flags != 0 || bytes > block.bytes || !bytes.is_multiple_of(GRANULARITY) {
            return Err(INVALID_VALUE);
        }
        place(start, bytes, Some(&block.memory))?;
        block.mappings += 1;
        let device = block.device;
        session.range(start, bytes)?.block = Some(handle);
        // The first contexts are the primary ones of the devices.
        session.memory.insert(start, bytes, MemoryKind::Device, device, 0, 0);
        if let Some(allocation) = session.memory.around(start) {
            allocation.access = Some(BTreeMap::new());
        }
        Ok(())
    }

    fn cuMemUnmap(start: u64, bytes: usize) |session| {
        let bytes = bytes as u64;
        let handle = session.range(start, bytes)?.block.ok_or(INVALID_VALUE)?;
        let all = Touch::write(start, bytes);
        if session.commands.values().any(|command| command.touches.iter().any(|touch| touch.conflicts(&all))) {
            session.violation(format!("memory at {start:#x} is unmapped while a command uses it"));
        }
        place(start, bytes, None)?;
        session.range(start, bytes)?.block = None;
        session.memory.retire(start);
        if let Some(block) = session.virtual_memory.blocks.get_mut(&handle) {
            block.mappings -= 1;
        }
        session.free_if_unused(handle);
        Ok(())
    }

    fn cuMemSetAccess(start: u64, bytes: usize, access: *const [c_int; 3], count: usize) |session| {
        let handle = session.range(start, bytes as u64)?.block.ok_or(INVALID_VALUE)?;
        let own = session.virtual_memory.blocks[&handle].device;
        for at in 0..count {
            let [kind, device, allowed] = access.add(at).read();
            let device = session.device(device)?;
            if kind != ON_DEVICE || (device != own && !session.script.peer_access) {
                return Err(INVALID_DEVICE);
            }
            if allowed == READ && session.script.no_read_only {
                return Err(NOT_SUPPORTED);
            }
            if let Some(access) = session.memory.around(start).and_then(|found| found.access.as_mut()) {
                access.insert(device, allowed);
            }
        }
        let found = session.memory.around(start).and_then(|found| found.access.as_ref());
        let protection = match found.and_then(|access| access.values().max()) {
            None | Some(0) => libc::PROT_NONE,
            Some(&READ) => libc::PROT_READ,
            Some(_) => libc::PROT_READ | libc::PROT_WRITE,
        };
        if libc::mprotect(start as *mut c_void, bytes, protection) != 0 {
            return Err(OUT_OF_MEMORY);
        }
        Ok(())
    }
}
