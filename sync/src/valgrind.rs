//! Shows valgrind's race detectors, helgrind and drd, what the engine orders.
//!
//! They know locks and condition variables, and no atomics: to them, memory that a program hands to another
//! thread through the engine is touched by two threads without any order. So wherever control passes between
//! the program and the engine it is noted that everything *before* comes before everything *after*. There is
//! one order for the whole process: a race of two bodies of which one began after the other had ended is not
//! seen.
//!
//! Outside of valgrind each note costs a load and a branch. Only x86-64 under Linux has them.

/// What the calling thread has done comes before what threads do after their next [`after`].
#[inline(always)]
pub fn before() {
    imp::note(imp::BEFORE);
}

/// What the calling thread does next comes after what threads did before their latest [`before`].
#[inline(always)]
pub fn after() {
    imp::note(imp::AFTER);
}

/// Runs `f`, which is code of the program, such as a callback or the body of an operation.
#[inline(always)]
pub fn foreign<R>(f: impl FnOnce() -> R) -> R {
    after();
    let result = f();
    before();
    result
}

/// What callgrind, which counts instructions, is asked to do. Outside of callgrind nothing happens.
pub mod callgrind {
    use std::ffi::CStr;

    use super::imp;

    /// The number of callgrind's first request: its initials, and 16 bits.
    const FIRST: usize = (b'C' as usize) << 24 | (b'T' as usize) << 16;

    /// Begins to count. Until then, and after [`stop`], the program runs several times faster.
    pub fn start() {
        imp::request(FIRST + 4, 0);
    }

    /// Ends counting.
    pub fn stop() {
        imp::request(FIRST + 5, 0);
    }

    /// Sets the counts to zero.
    pub fn zero() {
        imp::request(FIRST + 1, 0);
    }

    /// Writes the counts to a file of their own, under a name.
    pub fn dump(name: &CStr) {
        imp::request(FIRST + 3, name.as_ptr().addr());
    }
}

#[cfg(all(target_arch = "x86_64", target_os = "linux", not(any(miri, estafette_loom, estafette_shuttle))))]
mod imp {
    use std::sync::atomic::{AtomicU8, Ordering};

    /// `ANNOTATE_HAPPENS_BEFORE`, the same number for helgrind and drd.
    pub(super) const BEFORE: usize = 0x4847_0121;
    /// `ANNOTATE_HAPPENS_AFTER`.
    pub(super) const AFTER: usize = 0x4847_0122;
    /// Nonzero under valgrind.
    const RUNNING_ON_VALGRIND: usize = 0x1001;

    const UNKNOWN: u8 = 0;
    const ABSENT: u8 = 1;
    const PRESENT: u8 = 2;

    /// Its address is also the name of the order.
    static VALGRIND: AtomicU8 = AtomicU8::new(UNKNOWN);

    #[inline(always)]
    pub(super) fn note(what: usize) {
        if VALGRIND.load(Ordering::Relaxed) != ABSENT {
            note_slowly(what);
        }
    }

    #[cold]
    fn note_slowly(what: usize) {
        if VALGRIND.load(Ordering::Relaxed) == UNKNOWN {
            let found = if request(RUNNING_ON_VALGRIND, 0) == 0 { ABSENT } else { PRESENT };
            VALGRIND.store(found, Ordering::Relaxed);
        }
        if VALGRIND.load(Ordering::Relaxed) == PRESENT {
            request(what, (&raw const VALGRIND).addr());
        }
    }

    /// A client request of valgrind, as its `valgrind.h` makes it: instructions that do nothing on a
    /// processor.
    pub(super) fn request(what: usize, argument: usize) -> usize {
        let arguments = [what, argument, 0, 0, 0, 0];
        let result: usize;
        // SAFETY: the rotations add up to 128 bits, and the exchange is one of a register with itself;
        // valgrind reads the array and writes `rdx`.
        unsafe {
            std::arch::asm!(
                "rol rdi, 3",
                "rol rdi, 13",
                "rol rdi, 61",
                "rol rdi, 51",
                "xchg rbx, rbx",
                in("rax") arguments.as_ptr(),
                inout("rdx") 0_usize => result,
                options(nostack, readonly),
            );
        }
        result
    }

    #[test]
    fn a_processor_does_nothing() {
        assert_eq!(request(RUNNING_ON_VALGRIND, 0), 0);
        super::callgrind::zero();
        super::before();
        super::after();
        assert_eq!(super::foreign(|| 7), 7);
    }
}

#[cfg(not(all(
    target_arch = "x86_64",
    target_os = "linux",
    not(any(miri, estafette_loom, estafette_shuttle))
)))]
mod imp {
    pub(super) const BEFORE: usize = 0;
    pub(super) const AFTER: usize = 1;

    #[inline(always)]
    pub(super) fn note(_what: usize) {}

    pub(super) fn request(_what: usize, _argument: usize) -> usize {
        0
    }
}
