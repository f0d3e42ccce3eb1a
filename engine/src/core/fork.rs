//! Which process are we? A forked child inherits our memory but none of our threads, and a lock held by a
//! thread that did not come along stays held forever. So everything that would run a deleter compares the
//! *fork generation* it was created in with the current one first, and leaks in a child: the parent still
//! owns the memory's other half (driver contexts, reference counts of shared mappings), and the threads that
//! would give it back are not here.
//!
//! The generation is a process-wide counter that `pthread_atfork` raises in the child. Asking is one
//! relaxed load, where `getpid` is a system call on every release. A raw `clone` without the C library does
//! not run the handler; such a child cannot use the C library's allocator either, so it cannot get here.
//!
//! These are plain `std` atomics: they take part in no protocol, and a fork handler runs where no model
//! checker does.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The fork generation of this process. Changes in a forked child, never otherwise.
#[inline(always)]
pub fn generation() -> u32 {
    imp::generation()
}

/// Begins to notice forks. Everything that calls [`generation`] does so too; this says it where nothing
/// else does.
pub fn watch() {
    generation();
}

/// Whether this is a forked child of a process that used this library: none of its threads came along. A
/// child of a process that never did is like any other process.
pub fn in_child() -> bool {
    generation() != 0
}

/// How many exported and imported tensors this process leaked because it is a forked child.
pub fn leaked() -> u64 {
    LEAKED.load(Ordering::Relaxed)
}

/// Counts one such leak.
pub(crate) fn count_leak() {
    LEAKED.fetch_add(1, Ordering::Relaxed);
}

static LEAKED: AtomicU64 = AtomicU64::new(0);

/// Whether there was an engine, so that its locks may be held at a fork.
static ENGINE: AtomicBool = AtomicBool::new(false);

/// Called before the first engine is made.
pub(crate) fn engine_is_made() {
    ENGINE.store(true, Ordering::Relaxed);
}

/// In the child: the engine's locks are lost.
fn abandon() {
    if ENGINE.load(Ordering::Relaxed) {
        estafette_sync::abandoned::abandon();
    }
}

#[cfg(unix)]
mod imp {
    use std::sync::Once;
    use std::sync::atomic::{AtomicU32, Ordering};

    /// No generation was queried so far.
    const UNWATCHED: u32 = u32::MAX;

    static GENERATION: AtomicU32 = AtomicU32::new(UNWATCHED);
    static WATCHING: Once = Once::new();

    #[inline(always)]
    pub(super) fn generation() -> u32 {
        let generation = GENERATION.load(Ordering::Relaxed);
        if generation == UNWATCHED { watch() } else { generation }
    }

    #[cold]
    fn watch() -> u32 {
        WATCHING.call_once(|| {
            GENERATION.store(0, Ordering::Relaxed);
            // SAFETY: the handler is an `extern "C"` function without arguments that only changes
            // atomics, which is allowed between fork and exec; it lives as long as this library is loaded
            // (the C library removes the handlers of a library it unloads).
            let status = unsafe { libc::pthread_atfork(None, None, Some(raise)) };
            if status != 0 {
                tracing::warn!(status, "pthread_atfork failed: a forked child will not be noticed");
            }
        });
        GENERATION.load(Ordering::Relaxed)
    }

    extern "C" fn raise() {
        GENERATION.fetch_add(1, Ordering::Relaxed);
        super::abandon();
    }
}

#[cfg(not(unix))]
mod imp {
    pub(super) fn generation() -> u32 {
        0
    }
}

#[cfg(all(test, unix))]
pub(crate) mod tests {
    /// Runs `child` in a forked child and says whether it returned true there. The child must take no lock
    /// that another test's thread may hold, and so must not allocate much; it leaves without running exit
    /// handlers.
    pub(crate) fn in_forked_child(child: impl FnOnce() -> bool) -> bool {
        // Registers the handler before the fork, as the making of any tensor does.
        let before = super::generation();
        // SAFETY: the child only runs `child` and leaves by `_exit`; the parent waits for it.
        unsafe {
            let pid = libc::fork();
            assert!(pid >= 0, "fork failed");
            if pid == 0 {
                let fine = super::generation() != before && child();
                libc::_exit(if fine { 0 } else { 1 });
            }
            let mut status = 0;
            assert_eq!(libc::waitpid(pid, &mut status, 0), pid);
            assert_eq!(super::generation(), before, "the parent's generation must not change");
            libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0
        }
    }

    #[test]
    fn the_generation_changes_in_a_forked_child_only() {
        assert!(!super::in_child());
        assert!(in_forked_child(super::in_child));
        assert!(!in_forked_child(|| false));
    }
}
