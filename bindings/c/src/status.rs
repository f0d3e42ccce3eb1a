//! The status of a call.

use std::error::Error as _;
use std::ffi::c_char;

use estafette::exchange::foreign_fence;
use estafette::operation::OperationError;
use estafette::{Error, FailureKind, devices};

/// The status of a call: 0 for done, positive for "not yet", negative for an error, whose text
/// `estafette_last_error` gives.
#[repr(i32)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(clippy::enum_variant_names, reason = "C has no name spaces")]
pub enum estafette_status {
    /// Done.
    ESTAFETTE_OK = 0,
    /// Not ready yet; ask again, wait, or be called.
    ESTAFETTE_PENDING = 1,
    /// The time was up first; the work goes on.
    ESTAFETTE_TIMEOUT = 2,
    /// As many operations are in flight as the engine accepts, and the call was not to wait. Try again later.
    ESTAFETTE_IN_FLIGHT_LIMIT = 3,
    /// An argument is wrong; the text names it. Nothing happened.
    ESTAFETTE_INVALID = -1,
    /// The operation that should have made the data failed; the text has the root cause.
    ESTAFETTE_FAILED = -2,
    /// A device refused or broke.
    ESTAFETTE_DEVICE = -3,
    /// The operation was cancelled before it began, or what it waited for was.
    ESTAFETTE_CANCELLED = -4,
    /// The memory is used in a way that excludes this use; the text says by whom.
    ESTAFETTE_CONFLICT = -5,
    /// Only leases that were not returned hold this up; the text names them.
    ESTAFETTE_LEASE_HELD = -6,
    /// Waiting here could never end.
    ESTAFETTE_WOULD_DEADLOCK = -7,
    /// The tensor's operation has not run yet, so it has no shape, type or memory.
    ESTAFETTE_NOT_DEFINED = -8,
    /// The engine is shut down.
    ESTAFETTE_SHUTDOWN = -9,
    /// This process was forked from one that used the library, whose threads do not exist here.
    ESTAFETTE_FORKED = -10,
    /// The library broke, or the operating system refused something it needs. Nothing is promised about the
    /// object it happened to.
    ESTAFETTE_INTERNAL = -11,
    /// Another process had promised the data, or is the other end of the link, and has died; the text has its
    /// number.
    ESTAFETTE_PEER_DIED = -12,
    /// The memory of the tensor is not memory that other processes can be shown.
    ESTAFETTE_NOT_SHARED = -13,
    /// A signal that the program around the library handles has ended the wait; what was waited for goes on.
    /// Only in an engine that Python has made or been given, on a thread whose signals Python handles: Ctrl-C
    /// in a wait there. Until Python code runs on that thread and raises the exception, each wait there that
    /// would block returns this again: clean up by queries, or by waits of another thread.
    ESTAFETTE_INTERRUPTED = -14,
}

use estafette_status::*;

// The fences of the engine speak the same numbers.
const _: () = assert!(
    foreign_fence::OK == ESTAFETTE_OK as i32
        && foreign_fence::PENDING == ESTAFETTE_PENDING as i32
        && foreign_fence::TIMEOUT == ESTAFETTE_TIMEOUT as i32
        && foreign_fence::INVALID == ESTAFETTE_INVALID as i32
        && foreign_fence::FAILED == ESTAFETTE_FAILED as i32
        && foreign_fence::DEVICE == ESTAFETTE_DEVICE as i32
        && foreign_fence::CANCELLED == ESTAFETTE_CANCELLED as i32
        && foreign_fence::WOULD_DEADLOCK == ESTAFETTE_WOULD_DEADLOCK as i32
);

impl From<()> for estafette_status {
    fn from((): ()) -> Self {
        ESTAFETTE_OK
    }
}

impl estafette_status {
    /// Every status, with what it means in a few words.
    const ALL: [(Self, &'static std::ffi::CStr); 18] = [
        (ESTAFETTE_OK, c"ok"),
        (ESTAFETTE_PENDING, c"not ready yet"),
        (ESTAFETTE_TIMEOUT, c"the time was up first"),
        (ESTAFETTE_IN_FLIGHT_LIMIT, c"too many operations in flight"),
        (ESTAFETTE_INVALID, c"invalid argument"),
        (ESTAFETTE_FAILED, c"the operation failed"),
        (ESTAFETTE_DEVICE, c"device error"),
        (ESTAFETTE_CANCELLED, c"cancelled"),
        (ESTAFETTE_CONFLICT, c"conflicting use of the memory"),
        (ESTAFETTE_LEASE_HELD, c"only leases hold this up"),
        (ESTAFETTE_WOULD_DEADLOCK, c"waiting could never end"),
        (ESTAFETTE_NOT_DEFINED, c"the tensor is not defined yet"),
        (ESTAFETTE_SHUTDOWN, c"the engine is shut down"),
        (ESTAFETTE_FORKED, c"used in a forked child"),
        (ESTAFETTE_INTERNAL, c"internal error"),
        (ESTAFETTE_PEER_DIED, c"the other process died"),
        (ESTAFETTE_NOT_SHARED, c"the memory is not shared"),
        (ESTAFETTE_INTERRUPTED, c"a signal ended the wait"),
    ];

    pub(crate) fn of_number(number: i32) -> Option<Self> {
        Self::ALL.iter().map(|(status, _)| *status).find(|status| *status as i32 == number)
    }

    /// The status of a fence's failure.
    pub(crate) fn of_fence(error: &devices::DeviceError) -> Self {
        match error.kind() {
            devices::DeviceErrorKind::Invalid => ESTAFETTE_INVALID,
            devices::DeviceErrorKind::Cancelled => ESTAFETTE_CANCELLED,
            devices::DeviceErrorKind::Other => ESTAFETTE_FAILED,
            devices::DeviceErrorKind::PeerDied => ESTAFETTE_PEER_DIED,
            _ => ESTAFETTE_DEVICE,
        }
    }

    /// The status of the failure of an operation, or of the fence of an import.
    fn of_failure(failure: &OperationError) -> Self {
        use devices::DeviceErrorKind as Kind;
        match device_error(failure).map(devices::DeviceError::kind) {
            Some(Kind::PeerDied) => ESTAFETTE_PEER_DIED,
            Some(Kind::Fault | Kind::OutOfMemory) => ESTAFETTE_DEVICE,
            // A cancellation that a function returns is its own failure.
            Some(Kind::Cancelled) if failure.kind() == FailureKind::Device => ESTAFETTE_CANCELLED,
            _ => ESTAFETTE_FAILED,
        }
    }

    /// The status of `error`, by what the caller can do about it.
    pub(crate) fn of(error: &Error) -> Self {
        match error {
            Error::Invalid(_) | Error::InvalidTensor(_) | Error::NoOperator { .. } => ESTAFETTE_INVALID,
            Error::Failed(failure) => Self::of_failure(failure),
            Error::Cancelled(_) => ESTAFETTE_CANCELLED,
            Error::Device(error) => Self::of_fence(error),
            Error::Conflict(_) => ESTAFETTE_CONFLICT,
            Error::LeaseHeld(_) => ESTAFETTE_LEASE_HELD,
            Error::WouldDeadlock(_) => ESTAFETTE_WOULD_DEADLOCK,
            Error::NotDefined(_) => ESTAFETTE_NOT_DEFINED,
            Error::Timeout(_) => ESTAFETTE_TIMEOUT,
            Error::Interrupted => ESTAFETTE_INTERRUPTED,
            Error::InFlightLimit { .. } => ESTAFETTE_IN_FLIGHT_LIMIT,
            Error::Shutdown => ESTAFETTE_SHUTDOWN,
            Error::Forked => ESTAFETTE_FORKED,
            Error::NotShared(_) => ESTAFETTE_NOT_SHARED,
            _ => ESTAFETTE_INTERNAL,
        }
    }
}

/// The error of a device, of a fence or of another process that is the root cause.
fn device_error(failure: &OperationError) -> Option<&devices::DeviceError> {
    let mut sources = std::iter::successors(failure.source(), |&error| error.source());
    sources.find_map(|error| error.downcast_ref())
}

/// A few words for a status, for example "invalid argument"; of a number that is none, "unknown status".
///
/// The text lives as long as the process. May be called by any thread, and in a forked child.
#[unsafe(no_mangle)]
pub extern "C" fn estafette_status_text(status: i32) -> *const c_char {
    let known = estafette_status::ALL.iter().find(|(known, _)| *known as i32 == status);
    known.map_or(c"unknown status", |(_, text)| *text).as_ptr()
}
