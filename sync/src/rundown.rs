//! Rundown protection: threads use something until it closes, and the closing waits for the threads inside.
//!
//! # States
//! One word has the number of uses and whether the thing is closed. Closed is final.
//!
//! # Steps
//! - *Enter*: raise the number, unless the word says closed. One atomic step, so no use begins after the
//!   closing.
//! - *Leave*: lower the number. The last use of a closed thing wakes the closing thread, after it has taken
//!   the lock once.
//! - *Close*: set closed, then sleep under the lock until the number is 0.
//!
//! # The excluded race
//! A closing thread that sleeps through the last *leave*. It checks the word under the lock before each
//! sleep. A leave after the check waits for the lock, so it wakes a thread that sleeps already.
//!
//! # Forks
//! A forked child has none of the other uses, and the lock may be lost. Entering and leaving an open thing
//! takes no lock; leaving one that the parent has closed takes none in a [child](crate::process).
//!
//! The models at the end of this file check this with loom.

use crate::process::Generation;
use crate::sync::atomic::{AtomicUsize, Ordering};
use crate::sync::{Condvar, Mutex};
use crate::time::{Duration, Instant};

/// Set once closed.
const CLOSED: usize = 1;
const USE: usize = 2;

/// See the module.
#[derive(Debug)]
pub struct Rundown {
    word: AtomicUsize,
    /// The process that closes, once known. Of no use to the protocol, so that models do not look at it.
    closed_by: std::sync::OnceLock<Generation>,
    closing: Mutex<()>,
    left: Condvar,
}

impl Rundown {
    crate::const_fn! {
        /// Open, without a use.
        #[expect(clippy::new_without_default, reason = "for statics")]
        pub fn new() -> Self {
            Self {
                word: AtomicUsize::new(0),
                closed_by: std::sync::OnceLock::new(),
                closing: Mutex::new(()),
                left: Condvar::new(),
            }
        }
    }

    /// Begins a use, which the caller ends by [`release`](Self::release). False once closed.
    pub fn acquire(&self) -> bool {
        let enter = |word| (word & CLOSED == 0).then_some(word + USE);
        self.word.fetch_update(Ordering::Acquire, Ordering::Relaxed, enter).is_ok()
    }

    /// Ends a use. What the thread has done before happens before the return of [`close`](Self::close).
    pub fn release(&self) {
        let before = self.word.fetch_sub(USE, Ordering::Release);
        debug_assert!(before >= USE, "leave comes after enter");
        if before == USE | CLOSED && self.closed_by.get().is_none_or(|by| by.is_current()) {
            drop(self.closing.lock());
            self.left.notify_all();
        }
    }

    /// Closes, and waits until there is no use. False if that takes longer than `timeout`; the thing stays
    /// closed, and another call waits on.
    pub fn close(&self, timeout: Duration) -> bool {
        let deadline = Instant::now() + timeout;
        let _ = self.closed_by.set(Generation::current());
        self.word.fetch_or(CLOSED, Ordering::Relaxed);
        let is_used = |(): &mut ()| self.word.load(Ordering::Acquire) != CLOSED;
        self.left.wait_while(self.closing.lock(), Some(deadline), is_used).1
    }

    /// True if [`close`](Self::close) was called.
    pub fn is_closed(&self) -> bool {
        self.word.load(Ordering::Relaxed) & CLOSED != 0
    }
}

#[cfg(all(test, unix, not(any(estafette_loom, estafette_shuttle))))]
mod tests {
    use super::*;
    use crate::platform::child::in_forked_child;

    #[test]
    fn a_close_that_is_given_up_stays_closed_and_can_be_waited_for_again() {
        let rundown = Rundown::new();
        assert!(rundown.acquire());
        assert!(!rundown.close(Duration::ZERO));
        assert!(rundown.is_closed() && !rundown.acquire());
        rundown.release();
        assert!(rundown.close(Duration::ZERO));
    }

    /// The fork comes while another thread closes, at a moment when it has the lock.
    #[test]
    fn a_forked_child_leaves_without_the_lock_that_another_thread_has() {
        let rundown = Rundown::new();
        assert!(rundown.acquire());
        assert!(!rundown.close(Duration::ZERO));
        let lost = rundown.closing.lock();
        let stays_out = in_forked_child(|| {
            // SAFETY: the alarm ends a child that hangs.
            unsafe { libc::alarm(30) };
            rundown.release();
            !rundown.acquire()
        });
        drop(lost);
        assert!(stays_out, "the child hung, or entered what is closed");
    }
}

/// Models: `RUSTFLAGS="--cfg estafette_loom" cargo test -p estafette-sync --lib --release`.
///
/// The thing is an interpreter with its lock, as the Python package uses this. Loom lets no timeout end a
/// wait.
#[cfg(all(test, estafette_loom))]
#[allow(clippy::unwrap_used, reason = "in a test, an unwrap is an assertion")]
#[allow(clippy::arc_with_non_send_sync, reason = "loom's threads take turns on one thread of the system")]
mod models {
    use std::sync::Arc;

    use loom::model::Builder;

    use super::*;
    use crate::cell::UnsafeCell;
    use crate::sync::MutexGuard;
    use crate::thread;

    struct Interpreter {
        guard: Rundown,
        /// Its lock. Taking it is fatal once the interpreter is finalized.
        lock: Mutex<()>,
        finalized: UnsafeCell<bool>,
    }

    impl Interpreter {
        fn new() -> Self {
            Self { guard: Rundown::new(), lock: Mutex::new(()), finalized: UnsafeCell::new(false) }
        }

        /// Loom reports a look that nothing orders before or after the finalization.
        fn inspect(&self) {
            // SAFETY: loom checks this.
            let finalized = self.finalized.with(|finalized| unsafe { *finalized });
            assert!(!finalized, "uses a finalized interpreter");
        }

        fn attach(&self) -> MutexGuard<'_, ()> {
            self.inspect();
            self.lock.lock()
        }

        /// A thread of the engine calls a function. False if it is refused.
        fn call(&self) -> bool {
            let entered = self.guard.acquire();
            if entered {
                drop(self.attach());
                self.guard.release();
            }
            entered
        }

        /// A thread that has the lock gives it up for a wait. It stays away if the interpreter is closed
        /// meanwhile.
        fn call_that_waits(&self) {
            if !self.guard.acquire() {
                return;
            }
            drop(self.attach());
            // The second use begins within the first, which may be closing by now.
            let again = self.attach();
            self.guard.release();
            drop(again);
        }

        /// As [`call`](Self::call), of the interpreter's memory alone.
        fn inspect_without_the_lock(&self) {
            if self.guard.acquire() {
                self.inspect();
                self.guard.release();
            }
        }

        fn exit(&self) {
            // The thread gives up the interpreter's lock while it closes.
            assert!(self.guard.close(Duration::from_secs(1_000)));
            let lock = self.lock.lock();
            // SAFETY: loom checks this.
            self.finalized.with_mut(|finalized| unsafe { *finalized = true });
            drop(lock);
        }
    }

    fn check<const N: usize>(preemptions: Option<usize>, threads: [fn(&Interpreter); N]) {
        let mut builder = Builder::new();
        builder.preemption_bound = preemptions;
        builder.check(move || {
            let interpreter = Arc::new(Interpreter::new());
            let threads = threads.map(|call| {
                let interpreter = Arc::clone(&interpreter);
                thread::spawn(move || call(&interpreter))
            });
            interpreter.exit();
            assert!(!interpreter.call(), "a call after the end");
            threads.into_iter().for_each(|thread| thread.join().unwrap());
        });
    }

    fn call(interpreter: &Interpreter) {
        interpreter.call();
    }

    #[test]
    fn a_call_that_meets_the_exit_is_refused_or_waited_for() {
        check(None, [call]);
    }

    #[test]
    fn what_a_thread_does_inside_happens_before_the_exit() {
        check(None, [Interpreter::inspect_without_the_lock]);
    }

    #[test]
    fn calls_of_two_threads_that_meet_the_exit_are_refused_or_waited_for() {
        check(Some(3), [call, call]);
    }

    #[test]
    fn a_call_that_gives_the_lock_up_for_a_wait_is_waited_for_until_its_end() {
        check(None, [Interpreter::call_that_waits]);
    }
}
