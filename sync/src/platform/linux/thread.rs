//! Facts about a thread from the kernel.

/// The system may end naps of the calling thread late by a microsecond, instead of the usual 50 that spare it
/// wake-ups.
pub fn nap_precisely() {
    const SLACK_NS: libc::c_ulong = 1_000;
    // SAFETY: a setting of the calling thread, by its number; nothing is pointed to.
    let _ = unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, SLACK_NS) };
}

/// The number of the calling thread, which is the number of the process for the main thread.
pub fn number() -> Option<u32> {
    let this = std::fs::read_link("/proc/thread-self").ok()?;
    this.file_name()?.to_str()?.parse().ok()
}
