//! Operations in flight: reporting an end, waiting, cancelling.

use std::ffi::{c_char, c_void};
use std::ptr::NonNull;
use std::time::{Duration, Instant};

use estafette::bindings::{self, wait_any_work};
use estafette::exchange::Abi;
use estafette::exchange::foreign_fence::RawFence;
use estafette::{Error, ManagedTensor, Produced};

use crate::dlpack::DLManagedTensorVersioned;
use crate::engine::{timeout, within};
use crate::entry::{Answer, DONE, Refusal, array, entry, entry_unless_null, place, reason};
use crate::fence::outcome_of;
use crate::slots::{self, Begun};
use crate::status::estafette_status;
use crate::tensor::{estafette_tensor, of_known_version, tensors as tensors_of};
use estafette::devices::{DeviceError, DeviceErrorKind, FenceState};

/// An operation. The handle is a number with a generation, not an address: a handle of an ended operation is
/// recognized.
///
/// A handle from a submission is held until `estafette_op_release`. A handle that a function receives is held
/// until the end of the operation is reported, and needs no release.
#[derive(Debug)]
pub enum estafette_op {}

/// Ends an operation whose function was called: `status` is `ESTAFETTE_OK`, or a negative status for a
/// failure, whose text is `message` (NULL for none; what is not UTF-8 in it is replaced). An operation that
/// ends so uses its memory no more, also with `ESTAFETTE_DEVICE`; a fence of `estafette_op_complete_after`
/// that fails with `DLPACK_FENCE_DEVICE` says that work may go on, so the memory is kept for ever. Its
/// outputs then carry that failure, as `ESTAFETTE_DEVICE`, `ESTAFETTE_PEER_DIED` or else `ESTAFETTE_FAILED`;
/// with `ESTAFETTE_CANCELLED` they are marked as cancelled.
///
/// Returns `ESTAFETTE_OK`; `ESTAFETTE_INVALID` for NULL, a handle that is not in use, an operation whose end
/// was reported already or whose function was not called yet, a status that is neither, or `ESTAFETTE_OK` for
/// an operation that is to produce a tensor. May be called by any thread, once, inside of the function too.
/// Before this returns, waiters are notified and `drop_context` is called.
///
/// # Safety
/// `message` is NULL or a text. `op` may be any value.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn estafette_op_complete(
    op: *mut estafette_op,
    status: i32,
    message: *const c_char,
) -> estafette_status {
    entry(|| {
        // SAFETY: by contract of this function.
        let message = unsafe { reason(message) };
        let outcome = outcome_of(status)?;
        let with_tensor = outcome.is_none().then_some(false);
        let Begun { completion, context, .. } = slots::finish(op, with_tensor)?;
        match outcome {
            None => completion.complete(Ok(())),
            Some(DeviceErrorKind::Cancelled) => completion.cancel(message.into()),
            Some(DeviceErrorKind::Other) => completion.complete(Err(message.into())),
            Some(kind) => completion.complete(Err(Box::new(DeviceError::new(kind, message)))),
        }
        drop(context);
        DONE
    })
}

/// The stream of an operation that was submitted for a device, to `*stream`: a `CUstream`, or a pointer to a
/// `sycl::queue`. `op` is what the operation's function was given. The stream is the library's; it may be
/// used until the end of the operation is reported.
///
/// Returns `ESTAFETTE_OK`; `ESTAFETTE_INVALID` for NULL, for an operation of the host, or one that has not
/// begun or has ended; `ESTAFETTE_FORKED`. `*stream` is written only on success. May be called by any thread.
///
/// # Safety
/// `stream` is NULL or may be written. `op` may be any value.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn estafette_op_stream(
    op: *mut estafette_op,
    stream: *mut *mut c_void,
) -> estafette_status {
    entry(|| {
        let place = place(stream, "stream")?;
        let queue = slots::scope(op)?.queue();
        let queue =
            queue.ok_or_else(|| Refusal::invalid("op: the operation works on the host and has no stream"))?;
        // SAFETY: writable, by contract.
        unsafe { place.write(std::ptr::with_exposed_provenance_mut(queue.native())) };
        DONE
    })
}

/// Ends an operation whose function was called when `fence` is done: what comes next on the same device is
/// ordered behind it without the host waiting, and its failure becomes the operation's. The fence is copied
/// and retained, and stays the caller's; NULL means now. `drop_context` is called when the fence has settled,
/// well or not: until then, the work that it marks may use the context.
///
/// Returns as `estafette_op_complete`, and `ESTAFETTE_INVALID` for a fence that breaks the rules, or that
/// itself marks the end of this operation or of its output: then the end was not reported. A fence of other
/// work that waits for this operation is not recognized. May be called by any thread, once, inside of the
/// function too.
///
/// # Safety
/// `fence` is NULL or what its type says. `op` may be any value.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn estafette_op_complete_after(
    op: *mut estafette_op,
    fence: *const RawFence,
) -> estafette_status {
    entry(|| {
        let begun = slots::take(op)?;
        let fence = match NonNull::new(fence.cast_mut()) {
            None => None,
            // SAFETY: by contract of this function.
            Some(fence) => match unsafe { bindings::operation::import_fence(&begun.completion, fence) } {
                Ok(fence) => Some(fence),
                Err(error) => {
                    slots::begin(op, begun)?;
                    return Err(error.into());
                }
            },
        };
        slots::ended(op)?;
        let Begun { completion, context, .. } = begun;
        match fence {
            Some(fence) => {
                completion.complete_after(&fence, Ok(()));
                context.drop_after(&fence);
            }
            None => {
                completion.complete(Ok(()));
                drop(context);
            }
        }
        DONE
    })
}

/// Ends an operation that was submitted by `estafette_produce` with its result. On `ESTAFETTE_OK` the library
/// owns `managed`; a result that cannot be adopted fails the operation, and its deleter is called then. On
/// any other status the caller keeps it.
///
/// Returns as `estafette_op_complete`; `ESTAFETTE_INVALID` for NULL, a version that is not known, or an
/// operation that is to produce no tensor. May be called by any thread, once.
///
/// # Safety
/// `managed` is NULL or what its type says, as for `estafette_import`. `op` may be any value.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn estafette_op_complete_with(
    op: *mut estafette_op,
    managed: *mut DLManagedTensorVersioned,
) -> estafette_status {
    entry(|| {
        // SAFETY: by contract of this function.
        let managed = unsafe { of_known_version(managed) }?;
        let Begun { completion, context, .. } = slots::finish(op, Some(true))?;
        // SAFETY: by contract of this function; the version is one that it accepts.
        let owned = unsafe { ManagedTensor::from_raw(managed.as_ptr(), Abi::Versioned) };
        match owned {
            Ok(owned) => completion.produce(Ok(Produced::from(owned))),
            Err(error) => completion.produce(Err(Box::new(error))),
        }
        drop(context);
        DONE
    })
}

/// Adds a reference to an operation.
///
/// Returns `ESTAFETTE_OK`; `ESTAFETTE_INVALID` for NULL or a handle that is not in use; `ESTAFETTE_FORKED`.
/// May be called by any thread. `op` may be any value.
#[unsafe(no_mangle)]
pub extern "C" fn estafette_op_retain(op: *mut estafette_op) -> estafette_status {
    entry(|| slots::retain(op))
}

/// Removes a reference to an operation, which goes on. NULL is legal and does nothing.
///
/// Returns `ESTAFETTE_OK`; `ESTAFETTE_INVALID` for a handle that is not in use, or that only the operation
/// itself holds; `ESTAFETTE_FORKED`. May be called by any thread. `op` may be any value.
#[unsafe(no_mangle)]
pub extern "C" fn estafette_op_release(op: *mut estafette_op) -> estafette_status {
    entry_unless_null(op, || slots::release(op))
}

/// The state of an operation, at once. One that has left work on a stream, or that ends with a fence, has
/// ended when that is done.
///
/// Returns `ESTAFETTE_OK`; `ESTAFETTE_PENDING`; `ESTAFETTE_FAILED`, `ESTAFETTE_CANCELLED`, `ESTAFETTE_DEVICE`
/// or `ESTAFETTE_PEER_DIED` with the root cause; `ESTAFETTE_INVALID` for NULL or a handle that is not in use
/// or was only given to a function; `ESTAFETTE_FORKED`. May be called by any thread. `op` may be any value.
#[unsafe(no_mangle)]
pub extern "C" fn estafette_op_query(op: *mut estafette_op) -> estafette_status {
    entry(|| -> Answer {
        let op = slots::submitted(op)?;
        if !op.is_done() {
            return Ok(estafette_status::ESTAFETTE_PENDING);
        }
        // A cancelled operation is done before it has its failure.
        let ended = op.wait_timeout(Some(Duration::ZERO));
        // Known only now. A replay that one node has failed has the fences of the others.
        match (ended, bindings::operation::left(&op).state()) {
            (Err(Error::Timeout(_)), _) | (_, FenceState::Pending) => Ok(estafette_status::ESTAFETTE_PENDING),
            (Err(error), _) => Err(error.into()),
            (Ok(()), FenceState::Failed(error)) => Err(failed_after(&error)),
            (Ok(()), FenceState::Done) => DONE,
        }
    })
}

/// Blocks until an operation has ended (the work that it, or the nodes of a replay, have left on streams and
/// behind fences included), or for `timeout_ns` (`ESTAFETTE_FOREVER` for no limit; 0 only looks), and returns
/// how it ended. Without a limit it may run operations on this thread (see `estafette_set_helping`); with one
/// it runs none, so that it is kept.
///
/// Returns `ESTAFETTE_OK`; `ESTAFETTE_TIMEOUT`; `ESTAFETTE_FAILED`, `ESTAFETTE_CANCELLED`, `ESTAFETTE_DEVICE`
/// or `ESTAFETTE_PEER_DIED` with the root cause; `ESTAFETTE_LEASE_HELD`; `ESTAFETTE_WOULD_DEADLOCK` inside of
/// the operation itself, or where it would block in a callback; `ESTAFETTE_INVALID` for NULL or a handle that
/// is not in use or was only given to a function; `ESTAFETTE_FORKED`. May be called by any thread. `op` may
/// be any value.
#[unsafe(no_mangle)]
pub extern "C" fn estafette_op_wait(op: *mut estafette_op, timeout_ns: u64) -> estafette_status {
    entry(|| -> Answer {
        let limit = timeout(timeout_ns);
        let begin = Instant::now();
        let op = slots::submitted(op)?;
        let ended = match op.wait_timeout(limit) {
            Err(error) if !op.is_done() => return Err(error.into()),
            ended => ended,
        };
        // Known only now. A replay that one node has failed has the fences of the others.
        let left = bindings::operation::left(&op);
        for fence in left.iter().filter(|fence| fence.state().is_pending()) {
            let remaining = limit.map(|limit| limit.saturating_sub(begin.elapsed()));
            if remaining == Some(Duration::ZERO) {
                return Err(Error::Timeout(limit.unwrap_or_default()).into());
            }
            bindings::operation::wait_for_fence(&op, fence, remaining)
                .map_err(|error| within(error, limit))?;
        }
        ended?;
        match left.state() {
            FenceState::Failed(error) => Err(failed_after(&error)),
            FenceState::Done | FenceState::Pending => DONE,
        }
    })
}

/// Blocks until one of `n_ops` operations has ended, as for `estafette_op_wait`, or the current version of
/// one of `n_tensors` tensors is finished, well or not, or for `timeout_ns` (`ESTAFETTE_FOREVER` for no
/// limit; 0 only looks). The place of the first that has goes to `*out`: operations are counted first, then
/// tensors. How it has ended, `estafette_op_query` or `estafette_query` says. An array may be NULL when its
/// count is 0. Without a limit it may run operations on this thread (see `estafette_set_helping`); with one
/// it runs none.
///
/// Returns `ESTAFETTE_OK`; `ESTAFETTE_TIMEOUT`; `ESTAFETTE_LEASE_HELD` or `ESTAFETTE_WOULD_DEADLOCK` where
/// none can end, as for `estafette_wait`; `ESTAFETTE_INVALID` for NULL, counts that are both 0, or a handle
/// that is not in use or was only given to a function; `ESTAFETTE_FORKED`. `*out` is written only on success.
/// May be called by any thread.
///
/// # Safety
/// Each pointer but handles is NULL or what its type says; an array has as many entries as its count says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn estafette_wait_any(
    ops: *const *mut estafette_op,
    n_ops: usize,
    tensors: *const *mut estafette_tensor,
    n_tensors: usize,
    timeout_ns: u64,
    out: *mut usize,
) -> estafette_status {
    entry(|| {
        let out = place(out, "out")?;
        // SAFETY: by contract of this function.
        let (ops, tensors) =
            unsafe { (array(ops, n_ops, "ops")?, tensors_of(tensors, n_tensors, "tensors")?) };
        let ops = ops.iter().map(|op| slots::submitted(*op)).collect::<Result<Vec<_>, _>>()?;
        if ops.is_empty() && tensors.is_empty() {
            return Err(Refusal::invalid("ops and tensors are both empty, so nothing would end the wait"));
        }
        let (limit, begin) = (timeout(timeout_ns), Instant::now());
        let first = loop {
            let remaining = limit.map(|limit| limit.saturating_sub(begin.elapsed()));
            let ended = wait_any_work(&ops, &tensors, remaining).map_err(|error| within(error, limit))?;
            if let Some(first) = ended.first() {
                break *first;
            }
        };
        // SAFETY: writable, by contract.
        unsafe { out.write(first) };
        DONE
    })
}

/// Work that an operation has left, on its stream or behind its fence, has failed.
fn failed_after(error: &DeviceError) -> Refusal {
    let message = format!("the work that the operation left has failed: {error}");
    Refusal::new(estafette_status::of_fence(error), message)
}

/// Calls an operation off that has not begun: its function is not called, its context is dropped, and its
/// outputs carry a failure of kind "cancelled".
///
/// Returns `ESTAFETTE_OK`; `ESTAFETTE_CONFLICT` when it has begun or ended; `ESTAFETTE_INVALID` for NULL or a
/// handle that is not in use or was only given to a function; `ESTAFETTE_FORKED`. May be called by any
/// thread. `op` may be any value.
#[unsafe(no_mangle)]
pub extern "C" fn estafette_op_cancel(op: *mut estafette_op) -> estafette_status {
    entry(|| -> Answer {
        if slots::submitted(op)?.cancel() {
            return DONE;
        }
        Err(Refusal::new(estafette_status::ESTAFETTE_CONFLICT, "the operation has begun or ended already"))
    })
}
