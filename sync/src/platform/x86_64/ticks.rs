//! The time stamp counter.

use std::arch::x86_64::{__cpuid, _rdtsc};

/// True if the counter runs at one rate, in all states of the processor and on all of them alike: what Linux
/// calls `constant_tsc` and `nonstop_tsc` and Intel's manual (volume 3, section 19.17.1) an invariant time
/// stamp counter.
pub fn are_steady() -> bool {
    const EXTENDED_MAX: u32 = 0x8000_0000;
    const POWER: u32 = 0x8000_0007;
    let known = __cpuid(EXTENDED_MAX).eax >= POWER;
    known && __cpuid(POWER).edx & (1 << 8) != 0
}

/// The counter.
#[inline(always)]
pub fn read() -> u64 {
    // SAFETY: every x86-64 processor has the instruction, and systems leave it to programs.
    unsafe { _rdtsc() }
}
