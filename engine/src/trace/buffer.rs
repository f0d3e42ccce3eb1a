//! Buffers of a thread's events: buffers that one thread writes and, at the end, another one reads.
//!
//! The writer stores the words of an event and then publishes the new length; a reader reads no further than
//! the length that it has seen. A thread may therefore still write while the recorder is read.

use std::ops::Range;
use std::sync::Arc;
// The words are plain std atomics, which may come into being as zeroed memory; the length orders them.
use std::sync::atomic::AtomicU64;

use estafette_sync::sync::atomic::{AtomicUsize, Ordering};

use super::free_list::Slab;

/// Words of one buffer: few enough that a thread that notes little takes little.
pub(super) const WORDS: usize = 1 << 13;

/// Size of one buffer.
pub(super) const BUFFER_BYTES: usize = WORDS * size_of::<u64>();

#[derive(Debug)]
pub(super) struct TraceBuffer {
    /// The time at which its first event was noted.
    pub(super) began: u64,
    memory: BufferMemory,
    len: AtomicUsize,
}

#[derive(Debug)]
enum BufferMemory {
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
        Self { began: 0, memory: BufferMemory::Fresh(words), len: AtomicUsize::new(0) }
    }

    /// The buffer with this number in a slab, which has no other user.
    pub(super) fn in_slab(slab: Arc<Slab>, number: usize) -> Self {
        Self { began: 0, memory: BufferMemory::InSlab(slab, number), len: AtomicUsize::new(0) }
    }

    #[inline(always)]
    fn words(&self) -> &[AtomicU64] {
        match &self.memory {
            BufferMemory::Fresh(words) => words,
            BufferMemory::InSlab(slab, number) => slab.buffer(*number),
        }
    }

    /// Writes an event at word `at`, where there is room for it, and says where it ends. Called by the
    /// buffer's thread only, in order.
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

    /// The number of published words: whole events.
    pub(super) fn published(&self) -> usize {
        self.len.load(Ordering::Acquire)
    }

    /// Words that were published.
    pub(super) fn read(&self, words: Range<usize>) -> impl Iterator<Item = u64> {
        self.words()[words].iter().map(|word| word.load(Ordering::Relaxed))
    }
}

/// Models: `RUSTFLAGS="--cfg estafette_loom" cargo test -p estafette --profile model --lib models::`.
#[cfg(all(test, estafette_loom))]
mod models {
    use estafette_sync::cell::UnsafeCell;
    use estafette_sync::thread;

    use super::*;
    use crate::trace::chain::Chain;

    /// The buffers of a thread, and what it does before each event. Loom reports a read that a write does not
    /// happen before, as it would with the words.
    struct BufferModel {
        buffers: Chain<TraceBuffer>,
        noted: [UnsafeCell<u64>; 2],
    }

    // SAFETY: loom checks the accesses to what is noted.
    unsafe impl Sync for BufferModel {}

    impl BufferModel {
        fn note(&self, buffer: &TraceBuffer, at: usize, event: usize) -> usize {
            // SAFETY: loom checks this.
            self.noted[event].with_mut(|noted| unsafe { *noted = 7 });
            buffer.write(at, [event as u64, 7], std::iter::empty())
        }
    }

    #[test]
    fn a_reader_sees_whole_events_while_the_thread_writes() {
        loom::model(|| {
            let noted = [UnsafeCell::new(0), UnsafeCell::new(0)];
            let model = Arc::new(BufferModel { buffers: Chain::default(), noted });
            let buffer = model.buffers.append(None, TraceBuffer::fresh());
            let writer = {
                let model = Arc::clone(&model);
                thread::spawn(move || {
                    let end = model.note(&buffer.value, 0, 0);
                    model.note(&buffer.value, end, 1);
                })
            };
            let first = model.buffers.first().expect("appended above");
            let published = first.value.published();
            let words: Vec<_> = first.value.read(0..published).collect();
            for (event, words) in words.chunks(2).enumerate() {
                assert_eq!(words, [event as u64, 7]);
                // SAFETY: loom checks this.
                assert_eq!(model.noted[event].with(|noted| unsafe { *noted }), 7);
            }
            writer.join().expect("it does not panic");
        });
    }
}
