//! Shows valgrind's race detectors, helgrind and drd, what the engine orders.
//!
//! They know locks and condition variables, and no atomics: to them, memory that a program hands to another
//! thread through the engine is touched by two threads without any order. So wherever control passes between
//! the program and the engine it is noted that everything *before* comes before everything *after*. There is
//! one order for the whole process: a race of two bodies of which one began after the other had ended is not
//! seen.
//!
//! Outside of valgrind each note costs a load and a branch. Only x86-64 has them.

use crate::platform::valgrind as imp;

/// Orders what the calling thread has done before what threads do after their next [`after`].
#[inline(always)]
pub fn before() {
    imp::note(imp::BEFORE);
}

/// Orders what the calling thread does next after what threads did before their latest [`before`].
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

/// Requests to callgrind, which counts instructions. Outside of callgrind nothing happens.
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

#[cfg(test)]
mod tests {
    #[test]
    fn a_processor_does_nothing() {
        assert_eq!(super::imp::request(0x1001, 0), 0, "not under valgrind");
        super::callgrind::zero();
        super::before();
        super::after();
        assert_eq!(super::foreign(|| 7), 7);
    }
}
