//! A library that knows nothing of Estafette: it makes DLPack tensors from its own C declarations, as
//! `dlpack.h` has them, and counts its deleters.

use std::ffi::c_void;
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use estafette::ManagedTensor;
use estafette::exchange::Abi;

/// Flag of the versioned struct: the consumer must not write.
pub const READ_ONLY: u64 = 1;

#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct DLTensor {
    pub data: *mut c_void,
    pub device_type: i32,
    pub device_id: i32,
    pub ndim: i32,
    pub code: u8,
    pub bits: u8,
    pub lanes: u16,
    pub shape: *mut i64,
    pub strides: *mut i64,
    pub byte_offset: u64,
}

#[repr(C)]
#[derive(Debug)]
pub struct Legacy {
    pub tensor: DLTensor,
    pub manager_ctx: *mut c_void,
    pub deleter: Option<unsafe extern "C" fn(*mut Legacy)>,
}

#[repr(C)]
#[derive(Debug)]
pub struct Versioned {
    pub major: u32,
    pub minor: u32,
    pub manager_ctx: *mut c_void,
    pub deleter: Option<unsafe extern "C" fn(*mut Versioned)>,
    pub flags: u64,
    pub tensor: DLTensor,
}

/// Number of deleters that have run. Clones count together.
#[derive(Debug, Clone, Default)]
pub struct Deleted {
    inner: Arc<Counter>,
}

#[derive(Debug, Default)]
struct Counter {
    count: AtomicUsize,
    waiting: Mutex<()>,
    changed: Condvar,
}

/// Limit for a deleter to come. Far more than it takes.
const PATIENCE: Duration = Duration::from_secs(30);

impl Deleted {
    /// Number so far.
    pub fn count(&self) -> usize {
        self.inner.count.load(Ordering::Acquire)
    }

    /// Waits until `count` have run, and lets the reaper say that no more are on their way.
    pub fn settle_at(&self, count: usize) {
        let deadline = Instant::now() + PATIENCE;
        let mut guard = self.inner.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        while self.count() < count {
            let left = deadline.saturating_duration_since(Instant::now());
            assert!(!left.is_zero(), "{} of {count} deleters ran", self.count());
            guard = self.inner.changed.wait_timeout(guard, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        drop(guard);
        assert!(estafette::exchange::flush_deleters(PATIENCE), "the reaper is stuck");
        assert_eq!(self.count(), count, "more deleters than tensors");
    }

    fn one_more(&self) {
        self.inner.count.fetch_add(1, Ordering::AcqRel);
        drop(self.inner.waiting.lock().unwrap_or_else(PoisonError::into_inner));
        self.inner.changed.notify_all();
    }
}

/// Memory of the foreign library that several of its tensors may share.
#[derive(Debug, Clone)]
pub struct Memory {
    inner: Arc<Block>,
}

#[derive(Debug)]
struct Block {
    data: *mut f32,
    len: usize,
}

// SAFETY: plain memory; who may touch it when is what the tests are about.
unsafe impl Send for Block {}
// SAFETY: as above; references to the block give only its address.
unsafe impl Sync for Block {}

impl Drop for Block {
    fn drop(&mut self) {
        // SAFETY: made from a boxed slice of this length, and released once.
        drop(unsafe { Box::from_raw(ptr::slice_from_raw_parts_mut(self.data, self.len)) });
    }
}

impl Memory {
    pub fn of(values: &[f32]) -> Self {
        let len = values.len();
        let data = Box::into_raw(Box::<[f32]>::from(values)).cast::<f32>();
        Self { inner: Arc::new(Block { data, len }) }
    }

    /// Address of the first element.
    pub fn address(&self) -> *mut f32 {
        self.inner.data
    }

    /// A one-dimensional versioned tensor of the elements from `start` on, changed by `edit`.
    pub fn versioned(
        &self,
        start: usize,
        len: usize,
        deleted: &Deleted,
        edit: impl FnOnce(&mut Versioned),
    ) -> *mut c_void {
        let (tensor, manager_ctx) = self.describe(start, len, deleted);
        versioned(tensor, manager_ctx, edit)
    }

    /// The same in the legacy struct.
    pub fn legacy(
        &self,
        start: usize,
        len: usize,
        deleted: &Deleted,
        edit: impl FnOnce(&mut Legacy),
    ) -> *mut c_void {
        let (tensor, manager_ctx) = self.describe(start, len, deleted);
        let mut managed = Legacy { tensor, manager_ctx, deleter: Some(delete_legacy) };
        edit(&mut managed);
        Box::into_raw(Box::new(managed)).cast()
    }

    /// An owned tensor of the elements from `start` on.
    pub fn tensor(&self, start: usize, len: usize, deleted: &Deleted) -> ManagedTensor {
        // SAFETY: a fresh tensor that describes its memory truly.
        unsafe { ManagedTensor::from_raw(self.versioned(start, len, deleted, |_| ()), Abi::Versioned) }
            .expect("version 1.1 is known")
    }

    fn describe(&self, start: usize, len: usize, deleted: &Deleted) -> (DLTensor, *mut c_void) {
        assert!(start + len <= self.inner.len, "the tensor fits into its memory");
        self.shaped(start, &[i64::try_from(len).expect("a length fits")], deleted)
    }

    /// A row-major tensor that begins at `start`.
    fn shaped(&self, start: usize, shape: &[i64], deleted: &Deleted) -> (DLTensor, *mut c_void) {
        let mut strides = vec![1; shape.len()];
        for index in (1..shape.len()).rev() {
            strides[index - 1] = shape[index].max(1) * strides[index];
        }
        let (memory, shape, deleted) = (self.clone(), shape.to_vec(), deleted.clone());
        let context = Box::into_raw(Box::new(ManagerContext { _memory: memory, shape, strides, deleted }));
        // SAFETY: just made; the struct's pointers point into it until the deleter frees it.
        let inside = unsafe { &mut *context };
        let tensor = DLTensor {
            // SAFETY: inside of the block, as was just checked.
            data: unsafe { self.inner.data.add(start) }.cast(),
            device_type: 1,
            device_id: 0,
            ndim: i32::try_from(inside.shape.len()).expect("few dimensions"),
            code: 2,
            bits: 32,
            lanes: 1,
            shape: inside.shape.as_mut_ptr(),
            strides: inside.strides.as_mut_ptr(),
            byte_offset: 0,
        };
        (tensor, context.cast())
    }
}

/// A tensor of one element each, owned, with memory of its own.
pub fn tensor(values: &[f32], deleted: &Deleted) -> ManagedTensor {
    Memory::of(values).tensor(0, values.len(), deleted)
}

/// A row-major versioned tensor of the elements 0, 1, 2, ..., changed by `edit`.
pub fn numbers(shape: &[i64], deleted: &Deleted, edit: impl FnOnce(&mut Versioned)) -> *mut c_void {
    let values: Vec<f32> = (0..shape.iter().product()).map(|value: i64| value as f32).collect();
    let (tensor, manager_ctx) = Memory::of(&values).shaped(0, shape, deleted);
    versioned(tensor, manager_ctx, edit)
}

fn versioned(tensor: DLTensor, manager_ctx: *mut c_void, edit: impl FnOnce(&mut Versioned)) -> *mut c_void {
    let mut managed =
        Versioned { major: 1, minor: 1, manager_ctx, deleter: Some(delete_versioned), flags: 0, tensor };
    edit(&mut managed);
    Box::into_raw(Box::new(managed)).cast()
}

/// Target of `manager_ctx`.
struct ManagerContext {
    _memory: Memory,
    shape: Vec<i64>,
    strides: Vec<i64>,
    deleted: Deleted,
}

/// # Safety
/// Called once, with a pointer that [`Memory::versioned`] returned.
unsafe extern "C" fn delete_versioned(managed: *mut Versioned) {
    // SAFETY: as above.
    unsafe { delete(Box::from_raw(managed).manager_ctx) }
}

/// # Safety
/// Called once, with a pointer that [`Memory::legacy`] returned.
unsafe extern "C" fn delete_legacy(managed: *mut Legacy) {
    // SAFETY: as above.
    unsafe { delete(Box::from_raw(managed).manager_ctx) }
}

/// # Safety
/// The context of a tensor that has just been freed.
unsafe fn delete(context: *mut c_void) {
    // SAFETY: as above.
    let context = unsafe { Box::from_raw(context.cast::<ManagerContext>()) };
    let deleted = context.deleted.clone();
    drop(context);
    deleted.one_more();
}
