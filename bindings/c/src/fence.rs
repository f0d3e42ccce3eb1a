//! Fences: theirs for us, ours for them, and promises that the caller keeps by hand.

use std::ffi::c_char;

use estafette::bindings;
use estafette::devices::host::{self, Completer};
use estafette::devices::{DeviceError, DeviceErrorKind};

use crate::describe::describe;
use crate::entry::{DONE, Refusal, entry, entry_unless_null, place, reason, text};
use crate::handles::Table;
use crate::op::estafette_op;
use crate::places::HandleKind;
use crate::slots;
use crate::status::estafette_status;
use crate::tensor::estafette_tensor;

/// The struct, under its name in C.
pub use estafette::exchange::foreign_fence::RawFence as DLFence;

/// The readiness of the version of `tensor` that is current at this call, as a fence for another scheduler,
/// to `*out`. The caller owns one count of it and gives that up by `out->release(out->context)`.
///
/// Returns `ESTAFETTE_OK`; `ESTAFETTE_INVALID` for NULL or a handle that is not in use; `ESTAFETTE_FORKED`.
/// `*out` is written only on success. May be called by any thread.
///
/// # Safety
/// `out` is NULL or may be written. `tensor` may be any value.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn estafette_tensor_fence(
    tensor: *const estafette_tensor,
    out: *mut DLFence,
) -> estafette_status {
    // SAFETY: by contract of this function.
    unsafe { describe(tensor, out, |tensor| Ok(bindings::tensor::export_ready_fence(tensor))) }
}

/// The end of every use of `tensor` that was submitted before this call, leases included, as a fence to
/// `*out`: when it is done, the memory may be overwritten in place. Ownership as for
/// `estafette_tensor_fence`.
///
/// A use that is to end after this fence would wait for itself: do not hand this fence back as the end of one
/// of those uses. `estafette_op_complete_after` refuses that; `estafette_lease_release` does not recognize
/// it.
///
/// Returns as `estafette_tensor_fence`. May be called by any thread.
///
/// # Safety
/// As for `estafette_tensor_fence`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn estafette_writable_fence(
    tensor: *const estafette_tensor,
    out: *mut DLFence,
) -> estafette_status {
    // SAFETY: by contract of this function.
    unsafe { describe(tensor, out, |tensor| Ok(bindings::tensor::export_writable_fence(tensor))) }
}

/// The end of an operation as a fence, to `*out`; the work included that it has left on a stream or behind a
/// fence. Of an operation that has left its work in one place, that is the fence of the work, which other
/// streams of the device wait for without the host. Ownership as for `estafette_tensor_fence`.
///
/// Returns as `estafette_tensor_fence`, and `ESTAFETTE_INVALID` for a handle that is not in use or was only
/// handed to a function. May be called by any thread.
///
/// # Safety
/// `out` is NULL or may be written. `op` may be any value.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn estafette_op_fence(op: *mut estafette_op, out: *mut DLFence) -> estafette_status {
    entry(|| {
        let out = place(out, "out")?;
        let fence = slots::export_end(op)?;
        // SAFETY: writable, by contract.
        unsafe { out.write(fence) };
        DONE
    })
}

/// The right and the duty to say when something is done, for callers that have no fences of their own.
#[derive(Debug)]
pub enum estafette_promise {}

static PROMISES: Table<Completer> = Table::new(HandleKind::Promise);

/// Makes a fence that the caller settles by `estafette_promise_settle`. `name` appears in messages; NULL
/// means "a promise". The caller owns `*out` and one count of `*fence`.
///
/// Returns `ESTAFETTE_OK`; `ESTAFETTE_INVALID` for NULL; `ESTAFETTE_FORKED`. Nothing is written but on
/// success. May be called by any thread.
///
/// # Safety
/// Each pointer is NULL or what its type says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn estafette_promise_create(
    name: *const c_char,
    out: *mut *mut estafette_promise,
    fence: *mut DLFence,
) -> estafette_status {
    entry(|| {
        let out = place(out, "out")?;
        let place_of_fence = place(fence, "fence")?;
        // SAFETY: by contract of this function.
        let name = unsafe { text(name, "a promise", "name") }?;
        let vacant = PROMISES.reserve()?;
        let (completer, fence) = host::promise(name.to_string());
        // SAFETY: writable, by contract.
        unsafe {
            place_of_fence.write(bindings::exchange::export(fence, None));
            out.write(vacant.fill(completer));
        }
        DONE
    })
}

/// Settles and releases a promise: `ESTAFETTE_OK` for done, or a negative status with a text, which may be
/// NULL; what is not UTF-8 in it is replaced. Waiters are notified before this returns.
///
/// Returns `ESTAFETTE_OK`; `ESTAFETTE_INVALID` for NULL, a handle that is not in use, as of a promise that
/// was settled before, or a status that is neither (then the promise stays the caller's); `ESTAFETTE_FORKED`.
/// May be called by any thread.
///
/// # Safety
/// `message` is NULL or a text. `promise` may be any value.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn estafette_promise_settle(
    promise: *mut estafette_promise,
    status: i32,
    message: *const c_char,
) -> estafette_status {
    entry(|| {
        // SAFETY: by contract of this function.
        let message = unsafe { reason(message) };
        let outcome = match outcome_of(status)? {
            None => Ok(()),
            Some(kind) => Err(DeviceError::new(kind, message)),
        };
        PROMISES.take(promise, "promise")?.settle(outcome);
        DONE
    })
}

/// Gives a promise up without a word: its fence fails with `ESTAFETTE_CANCELLED`. NULL is legal and does
/// nothing.
///
/// Returns `ESTAFETTE_OK`; `ESTAFETTE_INVALID` for a handle that is not in use, as of a promise that was
/// settled before; `ESTAFETTE_FORKED`: there the promise is leaked. May be called by any thread. `promise`
/// may be any value.
#[unsafe(no_mangle)]
pub extern "C" fn estafette_promise_drop(promise: *mut estafette_promise) -> estafette_status {
    entry_unless_null(promise, || PROMISES.take(promise, "promise").map(drop))
}

/// The meaning of a status that a caller ends something with; `None` for success.
pub(crate) fn outcome_of(status: i32) -> Result<Option<DeviceErrorKind>, Refusal> {
    use estafette_status::{ESTAFETTE_CANCELLED, ESTAFETTE_DEVICE, ESTAFETTE_OK, ESTAFETTE_PEER_DIED};
    let known =
        estafette_status::of_number(status).filter(|status| *status as i32 <= 0).ok_or_else(|| {
            Refusal::invalid(format!("status is {status}, which is neither success nor an error"))
        })?;
    Ok(match known {
        ESTAFETTE_OK => None,
        ESTAFETTE_CANCELLED => Some(DeviceErrorKind::Cancelled),
        ESTAFETTE_DEVICE => Some(DeviceErrorKind::Fault),
        ESTAFETTE_PEER_DIED => Some(DeviceErrorKind::PeerDied),
        _ => Some(DeviceErrorKind::Other),
    })
}
