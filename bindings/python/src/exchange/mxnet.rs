//! Arrays of MXNet 1.9 as promises: `eng.from_mxnet(array)`.
//!
//! MXNet has an engine of its own, which keeps order over a variable per array. An asynchronous function that
//! is pushed to it with the array as something to read begins when all earlier writes of the array are done,
//! and ends when it says so; until then later writes wait. So one such function is both halves of an
//! exchange: its beginning makes the array's memory the result of an operation of the engine, and its end is
//! the last use of that memory here. No thread waits for either.
//!
//! The names and types are those of MXNet's C interface (apache/mxnet:include/mxnet/c_api.h, version 1.9.1).
//! What is called at the end, `CallbackOnComplete`, is a C++ class of three words (include/mxnet/engine.h).

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr::{self, NonNull};

use estafette::exchange::{Abi, ExportFlags, ManagedTensor, export};
use estafette::{BodyError, Completion, Produced};
use estafette_sync::sync::Mutex;
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;

use crate::exchange::from_future::{CompletionSlot, take};
use crate::interpreter::fastcall::function;
use crate::interpreter::guard;

type MxHandle = *mut c_void;
type AsyncFunction = unsafe extern "C" fn(context: *mut c_void, on_complete: *mut c_void, param: *mut c_void);
type Push = unsafe extern "C" fn(
    function: AsyncFunction,
    param: *mut c_void,
    deleter: unsafe extern "C" fn(*mut c_void),
    context: *const c_void,
    const_arrays: *mut MxHandle,
    n_const: c_int,
    mutable_arrays: *mut MxHandle,
    n_mutable: c_int,
    property: *const c_void,
    priority: c_int,
    name: *const c_char,
    wait: bool,
) -> c_int;

/// The functions of MXNet's library that are needed here.
#[derive(Clone, Copy)]
struct MxNetApi {
    push: Push,
    copy: unsafe extern "C" fn(MxHandle, *mut MxHandle) -> c_int,
    free: unsafe extern "C" fn(MxHandle) -> c_int,
    to_dlpack: unsafe extern "C" fn(MxHandle, *mut *mut c_void) -> c_int,
    last_error: unsafe extern "C" fn() -> *const c_char,
}

impl MxNetApi {
    /// From the addresses that `estafette/_mxnet.py` has looked up, in its order.
    fn new(addresses: [usize; 5]) -> PyResult<Self> {
        let [push, copy, free, to_dlpack, last_error] = addresses.map(ptr::with_exposed_provenance_mut);
        // SAFETY: the functions of these names in MXNet 1.9 are of these types.
        let found = || unsafe {
            Some(Self {
                push: function(push)?,
                copy: function(copy)?,
                free: function(free)?,
                to_dlpack: function(to_dlpack)?,
                last_error: function(last_error)?,
            })
        };
        found().ok_or_else(|| PyRuntimeError::new_err("MXNet's library lacks a function of its C interface"))
    }

    /// The reason why the last call on this thread has failed.
    fn error(&self) -> String {
        // SAFETY: gives NULL or a text that stays until this thread calls MXNet again.
        unsafe {
            let text = (self.last_error)();
            if text.is_null() {
                "unknown error".into()
            } else {
                CStr::from_ptr(text).to_string_lossy().into_owned()
            }
        }
    }
}

/// A handle of our own to an array.
struct Array {
    handle: MxHandle,
    api: MxNetApi,
}

// SAFETY: MXNet's arrays are reference counted and may be used and freed on any thread.
unsafe impl Send for Array {}

impl Drop for Array {
    fn drop(&mut self) {
        // SAFETY: the handle is ours, and is freed once.
        unsafe { (self.api.free)(self.handle) };
    }
}

/// MXNet's `CallbackOnComplete`: notifies its engine, once, that an asynchronous function has ended.
#[repr(C)]
struct OnComplete {
    callback: unsafe extern "C" fn(engine: *mut c_void, param: *mut c_void, error: *const c_void),
    engine: *mut c_void,
    param: *mut c_void,
}

// SAFETY: made to be called from any thread.
unsafe impl Send for OnComplete {}

impl Drop for OnComplete {
    fn drop(&mut self) {
        // SAFETY: called once, as the engine asks; without an error.
        unsafe { (self.callback)(self.engine, self.param, ptr::null()) };
    }
}

/// The values that MXNet's engine keeps for the function until it has ended, or was skipped.
struct PendingPush {
    slot: CompletionSlot,
    array: Mutex<Option<Array>>,
    writable: bool,
}

impl Drop for PendingPush {
    fn drop(&mut self) {
        if let Some(completion) = take(&self.slot) {
            completion.produce(Err(BodyError::from(
                "MXNet skipped it, since an operation before it on this array failed; the array's `wait_to_read()` says why",
            )));
        }
    }
}

/// Pushes the function that ends the operation in `slot` with the memory of the array. `writable` says that
/// what comes after in MXNet's engine waits for us even to read. Raises `RuntimeError` with MXNet's words;
/// the operation fails with them as well.
pub fn push(
    py: Python<'_>,
    handle: usize,
    addresses: [usize; 5],
    slot: CompletionSlot,
    writable: bool,
) -> PyResult<()> {
    /// `Context` of include/mxnet/base.h: the kind of device, here `kCPU`, and its number.
    const HOST: [i32; 2] = [1, 0];
    let api = MxNetApi::new(addresses)?;
    let outcome = guard::detach(py, || {
        let mut copy = ptr::null_mut();
        // SAFETY: the caller's array lives during the call.
        if unsafe { (api.copy)(ptr::with_exposed_provenance_mut(handle), &mut copy) } != 0 {
            return Err(api.error());
        }
        let array = Mutex::new(Some(Array { handle: copy, api }));
        let mut operand = copy;
        let (n_const, n_mutable) = if writable { (0, 1) } else { (1, 0) };
        let param = Box::into_raw(Box::new(PendingPush { slot: slot.clone(), array, writable }));
        // SAFETY: the engine reads the operand and the context before it returns, and calls the deleter once,
        // after the last use of the parameter, whether it runs the function or not.
        let status = unsafe {
            (api.push)(
                ready,
                param.cast(),
                dropped,
                HOST.as_ptr().cast(),
                &mut operand,
                n_const,
                &mut operand,
                n_mutable,
                ptr::null(),
                0,
                c"estafette".as_ptr(),
                false,
            )
        };
        if status == 0 { Ok(()) } else { Err(api.error()) }
    });
    outcome.map_err(|why| {
        let message = format!("MXNet refused: {why}");
        if let Some(completion) = take(&slot) {
            guard::detach(py, || completion.produce(Err(BodyError::from(message.clone()))));
        }
        PyRuntimeError::new_err(message)
    })
}

/// MXNet's deleter of the parameter.
unsafe extern "C" fn dropped(param: *mut c_void) {
    // SAFETY: called once with what `push` has made.
    drop(unsafe { Box::from_raw(param.cast::<PendingPush>()) });
}

/// Runs on a worker of MXNet once earlier writes of the array are done. Its end, for MXNet, is when the last
/// use of the memory here is over.
unsafe extern "C" fn ready(_context: *mut c_void, on_complete: *mut c_void, param: *mut c_void) {
    // SAFETY: the parameter is alive until its deleter is called; the callback is lent, and to be copied.
    let (pending, end) =
        unsafe { (&*param.cast::<PendingPush>().cast_const(), on_complete.cast::<OnComplete>().read()) };
    let (Some(completion), Some(array)) = (take(&pending.slot), take(&pending.array)) else { return };
    deliver(completion, array, end, pending.writable);
}

fn deliver(completion: Completion, array: Array, end: OnComplete, writable: bool) {
    completion.produce(memory_of(array, end, writable).map(Produced::from).map_err(BodyError::from));
}

/// The memory of the array. Its release ends MXNet's function.
fn memory_of(array: Array, end: OnComplete, writable: bool) -> Result<ManagedTensor, String> {
    let mut raw = ptr::null_mut();
    // SAFETY: the handle is ours, and earlier writes are done, so the array has its memory.
    if unsafe { (array.api.to_dlpack)(array.handle, &mut raw) } != 0 {
        return Err(array.api.error());
    }
    let raw = NonNull::new(raw).ok_or("MXNet gave no tensor")?;
    // SAFETY: a legacy struct that is ours now, and describes the array's memory.
    let managed =
        unsafe { ManagedTensor::from_raw(raw.as_ptr(), Abi::Legacy) }.map_err(|error| error.to_string())?;
    let layout = managed.describe().map_err(|error| error.to_string())?;
    let flags = ExportFlags { read_only: !writable, is_copied: false };
    let data = managed.data();
    let owner = move || {
        // In this order: MXNet may write as soon as it knows of the end.
        drop(managed);
        drop(array);
        drop(end);
    };
    // SAFETY: the owner keeps the memory as it was described until it is called; until then MXNet's engine
    // keeps its writers away, and its readers too if the memory may be written.
    Ok(unsafe { export(&layout, data, flags, Abi::Versioned, owner) })
}
