//! Client requests of valgrind.

use std::sync::atomic::{AtomicU8, Ordering};

/// `ANNOTATE_HAPPENS_BEFORE`, the same number for helgrind and drd.
pub const BEFORE: usize = 0x4847_0121;
/// `ANNOTATE_HAPPENS_AFTER`.
pub const AFTER: usize = 0x4847_0122;
/// Nonzero under valgrind.
const RUNNING_ON_VALGRIND: usize = 0x1001;

const UNKNOWN: u8 = 0;
const ABSENT: u8 = 1;
const PRESENT: u8 = 2;

/// Its address is also the name of the order.
static VALGRIND: AtomicU8 = AtomicU8::new(UNKNOWN);

#[inline(always)]
pub fn note(what: usize) {
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
pub fn request(what: usize, argument: usize) -> usize {
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
