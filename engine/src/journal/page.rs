//! Where a thread's entries lie: pages that one thread writes and, at the end, another one reads.
//!
//! The writer stores the words of an entry and then publishes the new length; a reader looks no further than the length that
//! it has seen. So a thread that still writes while the journal is read harms nobody.

// Outside of every protocol of the engine: plain std atomics, which may come into being as zeroed memory.
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use super::entry::Entry;

/// Words of one page: few enough that a thread that notes little wastes little (what is not written is not touched), and so
/// many that allocators get the memory from the system, where it is zero already.
pub(super) const WORDS: usize = 1 << 15;

/// Size of one page.
pub(super) const PAGE_BYTES: usize = WORDS * size_of::<u64>();

#[derive(Debug)]
pub(super) struct Page {
    words: Box<[AtomicU64]>,
    len: AtomicUsize,
}

impl Page {
    pub(super) fn new() -> Self {
        let words = Box::<[AtomicU64]>::new_zeroed_slice(WORDS);
        // SAFETY: zero is a value of every integer.
        let words = unsafe { words.assume_init() };
        Self { words, len: AtomicUsize::new(0) }
    }

    /// Writes an entry at word `at`, where there is room for it. Called by the page's thread only, in order.
    #[inline(always)]
    pub(super) fn write(&self, at: usize, entry: impl IntoIterator<Item = u64>) -> usize {
        let mut end = at;
        for value in entry {
            self.words[end].store(value, Ordering::Relaxed);
            end += 1;
        }
        self.len.store(end, Ordering::Release);
        end
    }

    /// Shows what was published, entry by entry.
    pub(super) fn read(&self, mut show: impl FnMut(Entry<'_>)) {
        let len = self.len.load(Ordering::Acquire);
        let words: Vec<u64> = self.words[..len].iter().map(|word| word.load(Ordering::Relaxed)).collect();
        let mut rest = &words[..];
        while let Some((entry, after)) = Entry::first_of(rest) {
            show(entry);
            rest = after;
        }
    }
}
