//! A forked child has none of the threads that observe fences. This test is alone in its process.
#![cfg(unix)]

use std::time::Duration;

use estafette_devices::{Reactor, host};

/// What the child found out, as its exit status.
fn in_child(check: impl FnOnce() -> bool) -> bool {
    // SAFETY: the child only runs `check` and leaves by `_exit`; this process has no other thread that could
    // hold a lock which `check` needs (the test harness waits).
    let child = unsafe { libc::fork() };
    assert!(child >= 0, "fork failed");
    if child == 0 {
        let passed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(check)).unwrap_or(false);
        // SAFETY: leaves the child without running the parent's destructors.
        unsafe { libc::_exit(i32::from(!passed)) };
    }
    let mut status = -1;
    // SAFETY: `status` is valid for the call, and the child is ours.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0
}

#[test]
fn a_forked_child_is_told_so_and_the_parent_goes_on() {
    let (completer, fence) = host::promise("parent's work");
    let (done, finished) = host::promise("finished before");
    done.complete();
    // The reactor belongs to the parent.
    let (told, telling) = std::sync::mpsc::channel();
    Reactor::global().when_settled([&fence], move |outcome| told.send(outcome.is_ok()).unwrap());

    assert!(in_child(|| {
        let refused = fence.wait_timeout(Some(Duration::from_secs(60)));
        let refused = refused
            .is_some_and(|outcome| outcome.is_err_and(|error| error.message().starts_with("forked child")));
        let (told, telling) = std::sync::mpsc::channel();
        Reactor::global().when_settled([&fence], move |outcome| told.send(outcome.is_err()).unwrap());
        refused
            && telling.try_recv() == Ok(true)
            && finished.wait_timeout(None).is_some_and(|outcome| outcome.is_ok())
    }));

    assert!(telling.try_recv().is_err());
    completer.complete();
    assert!(telling.recv().unwrap());
    assert!(fence.is_done());
}
