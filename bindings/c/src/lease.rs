//! Leases without an export: an order for work that the caller enqueues itself.

use std::ffi::c_void;
use std::ptr::NonNull;
use std::time::{Duration, Instant};

use estafette::bindings;
use estafette::devices::DLDevice;
use estafette::lease::{Consumer, LeaseOwner, LeaseRequest};
use estafette::{Access, Lease, Tensor};

use crate::engine::{self, estafette_engine, within};
use crate::entry::{Answer, DONE, Refusal, array, entry, entry_unless_null, flag, place};
use crate::export::{OWNER, access, check_stream, consumer, estafette_export_options, until_defined};
use crate::fence::DLFence;
use crate::handles::Table;
use crate::options;
use crate::places::HandleKind;
use crate::status::estafette_status;
use crate::tensor::{estafette_tensor, tensor};

/// A use of a tensor outside of every operation, held until it is released.
#[derive(Debug)]
pub enum estafette_lease {}

static LEASES: Table<Lease> = Table::new(HandleKind::Lease);

/// Takes a lease for work on `stream` of `device`: what is enqueued there after this returns is ordered after
/// everything that it must come after. The stream waits for work of its own runtime, and this blocks only
/// until that work is issued, and for what only the host can wait for. For the host (`kDLCPU`, `stream`
/// NULL), and for a NULL stream of any device, this blocks until the memory is ready and free for the access.
/// The caller owns `*out` and ends the lease by `estafette_lease_release`.
///
/// `device` is the memory's own; for pinned and managed memory (`kDLCUDAHost`, `kDLCUDAManaged`) also the
/// CUDA device of the stream. A stream is a `CUstream` (for CUDA's default streams their handles 1 and 2) or
/// a pointer to a `sycl::queue`; its handle is used in this call only, but CUDA's legacy stream and SYCL
/// queues are looked at once more when the lease ends. A stream that is capturing a graph gets its waits too.
///
/// `access` is an `estafette_access`; with `ESTAFETTE_ALIAS` nothing is waited for but the tensor's
/// definition.
///
/// Returns `ESTAFETTE_OK`; `ESTAFETTE_FAILED`, `ESTAFETTE_CANCELLED`, `ESTAFETTE_DEVICE` or
/// `ESTAFETTE_PEER_DIED` with the root cause of a failed version; `ESTAFETTE_CONFLICT` for writing memory
/// that may not be written; `ESTAFETTE_NOT_DEFINED` as `estafette_export`; `ESTAFETTE_LEASE_HELD`;
/// `ESTAFETTE_WOULD_DEADLOCK`; `ESTAFETTE_INVALID` for NULL, an unknown access, a stream for the host, or a
/// device other than the host or the memory's own; `ESTAFETTE_DEVICE` also for a stream of another device, or
/// one that cannot wait; `ESTAFETTE_FORKED`. `*out` is written only on success. May be called by any thread.
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
        let lease = tensor.lease(access, OWNER).for_consumer(&consumer).wait(None)?;
        // SAFETY: writable, by contract.
        unsafe { out.write(vacant.fill(lease)) };
        DONE
    })
}

/// As `estafette_order_on`, with `access`, `device`, `stream`, `nonblocking` and `timeout_ns` of the options
/// of an export; `copy` must not be 1. NULL `options` means the defaults: a read lease for the host,
/// blocking.
///
/// Returns as `estafette_order_on`; `ESTAFETTE_PENDING` where it must not block and would;
/// `ESTAFETTE_TIMEOUT`; `ESTAFETTE_INVALID` for a wrong option as well. `*out` is written only on success.
/// May be called by any thread.
///
/// # Safety
/// As for `estafette_order_on`; `options` is NULL or as long as its size says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn estafette_order_on_with(
    tensor: *const estafette_tensor,
    options: *const estafette_export_options,
    out: *mut *mut estafette_lease,
) -> estafette_status {
    entry(|| {
        let out = place(out, "out")?;
        // SAFETY: by contract of this function.
        let (how, wanted) = unsafe {
            let options = options::read(options)?;
            (How::of(&options)?, [(tensor, options.access, "tensor".to_string())])
        };
        let wanted = how.wanted(wanted)?;
        let vacant = LEASES.reserve()?;
        // SAFETY: by contract of this function; used in this call.
        let Some(consumer) = unsafe { how.consumer(&wanted) }? else { return PENDING };
        let [(tensor, access)] = &wanted[..] else { unreachable!("one was wanted") };
        let lease = how.take(tensor.lease(*access, how.owner.clone()).for_consumer(&consumer))?;
        let Some(lease) = lease else { return PENDING };
        // SAFETY: writable, by contract.
        unsafe { out.write(vacant.fill(lease)) };
        DONE
    })
}

/// Takes leases of `n` tensors in one step, each as by `estafette_order_on_with`: all are granted together.
/// `accesses` has an `estafette_access` for each, but not `ESTAFETTE_ALIAS`; NULL means that of `options` for
/// all. A tensor may be named twice; if one of the two is a write, both are exclusive. The leases go to
/// `out`, which has `n` places, in the order of `tensors`; the caller owns them. An array may be NULL when
/// `n` is 0.
///
/// Returns as `estafette_order_on_with`; `ESTAFETTE_INVALID` also for a stream without a device where the
/// tensors are on several. `out` is written only on success. May be called by any thread.
///
/// # Safety
/// Each pointer but handles is NULL or what its type says; the arrays have `n` entries.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn estafette_lease_all(
    engine: *mut estafette_engine,
    tensors: *const *mut estafette_tensor,
    accesses: *const i32,
    n: usize,
    options: *const estafette_export_options,
    out: *mut *mut estafette_lease,
) -> estafette_status {
    entry(|| {
        let engine = engine::engine(engine)?;
        // SAFETY: by contract of this function.
        let (options, tensors, accesses) = unsafe {
            let accesses = if accesses.is_null() { &[] } else { array(accesses, n, "accesses")? };
            (options::read(options)?, array(tensors, n, "tensors")?, accesses)
        };
        let how = How::of(&options)?;
        let access = |at: usize| accesses.get(at).copied().unwrap_or(options.access);
        let named = |(at, tensor): (usize, &*mut estafette_tensor)| {
            (tensor.cast_const(), access(at), format!("tensors[{at}]"))
        };
        let wanted = how.wanted(tensors.iter().enumerate().map(named))?;
        let vacant = wanted.iter().map(|_| LEASES.reserve()).collect::<Result<Vec<_>, _>>()?;
        let out = if n == 0 { NonNull::dangling() } else { place(out, "out")? };
        // SAFETY: by contract of this function; used in this call.
        let Some(consumer) = unsafe { how.consumer(&wanted) }? else { return PENDING };
        let leases = how.take(engine.lease_all(&wanted, how.owner.clone()).for_consumer(&consumer))?;
        let Some(leases) = leases else { return PENDING };
        for (at, (lease, vacant)) in leases.into_iter().zip(vacant).enumerate() {
            // SAFETY: `n` places may be written, by contract.
            unsafe { out.add(at).write(vacant.fill(lease)) };
        }
        DONE
    })
}

const PENDING: Answer = Ok(estafette_status::ESTAFETTE_PENDING);

/// The consumer of leases, and the time that the call may block.
struct How {
    device: DLDevice,
    stream: *mut c_void,
    nonblocking: bool,
    limit: Option<Duration>,
    begin: Instant,
    owner: LeaseOwner,
}

impl How {
    fn of(options: &estafette_export_options) -> Result<Self, Refusal> {
        if options.copy == 1 {
            return Err(Refusal::invalid("estafette_export_options: copy is 1, and a lease copies nothing"));
        }
        Ok(Self {
            device: options.device,
            stream: options.stream,
            nonblocking: flag("estafette_export_options: nonblocking", options.nonblocking)?,
            limit: options.limit(),
            begin: Instant::now(),
            owner: options.owner()?,
        })
    }

    fn wanted(
        &self,
        named: impl IntoIterator<Item = (*const estafette_tensor, i32, String)>,
    ) -> Result<Vec<(Tensor, Access)>, Refusal> {
        let one =
            |(handle, access, name)| Ok((Tensor::clone(&*tensor(handle, name)?), self::access(access)?));
        named.into_iter().map(one).collect()
    }

    fn left(&self) -> Option<Duration> {
        self.limit.map(|limit| limit.saturating_sub(self.begin.elapsed()))
    }

    /// The consumer of the tensors; `None` where that is not known yet, and the call must not block.
    ///
    /// # Safety
    /// The stream is NULL or a live stream of the device, for as long as the result is used.
    unsafe fn consumer(&self, wanted: &[(Tensor, Access)]) -> Result<Option<Consumer>, Refusal> {
        let is_anywhere = self.device.device_type.0 == 0;
        check_stream(self.device, self.stream)?;
        if self.device == DLDevice::CPU || (is_anywhere && self.stream.is_null()) {
            return Ok(Some(Consumer::Host));
        }
        let mut found = None;
        for (tensor, access) in wanted {
            // The device of a promise is known when the promise is defined.
            if self.nonblocking && !bindings::tensor::is_defined(tensor) {
                return Ok(tensor.lease(*access, self.owner.clone()).try_now().map(|_| None)?);
            }
            until_defined(tensor, self.left()).map_err(|error| within(error, self.limit))?;
            let device = if is_anywhere { tensor.device()? } else { self.device };
            if let Some((first, _)) = &found
                && *first != device
            {
                return Err(Refusal::invalid(format!(
                    "estafette_export_options: device is 0, and the stream cannot be one of {first} and of {device}"
                )));
            }
            check_stream(device, self.stream)?;
            // SAFETY: by contract of this function.
            found = Some((device, unsafe { consumer(tensor, device, self.stream) }?));
        }
        Ok(Some(found.map_or(Consumer::Host, |(_, consumer)| consumer)))
    }

    /// The requested leases; `None` where they are not granted, and the call must not block.
    fn take<L>(&self, request: LeaseRequest<L>) -> Result<Option<L>, Refusal> {
        if self.nonblocking {
            return Ok(request.try_now()?);
        }
        Ok(Some(request.wait(self.left()).map_err(|error| within(error, self.limit))?))
    }
}

/// The end of a lease as a fence, to `*out`: done when it was released and the work that its owner left is
/// done. So the producer learns when its consumer is done. The caller owns one count of it and gives that up
/// by `out->release(out->context)`.
///
/// Returns `ESTAFETTE_OK`; `ESTAFETTE_INVALID` for NULL or a handle that is not in use; `ESTAFETTE_FORKED`.
/// May be called by any thread.
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
        unsafe {
            out.write(bindings::tensor::export_fence(lease.tensor(), bindings::lease::end_fence(&lease)))
        };
        DONE
    })
}

/// Ends a lease when the owner's last device work is done: `done` is copied and retained, and stays the
/// caller's. NULL means now; of a lease that was taken for a stream, when what was enqueued there by now is
/// done, which of a stream whose handle may not be kept is known only when everything on the device is. Uses
/// that conflict, and the memory's deleter, wait for it. NULL `lease` is legal and does nothing.
///
/// Returns `ESTAFETTE_OK`; `ESTAFETTE_INVALID` for a handle that is not in use, as of a lease that was
/// released before, or a fence that breaks the rules, or is one of `estafette_lease_fence` for this lease:
/// then the caller still holds the lease. In a forked child the lease is leaked, and `ESTAFETTE_FORKED`
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
            Some(done) => Some(unsafe { bindings::tensor::import_fence(held.tensor(), done) }?),
        };
        if fence.as_ref().is_some_and(|fence| bindings::lease::is_end_fence(&held, fence)) {
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
