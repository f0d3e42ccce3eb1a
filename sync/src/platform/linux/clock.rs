//! Clocks of the kernel.

/// The coarse clock, in milliseconds without what does not fit: a few nanoseconds to read, a few milliseconds
/// coarse.
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

/// A name of the monotonic clock: two processes with the same name read the same time. `None` where that is
/// not known.
pub fn monotonic_name() -> Option<String> {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    // A namespace of time has a clock of its own. Kernels without them have one clock.
    let space = std::fs::read_link("/proc/self/ns/time").unwrap_or_default();
    Some(format!("{} {}", boot.trim(), space.display()))
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
