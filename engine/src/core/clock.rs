//! The cheap answers to "since when" (a clock that takes a few nanoseconds to read and is a few milliseconds
//! coarse) and "by whom", and deadlines.

use std::cell::Cell;

use estafette_sync::platform::clock;
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

/// True if the time of a wait is up.
pub(crate) fn is_over(deadline: Option<Instant>) -> bool {
    deadline.is_some_and(|deadline| deadline <= Instant::now())
}

/// A moment, as the system's tick saw it: milliseconds of a monotonic clock, without what does not fit.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Coarse(u32);

impl Coarse {
    #[inline]
    pub(crate) fn now() -> Self {
        Self(clock::coarse_ms())
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
