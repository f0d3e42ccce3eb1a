use std::any::Any;
use std::ffi::c_void;
use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;

use crate::{DLDevice, DeviceError, DeviceType, Fence, NativeEvent, Queue, SharedMemory};

/// A place where memory lives and work runs. Thread-safe; usually shared as `Arc<dyn Device>`.
pub trait Device: Send + Sync + fmt::Debug + Any {
    /// DLPack's name for it.
    fn id(&self) -> DLDevice;

    /// A name for people.
    fn name(&self) -> &str;

    /// True if it belongs to a process that this one was forked from, and works there only.
    fn is_inherited(&self) -> bool {
        false
    }

    /// The native context that memory of this device belongs to (`CUcontext`, pointer to a `sycl::context`),
    /// or 0.
    fn native_context(&self) -> usize {
        0
    }

    /// True if the host may load and store in memory of this device directly.
    fn host_accessible(&self) -> bool;

    /// As [`host_accessible`](Device::host_accessible), for memory of this device at `pointer`. Devices with
    /// several kinds of memory look the pointer up.
    fn host_accessible_at(&self, pointer: *const u8) -> bool {
        let _ = pointer;
        self.host_accessible()
    }

    /// The queue for work that names none. The same queue at every call.
    fn default_queue(&self) -> Arc<dyn Queue>;

    /// A new queue.
    ///
    /// # Errors
    /// The device has no more queues to give, or has failed.
    fn create_queue(&self) -> Result<Arc<dyn Queue>, DeviceError>;

    /// A foreign queue, acquired now: the wrapper has a new identity, enqueues waits at once, and each of its
    /// fences is an event of its own. The wrapper lives no longer than the call that gave the handle, unless
    /// [`Queue::handle_outlives_call`] says otherwise; its fences may live longer.
    ///
    /// # Errors
    /// `Invalid` for a queue of another context or device, and where queues have no handles (the default).
    ///
    /// # Safety
    /// `handle` is a live native handle of this kind of device (`CUstream`, pointer to a `sycl::queue`), as
    /// [`Queue::native`] gives it, and stays so while the wrapper is used.
    unsafe fn foreign_queue(&self, handle: usize) -> Result<Arc<dyn Queue>, DeviceError> {
        let message = format!("device {} takes no queues of others (handle {handle:#x})", self.id());
        Err(DeviceError::invalid(message))
    }

    /// True if `handle`, which is a native handle of a queue, means the same queue on every thread. The
    /// default: any handle but 0.
    fn handle_is_same_on_all_threads(&self, handle: usize) -> bool {
        handle != 0
    }

    /// Prepares the calling thread for functions of the device's runtime, such as those that free memory:
    /// CUDA makes the device's context current. Returns true if that changed the thread; then the caller
    /// calls [`restore_current`](Device::restore_current) on the same thread, as
    /// [`CurrentGuard`](crate::CurrentGuard) does.
    ///
    /// # Errors
    /// The device is broken.
    fn make_current(&self) -> Result<bool, DeviceError> {
        Ok(false)
    }

    /// Undoes a [`make_current`](Device::make_current) that returned `true`, on the same thread.
    fn restore_current(&self) {}

    /// True if consumers may release memory of this device while their work still runs on queues known to
    /// them alone, as libraries do that launch on CUDA streams.
    fn may_release_before_completion(&self) -> bool {
        false
    }

    /// A fence of all work enqueued on this device so far, on any queue. Needed for memory whose last use is
    /// unknown. The call may block for as long as that work takes, so it is made on a thread of its own.
    ///
    /// # Errors
    /// The device has no such barrier (the default), or has failed.
    fn barrier(&self) -> Result<Fence, DeviceError> {
        Err(DeviceError::invalid(format!("device {} has no barrier over all of its queues", self.id())))
    }

    /// Memory for `bytes` bytes aligned to `align`, a power of two. Its contents are unspecified.
    ///
    /// # Errors
    /// Out of memory, or an impossible size or alignment.
    fn allocate(&self, bytes: usize, align: usize) -> Result<Allocation, DeviceError>;

    /// As [`allocate`](Device::allocate), of memory of the kind `kind`: the device's own, or a kind that its
    /// runtime shares with the host ([`DLDevice::queue_device`]). The default knows the device's own kind
    /// only.
    ///
    /// # Errors
    /// As [`allocate`](Device::allocate); `Invalid` for a kind that the device does not give.
    fn allocate_kind(&self, kind: DeviceType, bytes: usize, align: usize) -> Result<Allocation, DeviceError> {
        if kind == self.id().device_type {
            return self.allocate(bytes, align);
        }
        Err(DeviceError::invalid(format!("device {} gives no memory of kind {kind}", self.id())))
    }

    /// As [`allocate`](Device::allocate), of memory that the host can write, with every byte zero. A device
    /// whose memory comes zeroed need not write it.
    ///
    /// # Errors
    /// As [`allocate`](Device::allocate); `Invalid` if the host cannot write there.
    fn allocate_zeroed(&self, bytes: usize, align: usize) -> Result<Allocation, DeviceError> {
        if !self.host_accessible() {
            let message = format!("the host cannot write zeros to memory of {}", self.id());
            return Err(DeviceError::invalid(message));
        }
        let allocation = self.allocate(bytes, align)?;
        // SAFETY: the allocation is ours alone, this long, and the host may write it.
        unsafe { allocation.ptr().as_ptr().write_bytes(0, allocation.len()) };
        Ok(allocation)
    }

    /// Memory of this device that other processes can have; `None` where there is no such (the default).
    fn shared_memory(&self) -> Option<&dyn SharedMemory> {
        None
    }

    /// Enqueues a copy of `bytes` bytes on `queue`. It is done when a fence recorded afterwards is.
    ///
    /// # Errors
    /// The queue is none of this device, or has failed. Nothing was enqueued then.
    ///
    /// # Safety
    /// Both ranges are valid, do not overlap, and stay alive and unused by others until the copy is done;
    /// each of them is memory of this device or of the host.
    unsafe fn copy(
        &self,
        queue: &dyn Queue,
        src: *const u8,
        dst: *mut u8,
        bytes: usize,
    ) -> Result<(), DeviceError>;

    /// True if [`copy`](Device::copy) also takes memory of `other` as its target. The default: only if
    /// `other` is this device.
    fn can_copy_to(&self, other: DLDevice) -> bool {
        other == self.id()
    }

    /// Sees to it that work of this device reaches `memory`, which is of another device of the same kind,
    /// where the two can. The default does nothing.
    fn reach(&self, memory: *const u8) {
        let _ = memory;
    }

    /// True if [`copy`](Device::copy) from or to the host memory at `host` may block the enqueueing thread
    /// until the queue has reached the copy. A caller that must not block copies by way of
    /// [`allocate_staging`](Device::allocate_staging) then.
    fn host_copy_blocks(&self, host: *const u8) -> bool {
        let _ = host;
        false
    }

    /// Host memory for copies of this device to pass through: a copy from or to such memory never blocks.
    /// Making and freeing it is expensive, so callers keep it and use it again.
    ///
    /// # Errors
    /// Out of memory, or a device that needs none (the default).
    fn allocate_staging(&self, bytes: usize) -> Result<Allocation, DeviceError> {
        Err(DeviceError::invalid(format!("device {} needs no staging ({bytes} bytes)", self.id())))
    }

    /// True if this kind has native events, of the type that Arrow's C device interface gives it
    /// (apache/arrow:docs/source/format/CDeviceDataInterface.rst): [`event_of_fence`](Device::event_of_fence)
    /// makes one of a fence. By default there are none.
    fn has_events(&self) -> bool {
        false
    }

    /// The fence of an event of this device's own kind, recorded by foreign code. The fence queries the event
    /// only until it has settled.
    ///
    /// # Errors
    /// This device has no such events (the default), or the driver refused it.
    ///
    /// # Safety
    /// `event` points to a live event of this device's kind, recorded, which stays so until the fence has
    /// settled.
    unsafe fn fence_of_event(&self, event: NonNull<c_void>) -> Result<Fence, DeviceError> {
        let _ = event;
        Err(no_events(self.id()))
    }

    /// An event of this device's own kind, for foreign code, that is done when `fence`, one of this device's,
    /// is.
    ///
    /// # Errors
    /// This device has no such events (the default), or the driver refused to make one.
    fn event_of_fence(&self, fence: &Fence) -> Result<NativeEvent, DeviceError> {
        let _ = fence;
        Err(no_events(self.id()))
    }
}

fn no_events(device: DLDevice) -> DeviceError {
    DeviceError::invalid(format!("device {device} exchanges no events"))
}

/// Owned device memory, freed on drop. No work may use the memory when its owner drops it.
pub struct Allocation {
    ptr: NonNull<u8>,
    len: usize,
    device: DLDevice,
    release: Option<Release>,
}

/// Gives memory back: called once with the pointer and the length.
type Release = Box<dyn FnOnce(NonNull<u8>, usize) + Send + Sync>;

// SAFETY: an allocation is exclusively owned memory plus a `Send + Sync` way to release it; reading or
// writing through `ptr` is unsafe and up to the caller.
unsafe impl Send for Allocation {}
// SAFETY: shared access only hands out the pointer and the length.
unsafe impl Sync for Allocation {}

impl Allocation {
    /// Takes ownership of `len` bytes at `ptr` in memory of `device`. `release` releases them on drop, from
    /// any thread.
    ///
    /// # Safety
    /// The memory is valid and exclusively the allocation's until `release` is called.
    pub unsafe fn from_raw(
        ptr: NonNull<u8>,
        len: usize,
        device: DLDevice,
        release: impl FnOnce(NonNull<u8>, usize) + Send + Sync + 'static,
    ) -> Self {
        Self { ptr, len, device, release: Some(Box::new(release)) }
    }

    /// An allocation of no bytes: a pointer with the right alignment and nothing behind it.
    pub fn empty(align: std::num::NonZeroUsize, device: DLDevice) -> Self {
        Self { ptr: NonNull::without_provenance(align), len: 0, device, release: None }
    }

    /// The first byte. Valid for [`Allocation::len`] bytes, on the device.
    pub fn ptr(&self) -> NonNull<u8> {
        self.ptr
    }

    /// Size in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True if there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The device of the memory.
    pub fn device(&self) -> DLDevice {
        self.device
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        if let Some(release) = self.release.take() {
            release(self.ptr, self.len);
        }
    }
}

debug_as!(memory: Allocation, "Allocation({} bytes on {} at {:p})", memory.len, memory.device, memory.ptr);
