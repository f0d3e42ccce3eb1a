//! Calls of Python code that a thread may come back from when the interpreter is finalizing.
//!
//! The exit closes the [guard](crate::interpreter::guard) and waits for those inside, but code in C cannot be
//! interrupted. When it returns to the interpreter that is on its way out, CPython before 3.14 ends the
//! thread by `pthread_exit`, which unwinds the stack; at the first Rust frame below a function that must not
//! unwind this aborts the process. A call through here stops the unwinding instead: the thread stays where it
//! is for the rest of the process, which is what CPython does itself from 3.14 on, and the exit goes on with
//! the exit code that was due.

/// Runs `call`, which calls a function of the interpreter, and no Rust code that could panic. It does not
/// return if that function ends the thread.
///
/// The function has to be called through a pointer of type `extern "C-unwind"` that the compiler cannot trace
/// to a declaration as `extern "C"`: such a declaration promises that nothing unwinds, and the compiler would
/// leave the end of the unwinding out.
#[inline(always)]
pub fn or_return<R>(call: impl FnOnce() -> R) -> R {
    struct Stay;

    impl Drop for Stay {
        fn drop(&mut self) {
            loop {
                std::thread::park();
            }
        }
    }

    let stay = Stay;
    let result = call();
    std::mem::forget(stay);
    result
}
