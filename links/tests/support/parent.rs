//! Processes that end with the thread that has started them, in whatever way that ends.

/// From now on this process ends with its parent.
pub fn end_with_parent() {
    // SAFETY: takes integers.
    assert_eq!(unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) }, 0);
}
