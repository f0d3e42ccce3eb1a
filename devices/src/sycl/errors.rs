//! Asynchronous errors. The runtime gives them to the handler of their queue, with a code and nothing else,
//! when a thread waits for one of the queue's events. So whose error it is follows from what the thread was
//! waiting for.

use std::cell::Cell;
use std::ffi::c_int;

use estafette_sync::thread_local;

use crate::{DeviceError, DeviceErrorKind};

thread_local! {
    /// The error that a wait of this thread has caught so far; `None` outside of waits.
    static CAUGHT: Cell<Option<c_int>> = const { Cell::new(None) };
    static WAITING: Cell<bool> = const { Cell::new(false) };
}

/// The handler of every queue that is made here.
pub(super) extern "C" fn on_asynchronous_error(code: c_int) {
    if WAITING.get() {
        CAUGHT.set(Some(CAUGHT.get().unwrap_or(code)));
    } else {
        tracing::error!(
            code,
            "an asynchronous error of a SYCL queue was reported to a wait of another component"
        );
    }
}

/// Runs `wait`, which waits for an event, and gives the error that came back meanwhile.
pub(super) fn catch(wait: impl FnOnce()) -> Result<(), DeviceError> {
    CAUGHT.set(None);
    WAITING.set(true);
    wait();
    WAITING.set(false);
    CAUGHT.take().map_or(Ok(()), |code| Err(failed(code.into())))
}

pub(super) fn failed(code: i64) -> DeviceError {
    DeviceError::new(DeviceErrorKind::Fault, "a command failed on the SYCL device").with_code(code)
}

/// The error of a command that the runtime did not take.
pub(super) fn refused(what: &str) -> DeviceError {
    DeviceError::new(DeviceErrorKind::Other, format!("the SYCL runtime refused {what}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_belongs_to_the_wait_during_which_it_comes() {
        assert!(catch(|| ()).is_ok());
        let error = catch(|| {
            on_asynchronous_error(-5);
            on_asynchronous_error(-14);
        });
        assert_eq!(error.expect_err("one came").code(), Some(-5), "the first is the cause");
        on_asynchronous_error(-5);
        assert!(catch(|| ()).is_ok(), "and only to that one");
    }
}
