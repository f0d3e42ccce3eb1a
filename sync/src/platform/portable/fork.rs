//! Forks, noticed by their process id: each question compares it.
//!
//! One word holds the process id and the generation that belongs to it. The first thread that finds another
//! id in the word exchanges both at once, so that every other thread of that process sees the old word, and
//! finds the same, or the new one. The word says nothing about a process that never asked, so a descendant
//! that was given the id of such an ancestor, ended since, takes itself for it.
//!
//! These are plain `std` atomics: they take part in no protocol.

use std::sync::atomic::{AtomicU64, Ordering};

/// The generation in the lower half, the process id in the upper one. No process has the id 0.
static NOTED: AtomicU64 = AtomicU64::new(0);

/// Number of forks between the first process that asked and this one, not counting processes that never
/// asked.
pub fn generation() -> u32 {
    let id = u64::from(std::process::id());
    let noted = NOTED.load(Ordering::Relaxed);
    if noted >> 32 == id {
        return noted as u32;
    }
    let generation = if noted == 0 { 0 } else { noted as u32 + 1 };
    let new = id << 32 | u64::from(generation);
    match NOTED.compare_exchange(noted, new, Ordering::Relaxed, Ordering::Relaxed) {
        Ok(_) => {
            if noted != 0 {
                crate::process::forked();
            }
            generation
        }
        // The word that another thread has put there is of this process.
        Err(by) => by as u32,
    }
}
