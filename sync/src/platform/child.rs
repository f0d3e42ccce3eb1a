//! Forked children, for tests.

/// Runs `child` in a forked child of this process, and returns whether it returned true there: for tests.
/// `child` must take no lock that another thread may hold, such as that of what prints; the allocator and
/// threads of glibc, and of Rust, work in a forked child.
pub fn in_forked_child(child: impl FnOnce() -> bool) -> bool {
    crate::process::Generation::current();
    // SAFETY: the child only runs `child` and leaves by `_exit`; the parent waits for it.
    unsafe {
        let pid = libc::fork();
        assert!(pid >= 0, "fork failed");
        if pid == 0 {
            let fine = std::panic::catch_unwind(std::panic::AssertUnwindSafe(child)).unwrap_or(false);
            libc::_exit(i32::from(!fine));
        }
        let mut status = 0;
        assert_eq!(libc::waitpid(pid, &raw mut status, 0), pid);
        libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0
    }
}
