//! `DLManagedTensorFenced` of `dlpack_fence.h`, both ways: a DLPack struct with a fence of its producer and
//! fences of its consumer.

use std::ffi::c_void;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use estafette_devices::log_panic;
use estafette_sync::process::Generation;

use super::super::foreign_fence::{FAILED, FENCE_VERSION, INVALID, RawFence};
use super::{
    DLDataType, DLDataTypeCode, DLDeviceType, DLManagedTensorVersioned, DLPackVersion, DLTensor, DlpackFlags,
    ManagedTensor, Raw, RawDevice, VERSION,
};
use crate::core::invalid_tensor::InvalidTensor;

/// In `fence_flags`: all but version and deleter is valid once the tensor is ready.
const DESCRIBED_LATE: u64 = 1;

/// The struct, as C sees it.
#[repr(C)]
struct RawFenced {
    managed: DLManagedTensorVersioned,
    version: u32,
    size: u32,
    fence_flags: u64,
    ready: RawFence,
    add_done: Option<unsafe extern "C" fn(*mut RawFenced, *const RawFence) -> i32>,
}

/// An owned fenced tensor, of another library or for one. Drop calls its deleter.
#[derive(Debug)]
pub struct Fenced {
    /// The tensor, whose deleter ends the whole struct.
    pub(crate) managed: ManagedTensor,
    /// Part of the struct: valid as long as `managed`.
    pub(crate) ready: NonNull<RawFence>,
    /// True if `managed` is described only once `ready` is done.
    pub(crate) described_late: bool,
}

// SAFETY: any thread may use the fence, which is part of its contract, and call the deleter.
unsafe impl Send for Fenced {}

impl Fenced {
    /// Gives the struct up, as a `DLManagedTensorFenced`. The caller must see to the call of the deleter.
    pub fn into_raw(self) -> *mut c_void {
        self.managed.into_raw()
    }

    /// Takes a fenced tensor over. Its consumer's fences are left alone: the deleter is called after the last
    /// use.
    ///
    /// # Errors
    /// The field that is wrong. Nothing was taken then.
    ///
    /// # Safety
    /// `raw` is NULL, or what its type says and the caller's to give up.
    pub unsafe fn take(raw: *mut c_void) -> Result<Self, InvalidTensor> {
        let Some(raw) = NonNull::new(raw.cast::<RawFenced>()) else {
            return Err(InvalidTensor::new("tensor", "is NULL"));
        };
        let at = raw.as_ptr();
        // SAFETY: the caller vouches for the struct; these fields keep their place in all versions of it.
        let (dlpack, version, size, flags) = unsafe {
            (
                (&raw const (*at).managed.version).read(),
                (&raw const (*at).version).read(),
                (&raw const (*at).size).read(),
                (&raw const (*at).fence_flags).read(),
            )
        };
        if dlpack.major != VERSION.0 {
            return Err(InvalidTensor::new("version", format!("is {}.{}", dlpack.major, dlpack.minor)));
        }
        if version != FENCE_VERSION || (size as usize) < size_of::<RawFenced>() {
            let reason = format!(
                "is {version} with {size} bytes; {FENCE_VERSION} with {} is known",
                size_of::<RawFenced>()
            );
            return Err(InvalidTensor::new("fence version", reason));
        }
        if flags & !DESCRIBED_LATE != 0 {
            return Err(InvalidTensor::new("fence_flags", format!("are {flags:#x}")));
        }
        Ok(Self {
            managed: ManagedTensor::new(Raw::Versioned(raw.cast())),
            // SAFETY: a field of the struct.
            ready: unsafe { NonNull::new_unchecked(&raw mut (*at).ready) },
            described_late: flags & DESCRIBED_LATE != 0,
        })
    }
}

/// Calls of an exported fenced tensor.
pub(crate) trait FencedOwner: Send + Sync + 'static {
    /// Retains a fence of the consumer; returns a status of a fence.
    ///
    /// # Safety
    /// `done` is what its type says.
    unsafe fn add_done(&self, done: NonNull<RawFence>) -> i32;

    /// The consumer has called the deleter, on any thread and under any lock. The struct goes when this
    /// returns.
    fn release(&self);
}

/// A struct for a consumer, until that calls the deleter.
#[derive(Clone, Copy)]
pub(crate) struct ExportedFenced(NonNull<FencedBlock>);

// SAFETY: the pointer is only passed on, and followed under the lock of the owner that also stands between it
// and the deleter.
unsafe impl Send for ExportedFenced {}

/// The struct comes first, so that a pointer to it is one to the whole.
#[repr(C)]
struct FencedBlock {
    raw: RawFenced,
    owner: Arc<dyn FencedOwner>,
    generation: Generation,
}

impl ExportedFenced {
    /// Makes the struct. It owns one count of `ready`. Without `description` it is described late.
    pub(crate) fn new(
        owner: Arc<dyn FencedOwner>,
        ready: RawFence,
        description: Option<&ManagedTensor>,
    ) -> Self {
        let nothing = DLTensor {
            data: ptr::null_mut(),
            device: RawDevice { device_type: DLDeviceType(1), device_id: 0 },
            ndim: 0,
            dtype: DLDataType { code: DLDataTypeCode(0), bits: 8, lanes: 1 },
            shape: ptr::null_mut(),
            strides: ptr::null_mut(),
            byte_offset: 0,
        };
        let raw = RawFenced {
            managed: DLManagedTensorVersioned {
                version: DLPackVersion { major: VERSION.0, minor: VERSION.1 },
                manager_ctx: ptr::null_mut(),
                deleter: Some(delete),
                flags: DlpackFlags::empty(),
                dl_tensor: nothing,
            },
            version: FENCE_VERSION,
            size: size_of::<RawFenced>() as u32,
            fence_flags: if description.is_none() { DESCRIBED_LATE } else { 0 },
            ready,
            add_done: Some(add_done),
        };
        let block = Box::into_raw(Box::new(FencedBlock { raw, owner, generation: Generation::current() }));
        // SAFETY: just made. PaddlePaddle 3.3 calls the deleter only of structs whose `manager_ctx` is not
        // NULL.
        let this = unsafe {
            (*block).raw.managed.manager_ctx = block.cast();
            Self(NonNull::new_unchecked(block))
        };
        if let Some(description) = description {
            // SAFETY: no other thread knows the struct yet.
            unsafe { this.describe(description) };
        }
        this
    }

    /// The struct, for the consumer.
    pub(crate) fn owned(self) -> Fenced {
        // SAFETY: just made, by its only owner.
        unsafe { Fenced::take(self.0.as_ptr().cast()) }.expect("a struct of this version")
    }

    /// Copies the description of `managed`, which must live until the deleter is called.
    ///
    /// # Safety
    /// The deleter was not called and is not called meanwhile; the consumer does not read the description
    /// yet.
    pub(crate) unsafe fn describe(self, managed: &ManagedTensor) {
        let to = self.0.as_ptr();
        // SAFETY: by contract.
        unsafe {
            (*to).raw.managed.dl_tensor = managed.tensor();
            (*to).raw.managed.flags = managed.raw_flags();
        }
    }
}

unsafe extern "C" fn add_done(raw: *mut RawFenced, done: *const RawFence) -> i32 {
    let Some(done) = NonNull::new(done.cast_mut()) else { return INVALID };
    // SAFETY: the consumer calls this with the struct before it calls the deleter, and vouches for the fence.
    unsafe {
        let block = &*raw.cast::<FencedBlock>();
        if !block.generation.is_current() {
            return FAILED;
        }
        block.owner.add_done(done)
    }
}

unsafe extern "C" fn delete(managed: *mut DLManagedTensorVersioned) {
    estafette_sync::valgrind::before();
    let block = managed.cast::<FencedBlock>();
    // SAFETY: the consumer calls this once, with the struct, which is the first field of a block from a box.
    let generation = unsafe { (*block).generation };
    // SAFETY: as above.
    generation.release(|| unsafe {
        let owner = Arc::clone(&(*block).owner);
        log_panic("owner of an exported tensor", move || owner.release());
        let block = Box::from_raw(block);
        if let Some(release) = block.raw.ready.release {
            release(block.raw.ready.context);
        }
    });
}
