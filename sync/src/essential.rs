//! Threads that others rely on: workers, the reactor, the reaper.
//!
//! Foreign code on such a thread is contained where it is called. A panic from anywhere else is a mistake of
//! this project: the thread's counters and queues may be half changed, and without the thread others would
//! wait for ever and say that nothing is in flight. So it ends the process, with a message.

use std::cell::Cell;
use std::fmt;
use std::io::Write;

use crate::thread_local;

thread_local! {
    static IS_ESSENTIAL: Cell<bool> = const { Cell::new(false) };
}

/// True if the calling thread is one that others rely on.
pub fn is_essential_thread() -> bool {
    IS_ESSENTIAL.get()
}

/// Runs `body`, all that a thread does; a panic that leaves it ends the process. `thread` names the thread in
/// the message.
///
/// In a model the panic goes on, so that the checker reports it.
pub fn essential<R>(thread: &str, body: impl FnOnce() -> R) -> R {
    struct Watch<'a>(&'a str);

    impl Drop for Watch<'_> {
        fn drop(&mut self) {
            if std::thread::panicking() && !cfg!(any(estafette_loom, estafette_shuttle)) {
                let thread = self.0;
                end_process(format_args!(
                    "{thread} panicked outside of any operation, and others wait for it"
                ));
            }
        }
    }

    let watch = Watch(thread);
    let before = IS_ESSENTIAL.replace(true);
    let result = body();
    IS_ESSENTIAL.set(before);
    drop(watch);
    result
}

/// Writes a line to the standard error and ends the process with `SIGABRT`.
#[cold]
pub(crate) fn end_process(why: fmt::Arguments<'_>) -> ! {
    // One write, so that it stays one line; where nothing can be written, the signal has to do.
    let _ = std::io::stderr().write_all(format!("estafette: {why}\n").as_bytes());
    std::process::abort()
}

#[cfg(all(test, unix, not(any(estafette_loom, estafette_shuttle))))]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::process::Command;

    const CHILD: &str = "ESTAFETTE_TEST_ESSENTIAL";

    #[test]
    fn a_panic_of_an_essential_thread_ends_the_process_with_a_message() {
        if std::env::var_os(CHILD).is_some() {
            let thread = std::thread::spawn(|| super::essential("worker 3", || panic!("a mistake")));
            // Not reached: joining a thread that vanished would be.
            let _ = thread.join();
            return;
        }
        let this = std::env::current_exe().expect("the path of this test");
        let name = "essential::tests::a_panic_of_an_essential_thread_ends_the_process_with_a_message";
        let child = Command::new(this).args(["--exact", name, "--nocapture"]).env(CHILD, "1").output();
        let child = child.expect("the child ran");
        assert_eq!(child.status.signal(), Some(6), "SIGABRT: {:?}", child.status);
        let errors = String::from_utf8_lossy(&child.stderr);
        assert!(errors.contains("a mistake"), "the panic is named: {errors}");
        assert!(errors.contains("estafette: worker 3 panicked outside of any operation"), "{errors}");
    }

    #[test]
    fn an_essential_thread_that_ends_well_gives_its_result() {
        assert_eq!(super::essential("worker 1", || 7), 7);
    }
}
