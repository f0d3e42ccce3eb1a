//! The monotonic clock of the standard library, since the first look at it.

use crate::time::Duration;

/// Milliseconds, without what does not fit.
#[inline]
pub fn coarse_ms() -> u32 {
    since_start().as_millis() as u32
}

/// Nanoseconds.
pub fn monotonic_ns() -> u64 {
    since_start().as_nanos() as u64
}

/// None: the clock is of this process.
pub fn monotonic_name() -> Option<String> {
    None
}

#[cfg(not(estafette_shuttle))]
fn since_start() -> Duration {
    use std::sync::OnceLock;
    use std::time::Instant;

    static START: OnceLock<Instant> = OnceLock::new();
    START.get_or_init(Instant::now).elapsed()
}

/// By the clock of the execution.
#[cfg(estafette_shuttle)]
fn since_start() -> Duration {
    crate::time::Instant::now().since_the_beginning()
}
