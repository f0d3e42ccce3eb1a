//! Memory: an own pool on the device where the driver has pools, pinned and managed memory, and pointer
//! lookup.
//!
//! Freeing with `cuMemFree` waits for the whole device, and other calls into the driver wait for that one. So
//! - *device memory* comes from a pool, in the order of a stream that carries nothing else. That stream
//!   shares a hardware connection with others, so it may lag behind them for any time. Then all queues wait
//!   on the device for what it has handed out ([`PENDING`]); the host does not, unless another library
//!   captures a graph on one of them. Without pools device memory is `cuMemAlloc`, and freeing waits: a lost
//!   feature of old drivers.
//! - *pinned and managed memory* is kept when it is released, and handed out again ([`BlockCache`]).

use std::collections::HashMap;
use std::ffi::c_void;
use std::num::NonZeroUsize;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use cudarc::driver::sys::{
    CUdeviceptr, CUmemAccess_flags, CUmemAccessDesc, CUmemAllocationHandleType, CUmemAllocationType,
    CUmemLocation, CUmemLocationType, CUmemPool_attribute, CUmemPoolProps, CUmemoryPool, CUpointer_attribute,
    CUstream,
};
use estafette_sync::sync::{Mutex, OnceLock};
use estafette_sync::thread;
use estafette_sync::time::{Duration, Instant};

use crate::{Allocation, DLDevice, DeviceError, DeviceErrorKind, DeviceType};

use super::context::{Context, Relaxed};
use super::device::CudaDevice;
use super::driver::{
    Code, CudaRuntime, DRIVER, Handle, NOT_READY, OUT_OF_MEMORY, PEER_ACCESS_ALREADY_ENABLED,
};
use super::events::PooledEvent;

/// The alignment of every allocation of the driver (CUDA Programming Guide, "Device Memory Accesses").
pub(super) const ALIGN: usize = 256;
/// Bytes that each pool keeps for later: the device's pool, the pinned and the managed blocks. Other
/// libraries of the process cannot use them.
const KEEPS: usize = 256 << 20;
/// Larger pinned or managed allocations are freed when they are released.
const KEPT_MAX: usize = 64 << 20;
/// The time that an allocation waits for the stream of the pool: where there is no room, and where a queue
/// cannot wait.
const LAGGING: Duration = Duration::from_secs(1);
/// The smallest size in which pinned and managed memory is kept.
const KEPT_MIN: usize = 4_096;
/// `CU_MEMHOSTALLOC_PORTABLE`: pinned for every context.
const PORTABLE: u32 = 1;
/// `CU_MEM_ATTACH_GLOBAL`: managed memory that every stream may use.
const ATTACH_GLOBAL: u32 = 1;

/// Pinned host memory, as DLPack says it: without a number.
const PINNED: DLDevice = DLDevice::new(DeviceType::CUDA_HOST, 0);
/// Managed memory, as DLPack says it: without a number.
const MANAGED: DLDevice = DLDevice::new(DeviceType::CUDA_MANAGED, 0);

/// The place of memory, as the driver reports for a pointer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PointerInfo {
    /// The memory's device in DLPack: `cuda:n`, `cuda_host:0` or `cuda_managed:0`.
    pub device: DLDevice,
    /// The device that the memory was allocated on or for.
    pub ordinal: i32,
}

pub(super) struct Pool {
    raw: Handle<CUmemoryPool>,
    /// The stream carries allocations and nothing else.
    stream: Handle<CUstream>,
    /// Serializes allocations, so that an event covers all memory that was handed out before it.
    allocation_lock: Mutex<()>,
}

impl Pool {
    /// The pool, if the driver and the device have such.
    pub(super) fn new(context: &Context) -> Option<Self> {
        let api = context.api;
        let (create, set) = (api.pool_create?, api.pool_attribute?);
        let _both = (api.pool_allocate?, api.pool_free?);
        let _current = context.make_current_relaxed().ok()?;
        let properties = CUmemPoolProps {
            allocType: CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
            handleTypes: CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_NONE,
            location: at(context.id.device_id),
            win32SecurityAttributes: ptr::null_mut(),
            reserved: [0; 64],
        };
        let (mut raw, mut stream): (CUmemoryPool, CUstream) = (ptr::null_mut(), ptr::null_mut());
        let mut keeps = KEEPS as u64;
        // SAFETY: the properties and the results are valid; a threshold is a number of 64 bits. A pool that
        // was made stays.
        unsafe {
            if create(&raw mut raw, &raw const properties) != 0 {
                return None;
            }
            let threshold = CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
            // Without it memory goes back to the system more often; nothing else depends on it.
            let _ = set(raw, threshold, (&raw mut keeps).cast());
            if (api.stream_create)(&raw mut stream, 1) != 0 {
                return None;
            }
        }
        Some(Self { raw: Handle::new(raw), stream: Handle::new(stream), allocation_lock: Mutex::new(()) })
    }

    fn allocate(&self, context: &Arc<Context>, bytes: usize) -> Result<CUdeviceptr, DeviceError> {
        let api = context.api;
        let allocate = api.pool_allocate.expect("a pool is made where there is this function");
        let mut memory: CUdeviceptr = 0;
        let _current = context.make_current_relaxed()?;
        let mut allocation_lock = self.allocation_lock.lock();
        // SAFETY: writes one address; pool and stream are live.
        let mut ask = || unsafe { allocate(&raw mut memory, bytes, self.raw.get(), self.stream.get()) };
        let mut code = ask();
        if code == OUT_OF_MEMORY {
            // Other threads allocate while this one waits.
            drop(allocation_lock);
            let has_trimmed = self.trim(context);
            allocation_lock = self.allocation_lock.lock();
            if has_trimmed {
                code = ask();
            }
        }
        context.check(code, &cannot_allocate(bytes, context.id))?;
        // SAFETY: a live stream.
        let ordered = match unsafe { (api.stream_query)(self.stream.get()) } {
            NOT_READY => self.order_queues(context),
            code => context.check(code, "the stream of the pool failed").map(|()| None),
        };
        drop(allocation_lock);
        match ordered {
            Ok(event) => event.iter().for_each(|event| await_on_host(event)),
            Err(error) => {
                // SAFETY: nothing uses what was allocated just now.
                let _ = unsafe { self.free(context, memory) };
                return Err(error);
            }
        }
        Ok(memory)
    }

    /// Makes all queues wait for the allocations so far. Where a queue cannot wait, returns their event, for
    /// the host to wait for.
    fn order_queues(&self, context: &Arc<Context>) -> Result<Option<Arc<PooledEvent>>, DeviceError> {
        // SAFETY: a live stream of the context.
        let event = unsafe { PooledEvent::record(context, self.stream.get()) }?;
        // First, so that a stream that is made meanwhile finds it.
        PENDING.lock().push(Arc::clone(&event));
        let Ok(runtime) = CudaRuntime::get() else { return Ok(None) };
        let streams = runtime.opened().flat_map(|device| device.context().live_streams());
        let mut all_wait = true;
        for stream in streams {
            // A stream that has failed uses no memory any more.
            all_wait &= stream
                .await_memory(&event)
                .or_else(|error| stream.intact().map_or(Ok(true), |()| Err(error)))?;
        }
        Ok((!all_wait).then_some(event))
    }

    /// # Safety
    /// `memory` came from here, and nothing uses it any more.
    unsafe fn free(&self, context: &Context, memory: CUdeviceptr) -> Code {
        match context.api.pool_free {
            // SAFETY: by contract.
            Some(free) => unsafe { free(memory, self.stream.get()) },
            None => 0,
        }
    }

    /// Returns the pool's kept memory to the device, as an allocation may need it. Memory freed on the pool's
    /// stream stays in the pool until the stream gets there, so this waits for the stream, for a short time.
    /// The context is current.
    fn trim(&self, context: &Context) -> bool {
        let Some(trim) = context.api.pool_trim else { return false };
        // SAFETY: a live stream.
        sleep_while(|| unsafe { (context.api.stream_query)(self.stream.get()) } == NOT_READY);
        // SAFETY: a live pool.
        unsafe { trim(self.raw.get(), 0) == 0 }
    }

    /// Lets another device reach the memory of this pool.
    pub(super) fn share_with(&self, context: &Context, device: i32) {
        let Some(share) = context.api.pool_access else { return };
        let access = CUmemAccessDesc {
            location: at(device),
            flags: CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
        };
        if let Ok(_current) = context.make_current_relaxed() {
            // SAFETY: one description. Where it does not work, copies go through the host.
            let _ = unsafe { share(self.raw.get(), &raw const access, 1) };
        }
    }
}

/// Waits on the host, for a short time, for memory that a queue cannot wait for.
pub(super) fn await_on_host(event: &PooledEvent) {
    sleep_while(|| matches!(event.query(), Ok(false)));
}

fn sleep_while(is_pending: impl Fn() -> bool) {
    let deadline = Instant::now() + LAGGING;
    while is_pending() && Instant::now() < deadline {
        thread::sleep(LAGGING / 10_000);
    }
}

pub(super) fn at(device: i32) -> CUmemLocation {
    CUmemLocation { type_: CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, id: device }
}

estafette_sync::statics! {
    /// Events behind allocations that the device may not have got to, of all devices.
    static PENDING: Mutex<Vec<Arc<PooledEvent>>> = Mutex::new(Vec::new());
}

/// Events that new streams, foreign streams and graphs wait for before they use memory of a pool.
pub(super) fn pending() -> Vec<Arc<PooledEvent>> {
    let events = PENDING.lock().clone();
    // Memory of a broken device is of no use, so nothing waits for it.
    let (waiting, over): (Vec<_>, Vec<_>) =
        events.into_iter().partition(|event| matches!(event.query(), Ok(false)));
    if !over.is_empty() {
        PENDING.lock().retain(|event| !over.iter().any(|other| Arc::ptr_eq(event, other)));
    }
    waiting
}

/// Pinned and managed memory of one kind that was released and is used again: freeing it waits for the whole
/// device. By powers of two.
#[derive(Default)]
pub(super) struct BlockCache(Mutex<Blocks>);

#[derive(Default)]
struct Blocks {
    by_size: HashMap<usize, Vec<FreeBlock>>,
    bytes: usize,
}

struct FreeBlock(NonNull<u8>);

// SAFETY: nothing refers to memory that is kept.
unsafe impl Send for FreeBlock {}

impl BlockCache {
    /// The size class in which an allocation of so many bytes is kept; `None` if it is not kept.
    fn size(bytes: usize) -> Option<usize> {
        (bytes <= KEPT_MAX).then(|| bytes.next_power_of_two().max(KEPT_MIN))
    }

    fn take(&self, size: usize) -> Option<NonNull<u8>> {
        let mut blocks = self.0.lock();
        let block = blocks.by_size.get_mut(&size)?.pop()?;
        blocks.bytes -= size;
        Some(block.0)
    }

    /// True if the cache had room for the block.
    fn put(&self, size: usize, memory: NonNull<u8>) -> bool {
        let mut blocks = self.0.lock();
        let fits = blocks.bytes + size <= KEEPS;
        if fits {
            blocks.bytes += size;
            blocks.by_size.entry(size).or_default().push(FreeBlock(memory));
        }
        fits
    }
}

fn cannot_allocate(bytes: usize, device: DLDevice) -> String {
    format!("cannot allocate {bytes} bytes of {device} memory")
}

#[derive(Clone, Copy)]
pub(super) enum AllocationKind {
    Device,
    Pinned,
    Managed,
}

/// Memory of a kind. `Invalid` for an alignment that the driver does not give.
pub(super) fn allocate(
    context: &Arc<Context>,
    pool: Option<&Arc<Pool>>,
    kind: AllocationKind,
    bytes: usize,
    align: usize,
) -> Result<Allocation, DeviceError> {
    context.intact()?;
    let device = match kind {
        AllocationKind::Device => context.id,
        AllocationKind::Pinned => PINNED,
        AllocationKind::Managed => MANAGED,
    };
    if !align.is_power_of_two() || align > ALIGN {
        let message = format!(
            "cannot allocate {bytes} bytes aligned to {align}: a power of two up to {ALIGN} is possible"
        );
        return Err(DeviceError::invalid(message));
    }
    if bytes == 0 {
        let align = NonZeroUsize::new(align).expect("a power of two is not 0");
        return Ok(Allocation::empty(align, device));
    }
    let from_pool = pool.filter(|_| matches!(kind, AllocationKind::Device)).cloned();
    let memory = match &from_pool {
        Some(pool) => address(pool.allocate(context, bytes)?, device)?,
        None => with_room(context, pool, || take(context, kind, bytes, device))?,
    };
    let context = Arc::clone(context);
    let free = move |memory: NonNull<u8>, bytes: usize| {
        // SAFETY: allocated below, freed once; nothing uses an allocation when its owner drops it.
        unsafe { release(&context, from_pool.as_deref(), kind, memory, bytes) }
    };
    // SAFETY: fresh memory without another owner.
    Ok(unsafe { Allocation::from_raw(memory, bytes, device, free) })
}

/// Allocates once more without what `pool` keeps, where there was no room.
pub(super) fn with_room<T>(
    context: &Context,
    pool: Option<&Arc<Pool>>,
    allocate: impl Fn() -> Result<T, DeviceError>,
) -> Result<T, DeviceError> {
    let trims = |pool: &Arc<Pool>| context.make_current_relaxed().is_ok_and(|_current| pool.trim(context));
    match allocate() {
        Err(error) if error.kind() == DeviceErrorKind::OutOfMemory && pool.is_some_and(trims) => allocate(),
        done => done,
    }
}

pub(super) fn address(memory: CUdeviceptr, device: DLDevice) -> Result<NonNull<u8>, DeviceError> {
    NonNull::new(ptr::with_exposed_provenance_mut(memory as usize)).ok_or_else(|| {
        DeviceError::new(DeviceErrorKind::Other, format!("the driver gave address 0 for {device} memory"))
    })
}

/// Memory outside of pools.
fn take(
    context: &Context,
    kind: AllocationKind,
    bytes: usize,
    device: DLDevice,
) -> Result<NonNull<u8>, DeviceError> {
    let api = context.api;
    let kept = context.kept(kind).zip(BlockCache::size(bytes));
    if let Some(memory) = kept.and_then(|(kept, size)| kept.take(size)) {
        return Ok(memory);
    }
    let size = kept.map_or(bytes, |(_, size)| size);
    let mut host: *mut c_void = ptr::null_mut();
    let mut memory: CUdeviceptr = 0;
    let _current = context.make_current_relaxed()?;
    // SAFETY: each writes one address.
    let code = unsafe {
        match kind {
            AllocationKind::Device => (api.memory_allocate)(&raw mut memory, size),
            AllocationKind::Managed => (api.managed_allocate)(&raw mut memory, size, ATTACH_GLOBAL),
            AllocationKind::Pinned => (api.host_allocate)(&raw mut host, size, PORTABLE),
        }
    };
    context.check(code, &cannot_allocate(bytes, device))?;
    NonNull::new(host.cast()).map_or_else(|| address(memory, device), Ok)
}

/// # Safety
/// The memory is [`take`]n with the same arguments, and nothing uses it any more.
unsafe fn release(
    context: &Context,
    pool: Option<&Pool>,
    kind: AllocationKind,
    memory: NonNull<u8>,
    bytes: usize,
) {
    // In a forked child the memory is the parent's; a process that exits leaves its memory to the system.
    if DRIVER.is_driver_gone() {
        return;
    }
    let freed = context.intact().and_then(|()| {
        if let Some((kept, size)) = context.kept(kind).zip(BlockCache::size(bytes))
            && kept.put(size, memory)
        {
            return Ok(());
        }
        let _current = context.make_current_relaxed()?;
        let device = memory.as_ptr().expose_provenance() as CUdeviceptr;
        // SAFETY: by contract.
        let code = unsafe {
            match (kind, pool) {
                (AllocationKind::Device, Some(pool)) => pool.free(context, device),
                (AllocationKind::Device | AllocationKind::Managed, _) => (context.api.memory_free)(device),
                (AllocationKind::Pinned, _) => (context.api.host_free)(memory.as_ptr().cast()),
            }
        };
        context.check(code, "cannot free memory")
    });
    if let Err(error) = freed {
        // Work that was under way may still write to the memory: it is never used again.
        context.counters.leaked_allocations.one();
        context.counters.leaked_bytes.add(bytes as u64);
        tracing::warn!(device = %context.id, bytes, %error, "CUDA memory is leaked");
    }
}

impl CudaDevice {
    /// The memory that `pointer` points to, as the driver reports it. DLPack's description says less: it has
    /// managed memory on device 0. `None` for memory that the driver does not know.
    pub fn pointer_info(&self, pointer: *const u8) -> Option<PointerInfo> {
        let context = self.context();
        let current = context.make_current_relaxed().ok()?;
        let ask = |attribute| pointer_attribute(&current, attribute, pointer);
        // The call below is for memory that the driver knows.
        let kind = ask(CUpointer_attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE)?;
        let ordinal = ask(CUpointer_attribute::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL)? as i32;
        let is_managed = ask(CUpointer_attribute::CU_POINTER_ATTRIBUTE_IS_MANAGED).is_some_and(|is| is != 0);
        let device = match kind {
            _ if is_managed => MANAGED,
            // CU_MEMORYTYPE_HOST, CU_MEMORYTYPE_DEVICE.
            1 => PINNED,
            2 => DLDevice::new(DeviceType::CUDA, ordinal),
            _ => return None,
        };
        Some(PointerInfo { device, ordinal })
    }

    /// True if this device may use the memory at `pointer`, whichever device it is of: by peer access, or
    /// mapped for both. False where the driver does not say.
    pub fn can_access(&self, pointer: *const u8) -> bool {
        let Ok(current) = self.context().make_current_relaxed() else { return false };
        // Of the device of the current context.
        let flags =
            pointer_attribute(&current, CUpointer_attribute::CU_POINTER_ATTRIBUTE_ACCESS_FLAGS, pointer);
        // CU_MEM_ACCESS_FLAGS_PROT_NONE is 0.
        flags.is_some_and(|flags| flags != 0)
    }
}

/// An attribute of a pointer that is a number of 32 bits; `None` for memory that the driver does not know.
fn pointer_attribute(
    current: &Relaxed<'_>,
    attribute: CUpointer_attribute,
    pointer: *const u8,
) -> Option<u32> {
    let mut value: u32 = 0;
    let address = pointer.expose_provenance() as CUdeviceptr;
    // SAFETY: the attribute is as wide as its place.
    let code = unsafe { (current.api().pointer_attribute)((&raw mut value).cast(), attribute, address) };
    (code == 0).then_some(value)
}

// Devices that reach each other's memory. Where they do not, copies between them go through the host, which
// the driver does.

/// The other devices as one device sees them: whether it reaches their memory directly, known after the first
/// copy between the two, or the first operation with memory of the other. By the driver's numbers.
pub(super) struct Peers {
    reached: Vec<OnceLock<bool>>,
}

impl Peers {
    pub(super) fn new(count: usize) -> Self {
        Self { reached: (0..count).map(|_| OnceLock::new()).collect() }
    }

    /// Lets `device` reach the memory at `pointer` directly, where it can. The first time costs some driver
    /// calls for each pair of devices.
    pub(super) fn reach(&self, device: &CudaDevice, pointer: *const u8) {
        let own = device.ordinal();
        let mut others = self.reached.iter().zip(0..).filter(|(_, ordinal)| *ordinal != own);
        if others.all(|(place, _)| place.get().is_some()) {
            return;
        }
        let ordinal = device.context().make_current_relaxed().ok().and_then(|current| {
            pointer_attribute(&current, CUpointer_attribute::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, pointer)
        });
        // Most memory is the device's own, which one question shows.
        if ordinal.is_none_or(|ordinal| ordinal as i32 == own) {
            return;
        }
        let Some(info) = device.pointer_info(pointer) else { return };
        if info.device.device_type != DeviceType::CUDA {
            return;
        }
        let place = usize::try_from(info.ordinal).ok().and_then(|at| self.reached.get(at));
        if let Some(place) = place.filter(|place| place.get().is_none()) {
            // Enabling access can wait for both devices, so no other thread waits for the one that enables:
            // a copy meanwhile goes through the host, and enabling twice does no harm.
            let peer = CudaRuntime::get().ok().and_then(|runtime| runtime.device(info.ordinal));
            let _ = place.set(peer.is_some_and(|peer| enable(device, peer)));
        }
    }
}

/// Lets `device` reach the memory of `peer`: memory allocated in its context, and memory of its pool.
fn enable(device: &CudaDevice, peer: &CudaDevice) -> bool {
    let context = device.context();
    let (Some(possible), Some(enable)) = (context.api.peer_possible, context.api.peer_enable) else {
        return false;
    };
    let Ok(_current) = context.make_current_relaxed() else { return false };
    let mut can = 0;
    // A device's handle is its number.
    let (from, to) = (device.ordinal(), peer.ordinal());
    // SAFETY: writes one number; both contexts stay.
    let code: Code = unsafe {
        if possible(&raw mut can, from, to) != 0 || can == 0 {
            return false;
        }
        enable(peer.context().raw.get(), 0)
    };
    if let Some(pool) = peer.pool() {
        pool.share_with(peer.context(), from);
    }
    if let Some(shared) = peer.shared() {
        shared.share_with(from);
    }
    code == 0 || code == PEER_ACCESS_ALREADY_ENABLED
}
