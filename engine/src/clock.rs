//! The cheap answers to "since when" (a clock that takes a few nanoseconds to read and is a few milliseconds coarse) and
//! "by whom", and deadlines.

use std::cell::Cell;
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

thread_local! {
    static THIS_THREAD: Cell<Option<ThreadId>> = const { Cell::new(None) };
}

/// When `timeout` from now is; `None` when that is beyond what the clock can say, which is as good as never.
pub(crate) fn deadline(timeout: Duration) -> Option<Instant> {
    Instant::now().checked_add(timeout)
}

/// Milliseconds of a monotonic clock with the resolution of the system tick.
pub(crate) fn coarse_ms() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `now` is a valid, exclusive place for the kernel to write the time to.
    let status = unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC_COARSE, &mut now) };
    debug_assert_eq!(status, 0, "the coarse clock exists on every Linux since 2.6.32");
    now.tv_sec as u64 * 1_000 + now.tv_nsec as u64 / 1_000_000
}

/// The calling thread, without counting references to what the standard library keeps of it.
pub(crate) fn this_thread() -> ThreadId {
    THIS_THREAD.get().unwrap_or_else(|| {
        let id = thread::current().id();
        THIS_THREAD.set(Some(id));
        id
    })
}
