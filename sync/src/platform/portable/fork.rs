//! Forks, noticed by their process id: each question compares it.
//!
//! One word holds the process id and the generation that belongs to it. The first thread that finds another id in the word exchanges
//! both at once, so that every other thread of that process sees the old word, and finds the same, or the new one. The word says nothing
//! about a process that never asked, so a descendant that was given the id of such an ancestor, ended since, takes itself for it.
//!
//! These are plain `std` atomics: they take part in no protocol.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// The generation in the lower half, the process id in the upper one. No process has the id 0.
static NOTED: AtomicU64 = AtomicU64::new(0);

/// No process has claimed.
const UNCLAIMED: u32 = u32::MAX;
/// A generation of no process.
const NEVER: u32 = u32::MAX - 1;

/// The generation of the process that claimed.
static CLAIMED: AtomicU32 = AtomicU32::new(UNCLAIMED);

/// Notes that children which are forked from now on are [`is_forked`].
#[inline]
pub fn claim() {
    if CLAIMED.load(Ordering::Relaxed) == UNCLAIMED {
        let _ = CLAIMED.compare_exchange(UNCLAIMED, generation(), Ordering::Relaxed, Ordering::Relaxed);
    }
}

/// Whether this process is a child of one that had claimed.
pub fn is_forked() -> bool {
    let claimed = CLAIMED.load(Ordering::Relaxed);
    claimed != UNCLAIMED && claimed != generation()
}

/// Makes [`is_forked`] true.
pub fn pretend_forked() {
    CLAIMED.store(NEVER, Ordering::Relaxed);
}

/// Number of forks between the first process that asked and this one, not counting processes that never asked.
pub fn generation() -> u32 {
    let id = u64::from(std::process::id());
    let noted = NOTED.load(Ordering::Relaxed);
    if noted >> 32 == id {
        return noted as u32;
    }
    let generation = if noted == 0 { 0 } else { noted as u32 + 1 };
    let new = id << 32 | u64::from(generation);
    // The word that another thread has put there is of this process.
    NOTED
        .compare_exchange(noted, new, Ordering::Relaxed, Ordering::Relaxed)
        .map_or_else(|by| by as u32, |_| generation)
}
