//! The promise of another scheduler, as a struct of C functions, both ways: theirs becomes a
//! [`Fence`](estafette_devices::Fence), ours can be handed to them.
//!
//! It is what dmlc/dlpack#57 (proposal S2) and dmlc/dlpack#176 asked for: an object that says when memory is
//! ready and that can be ordered on a stream, instead of one moment at which everything must have been
//! synchronized.
//!
//! # Threads and locks
//! Each function of a foreign fence may be called by any thread, with no lock of the engine held; none of
//! them may block, but for `wait`, which the engine never calls. What a foreign fence calls (the callback of
//! a subscription) only takes notes and wakes the reactor, whatever lock the caller holds: subscribers run on
//! the reactor's thread, and the fence itself is released on the reaper's.
//!
//! | part | what it has |
//! |---|---|
//! | `export` | our fence as a struct for other schedulers |
//! | `import` | their fence as ours |
//! | `overdue` | the thread that queries fences whose subscriptions are not called for long |

use std::ffi::{c_char, c_void};

use estafette_devices::{DLDevice, DeviceError, DeviceErrorKind};

pub(crate) mod export;
pub(crate) mod import;
pub(crate) mod overdue;

pub(crate) use export::done;
pub(crate) use export::{WAIT_WITHOUT_ENGINE, export_of, waits_for};
pub(crate) use import::{import, stand_in_for_queries};

/// The version of `DLFence`.
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

/// `DLFenceCallback`. A callback may come on any thread and under any lock. Of a fence that breaks the rules
/// it may come more than once, or too late: the first call counts.
pub type FenceCallback =
    Option<unsafe extern "C" fn(argument: *mut c_void, status: i32, message: *const c_char)>;

/// `DLFence` of `dlpack_fence.h`, which documents its fields. The two are compared by the programs of
/// `examples/fences`.
///
/// An engine that imports a fence calls neither `wait` nor, where there is a `subscribe`, `query` before a
/// subscription is overdue.
#[allow(missing_docs, reason = "the header documents them")]
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct RawFence {
    pub version: u32,
    pub size: u32,
    pub context: *mut c_void,
    pub device: DLDevice,
    pub flags: u64,
    pub query: Option<unsafe extern "C" fn(context: *mut c_void) -> i32>,
    pub wait: Option<unsafe extern "C" fn(context: *mut c_void, timeout_ns: u64) -> i32>,
    pub order_on:
        Option<unsafe extern "C" fn(context: *mut c_void, device: DLDevice, stream: *mut c_void) -> i32>,
    pub subscribe: Option<
        unsafe extern "C" fn(
            context: *mut c_void,
            callback: FenceCallback,
            argument: *mut c_void,
            token: *mut u64,
        ) -> i32,
    >,
    pub unsubscribe: Option<unsafe extern "C" fn(context: *mut c_void, token: u64) -> i32>,
    pub error: Option<unsafe extern "C" fn(context: *mut c_void) -> *const c_char>,
    pub native: Option<unsafe extern "C" fn(context: *mut c_void, device: DLDevice) -> *mut c_void>,
    pub retain: Option<unsafe extern "C" fn(context: *mut c_void)>,
    pub release: Option<unsafe extern "C" fn(context: *mut c_void)>,
    pub reserved: [Option<unsafe extern "C" fn()>; 3],
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

/// The kind of failure of a foreign scheduler's negative `status`.
fn kind_of(status: i32) -> DeviceErrorKind {
    match status {
        INVALID => DeviceErrorKind::Invalid,
        CANCELLED => DeviceErrorKind::Cancelled,
        DEVICE => DeviceErrorKind::Fault,
        _ => DeviceErrorKind::Other,
    }
}
