//! The cheap answers to "since when" (a clock that takes a few nanoseconds to read and is a few milliseconds
//! coarse) and "by whom", and deadlines.

use std::cell::Cell;

use estafette_sync::thread::{self, ThreadId};
use estafette_sync::thread_local;
use estafette_sync::time::{Duration, Instant};

thread_local! {
    static THIS_THREAD: Cell<Option<ThreadId>> = const { Cell::new(None) };
}

/// When `timeout` from now is; `None` when that is beyond what the clock can say, which is as good as never.
pub(crate) fn deadline(timeout: Duration) -> Option<Instant> {
    Instant::now().checked_add(timeout)
}

/// A moment, as the system's tick saw it: milliseconds of a monotonic clock, without what does not fit.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Coarse(u32);

impl Coarse {
    #[inline]
    #[cfg(not(estafette_shuttle))]
    pub(crate) fn now() -> Self {
        let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: `now` is a valid, exclusive place for the kernel to write the time to.
        let status = unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC_COARSE, &mut now) };
        // The coarse clock exists on every Linux since 2.6.32.
        debug_assert_eq!(status, 0, "the coarse clock cannot be read: {}", std::io::Error::last_os_error());
        // Up to a second, nanoseconds fit 32 bits, where dividing is cheaper.
        Self((now.tv_sec as u32).wrapping_mul(1_000).wrapping_add(now.tv_nsec as u32 / 1_000_000))
    }

    /// Now, by the clock of the execution.
    #[cfg(estafette_shuttle)]
    pub(crate) fn now() -> Self {
        Self(Instant::now().since_the_beginning().as_millis() as u32)
    }

    /// The time since then, if that is less than seven weeks.
    pub(crate) fn elapsed(self) -> Duration {
        Duration::from_millis(Self::now().0.wrapping_sub(self.0).into())
    }
}

/// The calling thread, without counting references to what the standard library keeps of it.
pub(crate) fn this_thread() -> ThreadId {
    THIS_THREAD.get().unwrap_or_else(|| {
        let id = thread::current().id();
        THIS_THREAD.set(Some(id));
        id
    })
}
