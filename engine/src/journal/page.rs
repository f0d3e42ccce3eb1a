//! Where a thread's entries lie: pages that one thread writes and, at the end, another one reads.
//!
//! The writer stores the words of an entry and then publishes the new length; a reader looks no further than the length that
//! it has seen. So a thread that still writes while the journal is read harms nobody.

use estafette_sync::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use super::entry::{Entry, WORDS};

/// Entries of one page: few enough that a thread that notes little wastes little, and enough that a new page is rare.
pub(super) const ENTRIES: usize = 1024;

/// Size of one page.
pub(super) const PAGE_BYTES: usize = ENTRIES * WORDS * size_of::<u64>();

#[derive(Debug)]
pub(super) struct Page {
    words: Box<[AtomicU64]>,
    len: AtomicUsize,
}

impl Page {
    pub(super) fn new() -> Self {
        let words = (0..ENTRIES * WORDS).map(|_| AtomicU64::new(0)).collect();
        Self { words, len: AtomicUsize::new(0) }
    }

    /// Writes entry number `at`. Called by the page's thread only, in order.
    #[inline]
    pub(super) fn write(&self, at: usize, entry: [u64; WORDS]) {
        let place = &self.words[at * WORDS..(at + 1) * WORDS];
        for (word, value) in place.iter().zip(entry) {
            word.store(value, Ordering::Relaxed);
        }
        self.len.store(at + 1, Ordering::Release);
    }

    /// What was published.
    pub(super) fn entries(&self) -> impl Iterator<Item = Entry> {
        let len = self.len.load(Ordering::Acquire);
        self.words[..len * WORDS].chunks_exact(WORDS).map(|place| {
            let mut words = [0; WORDS];
            for (value, word) in words.iter_mut().zip(place) {
                *value = word.load(Ordering::Relaxed);
            }
            Entry::from_words(words)
        })
    }
}
