//! The promise of another scheduler, as a struct of C functions, both ways: theirs becomes a
//! [`Fence`](estafette_devices::Fence), ours can be handed to them.
//!
//! It is what dmlc/dlpack#57 (proposal S2) and dmlc/dlpack#176 asked for: an object that says when memory is ready and that
//! can be ordered on a stream, instead of one moment at which everything must have been synchronized.
//!
//! # Threads and locks
//! Each function of a foreign fence may be called by any thread, with no lock of the engine held; none of them may block, but for
//! `wait`, which the engine never calls. What a foreign fence calls (the callback of a subscription) only takes notes and
//! wakes the reactor, whatever lock the caller holds: subscribers run on the reactor's thread, and the fence itself is released
//! on the reaper's.

use std::ffi::{c_char, c_void};

use estafette_devices::{DLDevice, DeviceError, DeviceErrorKind};

mod export;
mod import;
mod overdue;

pub use export::export;
pub use import::import;
pub(crate) use import::stand_in_for_queries;

/// Sets after which pause a subscription to a foreign fence that has not called is first queried: for subscriptions from now on, in this
/// process. For tests; others leave it at a second.
#[doc(hidden)]
pub fn query_overdue_after(pause: std::time::Duration) {
    overdue::set_first(pause);
}

/// The version of `estafette_fence`.
pub const FENCE_VERSION: u32 = 1;

/// Done, or accepted.
pub const OK: i32 = 0;
/// Not done yet, or not possible here: ask again, or wait on the host.
pub const PENDING: i32 = 1;
/// The time was up first.
pub const TIMEOUT: i32 = 2;
/// An argument is wrong.
pub const INVALID: i32 = -1;
/// The work has failed.
pub const FAILED: i32 = -2;
/// A device refused or broke.
pub const DEVICE: i32 = -3;
/// The work was cancelled.
pub const CANCELLED: i32 = -4;
/// Waiting here could never end.
pub const WOULD_DEADLOCK: i32 = -7;

/// What a fence calls when it settles: the `argument` of the subscription, a status (`ESTAFETTE_OK` or an error, never
/// `ESTAFETTE_PENDING`), and for an error its text, which may be NULL and is only read during the call.
///
/// It may be called by any thread, under any lock, during `subscribe` itself, more than once, or too late: what counts is the
/// first call.
pub type FenceCallback =
    Option<unsafe extern "C" fn(argument: *mut c_void, status: i32, message: *const c_char)>;

/// A point in the work of some scheduler: pending, done or failed. Any scheduler can fill one.
///
/// The receiver of a pointer to a fence copies the struct and calls `retain`; the original may go at once. `query` must be there,
/// the other functions may be NULL. Each may be called by any thread. None may block, but for `wait`. None may unwind (throw).
///
/// Statuses are those of `estafette_status`: `ESTAFETTE_OK` for done, `ESTAFETTE_PENDING` for not yet, negative for failed.
/// A fence settles once; what it says first counts.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct RawFence {
    /// `ESTAFETTE_FENCE_VERSION`.
    pub version: u32,
    /// `sizeof(estafette_fence)` where it was filled; later fields of newer versions are ignored.
    pub size: u32,
    /// Passed to every function.
    pub context: *mut c_void,
    /// Where the work runs, `kDLCPU` for work of the host.
    pub device: DLDevice,
    /// 0.
    pub flags: u64,
    /// Where it stands. Must be there. Cheap: it may be called some thousand times per second during a wait if there is
    /// no `subscribe`. A subscription that has not been called for a second or two is asked for as well, then after pauses that grow
    /// to a minute. It must not ask for what waits for this fence: the fence fails then.
    pub query: Option<unsafe extern "C" fn(context: *mut c_void) -> i32>,
    /// Blocks until it has settled or `timeout_ns` has passed (`ESTAFETTE_TIMEOUT`); `UINT64_MAX` means no limit. For
    /// schedulers without anything better: the engine itself does not call it. That of a fence of the engine returns
    /// `ESTAFETTE_WOULD_DEADLOCK` where it would block in a callback.
    pub wait: Option<unsafe extern "C" fn(context: *mut c_void, timeout_ns: u64) -> i32>,
    /// Makes what is enqueued on `stream` of `device` from now on run after this fence, without the host waiting:
    /// `ESTAFETTE_OK`. `ESTAFETTE_PENDING` means that it cannot, so the host has to wait.
    pub order_on:
        Option<unsafe extern "C" fn(context: *mut c_void, device: DLDevice, stream: *mut c_void) -> i32>,
    /// Arranges that `callback(argument, ...)` is called when it settles, and writes what `unsubscribe` needs to `token`:
    /// `ESTAFETTE_OK`. Anything else means that nothing was arranged, for example because it has settled; `query` returns the state.
    pub subscribe: Option<
        unsafe extern "C" fn(
            context: *mut c_void,
            callback: FenceCallback,
            argument: *mut c_void,
            token: *mut u64,
        ) -> i32,
    >,
    /// Takes a subscription back: `ESTAFETTE_OK` if the callback will not be called, `ESTAFETTE_PENDING` if it was called or
    /// is being called right now.
    pub unsubscribe: Option<unsafe extern "C" fn(context: *mut c_void, token: u64) -> i32>,
    /// Why it has failed, in words, valid until `release`; NULL when there is nothing to say.
    pub error: Option<unsafe extern "C" fn(context: *mut c_void) -> *const c_char>,
    /// A native event of the kind that Arrow's C device interface gives to `device`'s type (`cudaEvent_t*`, `hipEvent_t*`,
    /// `sycl::event*`, ...), recorded, and valid until `release`; NULL when there is none.
    pub native: Option<unsafe extern "C" fn(context: *mut c_void, device: DLDevice) -> *mut c_void>,
    /// Counts one more holder. NULL only together with `release`, for a fence that lives as long as the process.
    pub retain: Option<unsafe extern "C" fn(context: *mut c_void)>,
    /// Counts one holder less; called once per `retain`, on a thread that holds no lock of the engine.
    pub release: Option<unsafe extern "C" fn(context: *mut c_void)>,
}

/// The status that reports `error` to a foreign scheduler.
fn status_of(error: &DeviceError) -> i32 {
    match error.kind() {
        DeviceErrorKind::Invalid => INVALID,
        DeviceErrorKind::Cancelled => CANCELLED,
        DeviceErrorKind::Fault | DeviceErrorKind::OutOfMemory => DEVICE,
        _ => FAILED,
    }
}

/// What the negative `status` of a foreign scheduler means here.
fn kind_of(status: i32) -> DeviceErrorKind {
    match status {
        INVALID => DeviceErrorKind::Invalid,
        CANCELLED => DeviceErrorKind::Cancelled,
        DEVICE => DeviceErrorKind::Fault,
        _ => DeviceErrorKind::Other,
    }
}

#[cfg(test)]
mod tests;
