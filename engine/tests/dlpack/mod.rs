//! A library that knows nothing of Estafette: it makes DLPack tensors from its own C declarations, as
//! `dlpack.h` has them, and counts what happens to them.

#![allow(dead_code, reason = "each test file uses its part")]

use std::ffi::c_void;
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use estafette::ManagedTensor;
use estafette::exchange::Abi;

pub const READ_ONLY: u64 = 1;
pub const IS_COPIED: u64 = 2;

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

/// The sizes that the facts about DLPack give for 64-bit machines.
const _: () =
    assert!(size_of::<DLTensor>() == 48 && size_of::<Legacy>() == 64 && size_of::<Versioned>() == 80);

/// What happened to the tensors of one producer.
#[derive(Debug, Default)]
pub struct Deletions {
    count: AtomicUsize,
    threads: Mutex<Vec<String>>,
}

impl Deletions {
    pub fn count(&self) -> usize {
        self.count.load(Ordering::Acquire)
    }

    /// Waits until `count` deleters have run; fails the test when that takes unreasonably long.
    pub fn wait_for(&self, count: usize) {
        let deadline = Instant::now() + Duration::from_secs(30);
        while self.count() < count {
            assert!(Instant::now() < deadline, "{} of {count} deleters ran", self.count());
            std::thread::yield_now();
        }
        assert_eq!(self.count(), count);
    }

    /// The names of the threads that ran deleters.
    pub fn threads(&self) -> Vec<String> {
        self.threads.lock().expect("no test panics while it counts").clone()
    }
}

/// What a tensor's `manager_ctx` points to.
struct Context {
    memory: Vec<f32>,
    shape: Vec<i64>,
    strides: Vec<i64>,
    deletions: Arc<Deletions>,
}

/// A versioned float32 tensor on the host with elements 0, 1, 2, ..., changed by `edit` before it goes out.
pub fn versioned(
    shape: &[i64],
    deletions: &Arc<Deletions>,
    edit: impl FnOnce(&mut Versioned),
) -> *mut c_void {
    let (tensor, manager_ctx) = describe(shape, deletions);
    let mut managed =
        Versioned { major: 1, minor: 3, manager_ctx, deleter: Some(delete_versioned), flags: 0, tensor };
    edit(&mut managed);
    Box::into_raw(Box::new(managed)).cast()
}

/// The same in the legacy struct.
pub fn legacy(shape: &[i64], deletions: &Arc<Deletions>, edit: impl FnOnce(&mut Legacy)) -> *mut c_void {
    let (tensor, manager_ctx) = describe(shape, deletions);
    let mut managed = Legacy { tensor, manager_ctx, deleter: Some(delete_legacy) };
    edit(&mut managed);
    Box::into_raw(Box::new(managed)).cast()
}

/// [`versioned`] without edits, owned.
pub fn tensor(shape: &[i64], deletions: &Arc<Deletions>) -> ManagedTensor {
    // SAFETY: a fresh tensor that describes its memory truly.
    unsafe { ManagedTensor::from_raw(versioned(shape, deletions, |_| ()), Abi::Versioned) }
        .expect("version 1.3")
}

fn describe(shape: &[i64], deletions: &Arc<Deletions>) -> (DLTensor, *mut c_void) {
    let len = shape.iter().map(|&size| usize::try_from(size).unwrap_or(0)).fold(1, usize::wrapping_mul);
    let mut strides = vec![1; shape.len()];
    for index in (1..shape.len()).rev() {
        strides[index - 1] = shape[index].max(1).wrapping_mul(strides[index]);
    }
    // Descriptions that lie about huge sizes are never followed, so a few elements do.
    let memory = (0..len.min(1 << 20)).map(|index| index as f32).collect();
    let context = Box::into_raw(Box::new(Context {
        memory,
        shape: shape.to_vec(),
        strides,
        deletions: deletions.clone(),
    }));
    // SAFETY: just made; the struct's pointers point into it until the deleter frees it.
    let inside = unsafe { &mut *context };
    let tensor = DLTensor {
        data: inside.memory.as_mut_ptr().cast(),
        device_type: 1,
        device_id: 0,
        ndim: i32::try_from(shape.len()).expect("few dimensions"),
        code: 2,
        bits: 32,
        lanes: 1,
        shape: if shape.is_empty() { ptr::null_mut() } else { inside.shape.as_mut_ptr() },
        strides: if shape.is_empty() { ptr::null_mut() } else { inside.strides.as_mut_ptr() },
        byte_offset: 0,
    };
    (tensor, context.cast())
}

/// # Safety
/// Called once, with a pointer that [`versioned`] returned.
unsafe extern "C" fn delete_versioned(managed: *mut Versioned) {
    // SAFETY: as above.
    unsafe { delete(Box::from_raw(managed).manager_ctx) }
}

/// # Safety
/// Called once, with a pointer that [`legacy`] returned.
unsafe extern "C" fn delete_legacy(managed: *mut Legacy) {
    // SAFETY: as above.
    unsafe { delete(Box::from_raw(managed).manager_ctx) }
}

/// # Safety
/// The context of a tensor that has just been freed.
unsafe fn delete(context: *mut c_void) {
    // SAFETY: as above.
    let context = unsafe { Box::from_raw(context.cast::<Context>()) };
    let name = std::thread::current().name().unwrap_or("unnamed").to_owned();
    let deletions = context.deletions.clone();
    drop(context);
    let mut threads = deletions.threads.lock().expect("no test panics while it counts");
    if !threads.contains(&name) {
        threads.push(name);
    }
    drop(threads);
    deletions.count.fetch_add(1, Ordering::Release);
}
