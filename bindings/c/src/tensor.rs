//! Tensors: adopting, querying, waiting for and releasing them.

use std::ffi::{c_char, c_void};
use std::fmt::Display;
use std::ptr::NonNull;
use std::time::Duration;

use estafette::bindings;
use estafette::devices::{DLDevice, FenceSet};
use estafette::engine::Memory;
use estafette::exchange::Abi;
use estafette::operation::Tensors;
use estafette::{Error, ImportOptions, ManagedTensor, Tensor};

use crate::context::{Context, estafette_drop};
use crate::dlpack::{DLDataType, DLManagedTensor, DLManagedTensorVersioned};
use crate::engine::{self, estafette_engine, timeout};
use crate::entry::{Answer, DONE, Refusal, array, entry, entry_unless_null, flag, is_null, place};
use crate::fence::DLFence;
use crate::handles::{Pinned, Table, Vacant};
use crate::places::HandleKind;
use crate::status::estafette_status;

/// A promise of an n-dimensional array: one count of it. Any thread may use it.
///
/// This handle and those of leases, promises, engines, programs and operations are numbers with a generation,
/// not addresses. A function that is given one that is not in use, since it was released or never was a
/// handle, returns `ESTAFETTE_INVALID` and does nothing. What one thread releases while another uses it in a
/// call goes when that call returns.
#[derive(Debug)]
pub enum estafette_tensor {}

static TENSORS: Table<Tensor> = Table::new(HandleKind::Tensor);

/// The tensor of a handle.
#[inline]
pub(crate) fn tensor(tensor: *const estafette_tensor, name: impl Display) -> Result<Pinned<Tensor>, Refusal> {
    TENSORS.get(tensor, name)
}

/// Several handles.
///
/// # Safety
/// As for [`array`].
pub(crate) unsafe fn tensors(
    first: *const *mut estafette_tensor,
    count: usize,
    name: &str,
) -> Result<Tensors, Refusal> {
    // SAFETY: by contract of this function.
    let handles = unsafe { array(first, count, name) }?;
    let one = |(at, handle): (usize, &*mut estafette_tensor)| {
        tensor(*handle, format_args!("{name}[{at}]")).map(|tensor| Tensor::clone(&tensor))
    };
    handles.iter().enumerate().map(one).collect()
}

/// A handle of a tensor that Rust code beside this library has made; `estafette_tensor_release` gives it up.
/// `None` when there are as many handles as there can be.
pub fn tensor_handle(tensor: Tensor) -> Option<*mut estafette_tensor> {
    Some(reserve().ok()?.fill(tensor))
}

/// A place for a handle of a tensor that is to be made.
pub(crate) fn reserve() -> Result<Vacant<Tensor>, Refusal> {
    TENSORS.reserve()
}

/// Adopts a tensor of another library, without a copy. Memory that overlaps tensors already known is ordered
/// with them.
///
/// The type may be one that this library does not know, and the address need not be a multiple of the
/// element's size: both are handed on as they are, and functions that need more look for themselves.
///
/// `ready` says when its content may be read; NULL means now. The fence is copied and retained, and stays the
/// caller's. On `ESTAFETTE_OK` the library owns `managed`, and calls its deleter once, on a thread of its own
/// that holds no lock, when the last use is over; on any other status nothing was taken. The caller owns
/// `*out` and gives it up by `estafette_tensor_release`.
///
/// Returns `ESTAFETTE_OK`; `ESTAFETTE_INVALID` for NULL, a handle that is not in use, for a tensor or fence
/// that breaks the rules (the text names the field), or for a device that the engine does not have;
/// `ESTAFETTE_SHUTDOWN`; `ESTAFETTE_FORKED`. May be called by any thread.
///
/// # Safety
/// Each pointer but handles is NULL or what its type says. What `managed` describes is true until its deleter
/// is called, and only the engine's operations and leases write the memory meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn estafette_import(
    engine: *mut estafette_engine,
    managed: *mut DLManagedTensorVersioned,
    ready: *const DLFence,
    out: *mut *mut estafette_tensor,
) -> estafette_status {
    entry(|| {
        // SAFETY: by contract of this function; the version is one that is taken.
        unsafe { import(engine, of_known_version(managed)?, Abi::Versioned, false, ready, out) }
    })
}

/// The struct, if its version is known. Of another one nothing else may be touched, and it must come back
/// untouched.
///
/// # Safety
/// `managed` is NULL or what its type says.
pub(crate) unsafe fn of_known_version(
    managed: *mut DLManagedTensorVersioned,
) -> Result<NonNull<c_void>, Refusal> {
    let managed = NonNull::new(managed).ok_or_else(|| is_null("managed"))?;
    // SAFETY: by contract; the version comes first in every version of the struct.
    let [major, minor] = unsafe { managed.cast::<[u32; 2]>().read() };
    let known = estafette::exchange::DLPACK_VERSION.0;
    if major != known {
        let message = format!("invalid tensor: version is {major}.{minor}, but only {known}.x is known");
        return Err(Refusal::invalid(message));
    }
    Ok(managed.cast())
}

/// As `estafette_import`, of the struct from before DLPack 1.0, which Triton, TensorFlow and DGL make. It
/// cannot say whether its memory may be written: `writable` is 1 if its owner allows that, and 0 if not, or
/// if the caller does not know. Then operations and leases that write are refused with `ESTAFETTE_CONFLICT`.
/// The deleter may be NULL.
///
/// Returns as `estafette_import`; `ESTAFETTE_INVALID` for another `writable` as well.
///
/// # Safety
/// As for `estafette_import`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn estafette_import_legacy(
    engine: *mut estafette_engine,
    managed: *mut DLManagedTensor,
    writable: i32,
    ready: *const DLFence,
    out: *mut *mut estafette_tensor,
) -> estafette_status {
    entry(|| {
        let managed = NonNull::new(managed).ok_or_else(|| is_null("managed"))?;
        let read_only = !flag("writable", writable)?;
        // SAFETY: by contract of this function.
        unsafe { import(engine, managed.cast(), Abi::Legacy, read_only, ready, out) }
    })
}

/// Adopts a struct.
///
/// # Safety
/// As for `estafette_import`; `managed` is the struct that `abi` says.
unsafe fn import(
    engine: *mut estafette_engine,
    managed: NonNull<c_void>,
    abi: Abi,
    read_only: bool,
    ready: *const DLFence,
    out: *mut *mut estafette_tensor,
) -> Answer {
    let engine = engine::engine(engine)?;
    let out = place(out, "out")?;
    let fences = match NonNull::new(ready.cast_mut()) {
        None => FenceSet::default(),
        // SAFETY: by contract of this function.
        Some(ready) => unsafe { bindings::exchange::import(ready, engine.devices()) }?.into(),
    };
    let vacant = reserve()?;
    // SAFETY: by contract of this function.
    let owned = unsafe { ManagedTensor::from_raw(managed.as_ptr(), abi) };
    let owned = owned.map_err(|error| Refusal::from(Error::from(error)))?;
    let options = ImportOptions { ready: fences, read_only, ..ImportOptions::default() };
    // SAFETY: by contract of this function.
    let imported = unsafe { bindings::engine::import_or_return(&engine, owned, options) };
    // SAFETY: writable, by contract.
    unsafe { write_imported(imported, vacant, out) }
}

/// Writes the handle of an imported tensor to `out`. A tensor that was refused stays the caller's.
///
/// # Safety
/// `out` may be written.
pub(crate) unsafe fn write_imported(
    imported: Result<Tensor, Box<(Error, ManagedTensor)>>,
    vacant: Vacant<Tensor>,
    out: NonNull<*mut estafette_tensor>,
) -> Answer {
    match imported {
        Ok(tensor) => {
            // SAFETY: by contract of this function.
            unsafe { out.write(vacant.fill(tensor)) };
            DONE
        }
        Err(back) => {
            let (error, managed) = *back;
            let _ = managed.into_raw();
            Err(error.into())
        }
    }
}

/// A new tensor of zeros in host memory, in row-major order: `shape` has `ndim` lengths, and may be NULL when
/// `ndim` is 0. The caller owns `*out` and gives it up by `estafette_tensor_release`.
///
/// Returns `ESTAFETTE_OK`; `ESTAFETTE_INVALID` for NULL, a handle that is not in use, a shape that cannot be,
/// or a type that DLPack does not have; `ESTAFETTE_DEVICE` when memory is exhausted; `ESTAFETTE_SHUTDOWN`;
/// `ESTAFETTE_FORKED`. May be called by any thread.
///
/// # Safety
/// Each pointer but handles is NULL or what its type says; `shape` has `ndim` entries.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn estafette_zeros(
    engine: *mut estafette_engine,
    shape: *const i64,
    ndim: i32,
    dtype: DLDataType,
    out: *mut *mut estafette_tensor,
) -> estafette_status {
    // SAFETY: by contract of this function.
    entry(|| unsafe { allocate(engine, Memory::On(DLDevice::CPU), (shape, ndim), dtype, out) })
}

/// As `estafette_zeros`, in memory that other processes can be shown, whatever the engine's other memory is.
///
/// Returns as `estafette_zeros`; `ESTAFETTE_DEVICE` also where the system has no such memory. May be called
/// by any thread.
///
/// # Safety
/// As for `estafette_zeros`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn estafette_zeros_shared(
    engine: *mut estafette_engine,
    shape: *const i64,
    ndim: i32,
    dtype: DLDataType,
    out: *mut *mut estafette_tensor,
) -> estafette_status {
    // SAFETY: by contract of this function.
    entry(|| unsafe { allocate(engine, Memory::Shared(DLDevice::CPU), (shape, ndim), dtype, out) })
}

/// As `estafette_zeros_shared`, in memory that one other process at a time can also be lent for writing:
/// `access` of `estafette_send_options`. Each such tensor has a segment of its own, of which a link shows
/// 1,024 at a time.
///
/// Returns as `estafette_zeros_shared`. May be called by any thread.
///
/// # Safety
/// As for `estafette_zeros`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn estafette_zeros_shared_for_writing(
    engine: *mut estafette_engine,
    shape: *const i64,
    ndim: i32,
    dtype: DLDataType,
    out: *mut *mut estafette_tensor,
) -> estafette_status {
    // SAFETY: by contract of this function.
    entry(|| unsafe { allocate(engine, Memory::SharedForWriting, (shape, ndim), dtype, out) })
}

/// As `estafette_zeros`, in memory of `device`, one of the engine's. The bytes are arbitrary; where the host
/// can use the memory they are zero.
///
/// Returns as `estafette_zeros`; `ESTAFETTE_INVALID` for a device that the engine does not have as well;
/// `ESTAFETTE_NOT_SHARED` in an engine with `shared` if memory of the device cannot be shown to other
/// processes. May be called by any thread.
///
/// # Safety
/// As for `estafette_zeros`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn estafette_empty(
    engine: *mut estafette_engine,
    device: DLDevice,
    shape: *const i64,
    ndim: i32,
    dtype: DLDataType,
    out: *mut *mut estafette_tensor,
) -> estafette_status {
    // SAFETY: by contract of this function.
    entry(|| unsafe { allocate(engine, Memory::On(device), (shape, ndim), dtype, out) })
}

/// Submits a copy of `tensor` to memory of `device`, in row-major order and without gaps. `*out` is a promise
/// of the copy, which the caller owns and gives up by `estafette_tensor_release`. The copy begins when the
/// current version is ready; no thread waits for a device.
///
/// Returns as `estafette_submit`; `ESTAFETTE_INVALID` for NULL `out` as well, and `ESTAFETTE_DEVICE` when the
/// device gives no stream. A device that the engine does not have fails the copy. `*out` is written only on
/// success. May be called by any thread.
///
/// # Safety
/// `out` is NULL or may be written. Handles may be any value.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn estafette_copy(
    engine: *mut estafette_engine,
    tensor: *const estafette_tensor,
    device: DLDevice,
    out: *mut *mut estafette_tensor,
) -> estafette_status {
    entry(|| {
        let engine = engine::engine(engine)?;
        let tensor = self::tensor(tensor, "tensor")?;
        let out = place(out, "out")?;
        let vacant = reserve()?;
        let copy = engine.copy(&tensor, device)?;
        // SAFETY: writable, by contract.
        unsafe { out.write(vacant.fill(copy)) };
        DONE
    })
}

/// Makes a tensor of zeros in `memory`.
///
/// # Safety
/// As for `estafette_zeros`.
unsafe fn allocate(
    engine: *mut estafette_engine,
    memory: Memory,
    (shape, ndim): (*const i64, i32),
    dtype: DLDataType,
    out: *mut *mut estafette_tensor,
) -> Answer {
    let engine = engine::engine(engine)?;
    let out = place(out, "out")?;
    let ndim = usize::try_from(ndim).map_err(|_| Refusal::invalid(format!("ndim is {ndim}")))?;
    // SAFETY: by contract of this function.
    let shape = unsafe { array(shape, ndim, "shape") }?;
    let vacant = reserve()?;
    let tensor = engine.empty(shape, dtype.known()?, memory)?;
    // SAFETY: writable, by contract.
    unsafe { out.write(vacant.fill(tensor)) };
    DONE
}

/// Adds a reference to a tensor. NULL is legal and does nothing.
///
/// Returns `ESTAFETTE_OK`; `ESTAFETTE_INVALID` for a handle that is not in use; `ESTAFETTE_FORKED`. May be
/// called by any thread. `tensor` may be any value.
#[unsafe(no_mangle)]
pub extern "C" fn estafette_tensor_retain(tensor: *mut estafette_tensor) -> estafette_status {
    entry_unless_null(tensor, || TENSORS.retain(tensor, "tensor"))
}

/// Removes a reference to a tensor. When the last reference and the last operation that uses it are gone, and
/// its last device work is done, its memory goes back to its owner, on a thread of the library. NULL is legal
/// and does nothing. In a forked child the tensor is leaked.
///
/// Returns `ESTAFETTE_OK`; `ESTAFETTE_INVALID` for a handle that is not in use, as after the last release;
/// `ESTAFETTE_FORKED`. May be called by any thread. `tensor` may be any value.
#[unsafe(no_mangle)]
pub extern "C" fn estafette_tensor_release(tensor: *mut estafette_tensor) -> estafette_status {
    entry_unless_null(tensor, || TENSORS.release(tensor, "tensor"))
}

/// As `estafette_tensor_release`, for a caller that has used the memory outside of operations and leases,
/// until `fence` is done: the memory's deleter, and every write of the engine that begins later, wait for it.
/// NULL `fence` means that the use is over. The fence is copied and retained, and stays the caller's. NULL
/// `tensor` is legal and does nothing.
///
/// Returns `ESTAFETTE_OK`; `ESTAFETTE_INVALID` for a handle that is not in use, or a fence that breaks the
/// rules; on this and on `ESTAFETTE_FORKED` the caller still holds the tensor. May be called by any thread.
///
/// # Safety
/// `fence` is NULL or what its type says. `tensor` may be any value.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn estafette_tensor_release_after(
    tensor: *mut estafette_tensor,
    fence: *const DLFence,
) -> estafette_status {
    entry_unless_null(tensor, || {
        let held = self::tensor(tensor, "tensor")?;
        if let Some(fence) = NonNull::new(fence.cast_mut()) {
            // SAFETY: by contract of this function.
            let fence = unsafe { bindings::tensor::import_fence(&held, fence) }?;
            held.used_until(&fence)?;
        }
        drop(held);
        TENSORS.release(tensor, "tensor")
    })
}

/// State of a tensor, at once.
///
/// Returns `ESTAFETTE_OK` when its current version may be read; `ESTAFETTE_PENDING` while it is not finished;
/// `ESTAFETTE_FAILED`, `ESTAFETTE_CANCELLED`, `ESTAFETTE_DEVICE` or `ESTAFETTE_PEER_DIED` with the root cause
/// when it has failed; `ESTAFETTE_INVALID` for NULL or a handle that is not in use; `ESTAFETTE_FORKED`. May
/// be called by any thread. `tensor` may be any value.
#[unsafe(no_mangle)]
pub extern "C" fn estafette_query(tensor: *const estafette_tensor) -> estafette_status {
    entry(|| -> Answer {
        let tensor = self::tensor(tensor, "tensor")?;
        if !tensor.is_ready() {
            return Ok(estafette_status::ESTAFETTE_PENDING);
        }
        match tensor.state() {
            estafette::tensor::TensorState::Ready => DONE,
            estafette::tensor::TensorState::Failed(error) => Err(error.into()),
            _ => Ok(estafette_status::ESTAFETTE_PENDING),
        }
    })
}

/// Blocks until the version that is current at this call is finished, or for `timeout_ns`
/// (`ESTAFETTE_FOREVER` for no limit; 0 only looks). Without a limit it may run operations that the tensor
/// needs on this thread (see `estafette_set_helping`); with one it runs none, so that it is kept.
///
/// Returns `ESTAFETTE_OK`; `ESTAFETTE_TIMEOUT`; `ESTAFETTE_FAILED`, `ESTAFETTE_CANCELLED`, `ESTAFETTE_DEVICE`
/// or `ESTAFETTE_PEER_DIED` with the root cause; `ESTAFETTE_LEASE_HELD`; `ESTAFETTE_WOULD_DEADLOCK` when the
/// wait leads back to the operation that waits, or would block in a callback; `ESTAFETTE_INVALID` for NULL or
/// a handle that is not in use; `ESTAFETTE_FORKED`. May be called by any thread. `tensor` may be any value.
#[unsafe(no_mangle)]
pub extern "C" fn estafette_wait(tensor: *const estafette_tensor, timeout_ns: u64) -> estafette_status {
    entry(|| Ok(wait(&*self::tensor(tensor, "tensor")?, timeout(timeout_ns))?))
}

/// Waits, with a limit or without.
pub(crate) fn wait(tensor: &Tensor, timeout: Option<Duration>) -> Result<(), Error> {
    match timeout {
        None => tensor.wait(),
        Some(timeout) => tensor.wait_timeout(timeout),
    }
}

/// The function that `estafette_on_ready` calls: it gets a status (never `ESTAFETTE_PENDING`), and for an
/// error its text, which is only there during the call.
pub type estafette_ready_callback =
    Option<unsafe extern "C" fn(context: *mut c_void, status: estafette_status, message: *const c_char)>;

/// Calls `callback` once, when the version that is current at this call is finished: before this returns if
/// it is already (in a callback: when that one has returned), else on whatever thread learns it, under no
/// lock. It must be short, must not block and must not throw: a call of this library that would block in it
/// returns `ESTAFETTE_WOULD_DEADLOCK` instead. `drop_context`, which may be NULL, is called once with
/// `context` afterwards.
///
/// Returns `ESTAFETTE_OK`; `ESTAFETTE_INVALID` for NULL `tensor` or `callback`, or a handle that is not in
/// use; `ESTAFETTE_FORKED`. On an error neither function is called and the caller keeps `context`. May be
/// called by any thread.
///
/// # Safety
/// Both functions may be called by any thread. `tensor` may be any value.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn estafette_on_ready(
    tensor: *const estafette_tensor,
    callback: estafette_ready_callback,
    context: *mut c_void,
    drop_context: estafette_drop,
) -> estafette_status {
    entry(|| {
        let tensor = self::tensor(tensor, "tensor")?;
        let callback = callback.ok_or_else(|| is_null("callback"))?;
        let context = Context::new(context, drop_context);
        tensor.on_ready(move |outcome| {
            let (status, text) = match outcome {
                Ok(()) => (estafette_status::ESTAFETTE_OK, None),
                Err(error) => {
                    (estafette_status::of(&error), Some(crate::entry::c_text(&bindings::full_text(&error))))
                }
            };
            let text = text.as_ref().map_or(std::ptr::null(), |text| text.as_ptr());
            // SAFETY: by contract of this function.
            unsafe { callback(context.pointer(), status, text) };
        });
        DONE
    })
}

/// Declares the current version good after a failure or cancellation that has left the data intact.
///
/// Returns `ESTAFETTE_OK`; `ESTAFETTE_CONFLICT` while a write is unfinished; `ESTAFETTE_INVALID` for NULL or
/// a handle that is not in use; `ESTAFETTE_FORKED`. May be called by any thread. `tensor` may be any value.
#[unsafe(no_mangle)]
pub extern "C" fn estafette_clear_error(tensor: *const estafette_tensor) -> estafette_status {
    entry(|| Ok(self::tensor(tensor, "tensor")?.clear_error()?))
}
