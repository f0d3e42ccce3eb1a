//! Limits of this process, for tests of what it lacks.

/// Sets how much of something this process may have, and returns how much that was.
pub fn limit(what: libc::__rlimit_resource_t, most: u64) -> u64 {
    // SAFETY: reads and writes a struct.
    unsafe {
        let mut limit: libc::rlimit = std::mem::zeroed();
        assert_eq!(libc::getrlimit(what, &raw mut limit), 0);
        let before = limit.rlim_cur;
        limit.rlim_cur = most.min(limit.rlim_max);
        assert_eq!(libc::setrlimit(what, &raw const limit), 0);
        before
    }
}
