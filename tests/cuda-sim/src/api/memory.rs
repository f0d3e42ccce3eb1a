//! Memory: of devices, pinned, managed, from pools, and what a pointer is.

use std::ffi::{c_int, c_uint, c_void};

use super::put;
use crate::codes::*;
use crate::command::{StreamRequest, Touch, Work};
use crate::kind::Kind;
use crate::memory::{MemoryKind, Pool};
use crate::state::Session;

/// `CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED`.
const MEMORY_POOLS_SUPPORTED: c_int = 115;
/// `CU_MEMPOOL_ATTR_RELEASE_THRESHOLD`.
const RELEASE_THRESHOLD: u32 = 4;

impl Session {
    fn allocate_async(&mut self, bytes: usize, pool: Option<u64>, stream: u64) -> Result<u64, Code> {
        let stream = self.sound_stream(stream)?;
        if self.streams[stream].capture.is_some() {
            // A real driver makes an allocation node; the simulator has none.
            return Err(NOT_SUPPORTED);
        }
        let context = self.streams[stream].context;
        let pool = match pool {
            Some(pool) => self.pool(pool).map(|_| pool)?,
            None => self.default_pool(self.contexts[context].device as c_int)?,
        };
        let base = self.allocate(context, bytes as u64, MemoryKind::Device, 0, pool)?;
        // It is there from this point of the stream on: to others that is as if it were written.
        let touches = vec![Touch::write(base, bytes as u64)];
        self.enqueue_for_memory(stream, Work::Nothing, touches)?;
        Ok(base)
    }

    /// Takes its place in the order of a stream. Where nothing comes before it, the driver has it done when
    /// the call returns.
    fn enqueue_for_memory(&mut self, stream: usize, work: Work, touches: Vec<Touch>) -> Result<(), Code> {
        let command = self.enqueue(stream, StreamRequest::new(Kind::Memory, work, touches))?;
        if let Some(command) = command.filter(|command| self.ready(stream) == Some(*command))
            && self.begin(command).is_some()
        {
            self.finish(command);
        }
        Ok(())
    }

    /// Releases memory at once, after all that the context still has to do, as the driver does.
    fn release_now(&mut self, address: u64, places: &[MemoryKind]) -> Result<(), Code> {
        let allocation = self.memory.live(address).ok_or(INVALID_VALUE)?;
        if allocation.base != address || !places.contains(&allocation.place) || allocation.access.is_some() {
            return Err(INVALID_VALUE);
        }
        let context = allocation.context;
        self.sound(context)?;
        self.wait_for_context(context)?;
        self.release_capacity(address);
        self.memory.release(address);
        Ok(())
    }

    fn pool(&mut self, pool: u64) -> Result<&mut Pool, Code> {
        self.pools.get_mut(&pool).ok_or(INVALID_VALUE)
    }

    fn default_pool(&mut self, device: c_int) -> Result<u64, Code> {
        let device = self.device(device)?;
        // A handle that no other object has: these are counted from further up.
        let handle = 0x5d00_0000_0000 + device as u64 * 0x40;
        self.pools.entry(handle).or_insert_with(|| Pool { device, ..Pool::default() });
        Ok(handle)
    }
}

driver! {
    fn cuMemAlloc_v2(address: *mut u64, bytes: usize) |session| {
        let context = session.current()?;
        session.refuse_during_capture()?;
        session.wait_for_setup()?;
        let base = session.allocate(context, bytes as u64, MemoryKind::Device, 0, 0)?;
        put(address, base)
    }

    fn cuMemFree_v2(address: u64) |session| {
        session.current()?;
        if address == 0 {
            return Ok(());
        }
        session.refuse_during_capture()?;
        session.release_now(address, &[MemoryKind::Device, MemoryKind::Managed])
    }

    fn cuMemAllocManaged(address: *mut u64, bytes: usize, flags: c_uint) |session| {
        let context = session.current()?;
        session.refuse_during_capture()?;
        let base = session.allocate(context, bytes as u64, MemoryKind::Managed, flags, 0)?;
        put(address, base)
    }

    fn cuMemHostAlloc(address: *mut *mut c_void, bytes: usize, flags: c_uint) |session| {
        let context = session.current()?;
        session.refuse_during_capture()?;
        session.wait_for_setup()?;
        let base = session.allocate(context, bytes as u64, MemoryKind::Pinned, flags, 0)?;
        put(address, base as *mut c_void)
    }

    fn cuMemAllocHost_v2(address: *mut *mut c_void, bytes: usize) |session| {
        let context = session.current()?;
        session.refuse_during_capture()?;
        session.wait_for_setup()?;
        let base = session.allocate(context, bytes as u64, MemoryKind::Pinned, 0, 0)?;
        put(address, base as *mut c_void)
    }

    fn cuMemFreeHost(address: *mut c_void) |session| {
        session.current()?;
        session.refuse_during_capture()?;
        session.release_now(address as u64, &[MemoryKind::Pinned])
    }

    fn cuMemHostGetDevicePointer_v2(device: *mut u64, address: *mut c_void, flags: c_uint) |session| {
        let _ = flags;
        let place = session.memory.live(address as u64).ok_or(INVALID_VALUE)?.place;
        if !matches!(place, MemoryKind::Pinned | MemoryKind::Registered) {
            return Err(INVALID_VALUE);
        }
        put(device, address as u64)
    }

    fn cuMemHostGetFlags(flags: *mut c_uint, address: *mut c_void) |session| {
        put(flags, session.memory.live(address as u64).ok_or(INVALID_VALUE)?.flags)
    }

    fn cuMemHostRegister_v2(address: *mut c_void, bytes: usize, flags: c_uint) |session| {
        let context = session.current()?;
        session.wait_for_setup()?;
        if session.memory.live(address as u64).is_some() {
            return Err(HOST_MEMORY_ALREADY_REGISTERED);
        }
        session.memory.insert(address as u64, bytes as u64, MemoryKind::Registered, context, flags, 0);
        Ok(())
    }

    fn cuMemHostUnregister(address: *mut c_void) |session| {
        session.current()?;
        let place = session.memory.live(address as u64).ok_or(HOST_MEMORY_NOT_REGISTERED)?.place;
        if place != MemoryKind::Registered {
            return Err(HOST_MEMORY_NOT_REGISTERED);
        }
        session.memory.release(address as u64);
        Ok(())
    }

    fn cuMemAllocAsync(address: *mut u64, bytes: usize, stream: u64) |session| {
        let base = session.allocate_async(bytes, None, stream)?;
        put(address, base)
    }

    fn cuMemAllocFromPoolAsync(address: *mut u64, bytes: usize, pool: u64, stream: u64) |session| {
        let base = session.allocate_async(bytes, Some(pool), stream)?;
        put(address, base)
    }

    fn cuMemFreeAsync(address: u64, stream: u64) |session| {
        let stream = session.sound_stream(stream)?;
        let allocation = session.memory.live(address).ok_or(INVALID_VALUE)?;
        let is_managed = matches!(allocation.place, MemoryKind::Device | MemoryKind::Managed);
        if allocation.base != address || !is_managed || allocation.access.is_some() {
            return Err(INVALID_VALUE);
        }
        let (bytes, pool) = (allocation.bytes, allocation.pool);
        let touches = vec![Touch::write(address, bytes)];
        session.release_capacity(address);
        if let Some(pool) = session.pools.get_mut(&pool) {
            pool.leaving += bytes;
        }
        session.enqueue_for_memory(stream, Work::Free { base: address }, touches)
    }

    fn cuDeviceGetDefaultMemPool(pool: *mut u64, device: c_int) |session| {
        let handle = session.default_pool(device)?;
        put(pool, handle)
    }

    fn cuDeviceGetMemPool(pool: *mut u64, device: c_int) |session| {
        let handle = session.default_pool(device)?;
        put(pool, handle)
    }

    fn cuDeviceSetMemPool(device: c_int, pool: u64) |session| {
        session.device(device)?;
        session.pool(pool)?;
        Ok(())
    }

    fn cuMemPoolCreate(pool: *mut u64, properties: *const c_void) |session| {
        // The location follows two enumerations: its kind, then the device's number.
        if properties.is_null() {
            return Err(INVALID_VALUE);
        }
        let device = session.device(properties.cast::<c_int>().add(3).read())?;
        if session.attribute(device, MEMORY_POOLS_SUPPORTED) == 0 {
            return Err(NOT_SUPPORTED);
        }
        let handle = session.handle();
        session.pools.insert(handle, Pool { device, ..Pool::default() });
        put(pool, handle)
    }

    fn cuMemPoolDestroy(pool: u64) |session| {
        session.pools.remove(&pool).map(|_| ()).ok_or(INVALID_VALUE)
    }

    fn cuMemPoolSetAttribute(pool: u64, attribute: c_uint, value: *mut c_void) |session| {
        let pool = session.pool(pool)?;
        if value.is_null() {
            return Err(INVALID_VALUE);
        }
        if attribute == RELEASE_THRESHOLD {
            pool.threshold = value.cast::<u64>().read_unaligned();
        }
        Ok(())
    }

    fn cuMemPoolGetAttribute(pool: u64, attribute: c_uint, value: *mut c_void) |session| {
        let pool = session.pool(pool)?;
        // Bytes are counts of 64 bits, the first three attributes are flags.
        match attribute {
            1..=3 => put(value.cast::<c_int>(), 1),
            RELEASE_THRESHOLD => put(value.cast::<u64>(), pool.threshold),
            5 | 6 => put(value.cast::<u64>(), pool.reserved),
            7 | 8 => put(value.cast::<u64>(), pool.used),
            _ => put(value.cast::<u64>(), 0),
        }
    }

    fn cuMemPoolSetAccess(pool: u64, access: *const [c_int; 3], count: usize) |session| {
        let own = session.pool(pool)?.device;
        for at in 0..count {
            // Each is the kind of a location, the device's number, and what is allowed.
            let [_, device, allowed] = access.add(at).read();
            let device = session.device(device)?;
            if device != own && !session.script.peer_access {
                return Err(INVALID_DEVICE);
            }
            let reached_by = &mut session.pool(pool)?.reached_by;
            reached_by.retain(|other| *other != device);
            if allowed != 0 {
                reached_by.push(device);
            }
        }
        Ok(())
    }

    fn cuMemPoolTrimTo(pool: u64, kept: usize) |session| {
        session.pool(pool)?.trim_to(kept as u64);
        Ok(())
    }

    fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) |session| {
        let context = session.current()?;
        let used = session.memory.used.get(&session.contexts[context].device).copied().unwrap_or(0);
        put(free, (session.script.capacity.saturating_sub(used)) as usize)?;
        put(total, session.script.capacity as usize)
    }

    fn cuMemGetAddressRange_v2(base: *mut u64, bytes: *mut usize, address: u64) |session| {
        let allocation = session.memory.live(address).ok_or(NOT_FOUND)?;
        super::put_if_wanted(base, allocation.base);
        super::put_if_wanted(bytes, allocation.bytes as usize);
        Ok(())
    }

    fn cuPointerGetAttribute(out: *mut c_void, attribute: c_uint, address: u64) |session| {
        pointer_attribute(session, out, attribute, address)
    }

    fn cuPointerGetAttributes(count: c_uint, which: *mut c_uint, out: *mut *mut c_void, address: u64) |session| {
        for index in 0..count as usize {
            // An unknown address is no error here: its attributes are zero.
            let (attribute, place) = (*which.add(index), *out.add(index));
            if pointer_attribute(session, place, attribute, address).is_err() {
                match attribute {
                    1 | 3 | 4 | 7 | 11 | 12 | 17 => put(place.cast::<u64>(), 0)?,
                    9 => put(place.cast::<c_int>(), -2)?,
                    _ => put(place.cast::<c_uint>(), 0)?,
                }
            }
        }
        Ok(())
    }

    fn cuMemPrefetchAsync(address: u64, bytes: usize, device: c_int, stream: u64) |session| {
        let _ = device;
        let stream = session.sound_stream(stream)?;
        session.check_known(address, bytes as u64)?;
        session.enqueue(stream, StreamRequest::new(Kind::Memory, Work::Nothing, Vec::new()))?;
        Ok(())
    }

    fn cuStreamAttachMemAsync(stream: u64, address: u64, bytes: usize, flags: c_uint) |session| {
        let _ = flags;
        let stream = session.sound_stream(stream)?;
        session.check_known(address, bytes as u64)?;
        session.enqueue(stream, StreamRequest::new(Kind::Memory, Work::Nothing, Vec::new()))?;
        Ok(())
    }
}

/// One fact about the memory at an address.
///
/// # Safety
///
/// `out` is null or has room for what the attribute is.
unsafe fn pointer_attribute(
    session: &Session,
    out: *mut c_void,
    attribute: u32,
    address: u64,
) -> Result<(), Code> {
    let allocation = session.memory.live(address).ok_or(INVALID_VALUE)?;
    let context = &session.contexts[allocation.context];
    let on_host = matches!(allocation.place, MemoryKind::Pinned | MemoryKind::Registered);
    // SAFETY: promised by the caller.
    unsafe {
        match attribute {
            1 => put(out.cast::<u64>(), context.handle),
            2 => put(out.cast::<c_uint>(), if on_host { 1 } else { 2 }),
            3 => put(out.cast::<u64>(), address),
            4 if allocation.place == MemoryKind::Device => Err(INVALID_VALUE),
            4 => put(out.cast::<u64>(), address),
            6 => put(out.cast::<c_uint>(), 0),
            7 => put(out.cast::<u64>(), allocation.number),
            8 => put(out.cast::<c_uint>(), c_uint::from(allocation.place == MemoryKind::Managed)),
            9 => put(out.cast::<c_int>(), context.device as c_int),
            11 => put(out.cast::<u64>(), allocation.base),
            12 => put(out.cast::<usize>(), allocation.bytes as usize),
            13 => put(out.cast::<c_uint>(), 1),
            // Rights of the current context's device: nothing, or read and write.
            16 => {
                let may = session.device_may_touch(session.current()?, &Touch::read(address, 1));
                put(out.cast::<c_uint>(), if may { 3 } else { 0 })
            }
            17 => put(out.cast::<u64>(), allocation.pool),
            _ => Err(NOT_SUPPORTED),
        }
    }
}
