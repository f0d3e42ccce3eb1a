//! Blocks in large chunks of memory that others can be shown.
//!
//! A chunk costs calls of a system or a driver, and a mapping in each process that has it, so there are few:
//! each is twice as large as the largest, up to a bound, since a chunk takes memory that no block may ever
//! need. Of those that are empty the largest stays, and the others go back. What is free is noted beside the
//! memory, so that memory which the host cannot use is divided as well.
//!
//! A chunk is made and dropped under no lock. One thread at a time makes a chunk. Threads that find no room
//! wait for it, as a second chunk would take memory that no block needs. Allocations that fit, releases and
//! queries do not wait.

use std::collections::BTreeMap;
use std::sync::Arc;

use estafette_sync::sync::{Condvar, Mutex};

const CHUNK_MIN: usize = 16 << 20;
/// The largest chunk, unless one block needs more. A link shows at most 1,024 of them: 256 GiB.
const CHUNK_MAX: usize = 256 << 20;

/// A chunk of memory.
pub trait Span {
    /// Blocks begin and end at a multiple of this.
    const GRAIN: usize;

    /// Its address.
    fn start(&self) -> usize;

    /// Its length.
    fn bytes(&self) -> usize;
}

/// Chunks, and what is free in them. All calls may be made from any thread.
#[derive(Debug)]
pub struct Extents<S> {
    state: Mutex<ExtentsState<S>>,
    /// A chunk is there, or could not be made.
    made: Condvar,
}

#[derive(Debug)]
struct ExtentsState<S> {
    extents: Vec<Extent<S>>,
    is_making: bool,
}

/// A chunk and what is free in it: lengths by offsets, no two of them adjacent.
#[derive(Debug)]
struct Extent<S> {
    span: Arc<S>,
    free: BTreeMap<usize, usize>,
}

impl<S: Span> Extent<S> {
    /// The offset of a block that was free. Chunks are aligned as far as `align` goes; what is beyond is of
    /// no use.
    fn take(&mut self, bytes: usize, align: usize) -> Option<usize> {
        let start = self.span.start();
        let fits = |(offset, length): (&usize, &usize)| {
            let begin = (start + offset).next_multiple_of(align) - start;
            let end = begin.checked_add(bytes)?;
            (end <= offset + length).then_some((*offset, *length, begin))
        };
        let (offset, length, begin) = self.free.iter().find_map(fits)?;
        self.free.remove(&offset);
        if begin > offset {
            self.free.insert(offset, begin - offset);
        }
        let (end, free_end) = (begin + bytes, offset + length);
        if free_end > end {
            self.free.insert(end, free_end - end);
        }
        Some(begin)
    }

    fn release(&mut self, mut offset: usize, mut bytes: usize) {
        if let Some((before, length)) =
            self.free.range(..offset).next_back().map(|(before, length)| (*before, *length))
            && before + length == offset
        {
            self.free.remove(&before);
            (offset, bytes) = (before, length + bytes);
        }
        bytes += self.free.remove(&(offset + bytes)).unwrap_or(0);
        self.free.insert(offset, bytes);
    }

    fn is_empty(&self) -> bool {
        self.free.get(&0) == Some(&self.span.bytes())
    }
}

impl<S> Default for Extents<S> {
    fn default() -> Self {
        Self::new()
    }
}

impl<S> Extents<S> {
    estafette_sync::const_fn! {
        /// None.
        pub fn new() -> Self {
            Self { state: Mutex::new(ExtentsState { extents: Vec::new(), is_making: false }), made: Condvar::new() }
        }
    }

    /// The chunks, once none is being made.
    pub fn spans(&self) -> Vec<Arc<S>> {
        let mut state = self.state.lock();
        while state.is_making {
            state = self.made.wait(state);
        }
        state.extents.iter().map(|extent| Arc::clone(&extent.span)).collect()
    }
}

impl<S: Span> Extents<S> {
    /// A block of `bytes` bytes: its chunk, and where in it the block begins. `make` makes a chunk of at
    /// least that many bytes, under no lock; it takes no block itself.
    ///
    /// # Errors
    /// The error of `make`, for the least that is needed.
    pub fn take<E>(
        &self,
        bytes: usize,
        align: usize,
        mut make: impl FnMut(usize) -> Result<S, E>,
    ) -> Result<(Arc<S>, usize), E> {
        let (bytes, align) = (size::<S>(bytes), align.max(S::GRAIN));
        let mut state = self.state.lock();
        let found = |extent: &mut Extent<S>| Some((Arc::clone(&extent.span), extent.take(bytes, align)?));
        loop {
            if let Some(found) = state.extents.iter_mut().find_map(found) {
                return Ok(found);
            }
            if !state.is_making {
                break;
            }
            state = self.made.wait(state);
        }
        state.is_making = true;
        let largest = state.extents.iter().map(|extent| extent.span.bytes()).max();
        let usual = largest.map_or(CHUNK_MIN, |largest| largest.saturating_mul(2).min(CHUNK_MAX));
        drop(state);
        let _making = Making(self);
        let least = bytes.saturating_add(align);
        let span = make(usual.max(least)).or_else(|_| make(least))?;
        let free = BTreeMap::from([(0, span.bytes())]);
        let mut extent = Extent { span: Arc::new(span), free };
        let block = found(&mut extent).expect("a new chunk is large enough");
        self.state.lock().extents.push(extent);
        Ok(block)
    }

    /// Releases a block, and drops the chunk that is not kept any more. A chunk of a process that this one
    /// was forked from is not known here.
    pub fn release(&self, span: &Arc<S>, offset: usize, bytes: usize) {
        let mut state = self.state.lock();
        let emptied = state.release(span, offset, size::<S>(bytes));
        drop(state);
        drop(emptied);
    }

    /// The chunk that has `bytes` bytes at `address`, and where in it they are; `None` for other memory.
    pub fn find(&self, address: usize, bytes: usize) -> Option<(Arc<S>, usize)> {
        self.state.lock().extents.iter().find_map(|Extent { span, .. }| {
            let offset = address.checked_sub(span.start())?;
            let end = offset.checked_add(bytes)?;
            (end <= span.bytes()).then(|| (Arc::clone(span), offset))
        })
    }

    /// True if one chunk is left, and nothing is in it.
    pub fn is_one_empty(&self) -> bool {
        matches!(&self.state.lock().extents[..], [extent] if extent.is_empty())
    }
}

impl<S: Span> ExtentsState<S> {
    /// The chunk that is not kept any more.
    fn release(&mut self, span: &Arc<S>, offset: usize, bytes: usize) -> Option<Arc<S>> {
        let extents = &mut self.extents;
        let at = extents.iter().position(|extent| Arc::ptr_eq(&extent.span, span))?;
        extents[at].release(offset, bytes);
        if !extents[at].is_empty() {
            return None;
        }
        let other = (0..extents.len()).find(|other| *other != at && extents[*other].is_empty())?;
        let smaller = if extents[at].span.bytes() <= extents[other].span.bytes() { at } else { other };
        Some(extents.swap_remove(smaller).span)
    }
}

/// The thread that makes a chunk; dropped when that chunk is there, or cannot be made.
struct Making<'a, S>(&'a Extents<S>);

impl<S> Drop for Making<'_, S> {
    fn drop(&mut self) {
        self.0.state.lock().is_making = false;
        self.0.made.notify_all();
    }
}

/// The size that a block of `bytes` bytes takes. Saturates: a size above all memory stays above it.
fn size<S: Span>(bytes: usize) -> usize {
    bytes.max(1).checked_next_multiple_of(S::GRAIN).unwrap_or(usize::MAX)
}

#[cfg(all(test, not(any(estafette_loom, estafette_shuttle))))]
mod tests {
    use super::*;

    impl Span for usize {
        const GRAIN: usize = 64;

        fn start(&self) -> usize {
            0
        }

        fn bytes(&self) -> usize {
            *self
        }
    }

    #[test]
    fn a_small_block_beside_a_large_one_takes_no_large_chunk() {
        let extents = Extents::<usize>::new();
        let made = |bytes| Ok::<_, ()>(*extents.take(bytes, 64, Ok::<_, ()>)?.0);
        assert_eq!(made(1), Ok(CHUNK_MIN));
        assert_eq!(made(CHUNK_MIN), Ok(2 * CHUNK_MIN));
        assert!(made(10 << 30).is_ok_and(|bytes| bytes <= (10 << 30) + 64));
        // The free space of the two small chunks is too little.
        assert_eq!(made(2 * CHUNK_MIN), Ok(CHUNK_MAX));
    }
}

#[cfg(all(test, estafette_loom))]
mod models {
    use std::sync::Weak;

    use estafette_sync::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
    use estafette_sync::thread;

    use super::*;

    /// Bytes that are only counted.
    struct Chunk {
        start: usize,
        bytes: usize,
        chunks: Weak<Chunks>,
    }

    impl Span for Chunk {
        const GRAIN: usize = 64;

        fn start(&self) -> usize {
            self.start
        }

        fn bytes(&self) -> usize {
            self.bytes
        }
    }

    impl Drop for Chunk {
        fn drop(&mut self) {
            if let Some(chunks) = self.chunks.upgrade() {
                assert!(chunks.can_be_asked(), "this is under no lock");
                chunks.dropped.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    #[derive(Default)]
    struct Chunks {
        extents: Extents<Chunk>,
        made: AtomicUsize,
        dropped: AtomicUsize,
    }

    impl Chunks {
        /// Loom reports a deadlock where the calling thread has the lock.
        fn can_be_asked(&self) -> bool {
            self.extents.find(1, 1).is_none()
        }

        fn make(self: &Arc<Self>, bytes: usize) -> Chunk {
            assert!(self.can_be_asked(), "this is under no lock");
            let number = self.made.fetch_add(1, Ordering::Relaxed) + 1;
            Chunk { start: number << 40, bytes, chunks: Arc::downgrade(self) }
        }

        fn take(self: &Arc<Self>, bytes: usize) -> (Arc<Chunk>, usize) {
            self.extents.take(bytes, 64, |bytes| Ok::<_, ()>(self.make(bytes))).expect("it is made")
        }
    }

    #[test]
    fn two_blocks_at_once_are_in_one_chunk_that_is_made_under_no_lock() {
        loom::model(|| {
            let chunks = Arc::<Chunks>::default();
            let other = Arc::clone(&chunks);
            let other = thread::spawn(move || other.take(64));
            let (chunk, offset) = chunks.take(64);
            let (same, apart) = other.join().expect("it does not panic");
            assert!(Arc::ptr_eq(&chunk, &same) && offset.abs_diff(apart) >= 64);
            assert_eq!(chunks.made.load(Ordering::Relaxed), 1);
        });
    }

    #[test]
    fn a_thread_that_waits_for_a_chunk_that_cannot_be_made_makes_one() {
        loom::model(|| {
            let chunks = Arc::<Chunks>::default();
            let other = Arc::clone(&chunks);
            let refused = thread::spawn(move || {
                let refuse =
                    |_| if other.can_be_asked() { Err(()) } else { unreachable!("this is under no lock") };
                other.extents.take(64, 64, refuse).is_err()
            });
            let (_piece, offset) = chunks.take(64);
            let expected = if refused.join().expect("it does not panic") { 0 } else { 64 };
            assert!(offset <= expected);
            assert_eq!(chunks.made.load(Ordering::Relaxed), 1);
        });
    }

    #[test]
    fn a_block_that_is_released_while_a_chunk_is_made_leaves_one_chunk() {
        loom::model(|| {
            let chunks = Arc::<Chunks>::default();
            let (chunk, offset) = chunks.take(64);
            let other = Arc::clone(&chunks);
            let large = chunk.bytes();
            let other = thread::spawn(move || {
                let (chunk, offset) = other.take(large);
                other.extents.release(&chunk, offset, large);
            });
            chunks.extents.release(&chunk, offset, 64);
            drop(chunk);
            other.join().expect("it does not panic");
            assert!(chunks.extents.is_one_empty());
            let made = chunks.made.load(Ordering::Relaxed);
            assert_eq!(chunks.dropped.load(Ordering::Relaxed), made - 1);
        });
    }

    #[test]
    fn a_device_that_is_noted_before_the_chunks_are_listed_is_known_to_each_of_them() {
        loom::model(|| {
            let (chunks, noted) = (Arc::<Chunks>::default(), Arc::new(AtomicBool::new(false)));
            let (others, reaches) = (Arc::clone(&chunks), Arc::clone(&noted));
            let other = thread::spawn(move || {
                let mut is_known = false;
                let make = |bytes| {
                    is_known = reaches.load(Ordering::Acquire);
                    Ok::<_, ()>(others.make(bytes))
                };
                others.extents.take(64, 64, make).expect("it is made");
                is_known
            });
            noted.store(true, Ordering::Release);
            let listed = chunks.extents.spans().len();
            assert!(other.join().expect("it does not panic") || listed == 1);
        });
    }
}
