use std::ffi::{CStr, c_void};
use std::num::NonZeroUsize;
use std::ptr::NonNull;
use std::sync::Arc;

use estafette_sync::sync::Mutex;
use smallvec::SmallVec;

use crate::{
    Allocation, ClockBracket, DLDevice, Device, DeviceError, DeviceErrorKind, Fence, NativeEvent, Queue,
    QueueId,
};

use super::api::{
    ASPECT_USM_DEVICE, ASPECT_USM_HOST, ASPECT_USM_SHARED, Api, BACKEND_CUDA, BACKEND_HIP,
    BACKEND_LEVEL_ZERO, BACKEND_OPENCL, QUEUE_IN_ORDER, QUEUE_PROFILING,
};
use super::context::{Context, UsmKind};
use super::errors::{on_asynchronous_error, refused};
use super::event::{Single, SyclEvent};
use super::exit::{Calls, RUNTIME};
use super::handle::Handle;
use super::push;
use super::queue::{SyclQueue, event_of, not_ours};
use super::queue_state::{Native, QueueState};
use super::runtime::{parts_of_queue, root_device};

/// Memory is aligned at least like this, a cache line.
const ALIGN_MIN: usize = 64;
/// The runtime's queues behind an out-of-order queue: as many commands can run beside each other.
const TURNS: usize = 4;

/// A SYCL device with the context that its queues and memory are of.
pub struct SyclDevice {
    shared: Arc<DeviceState>,
    default_queue: Arc<SyclQueue>,
}

pub(super) struct DeviceState {
    pub(super) id: DLDevice,
    pub(super) context: Arc<Context>,
    /// True if events announce themselves.
    pub(super) pushes: bool,
    pub(super) counters: Counters,
    pub(super) clock: Mutex<ClockBracket>,
    device: Handle,
    name: String,
    memory_bytes: u64,
    usm: Vec<UsmKind>,
    /// Memory is allocated by naming a queue.
    allocator: Handle,
}

crate::counters::counters! {
    /// Calls into the runtime, counted per device.
    #[non_exhaustive]
    SyclCounters {
        /// Queries of an event's status.
        status_queries,
        /// Barriers.
        barriers,
        /// Commands: copies, fills, and barriers with a list of events.
        commands,
    }
}

impl DeviceState {
    /// The functions, where the runtime works.
    pub(super) fn api(&self) -> Result<Calls, DeviceError> {
        self.context.api()
    }

    /// A new in-order queue of the runtime; with `profiles` its events say when commands ran.
    pub(super) fn queue(&self, profiles: bool) -> Result<Handle, DeviceError> {
        queue_of(&self.context, &self.device, profiles)
    }
}

debug_as!(device: DeviceState, "SYCL device {}", device.id);

fn queue_of(context: &Context, device: &Handle, profiles: bool) -> Result<Handle, DeviceError> {
    let api = context.api()?;
    let properties = QUEUE_IN_ORDER | if profiles { QUEUE_PROFILING } else { 0 };
    // SAFETY: live objects; the handler is a function, and the queue is ours.
    unsafe {
        let queue = (api.queue_create)(context.raw(), device.raw(), Some(on_asynchronous_error), properties);
        Handle::own(queue, api.queue_delete)
    }
    .ok_or_else(|| refused("a new queue"))
}

impl SyclDevice {
    pub(super) fn new(id: DLDevice, context: Arc<Context>, device: Handle) -> Result<Arc<Self>, DeviceError> {
        let (api, raw) = (context.api()?, device.raw());
        let kinds = [
            (UsmKind::Device, ASPECT_USM_DEVICE),
            (UsmKind::Shared, ASPECT_USM_SHARED),
            (UsmKind::Host, ASPECT_USM_HOST),
        ];
        // SAFETY: a live device.
        let has = |aspect| unsafe { (api.device_aspect)(raw, aspect) };
        let usm: Vec<_> =
            kinds.into_iter().filter(|&(_, aspect)| has(aspect)).map(|(kind, _)| kind).collect();
        let default = queue_of(&context, &device, false)?;
        if usm.is_empty() {
            return Err(DeviceError::invalid(format!("{id} has no unified shared memory")));
        }
        // SAFETY: a live queue; the copy is ours.
        let allocator = unsafe { Handle::own((api.queue_copy)(default.raw()), api.queue_delete) };
        // SAFETY: a live device.
        let (backend, memory_bytes) = unsafe { ((api.device_backend)(raw), (api.device_memory)(raw)) };
        let shared = Arc::new(DeviceState {
            id,
            name: describe(&api, &device),
            pushes: backend == BACKEND_OPENCL && push::available(),
            counters: Counters::default(),
            clock: Mutex::default(),
            memory_bytes,
            usm,
            allocator: allocator.ok_or_else(|| refused("a copy of a queue"))?,
            context,
            device,
        });
        let default_queue = SyclQueue::own(&shared, [default].into_iter(), true);
        Ok(Arc::new(Self { shared, default_queue }))
    }

    pub(super) fn context(&self) -> &Arc<Context> {
        &self.shared.context
    }

    pub(super) fn is(&self, device: &Handle) -> bool {
        let Ok(api) = self.shared.api() else { return false };
        // SAFETY: live devices.
        unsafe { (api.device_eq)(self.shared.device.raw(), device.raw()) }
    }

    /// True if it is of `context`.
    ///
    /// # Safety
    /// `context` is a live `sycl::context` of this process's runtime.
    pub unsafe fn is_of_context(&self, context: NonNull<c_void>) -> bool {
        self.shared.context.is(context.as_ptr())
    }

    /// The kinds of unified shared memory that it has.
    pub fn usm_kinds(&self) -> &[UsmKind] {
        &self.shared.usm
    }

    /// The kind of memory of this device's context that `pointer` is to; `None` for other memory.
    pub fn usm_kind_of(&self, pointer: *const u8) -> Option<UsmKind> {
        self.shared.context.kind_of(pointer)
    }

    /// The bytes of its global memory.
    pub fn memory_bytes(&self) -> u64 {
        self.shared.memory_bytes
    }

    /// True if the driver announces completions, so that no thread polls: on OpenCL.
    pub fn announces_completion(&self) -> bool {
        self.shared.pushes
    }

    /// Calls into the runtime so far.
    pub fn counters(&self) -> SyclCounters {
        self.shared.counters.read()
    }

    /// A new queue of the given kind. [`Device::create_queue`] gives in-order ones.
    ///
    /// Commands on an out-of-order queue wait for what it was ordered after and run beside each other. They
    /// take turns on several in-order queues of the runtime: Intel's CPU driver (2026.2) loses commands of
    /// its own out-of-order queues now and then, and crashes when several threads flush them.
    ///
    /// # Errors
    /// The runtime gives no more queues.
    pub fn queue(&self, in_order: bool) -> Result<Arc<SyclQueue>, DeviceError> {
        let count = if in_order { 1 } else { TURNS };
        let handles = (0..count).map(|_| self.shared.queue(false)).collect::<Result<Vec<_>, _>>()?;
        Ok(SyclQueue::own(&self.shared, handles.into_iter(), in_order))
    }

    /// A foreign queue, acquired now: the wrapper has a new identity, enqueues waits as barriers at once, and
    /// each of its fences is an event of its own. The wrapper keeps a copy of the `sycl::queue`, so the owner
    /// may drop its own.
    ///
    /// # Errors
    /// `Invalid` for a queue of another context or device; a part of this device is this device.
    ///
    /// # Safety
    /// `queue` is a live `sycl::queue` of this process's runtime (in dpctl: `addressof_ref()`).
    pub unsafe fn foreign_queue(&self, queue: NonNull<c_void>) -> Result<Arc<SyclQueue>, DeviceError> {
        let api = self.shared.api()?;
        // SAFETY: by contract.
        let parts = unsafe { parts_of_queue(&api, queue.as_ptr()) };
        let (context, device) = parts.ok_or_else(|| refused("to say where the queue belongs"))?;
        // This device may be a part itself, in a context of its own.
        let ours = self.is(&device) || self.is(&root_device(&api, device));
        if !self.shared.context.is(context.raw()) || !ours {
            let message = format!("the queue is of another context or device than {}", self.shared.id);
            return Err(DeviceError::invalid(message));
        }
        // SAFETY: by contract; the copy is ours.
        let (copy, in_order) = unsafe {
            let copy = Handle::own((api.queue_copy)(queue.as_ptr()), api.queue_delete);
            (copy, (api.queue_in_order)(queue.as_ptr()))
        };
        Ok(SyclQueue::foreign(&self.shared, copy.ok_or_else(|| refused("a copy of the queue"))?, in_order))
    }

    /// Memory of the given kind for `bytes` bytes aligned to `align`, a power of two.
    ///
    /// # Errors
    /// `Invalid` for an alignment or a kind that the device does not have; `OutOfMemory`.
    pub fn allocate_usm(&self, kind: UsmKind, bytes: usize, align: usize) -> Result<Allocation, DeviceError> {
        let DeviceState { id, memory_bytes, .. } = *self.shared;
        if !align.is_power_of_two() {
            return Err(DeviceError::invalid(format!("cannot allocate {bytes} bytes aligned to {align}")));
        }
        if !self.shared.usm.contains(&kind) {
            return Err(DeviceError::invalid(format!("{id} has no {} memory", kind.name())));
        }
        let align = align.max(ALIGN_MIN);
        if bytes == 0 {
            let align = NonZeroUsize::new(align).expect("a power of two is not 0");
            return Ok(Allocation::empty(align, id));
        }
        let api = self.shared.api()?;
        let allocate = match kind {
            UsmKind::Device => api.alloc_device,
            UsmKind::Shared => api.alloc_shared,
            UsmKind::Host => api.alloc_host,
        };
        // An allocation that cannot succeed is not requested: the runtime would print a message of its own.
        // Host memory is no part of the device's memory.
        let limit = if kind == UsmKind::Host { isize::MAX as u64 } else { memory_bytes };
        let memory = (bytes as u64 <= limit)
            // SAFETY: a live queue; null says that there is no room.
            .then(|| unsafe { allocate(align, bytes, self.shared.allocator.raw()) })
            .and_then(|memory| NonNull::new(memory.cast::<u8>()));
        let memory = memory.ok_or_else(|| {
            let message = format!("out of {} memory on {id} for {bytes} bytes", kind.name());
            DeviceError::new(DeviceErrorKind::OutOfMemory, message)
        })?;
        let shared = Arc::clone(&self.shared);
        let release = move |memory: NonNull<u8>, _| {
            if let Ok(api) = shared.api() {
                // SAFETY: allocated in this context, freed once.
                unsafe { (api.free)(memory.as_ptr().cast(), shared.context.raw()) };
            }
        };
        // SAFETY: fresh memory, known here alone.
        Ok(unsafe { Allocation::from_raw(memory, bytes, id, release) })
    }
}

/// The device's name, with what it is reached through.
fn describe(api: &Api, device: &Handle) -> String {
    // SAFETY: a live device; the string is ours, and released.
    let (name, backend, is_cpu, is_gpu) = unsafe {
        let text = (api.device_name)(device.raw());
        let name = if text.is_null() {
            "a device without a name".to_owned()
        } else {
            let name = CStr::from_ptr(text).to_string_lossy().trim().to_owned();
            (api.string_delete)(text);
            name
        };
        let raw = device.raw();
        (name, (api.device_backend)(raw), (api.device_is_cpu)(raw), (api.device_is_gpu)(raw))
    };
    let backend = match backend {
        BACKEND_OPENCL => "opencl",
        BACKEND_LEVEL_ZERO => "level_zero",
        BACKEND_CUDA => "cuda",
        BACKEND_HIP => "hip",
        _ => "sycl",
    };
    let kind = match (is_cpu, is_gpu) {
        (true, _) => "cpu",
        (_, true) => "gpu",
        _ => "accelerator",
    };
    format!("{name} ({backend}:{kind})")
}

impl Device for SyclDevice {
    fn id(&self) -> DLDevice {
        self.shared.id
    }

    fn is_inherited(&self) -> bool {
        RUNTIME.is_inherited()
    }

    fn name(&self) -> &str {
        &self.shared.name
    }

    /// The pointer to the `sycl::context`, for as long as the device lives.
    fn native_context(&self) -> usize {
        self.shared.context.raw().expose_provenance()
    }

    /// True if memory that [`Device::allocate`] gives is shared with the host.
    fn host_accessible(&self) -> bool {
        self.shared.usm.contains(&UsmKind::Shared)
    }

    fn host_accessible_at(&self, pointer: *const u8) -> bool {
        self.usm_kind_of(pointer).is_some_and(UsmKind::host_accessible)
    }

    fn default_queue(&self) -> Arc<dyn Queue> {
        Arc::clone(&self.default_queue) as Arc<dyn Queue>
    }

    fn create_queue(&self) -> Result<Arc<dyn Queue>, DeviceError> {
        Ok(self.queue(true)?)
    }

    /// A handle is a pointer to a `sycl::queue`. The wrapper keeps a copy of that, so it may be kept.
    unsafe fn foreign_queue(&self, handle: usize) -> Result<Arc<dyn Queue>, DeviceError> {
        let queue = NonNull::new(std::ptr::with_exposed_provenance_mut(handle))
            .ok_or_else(|| DeviceError::invalid("the pointer to a SYCL queue is NULL"))?;
        // SAFETY: by contract.
        Ok(unsafe { Self::foreign_queue(self, queue) }?)
    }

    /// Shared memory where there is any, else the device's own.
    fn allocate(&self, bytes: usize, align: usize) -> Result<Allocation, DeviceError> {
        let kind = if self.host_accessible() { UsmKind::Shared } else { UsmKind::Device };
        self.allocate_usm(kind, bytes, align)
    }

    unsafe fn copy(
        &self,
        queue: &dyn Queue,
        src: *const u8,
        dst: *mut u8,
        bytes: usize,
    ) -> Result<(), DeviceError> {
        let queue = SyclQueue::from_queue(queue)
            .filter(|queue| queue.shared().context.same(&self.shared.context))
            .ok_or_else(|| not_ours(queue, self.shared.id))?;
        // SAFETY: by contract.
        unsafe { queue.copy(src, dst, bytes) }
    }

    fn has_events(&self) -> bool {
        true
    }

    /// The native event of a SYCL device is a `sycl::event`.
    unsafe fn fence_of_event(&self, event: NonNull<c_void>) -> Result<Fence, DeviceError> {
        let api = self.shared.api()?;
        // SAFETY: by contract a live event; the copy is ours.
        let copy = unsafe { Handle::own((api.event_copy)(event.as_ptr()), api.event_delete) };
        let copy = copy.ok_or_else(|| refused("a copy of the event"))?;
        Ok(Fence::event(Arc::new(Single(SyclEvent::new(&self.shared, copy, true)))).of_this_crate())
    }

    fn event_of_fence(&self, fence: &Fence) -> Result<NativeEvent, DeviceError> {
        let api = self.shared.api()?;
        let event = match event_of(fence) {
            Some(event) if event.shared().context.same(&self.shared.context) => event,
            // Done already, and its event is gone: an event of everything on an idle queue is as good.
            _ if fence.device() == self.shared.id && fence.is_done() => {
                let native = Native::new(&self.shared, self.shared.queue(false)?, false);
                QueueState::new(&self.shared, SmallVec::from_iter([native]), QueueId::next(), true)
                    .barrier()?
            }
            _ => {
                let message = format!("the fence is of {}, not of {}", fence.device(), self.shared.id);
                return Err(DeviceError::invalid(message));
            }
        };
        let (copy, delete) = (api.event_copy, api.event_delete);
        // SAFETY: a live event; the copy is the caller's.
        let copy = NonNull::new(unsafe { copy(event.raw()) }).ok_or_else(|| refused("a copy of an event"))?;
        Ok(NativeEvent::new(copy, move |event| {
            if let Some(_call) = RUNTIME.begin_call() {
                // SAFETY: the copy above, deleted this once.
                unsafe { delete(event.as_ptr()) }
            }
        }))
    }
}

debug_as!(device: SyclDevice, "SyclDevice({}, {})", device.shared.id, device.shared.name);
