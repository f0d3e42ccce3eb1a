//! Memory of the simulated devices: memory of the host, with what the driver knows about it.

use std::alloc::Layout;
use std::collections::{BTreeMap, VecDeque};

use crate::codes::{Code, INVALID_VALUE, OUT_OF_MEMORY};
use crate::command::Touch;
use crate::detector::Access;
use crate::state::DriverState;

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum MemoryKind {
    Device,
    Managed,
    Pinned,
    /// The caller's own memory, pinned where it lies.
    Registered,
}

#[derive(Debug)]
pub(crate) struct Allocation {
    pub(crate) base: u64,
    pub(crate) bytes: u64,
    pub(crate) place: MemoryKind,
    pub(crate) context: usize,
    pub(crate) number: u64,
    pub(crate) flags: u32,
    /// The handle of the pool that it came from, or 0.
    pub(crate) pool: u64,
    pub(crate) live: bool,
    /// Of memory that is mapped: what each device may do, as `cuMemSetAccess` says.
    pub(crate) access: Option<BTreeMap<usize, i32>>,
    pub(crate) accesses: Vec<Access>,
}

#[derive(Debug, Default)]
pub(crate) struct Pool {
    pub(crate) device: usize,
    /// Other devices whose kernels may use its memory.
    pub(crate) reached_by: Vec<usize>,
    /// Bytes that allocations use, and that the pool has of the device.
    pub(crate) used: u64,
    pub(crate) reserved: u64,
    /// Bytes that it keeps when a thread synchronizes.
    pub(crate) threshold: u64,
    /// Bytes of allocations that a stream frees when it gets there. The pool can use them, and cannot give
    /// them away.
    pub(crate) leaving: u64,
}

impl Pool {
    pub(crate) fn trim_to(&mut self, kept: u64) {
        self.reserved = (self.used + self.leaving).max(self.reserved.min(kept));
    }
}

/// `CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS`.
const CONCURRENT_MANAGED_ACCESS: i32 = 89;

/// Released memory is kept for a while, so that a use after it is found instead of doing harm.
const QUARANTINE: u64 = 64 << 20;

#[derive(Debug, Default)]
pub(crate) struct MemoryMap {
    by_base: BTreeMap<u64, Allocation>,
    quarantine: VecDeque<(u64, u64)>,
    kept: u64,
    made: u64,
    /// Accesses of memory that the driver does not know.
    pub(crate) elsewhere: Vec<Access>,
    /// Bytes in use, by device.
    pub(crate) used: BTreeMap<usize, u64>,
}

const ALIGNMENT: usize = 512;

fn layout(bytes: u64) -> Layout {
    Layout::from_size_align(bytes.max(1) as usize, ALIGNMENT).expect("a size that the capacity allows")
}

impl MemoryMap {
    /// The allocation around an address, also one that was released lately.
    pub(crate) fn around(&mut self, address: u64) -> Option<&mut Allocation> {
        let (_, found) = self.by_base.range_mut(..=address).next_back()?;
        (address < found.base + found.bytes.max(1)).then_some(found)
    }

    pub(crate) fn live(&self, address: u64) -> Option<&Allocation> {
        let (_, found) = self.by_base.range(..=address).next_back()?;
        (found.live && address < found.base + found.bytes.max(1)).then_some(found)
    }

    pub(crate) fn insert(
        &mut self,
        base: u64,
        bytes: u64,
        place: MemoryKind,
        context: usize,
        flags: u32,
        pool: u64,
    ) {
        self.made += 1;
        let number = self.made;
        let (live, access, accesses) = (true, None, Vec::new());
        let allocation =
            Allocation { base, bytes, place, context, number, flags, pool, live, access, accesses };
        self.by_base.insert(base, allocation);
    }

    /// No use may follow; those that came before may still be under way.
    pub(crate) fn retire(&mut self, base: u64) {
        if let Some(allocation) = self.by_base.get_mut(&base) {
            allocation.live = false;
        }
    }

    /// The addresses are free for other uses.
    pub(crate) fn take_out(&mut self, base: u64) {
        self.by_base.remove(&base);
    }

    /// The context of all this was reset. Its memory is kept: the host may still look at words in it.
    pub(crate) fn forget(&mut self, context: usize) {
        for allocation in self.by_base.values_mut().filter(|allocation| allocation.context == context) {
            allocation.live = false;
        }
        self.used.remove(&context);
    }

    /// Nothing uses it any more.
    pub(crate) fn release(&mut self, base: u64) {
        let Some(allocation) = self.by_base.get_mut(&base) else { return };
        allocation.live = false;
        if allocation.place == MemoryKind::Registered {
            self.by_base.remove(&base);
            return;
        }
        let bytes = allocation.bytes;
        self.quarantine.push_back((base, bytes));
        self.kept += bytes;
        while self.kept > QUARANTINE && self.quarantine.len() > 1 {
            let Some((oldest, bytes)) = self.quarantine.pop_front() else { break };
            self.kept -= bytes;
            self.by_base.remove(&oldest);
            // SAFETY: made by `DriverState::allocate` with this layout, and nothing refers to it any more.
            unsafe { std::alloc::dealloc(oldest as *mut u8, layout(bytes)) };
        }
    }
}

impl DriverState {
    /// Makes memory, if the script and the device's capacity have some.
    pub(crate) fn allocate(
        &mut self,
        context: usize,
        bytes: u64,
        place: MemoryKind,
        flags: u32,
        pool: u64,
    ) -> Result<u64, Code> {
        if bytes == 0 {
            return Err(INVALID_VALUE);
        }
        self.may_allocate()?;
        let device = self.contexts[context].device;
        if place != MemoryKind::Pinned {
            let kept = self.kept_beside(device, pool);
            let used = self.memory.used.entry(device).or_default();
            if bytes > self.script.capacity.saturating_sub(*used + kept) {
                return Err(OUT_OF_MEMORY);
            }
            *used += bytes;
            if let Some(pool) = self.pools.get_mut(&pool) {
                pool.used += bytes;
                pool.reserved = pool.reserved.max(pool.used);
            }
        }
        // Not zeroed: with an alignment of its own the allocator would write every byte of it.
        // SAFETY: the size is not zero.
        let base = unsafe { std::alloc::alloc(layout(bytes)) };
        if base.is_null() {
            return Err(OUT_OF_MEMORY);
        }
        // A read of unwritten memory shall be noticed.
        // SAFETY: these bytes were just allocated.
        unsafe { base.write_bytes(0xcd, bytes.min(1 << 20) as usize) };
        self.memory.insert(base as u64, bytes, place, context, flags, pool);
        Ok(base as u64)
    }

    /// Fails the allocation that the script wants to fail.
    fn may_allocate(&mut self) -> Result<(), Code> {
        if let Some(left) = &mut self.script.failing_allocation {
            *left -= 1;
            if *left == 0 {
                self.script.failing_allocation = None;
                return Err(OUT_OF_MEMORY);
            }
        }
        Ok(())
    }

    /// Notes memory of a device that is made apart from its addresses, if there is so much.
    pub(crate) fn account(&mut self, device: usize, bytes: u64) -> Result<(), Code> {
        self.may_allocate()?;
        let kept = self.kept_beside(device, 0);
        let used = self.memory.used.entry(device).or_default();
        if bytes > self.script.capacity.saturating_sub(*used + kept) {
            return Err(OUT_OF_MEMORY);
        }
        *used += bytes;
        Ok(())
    }

    /// Bytes that pools of a device keep, but for the one with this handle.
    fn kept_beside(&self, device: usize, pool: u64) -> u64 {
        let others = self.pools.iter().filter(|(handle, other)| **handle != pool && other.device == device);
        others.map(|(_, other)| other.reserved - other.used).sum()
    }

    /// Makes the bytes of a released allocation available to others.
    pub(crate) fn release_capacity(&mut self, base: u64) {
        if let Some(allocation) = self.memory.live(base)
            && !matches!(allocation.place, MemoryKind::Pinned | MemoryKind::Registered)
        {
            let device = self.contexts[allocation.context].device;
            let (bytes, pool) = (allocation.bytes, allocation.pool);
            *self.memory.used.entry(device).or_default() -= bytes;
            if let Some(pool) = self.pools.get_mut(&pool) {
                pool.used -= bytes;
            }
        }
    }

    /// Memory that pools keep beyond their thresholds is released when a thread synchronizes, and not before
    /// (CUDA Programming Guide, "Stream-Ordered Memory Allocator").
    pub(crate) fn trim_pools(&mut self) {
        for pool in self.pools.values_mut() {
            pool.trim_to(pool.threshold);
        }
    }

    /// A thread of the host uses memory. Where host and device cannot use managed memory at the same time, it
    /// must not while the device has anything to do (CUDA Programming Guide, "GPU Exclusive Access To Managed
    /// Memory").
    pub(crate) fn host_uses(&mut self, address: u64) {
        let Some(allocation) = self.memory.live(address) else { return };
        let (context, place) = (allocation.context, allocation.place);
        let concurrent = self.attribute(self.contexts[context].device, CONCURRENT_MANAGED_ACCESS) != 0;
        let is_idle = !self.commands.values().any(|command| self.streams[command.stream].context == context);
        if place == MemoryKind::Managed && !concurrent && !is_idle {
            self.violation(format!("the host uses managed memory at {address:#x} while the device works"));
        }
    }

    /// True if kernels of a context may use that memory.
    pub(crate) fn device_may_touch(&self, context: usize, touch: &Touch) -> bool {
        if touch.bytes == 0 {
            return true;
        }
        // Released memory that is still kept was reported when the command came; here it does no harm.
        let memory = &self.memory.by_base;
        let Some((_, allocation)) = memory.range(..=touch.address).next_back() else { return false };
        if allocation.access.is_some() {
            return self.mapping_allows(context, touch);
        }
        let (own, its) = (self.contexts[context].device, self.contexts[allocation.context].device);
        let shared = match self.pools.get(&allocation.pool) {
            Some(pool) => pool.reached_by.contains(&own),
            None => self.contexts[context].peers.contains(&its),
        };
        let reachable =
            allocation.place != MemoryKind::Device || own == its || (shared && self.script.peer_access);
        touch.end() <= allocation.base + allocation.bytes && reachable
    }

    /// Refuses a range that begins in memory of the driver and ends outside of it.
    pub(crate) fn check_range(&mut self, address: u64, bytes: u64) -> Result<(), Code> {
        match self.memory.around(address) {
            Some(allocation) if address + bytes > allocation.base + allocation.bytes => Err(INVALID_VALUE),
            _ if address == 0 && bytes > 0 => Err(INVALID_VALUE),
            _ => Ok(()),
        }
    }

    /// The same, of memory that must be the driver's.
    pub(crate) fn check_known(&mut self, address: u64, bytes: u64) -> Result<(), Code> {
        self.check_range(address, bytes)?;
        if bytes > 0 && self.memory.around(address).is_none() { Err(INVALID_VALUE) } else { Ok(()) }
    }
}
