//! Device memory that other processes have without a copy.
//!
//! # Decisions
//! - *Memory comes from `cuMemCreate`, and crosses as a file descriptor.* "The memory allocation will be
//!   freed when all outstanding mappings to the memory are unmapped and when all outstanding references to
//!   the handle (including its shareable counterparts) are also released" (CUDA Driver API, `cuMemRelease`):
//!   so other processes keep the memory when the owner dies, and the owner may release it first. After
//!   `cuIpcGetMemHandle` and `cuMemPoolExportPointer` it may not: freeing memory that another process has
//!   open is undefined (`cuIpcOpenMemHandle`, `cuMemPoolImportPointer`), and an owner that dies frees
//!   everything.
//! - *Other processes map it for reading* (`CU_MEM_ACCESS_FLAGS_PROT_READ`), so the device stops whatever
//!   writes there. Where the driver refuses that, they map it for reading and writing.
//! - *It is divided as host memory is* ([`Extents`]): the driver allocates multiples of 2 MiB, and opening a
//!   segment takes up to milliseconds.
//! - *Streams do not wait for streams of other processes.* A wait for something that a dead process would
//!   have done never ends, and until then it occupies the hardware connection of its stream. So the owner's
//!   reactor observes the owner's device, the fence crosses as a word of a link, and the other process
//!   enqueues work once it is done. That costs a wake-up on each side, some 30 µs, and no stream can hang
//!   with another process.
//! - *Memory of other libraries is not exported*: their allocators could free it while another process has
//!   it.

use std::ffi::{c_int, c_void};
use std::ptr::{self, NonNull};
use std::sync::Arc;

use cudarc::driver::sys::{
    CUdeviceptr, CUmemAccess_flags, CUmemAccessDesc, CUmemAllocationGranularity_flags,
    CUmemAllocationHandleType, CUmemAllocationProp, CUmemAllocationProp_st__bindgen_ty_1,
    CUmemAllocationType,
};
use estafette_sync::platform::descriptor;
use estafette_sync::sync::Mutex;

use crate::{
    Allocation, Descriptor, DeviceError, DeviceErrorKind, Extents, Identity, SharedMemory, SharedSegment,
};

use super::context::Context;
use super::driver::{self, Api, DRIVER};
use super::memory::{ALIGN, Pool, address, at, with_room};

const DESCRIPTOR: CUmemAllocationHandleType =
    CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
const READ: CUmemAccess_flags = CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READ;
const READ_WRITE: CUmemAccess_flags = CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE;

/// Declares the functions of the driver that all of this needs.
macro_rules! calls {
    ($($name:ident($($argument:ty),*);)*) => {
        #[derive(Clone, Copy)]
        struct Calls {
            $($name: unsafe extern "C" fn($($argument),*) -> driver::Code,)*
        }

        impl Calls {
            fn of(api: &Api) -> Option<Self> {
                Some(Self { $($name: api.$name?,)* })
            }
        }
    };
}

calls! {
    block_create(*mut u64, usize, *const CUmemAllocationProp, u64);
    block_release(u64);
    block_export(*mut c_void, u64, CUmemAllocationHandleType, u64);
    block_import(*mut u64, *mut c_void, CUmemAllocationHandleType);
    range_reserve(*mut CUdeviceptr, usize, usize, CUdeviceptr, u64);
    range_free(CUdeviceptr, usize);
    range_map(CUdeviceptr, usize, usize, u64, u64);
    range_unmap(CUdeviceptr, usize);
    range_access(CUdeviceptr, usize, *const CUmemAccessDesc, usize);
}

pub(super) struct SharedAllocator {
    context: Arc<Context>,
    /// The pool, whose kept memory an allocation may need.
    pool: Option<Arc<Pool>>,
    calls: Calls,
    identity: Identity,
    granularity: usize,
    extents: Arc<Extents<SharedSegment>>,
    reached_by: Mutex<Vec<c_int>>,
}

impl SharedAllocator {
    /// `None` where the driver lacks a function.
    pub(super) fn new(context: &Arc<Context>, pool: Option<&Arc<Pool>>, uuid: [u8; 16]) -> Option<Self> {
        let calls = Calls::of(context.api)?;
        let mut granularity: usize = 0;
        let (properties, least) =
            (properties(context), CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_MINIMUM);
        // SAFETY: reads the properties, and writes one number.
        let code =
            unsafe { (context.api.block_granularity?)(&raw mut granularity, &raw const properties, least) };
        let mut identity = [0; 20];
        identity[..4].copy_from_slice(&context.id.device_type.0.to_le_bytes());
        identity[4..].copy_from_slice(&uuid);
        (code == 0 && granularity > 0).then(|| Self {
            context: Arc::clone(context),
            pool: pool.cloned(),
            calls,
            identity,
            granularity,
            extents: Arc::default(),
            reached_by: Mutex::default(),
        })
    }

    fn segment(&self, bytes: usize) -> Result<SharedSegment, DeviceError> {
        let too_many =
            || DeviceError::new(DeviceErrorKind::OutOfMemory, format!("{bytes} bytes are too many"));
        let bytes = bytes.checked_next_multiple_of(self.granularity).ok_or_else(too_many)?;
        let (mut block, mut number): (u64, c_int) = (0, -1);
        let _current = self.context.make_current_relaxed()?;
        let properties = properties(&self.context);
        let what = format!("cannot make {bytes} bytes of {} memory for other processes", self.context.id);
        // SAFETY: reads the properties, and writes one handle.
        let code = unsafe { (self.calls.block_create)(&raw mut block, bytes, &raw const properties, 0) };
        self.context.check(code, &what)?;
        let block = PhysicalMemory { calls: self.calls, handle: block };
        // SAFETY: writes one descriptor, which is ours.
        let code =
            unsafe { (self.calls.block_export)((&raw mut number).cast(), block.handle, DESCRIPTOR, 0) };
        self.context.check(code, &what)?;
        // SAFETY: the driver has just made it, and gave it away.
        let descriptor = unsafe { descriptor::own(number) }.map_err(|error| {
            DeviceError::new(DeviceErrorKind::Other, format!("{what}: no descriptor: {error}"))
        })?;
        let memory = self.map(&block, bytes)?;
        self.allow(&memory, self.context.id.device_id, READ_WRITE)?;
        for other in self.reached_by.lock().clone() {
            // If the access cannot be allowed, the driver refuses copies between the two devices.
            let _ = self.allow(&memory, other, READ_WRITE);
        }
        Ok(SharedSegment::new(memory, self.identity, descriptor))
    }

    /// Gives a block addresses, which nothing may use yet.
    fn map(&self, block: &PhysicalMemory, bytes: usize) -> Result<Allocation, DeviceError> {
        let (context, calls) = (Arc::clone(&self.context), self.calls);
        let mut start: CUdeviceptr = 0;
        // SAFETY: writes one address.
        let code = unsafe { (calls.range_reserve)(&raw mut start, bytes, 0, 0, 0) };
        driver::check(context.api, code, "no addresses for memory that crosses processes")?;
        // SAFETY: addresses that nothing else has; a live block.
        let code = unsafe { (calls.range_map)(start, bytes, 0, block.handle, 0) };
        let mapped = driver::check(context.api, code, "cannot map memory that crosses processes");
        let start = mapped.and_then(|()| address(start, context.id)).inspect_err(|_| {
            // SAFETY: reserved above, and nothing is there.
            let _ = unsafe { (calls.range_free)(start, bytes) };
        })?;
        let id = context.id;
        let unmap = move |start: NonNull<u8>, bytes: usize| {
            if DRIVER.is_driver_gone() || context.intact().is_err() {
                return;
            }
            let start = start.as_ptr().expose_provenance() as CUdeviceptr;
            let Ok(_current) = context.make_current_relaxed() else { return };
            // SAFETY: mapped above; nothing uses an allocation when its owner drops it.
            let code = unsafe { (calls.range_unmap)(start, bytes).max((calls.range_free)(start, bytes)) };
            if let Err(error) = context.check(code, "cannot unmap memory that crosses processes") {
                tracing::warn!(device = %context.id, bytes, %error, "addresses of CUDA memory are leaked");
            }
        };
        // SAFETY: addresses without another owner.
        Ok(unsafe { Allocation::from_raw(start, bytes, id, unmap) })
    }

    fn allow(&self, memory: &Allocation, device: c_int, flags: CUmemAccess_flags) -> Result<(), DeviceError> {
        let access = CUmemAccessDesc { location: at(device), flags };
        let start = memory.ptr().as_ptr().expose_provenance() as CUdeviceptr;
        // SAFETY: a whole mapping; one description.
        let code = unsafe { (self.calls.range_access)(start, memory.len(), &raw const access, 1) };
        driver::check(self.context.api, code, "cannot use memory that crosses processes")
    }

    /// Lets another device reach this memory: present segments and future ones.
    pub(super) fn share_with(&self, device: c_int) {
        self.reached_by.lock().push(device);
        // `spans` waits for a segment that is being made, as the device may not reach it yet.
        let segments = self.extents.spans();
        let Ok(_current) = self.context.make_current_relaxed() else { return };
        for segment in segments {
            let _ = self.allow(segment.memory(), device, READ_WRITE);
        }
    }
}

impl SharedMemory for SharedAllocator {
    fn identity(&self) -> Identity {
        self.identity
    }

    fn allocate(&self, bytes: usize, align: usize) -> Result<Allocation, DeviceError> {
        self.context.intact()?;
        if !align.is_power_of_two() || align > ALIGN {
            let message = format!("memory aligned to {align}: a power of two up to {ALIGN} is possible");
            return Err(DeviceError::invalid(message));
        }
        let extents = Arc::clone(&self.extents);
        let (segment, offset) = with_room(&self.context, self.pool.as_ref(), || {
            extents.take(bytes, align, |bytes| self.segment(bytes))
        })?;
        let start =
            NonNull::new(segment.memory().ptr().as_ptr().wrapping_add(offset)).expect("inside of a segment");
        let release = move |_, _| {
            // In a forked child the segments are the parent's.
            if !DRIVER.is_driver_gone() {
                extents.release(&segment, offset, bytes);
            }
        };
        // SAFETY: the block is this allocation's alone until it is released, and the release keeps the
        // segment.
        Ok(unsafe { Allocation::from_raw(start, bytes, self.context.id, release) })
    }

    fn find(&self, address: *const u8, bytes: usize) -> Option<(Arc<SharedSegment>, usize)> {
        self.extents.find(address.addr(), bytes)
    }

    fn open(&self, descriptor: &Descriptor, bytes: usize) -> Result<Allocation, DeviceError> {
        self.context.intact()?;
        let _current = self.context.make_current_relaxed()?;
        let mut block: u64 = 0;
        let number = ptr::without_provenance_mut(descriptor::number(descriptor) as usize);
        // A descriptor that another process sent may be anything, and an error of it is no fault of the
        // device.
        let refused = |error: DeviceError| {
            let message =
                format!("cannot open memory of another process on {}: {}", self.context.id, error.message());
            DeviceError::invalid(message)
        };
        // SAFETY: writes one handle. The driver says what is no descriptor of such memory.
        let code = unsafe { (self.calls.block_import)(&raw mut block, number, DESCRIPTOR) };
        driver::check(self.context.api, code, "it is none").map_err(refused)?;
        let block = PhysicalMemory { calls: self.calls, handle: block };
        let memory = self.map(&block, bytes).map_err(refused)?;
        let own = self.context.id.device_id;
        self.allow(&memory, own, READ).or_else(|_| self.allow(&memory, own, READ_WRITE)).map_err(refused)?;
        Ok(memory)
    }
}

/// A handle of the driver's memory. Mappings outlive the handle.
struct PhysicalMemory {
    calls: Calls,
    handle: u64,
}

impl Drop for PhysicalMemory {
    fn drop(&mut self) {
        // SAFETY: made or imported once, and released once.
        let _ = unsafe { (self.calls.block_release)(self.handle) };
    }
}

fn properties(context: &Context) -> CUmemAllocationProp {
    CUmemAllocationProp {
        type_: CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
        requestedHandleTypes: DESCRIPTOR,
        location: at(context.id.device_id),
        win32HandleMetaData: ptr::null_mut(),
        allocFlags: CUmemAllocationProp_st__bindgen_ty_1 {
            compressionType: 0,
            gpuDirectRDMACapable: 0,
            usage: 0,
            reserved: [0; 4],
        },
    }
}
