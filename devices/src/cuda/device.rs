use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr::{self, NonNull};
use std::sync::Arc;

use cudarc::driver::sys::{CUcontext, CUdevice, CUdevice_attribute, CUevent};

use crate::{
    Allocation, DLDevice, Device, DeviceError, DeviceType, Fence, FenceSet, NativeEvent, Queue, SharedMemory,
};

use super::context::{Context, CudaCounters};
use super::driver::{self, Api, Handle};
use super::events::{EventFence, PooledEvent, destroy};
use super::foreign::{Foreign, PER_THREAD};
use super::memory::{AllocationKind, Peers, Pool, allocate};
use super::progress::TimelineValues;
use super::queue::{CudaQueue, event_of, not_ours};
use super::shared::SharedAllocator;

/// A CUDA device with its primary context.
pub struct CudaDevice {
    context: Arc<Context>,
    pool: Option<Arc<Pool>>,
    /// Memory that crosses processes, if the driver and the device have such.
    shared: Option<SharedAllocator>,
    name: String,
    memory_bytes: u64,
    managed_is_concurrent: bool,
    default_queue: Arc<CudaQueue>,
    peers: Peers,
}

impl CudaDevice {
    pub(super) fn new(api: &'static Api, ordinal: i32, count: usize) -> Result<Self, DeviceError> {
        let id = DLDevice::new(DeviceType::CUDA, ordinal);
        let check = |code, what: &str| driver::check(api, code, &format!("{what} of {id}"));
        let mut device: CUdevice = 0;
        let mut name = [0 as c_char; 256];
        let mut memory_bytes: usize = 0;
        let mut raw: CUcontext = ptr::null_mut();
        // SAFETY: each writes what it is given a place for; the name is cut to fit, with its end.
        unsafe {
            check((api.device_get)(&raw mut device, ordinal), "no handle")?;
            check((api.device_name)(name.as_mut_ptr(), name.len() as c_int, device), "no name")?;
            check((api.device_memory)(&raw mut memory_bytes, device), "no size of the memory")?;
            // The context that every other library of the process uses.
            check((api.primary_retain)(&raw mut raw, device), "no primary context")?;
        }
        // SAFETY: a C string by the call above.
        let name = unsafe { CStr::from_ptr(name.as_ptr()) }.to_string_lossy().into_owned();
        let has = |attribute| {
            let mut value: c_int = 0;
            // SAFETY: writes one number.
            let code = unsafe { (api.device_attribute)(&raw mut value, attribute, device) };
            code == 0 && value != 0
        };
        let counts = api.stream_write.is_some()
            && has(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS);
        let timeline_values = counts.then(TimelineValues::default);
        let pools = has(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED);
        let shares = has(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED)
            && has(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED);
        let uuid = if shares { driver::uuid_of(api, device) } else { None };
        let managed_is_concurrent = has(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS);
        let opened = || {
            let context = Context::new(api, id, Handle::new(raw), timeline_values);
            let memory_bytes = memory_bytes as u64;
            let pool = if pools { Pool::new(&context).map(Arc::new) } else { None };
            let shared = uuid.and_then(|uuid| SharedAllocator::new(&context, pool.as_ref(), uuid));
            let default_queue = CudaQueue::own(&context)?;
            let peers = Peers::new(count);
            Ok(Self {
                context,
                pool,
                shared,
                name,
                memory_bytes,
                managed_is_concurrent,
                default_queue,
                peers,
            })
        };
        opened().inspect_err(|_| {
            // SAFETY: releases what was retained above.
            let _ = unsafe { (api.primary_release)(device) };
        })
    }

    /// The number of the device, as the driver counts.
    pub fn ordinal(&self) -> i32 {
        self.context.id.device_id
    }

    /// The bytes of its memory.
    pub fn memory_bytes(&self) -> u64 {
        self.memory_bytes
    }

    /// True if the device counts for the host, so that asking for a fence is a load. Else events are queried.
    pub fn counts(&self) -> bool {
        self.context.timeline_values.is_some()
    }

    /// True if device memory comes from a pool, so that freeing it waits for nothing.
    pub fn has_pool(&self) -> bool {
        self.pool.is_some()
    }

    /// The fault that broke the device's context, if one did: then nothing of it works any more.
    pub fn fault(&self) -> Option<DeviceError> {
        self.context.fault().cloned()
    }

    /// True if the host may use managed memory while this device works. Else it may not even where no work
    /// uses that memory, which no order between uses of the memory can see to (CUDA Programming Guide,
    /// "Unified Memory on Windows or devices with compute capability 5.x", and on Tegra).
    pub fn managed_is_concurrent(&self) -> bool {
        self.managed_is_concurrent
    }

    /// Calls into the driver so far.
    pub fn counters(&self) -> CudaCounters {
        self.context.counters.read()
    }

    /// A new queue: a stream of its own that does not wait for the legacy default stream.
    ///
    /// # Errors
    /// The driver gives no more streams, or the context is broken.
    pub fn queue(&self) -> Result<Arc<CudaQueue>, DeviceError> {
        CudaQueue::own(&self.context)
    }

    /// A foreign stream, acquired now: 1 for the legacy default stream, 2 for the calling thread's own, or a
    /// `CUstream`. The wrapper has a new identity, enqueues waits at once, and each of its fences is an event
    /// of its own. Only the wrapper keeps anything of the stream.
    ///
    /// # Errors
    /// `Invalid` for 0, and for a stream of another context than this device's primary one.
    ///
    /// # Safety
    /// `handle` is 0, 1, 2 or a live `CUstream`, which stays so while the wrapper is used.
    pub unsafe fn foreign(&self, handle: usize) -> Result<Arc<CudaQueue>, DeviceError> {
        self.context.intact()?;
        // SAFETY: by contract.
        let foreign = unsafe { Foreign::new(&self.context, handle) }?;
        let queue = CudaQueue::foreign(&self.context, foreign);
        queue.await_memory()?;
        Ok(queue)
    }

    /// Pinned host memory for `bytes` bytes aligned to `align`: the host uses it directly, and so does every
    /// CUDA device. What is freed is kept for later allocations: blocks of up to 64 MiB, 256 MiB in all.
    /// Freeing other memory waits for the device.
    ///
    /// # Errors
    /// `Invalid` for an alignment that is no power of two up to 256; `OutOfMemory`.
    pub fn allocate_pinned(&self, bytes: usize, align: usize) -> Result<Allocation, DeviceError> {
        // The pool of the device has no memory of the host.
        allocate(&self.context, None, AllocationKind::Pinned, bytes, align)
    }

    /// Managed memory for `bytes` bytes aligned to `align`: it goes where it is used. Freed as pinned
    /// memory is.
    ///
    /// # Errors
    /// As for [`CudaDevice::allocate_pinned`]; `Invalid` on a device without
    /// [concurrent access](Self::managed_is_concurrent).
    pub fn allocate_managed(&self, bytes: usize, align: usize) -> Result<Allocation, DeviceError> {
        if !self.managed_is_concurrent {
            let message = format!(
                "managed memory of {} cannot be used by the host while the device works; pinned memory can",
                self.context.id
            );
            return Err(DeviceError::invalid(message));
        }
        allocate(&self.context, self.pool.as_ref(), AllocationKind::Managed, bytes, align)
    }

    pub(super) fn context(&self) -> &Arc<Context> {
        &self.context
    }

    pub(super) fn pool(&self) -> Option<&Arc<Pool>> {
        self.pool.as_ref()
    }

    pub(super) fn shared(&self) -> Option<&SharedAllocator> {
        self.shared.as_ref()
    }
}

impl Device for CudaDevice {
    fn id(&self) -> DLDevice {
        self.context.id
    }

    fn is_inherited(&self) -> bool {
        driver::DRIVER.is_inherited()
    }

    fn name(&self) -> &str {
        &self.name
    }

    /// The `CUcontext`: the device's primary context.
    fn native_context(&self) -> usize {
        self.context.raw.get().expose_provenance()
    }

    fn host_accessible(&self) -> bool {
        false
    }

    fn host_accessible_at(&self, pointer: *const u8) -> bool {
        self.pointer_info(pointer).is_some_and(|info| info.device.device_type != DeviceType::CUDA)
    }

    fn default_queue(&self) -> Arc<dyn Queue> {
        Arc::clone(&self.default_queue) as Arc<dyn Queue>
    }

    fn create_queue(&self) -> Result<Arc<dyn Queue>, DeviceError> {
        Ok(self.queue()?)
    }

    unsafe fn foreign_queue(&self, handle: usize) -> Result<Arc<dyn Queue>, DeviceError> {
        // SAFETY: by contract.
        Ok(unsafe { self.foreign(handle) }?)
    }

    /// The default streams are other streams on other threads: 0, and 2 (`CU_STREAM_PER_THREAD`).
    fn handle_is_same_on_all_threads(&self, handle: usize) -> bool {
        handle != 0 && handle != PER_THREAD
    }

    fn make_current(&self) -> Result<bool, DeviceError> {
        self.context.push()
    }

    fn restore_current(&self) {
        self.context.pop();
    }

    fn may_release_before_completion(&self) -> bool {
        true
    }

    /// An event of the whole context, where the driver has such (12.5); else the calling thread waits for the
    /// context.
    ///
    /// The driver refuses both during a capture of any stream of the context, and both invalidate that
    /// capture (CUDA C++ Programming Guide, "Prohibited and Unhandled Operations": a handle that encompasses
    /// a capture may be neither synchronized nor queried). So neither is called during an own capture;
    /// foreign captures are not known.
    ///
    /// # Errors
    /// With the driver's code, while a graph is captured: it may work later.
    fn barrier(&self) -> Result<Fence, DeviceError> {
        self.context.intact()?;
        {
            let captures = self.context.captures.lock();
            if *captures > 0 {
                let what = "a barrier would spoil a graph that is being captured";
                return Err(driver::error(self.context.api, driver::CAPTURE_UNSUPPORTED, what));
            }
            match PooledEvent::record_context(&self.context) {
                Some(Ok(event)) => {
                    return Ok(Fence::event(Arc::new(EventFence::of(event, None, FenceSet::default())))
                        .of_this_crate());
                }
                Some(Err(error)) if error.code() != Some(driver::NOT_SUPPORTED.into()) => return Err(error),
                Some(Err(_)) | None => {}
            }
        }
        self.context.intact()?;
        let _current = self.context.make_current_relaxed()?;
        self.context.counters.context_waits.one();
        // SAFETY: waits for the context that was entered.
        let code = unsafe { (self.context.api.context_synchronize)() };
        self.context.check(code, "cannot wait for the context")?;
        Ok(Fence::event(Arc::new(EventFence::done(&self.context))).of_this_crate())
    }

    /// Device memory, from the pool where there is one.
    fn allocate(&self, bytes: usize, align: usize) -> Result<Allocation, DeviceError> {
        allocate(&self.context, self.pool.as_ref(), AllocationKind::Device, bytes, align)
    }

    fn allocate_kind(&self, kind: DeviceType, bytes: usize, align: usize) -> Result<Allocation, DeviceError> {
        match kind {
            DeviceType::CUDA => self.allocate(bytes, align),
            DeviceType::CUDA_HOST => self.allocate_pinned(bytes, align),
            DeviceType::CUDA_MANAGED => self.allocate_managed(bytes, align),
            _ => {
                let message = format!("device {} gives no memory of kind {kind}", self.context.id);
                Err(DeviceError::invalid(message))
            }
        }
    }

    fn shared_memory(&self) -> Option<&dyn SharedMemory> {
        self.shared.as_ref().map(|shared| shared as &dyn SharedMemory)
    }

    /// True of every CUDA device: their memory shares one address space.
    fn can_copy_to(&self, other: DLDevice) -> bool {
        other.device_type == DeviceType::CUDA
    }

    fn reach(&self, memory: *const u8) {
        self.peers.reach(self, memory);
    }

    /// Copies within the device, from and to the host, and between devices. With host memory that is not
    /// pinned the call may wait for what is enqueued before (`host_copy_blocks`).
    unsafe fn copy(
        &self,
        queue: &dyn Queue,
        src: *const u8,
        dst: *mut u8,
        bytes: usize,
    ) -> Result<(), DeviceError> {
        let ours = CudaQueue::from_queue(queue).filter(|queue| Arc::ptr_eq(queue.context(), &self.context));
        let queue = ours.ok_or_else(|| not_ours(queue, self.context.id))?;
        self.reach(src);
        self.reach(dst);
        // SAFETY: by contract.
        unsafe { queue.copy(src, dst, bytes) }
    }

    /// True of memory that the driver has not pinned: with such, "the function might be synchronous with
    /// respect to host", and "the driver may synchronize with the stream" before it stages the copy (CUDA
    /// Driver API, "API synchronization behavior").
    fn host_copy_blocks(&self, host: *const u8) -> bool {
        self.pointer_info(host).is_none()
    }

    fn allocate_staging(&self, bytes: usize) -> Result<Allocation, DeviceError> {
        self.allocate_pinned(bytes, 64)
    }

    fn has_events(&self) -> bool {
        true
    }

    /// The native event of a CUDA device is a pointer to a `cudaEvent_t` (`CUevent`).
    unsafe fn fence_of_event(&self, event: NonNull<c_void>) -> Result<Fence, DeviceError> {
        self.context.intact()?;
        // SAFETY: by contract a pointer to an event.
        let event = unsafe { *event.as_ptr().cast::<CUevent>() };
        if event.is_null() {
            return Err(DeviceError::invalid("the CUDA event is null"));
        }
        // SAFETY: by contract it is alive until the fence has settled.
        Ok(Fence::event(Arc::new(unsafe { EventFence::foreign(&self.context, event) })).of_this_crate())
    }

    fn event_of_fence(&self, fence: &Fence) -> Result<NativeEvent, DeviceError> {
        Ok(match event_of(fence, self.context.id)? {
            // Until the end of the handle the event is not recorded again.
            Some(event) => native_event(event.raw(), move || drop(event)),
            // Done already: an event that was never recorded is as good.
            None => {
                let event = PooledEvent::done(&self.context)?;
                let context = Arc::clone(&self.context);
                native_event(event.get(), move || destroy(&context, event))
            }
        })
    }
}

/// A pointer to `event`, for foreign code; `release` is called at its end.
fn native_event(event: CUevent, release: impl FnOnce() + Send + 'static) -> NativeEvent {
    NativeEvent::new(NonNull::from(Box::leak(Box::new(event))).cast(), move |place| {
        // SAFETY: the box above, taken back this once.
        drop(unsafe { Box::from_raw(place.as_ptr().cast::<CUevent>()) });
        release();
    })
}

debug_as!(device: CudaDevice, "CudaDevice({}, {})", device.context.id, device.name);
