//! Clocks of the kernel.

/// The coarse clock, in milliseconds without what does not fit: a few nanoseconds to read, a few milliseconds coarse.
#[inline]
pub fn coarse_ms() -> u32 {
    let now = read(libc::CLOCK_MONOTONIC_COARSE);
    // Up to a second, nanoseconds fit 32 bits, where dividing is cheaper.
    (now.tv_sec as u32).wrapping_mul(1_000).wrapping_add(now.tv_nsec as u32 / 1_000_000)
}

/// Nanoseconds of the monotonic clock, which drivers of devices use as well.
pub fn monotonic_ns() -> u64 {
    let now = read(libc::CLOCK_MONOTONIC);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

#[inline(always)]
fn read(clock: libc::clockid_t) -> libc::timespec {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `now` is a valid, exclusive place for the kernel to write the time to.
    let status = unsafe { libc::clock_gettime(clock, &raw mut now) };
    // Both clocks exist on every Linux since 2.6.32.
    debug_assert_eq!(status, 0, "clock {clock} cannot be read: {}", std::io::Error::last_os_error());
    now
}
