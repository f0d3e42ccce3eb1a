//! Leases without an export: an order for work that the caller enqueues itself.

use std::ffi::c_void;
use std::ptr::NonNull;

use estafette::devices::DLDevice;
use estafette::{Access, Lease};

use crate::entry::{DONE, Refusal, entry, entry_unless_null, place};
use crate::export::{access, check_stream, consumer, until_defined};
use crate::fence::DLFence;
use crate::handles::Table;
use crate::places::Kind;
use crate::status::estafette_status;
use crate::tensor::{estafette_tensor, tensor};

/// A use of a tensor outside of every operation, held until it is released.
#[derive(Debug)]
pub enum estafette_lease {}

static LEASES: Table<Lease> = Table::new(Kind::Lease);

/// Takes a lease for work on `stream` of `device`: what is enqueued there after this returns is ordered after everything that it
/// must come after. The stream waits for work of its own runtime, and this blocks only until that work is issued, and for what
/// only the host can wait for. For the host (`kDLCPU`, `stream` NULL), and for a NULL stream of any device, this blocks until the
/// memory is ready and free for the access. The caller owns `*out` and ends the lease by `estafette_lease_release`.
///
/// `device` is the memory's own; for pinned and managed memory (`kDLCUDAHost`, `kDLCUDAManaged`) also the CUDA device of the
/// stream. A stream is a `CUstream` (for CUDA's default streams their handles 1 and 2) or a pointer to a `sycl::queue`; its handle
/// is used in this call only, but CUDA's legacy stream and SYCL queues are looked at once more when the lease ends. A stream that
/// is capturing a graph gets its waits too.
///
/// `access` is an `estafette_access`; with `ESTAFETTE_ALIAS` nothing is waited for but the tensor's definition.
///
/// Returns `ESTAFETTE_OK`; `ESTAFETTE_FAILED`, `ESTAFETTE_CANCELLED`, `ESTAFETTE_DEVICE` or `ESTAFETTE_PEER_DIED` with the root cause of a
/// failed version; `ESTAFETTE_CONFLICT` for writing memory that may not be written; `ESTAFETTE_NOT_DEFINED` as `estafette_export`; `ESTAFETTE_LEASE_HELD`; `ESTAFETTE_WOULD_DEADLOCK`;
/// `ESTAFETTE_INVALID` for NULL, an unknown access, a stream for the host, or a device other than the host or the memory's own;
/// `ESTAFETTE_DEVICE` also for a stream of another device, or one that cannot wait; `ESTAFETTE_FORKED`. `*out` is written only on success. May be called by any thread.
///
/// # Safety
/// Each pointer but handles is NULL or what its type says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn estafette_order_on(
    tensor: *const estafette_tensor,
    access: i32,
    device: DLDevice,
    stream: *mut c_void,
    out: *mut *mut estafette_lease,
) -> estafette_status {
    entry(|| {
        let tensor = self::tensor(tensor, "tensor")?;
        let out = place(out, "out")?;
        let access: Access = self::access(access)?;
        check_stream(device, stream)?;
        // The device of a promise is checked when it is known.
        if device != DLDevice::CPU {
            until_defined(&tensor, None)?;
        }
        // SAFETY: by contract of this function; used in this call.
        let consumer = unsafe { consumer(&tensor, device, stream) }?;
        let vacant = LEASES.reserve()?;
        let lease = tensor.lease(access, "a C program").for_consumer(&consumer).wait(None)?;
        // SAFETY: writable, by contract.
        unsafe { out.write(vacant.fill(lease)) };
        DONE
    })
}

/// The end of a lease as a fence, to `*out`: done when it was released and the work that its holder left is done. So the
/// producer learns when its consumer is done. The caller owns one count of it and gives that up by
/// `out->release(out->context)`.
///
/// Returns `ESTAFETTE_OK`; `ESTAFETTE_INVALID` for NULL or a handle that is not in use; `ESTAFETTE_FORKED`. May be called by any
/// thread.
///
/// # Safety
/// Each pointer but handles is NULL or what its type says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn estafette_lease_fence(
    lease: *const estafette_lease,
    out: *mut DLFence,
) -> estafette_status {
    entry(|| {
        let lease = LEASES.get(lease, "lease")?;
        let out = place(out, "out")?;
        // SAFETY: writable, by contract.
        unsafe { out.write(lease.tensor().export_fence(lease.end_fence())) };
        DONE
    })
}

/// Ends a lease when the holder's last device work is done: `done` is copied and retained, and stays the caller's. NULL means
/// now; of a lease that was taken for a stream, when what was enqueued there by now is done, which of a stream whose handle may
/// not be kept is known only when everything on the device is. Uses that conflict, and the memory's deleter, wait for it. NULL
/// `lease` is legal and does nothing.
///
/// Returns `ESTAFETTE_OK`; `ESTAFETTE_INVALID` for a handle that is not in use, as of a lease that was released before, or a fence
/// that breaks the rules, or is one of `estafette_lease_fence` for this lease: then the caller still holds the lease. In a forked child the lease is leaked, and `ESTAFETTE_FORKED`
/// returned. May be called by any thread.
///
/// # Safety
/// `done` is NULL or what its type says. `lease` may be any value.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn estafette_lease_release(
    lease: *mut estafette_lease,
    done: *const DLFence,
) -> estafette_status {
    entry_unless_null(lease, || {
        let held = LEASES.get(lease, "lease")?;
        let fence = match NonNull::new(done.cast_mut()) {
            None => None,
            // SAFETY: by contract of this function.
            Some(done) => Some(unsafe { held.tensor().import_fence(done) }?),
        };
        if fence.as_ref().is_some_and(|fence| held.is_end_fence(fence)) {
            return Err(Refusal::invalid(
                "done: it waits for the end of this very lease, which would wait for itself",
            ));
        }
        drop(held);
        let lease = LEASES.take(lease, "lease")?;
        match fence {
            Some(fence) => lease.release_after(fence),
            None => drop(lease),
        }
        Ok(())
    })
}
