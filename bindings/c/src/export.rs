//! Handing tensors to other libraries.

use std::ffi::c_void;
use std::time::{Duration, Instant};

use estafette::bindings;
use estafette::devices::DLDevice;
use estafette::exchange::Abi;
use estafette::lease::{Consumer, LeaseOwner};
use estafette::{Access, Error, ExportOptions, ManagedTensor, Tensor};

use crate::dlpack::{DLManagedTensor, DLManagedTensorVersioned};
use crate::engine::{timeout, within};
use crate::entry::{Answer, DONE, Refusal, entry, flag, place};
use crate::op::estafette_op;
use crate::options::{self, sized_options};
use crate::slots;
use crate::status::estafette_status;
use crate::tensor::{estafette_tensor, tensor, wait};
use crate::version::ESTAFETTE_FOREVER;

/// The access of a consumer of memory.
#[repr(i32)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(clippy::enum_variant_names, reason = "C has no name spaces")]
pub enum estafette_access {
    /// Read; engine writes wait until the lease is returned.
    ESTAFETTE_READ = 0,
    /// Read and write, alone; every other use waits until the lease is returned.
    ESTAFETTE_WRITE = 1,
    /// Untracked: no lease is taken and nothing waits. For people who order things themselves.
    ESTAFETTE_ALIAS = 2,
}

pub(crate) fn access(number: i32) -> Result<Access, Refusal> {
    match number {
        0 => Ok(Access::Read),
        1 => Ok(Access::Write),
        2 => Ok(Access::Alias),
        other => Err(Refusal::invalid(format!("access is {other}"))),
    }
}

/// The owner of leases, in messages.
pub(crate) const OWNER: &str = "a C program";

/// Options of an export. All bytes zero, but for `size`, are the defaults: a read lease, where the memory is,
/// blocking.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct estafette_export_options {
    /// `sizeof(estafette_export_options)`.
    pub size: u32,
    /// An `estafette_access`.
    pub access: i32,
    /// The device on which the consumer wants the memory; `device_type` 0 for where it is. Host memory of
    /// another device's tensor is a copy.
    pub device: DLDevice,
    /// The consumer's stream on that device, which gets the waits, as for `estafette_order_on`; NULL for the
    /// host.
    pub stream: *mut c_void,
    /// 0: a copy only if `device` asks for it; 1: always, in host memory; -1: never. A copy waits as a
    /// reader, whatever `access` is.
    pub copy: i32,
    /// 1: the call must not block, and returns `ESTAFETTE_PENDING` where it would.
    pub nonblocking: i32,
    /// The time that a blocking call waits, in nanoseconds; 0 and `ESTAFETTE_FOREVER` for as long as it
    /// takes.
    pub timeout_ns: u64,
    /// 1: the lease may go to another thread, and all waits for it last up to `lease_timeout_ns`. 0: it stays
    /// with the thread that asks, where a wait for it then returns `ESTAFETTE_LEASE_HELD` at once.
    pub any_thread: u64,
}

// SAFETY: numbers and pointers, the size first.
sized_options!(unsafe estafette_export_options, 40);

impl estafette_export_options {
    /// The time that a blocking call waits.
    pub(crate) fn limit(&self) -> Option<Duration> {
        timeout(if self.timeout_ns == 0 { ESTAFETTE_FOREVER } else { self.timeout_ns })
    }

    /// The owner of the lease.
    pub(crate) fn owner(&self) -> Result<LeaseOwner, Refusal> {
        match self.any_thread {
            0 => Ok(OWNER.into()),
            1 => Ok(LeaseOwner::from(OWNER).of_any_thread()),
            other => Err(Refusal::invalid(format!("estafette_export_options: any_thread is {other}"))),
        }
    }
}

/// Refuses a stream where there is none.
pub(crate) fn check_stream(device: DLDevice, stream: *mut c_void) -> Result<(), Refusal> {
    if device == DLDevice::CPU && !stream.is_null() {
        return Err(Refusal::invalid("stream: the host has none, so it must be NULL"));
    }
    Ok(())
}

/// The consumer that uses `tensor` on `stream`, which may be NULL, of `device`.
///
/// # Safety
/// `stream` is NULL or a live stream of `device`, for as long as the result is used.
pub(crate) unsafe fn consumer(
    tensor: &Tensor,
    device: DLDevice,
    stream: *mut c_void,
) -> Result<Consumer, Refusal> {
    if !stream.is_null() {
        // SAFETY: by contract of this function.
        return Ok(unsafe { bindings::tensor::consumer_on(tensor, device, stream.expose_provenance()) }?);
    }
    if device != DLDevice::CPU && tensor.device().is_ok_and(|place| place != device) {
        return Err(Refusal::invalid(format!("device: the memory is not on {device}")));
    }
    Ok(Consumer::Host)
}

/// Waits until a tensor has its memory.
pub(crate) fn until_defined(tensor: &Tensor, timeout: Option<Duration>) -> Result<(), Error> {
    if bindings::tensor::is_defined(tensor) { Ok(()) } else { wait(tensor, timeout) }
}

/// Hands a tensor to another library once it is defined, ready, and free for the access. `options` may be
/// NULL for the defaults. The caller owns `*out`; the lease ends when its deleter is called, which any thread
/// may do, once.
///
/// The exported tensor is ordered for the host when this returns, and so for every stream that gets work
/// afterwards. With a stream, it is ordered for that stream, and the host does not wait for work that the
/// stream can wait for. The lease then ends when what was enqueued on the stream by the time of the deleter's
/// call is done; of a stream whose handle may not be kept, when everything on its device is.
///
/// Returns `ESTAFETTE_OK`; `ESTAFETTE_PENDING` where it must not block and would; `ESTAFETTE_TIMEOUT`;
/// `ESTAFETTE_FAILED`, `ESTAFETTE_CANCELLED`, `ESTAFETTE_DEVICE` or `ESTAFETTE_PEER_DIED` with the root cause
/// of a failed version; `ESTAFETTE_DEVICE` also for a stream of another device, one that cannot wait, or a
/// copy that a device refuses; `ESTAFETTE_CONFLICT` for a write lease of memory that may not be written, or a
/// copy that cannot be made; `ESTAFETTE_NOT_DEFINED` for a tensor that its operation has not made, and whose
/// failure was cleared; `ESTAFETTE_LEASE_HELD`; `ESTAFETTE_WOULD_DEADLOCK`; `ESTAFETTE_INVALID` for NULL, a
/// handle that is not in use, a wrong option, a stream for the host, or a device that the memory is not on;
/// `ESTAFETTE_FORKED`. `*out` is written only on success. May be called by any thread.
///
/// # Safety
/// Each pointer but handles is NULL or what its type says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn estafette_export(
    tensor: *const estafette_tensor,
    options: *const estafette_export_options,
    out: *mut *mut DLManagedTensorVersioned,
) -> estafette_status {
    // SAFETY: by contract of this function.
    entry(|| unsafe { export(tensor, options, Abi::Versioned, out.cast()) })
}

/// As `estafette_export`, to the struct from before DLPack 1.0, for consumers that know no other. It cannot
/// say that memory is read-only: memory that may not be written leaves only as a copy, and the caller sees to
/// it that the consumer keeps to `access`.
///
/// Returns as `estafette_export`; `ESTAFETTE_CONFLICT` for memory that may not be written, unless a copy is
/// asked for.
///
/// # Safety
/// As for `estafette_export`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn estafette_export_legacy(
    tensor: *const estafette_tensor,
    options: *const estafette_export_options,
    out: *mut *mut DLManagedTensor,
) -> estafette_status {
    // SAFETY: by contract of this function.
    entry(|| unsafe { export(tensor, options, Abi::Legacy, out.cast()) })
}

/// Exports to the struct that `abi` says.
///
/// # Safety
/// As for `estafette_export`.
unsafe fn export(
    tensor: *const estafette_tensor,
    options: *const estafette_export_options,
    abi: Abi,
    out: *mut *mut c_void,
) -> Answer {
    let tensor = self::tensor(tensor, "tensor")?;
    let out = place(out, "out")?;
    // SAFETY: by contract of this function.
    let given = unsafe { options::read(options) }?;
    let mut wanted = ExportOptions { abi, ..ExportOptions::from(access(given.access)?) };
    if !matches!(given.copy, -1..=1) {
        return Err(Refusal::invalid(format!("estafette_export_options: copy is {}", given.copy)));
    }
    let nonblocking = flag("estafette_export_options: nonblocking", given.nonblocking)?;
    let owner = given.owner()?;
    wanted.owner = Some(owner.clone());
    wanted.copy = given.copy == 1;
    if nonblocking && !bindings::tensor::is_defined(&tensor) {
        tensor.lease(wanted.access, owner).try_now()?;
        return Ok(estafette_status::ESTAFETTE_PENDING);
    }
    let limit = given.limit();
    let begin = Instant::now();
    until_defined(&tensor, limit)?;
    let place = tensor.device()?;
    let asked = if given.device.device_type.0 == 0 { place } else { given.device };
    check_stream(asked, given.stream)?;
    // SAFETY: by contract of this function; used in this call.
    wanted.consumer = unsafe { consumer(&tensor, asked, given.stream) }?;
    if asked == DLDevice::CPU && asked != place {
        if given.copy == -1 {
            return Err(Refusal::invalid(format!(
                "copy: memory on {place} cannot be on {asked} without one"
            )));
        }
        wanted.copy = true;
    }
    if abi == Abi::Legacy && !wanted.copy && tensor.is_read_only()? {
        return Err(Refusal::new(
            estafette_status::ESTAFETTE_CONFLICT,
            "this memory is read-only, which a DLPack struct before version 1.0 cannot say; ask for a copy",
        ));
    }
    let managed = if nonblocking {
        match bindings::tensor::try_export(&tensor, &wanted)? {
            Some(managed) => managed,
            None => return Ok(estafette_status::ESTAFETTE_PENDING),
        }
    } else {
        if given.timeout_ns != 0 {
            wanted.timeout = limit.map(|limit| limit.saturating_sub(begin.elapsed()));
        }
        tensor.export_wait(&wanted).map_err(|error| within(error, limit))?
    };
    // SAFETY: writable, by contract.
    unsafe { out.write(raw(managed)) };
    DONE
}

/// The struct of a tensor that was exported with ours.
fn raw<M>(managed: ManagedTensor) -> *mut M {
    managed.into_raw().cast()
}

/// Lends an operand of a running operation to another library, in the way it was declared, without waiting.
/// `op` is what the operation's function was given, before its end is reported. The caller owns `*out`. A
/// view that is still alive when the operation ends becomes a lease, with no gap in between.
///
/// Returns `ESTAFETTE_OK`; `ESTAFETTE_INVALID` for NULL, for a handle of an operation that has not begun or
/// has ended, or a tensor that is none of its operands; `ESTAFETTE_CONFLICT` for an operand to be written
/// that turned out to be read-only; `ESTAFETTE_FORKED`. `*out` is written only on success. May be called by
/// any thread.
///
/// # Safety
/// Each pointer but handles is NULL or what its type says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn estafette_op_export(
    op: *mut estafette_op,
    tensor: *const estafette_tensor,
    out: *mut *mut DLManagedTensorVersioned,
) -> estafette_status {
    entry(|| {
        let tensor = self::tensor(tensor, "tensor")?;
        let out = place(out, "out")?;
        let scope = slots::scope(op)?;
        let managed = scope.export(&tensor, &ExportOptions::from(Access::Read))?;
        // SAFETY: writable, by contract.
        unsafe { out.write(raw(managed)) };
        DONE
    })
}
