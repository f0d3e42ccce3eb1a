//! Where a thread's events lie: buffers that one thread writes and, at the end, another one reads.
//!
//! The writer stores the words of an event and then publishes the new length; a reader reads no further than the length that
//! it has seen. A thread may therefore still write while the recorder is read.

use std::ops::Range;
use std::sync::Arc;
// Outside of every protocol of the engine: plain std atomics, which may come into being as zeroed memory.
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use super::free_list::Slab;

/// Words of one buffer: few enough that a thread that notes little takes little.
pub(super) const WORDS: usize = 1 << 13;

/// Size of one buffer.
pub(super) const BUFFER_BYTES: usize = WORDS * size_of::<u64>();

#[derive(Debug)]
pub(super) struct TraceBuffer {
    memory: Memory,
    len: AtomicUsize,
}

#[derive(Debug)]
enum Memory {
    /// Zeros that the system hands out as they are touched.
    Fresh(Box<[AtomicU64]>),
    /// Part of memory that was touched before.
    InSlab(Arc<Slab>, usize),
}

impl TraceBuffer {
    pub(super) fn fresh() -> Self {
        let words = Box::<[AtomicU64]>::new_zeroed_slice(WORDS);
        // SAFETY: zero is a value of every integer.
        let words = unsafe { words.assume_init() };
        Self { memory: Memory::Fresh(words), len: AtomicUsize::new(0) }
    }

    /// The buffer with this number in a slab, which has no other user.
    pub(super) fn in_slab(slab: Arc<Slab>, number: usize) -> Self {
        Self { memory: Memory::InSlab(slab, number), len: AtomicUsize::new(0) }
    }

    #[inline(always)]
    fn words(&self) -> &[AtomicU64] {
        match &self.memory {
            Memory::Fresh(words) => words,
            Memory::InSlab(slab, number) => slab.buffer(*number),
        }
    }

    /// Writes an event at word `at`, where there is room for it, and says where it ends. Called by the buffer's thread only, in
    /// order.
    #[inline(always)]
    pub(super) fn write(
        &self,
        at: usize,
        first: [u64; 2],
        rest: impl ExactSizeIterator<Item = u64>,
    ) -> usize {
        let end = at + 2 + rest.len();
        let event = first.into_iter().chain(rest);
        self.words()[at..end]
            .iter()
            .zip(event)
            .for_each(|(word, value)| word.store(value, Ordering::Relaxed));
        self.len.store(end, Ordering::Release);
        end
    }

    /// How many words were published: whole events.
    pub(super) fn published(&self) -> usize {
        self.len.load(Ordering::Acquire)
    }

    /// Words that were published.
    pub(super) fn read(&self, words: Range<usize>) -> impl Iterator<Item = u64> {
        self.words()[words].iter().map(|word| word.load(Ordering::Relaxed))
    }
}
