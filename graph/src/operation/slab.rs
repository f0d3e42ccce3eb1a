//! Free blocks: chunks that stay mapped while the graph lives, and a free list per group of threads.
//!
//! A thread takes and returns blocks at its own shard, so that threads that each submit and complete share no
//! cache line. A thread that only submits finds its shard empty and takes all blocks that a completing thread
//! has returned, so many operations share the cost of that transfer. The slab grows to the largest number of
//! operations ever in flight, which the engine's in-flight limit bounds, and does not shrink.

use std::ptr::NonNull;

use estafette_sync::cell::UnsafeCell;
use estafette_sync::process::Generation;
use estafette_sync::sync::Mutex;
use estafette_sync::sync::atomic::{AtomicU64, Ordering};
#[cfg(estafette_shuttle)]
use estafette_sync::thread_local;

use crate::operation::block::{Block, BlockPtr};
use crate::variable::lock::VarLock;

/// Free lists. More than the threads that usually submit and complete at once; a collision costs contention
/// only.
const SHARDS: usize = if cfg!(estafette_loom) { 1 } else { 8 };

/// Blocks allocated at once: about 24 KiB, so that growing is rare and an idle graph small.
const CHUNK: usize = if cfg!(estafette_loom) { 4 } else { 128 };

/// Operation numbers a shard reserves at once, so that the shared counter is touched once per so many
/// operations.
const ID_BATCH: u64 = 64;

pub(crate) struct Slab<V, T> {
    /// True if threads keep blocks in magazines.
    immortal: bool,
    generation: Generation,
    shards: [Shard<V, T>; SHARDS],
    chunks: Mutex<Vec<Chunk<V, T>>>,
    /// The first operation number no shard has reserved.
    ids: AtomicU64,
}

/// A boxed slice that is reached through raw pointers only.
type Chunk<V, T> = NonNull<[Block<V, T>]>;

/// A free list of its own cache line.
#[repr(align(64))]
struct Shard<V, T> {
    lock: VarLock,
    /// Belongs to the holder of `lock`.
    free: UnsafeCell<Free<V, T>>,
}

struct Free<V, T> {
    list: List<V, T>,
    next_id: u64,
    end_id: u64,
}

/// A list of blocks linked through `Block::next`. The tail is meaningful only while there is a head.
pub(crate) struct List<V, T> {
    pub(crate) ends: Option<(BlockPtr<V, T>, BlockPtr<V, T>)>,
}

impl<V, T> Slab<V, T> {
    pub(crate) fn new(immortal: bool) -> Self {
        Self {
            immortal,
            generation: Generation::current(),
            shards: std::array::from_fn(|_| Shard {
                lock: VarLock::new(),
                free: UnsafeCell::new(Free { list: List::EMPTY, next_id: 0, end_id: 0 }),
            }),
            chunks: Mutex::new(Vec::new()),
            ids: AtomicU64::new(1),
        }
    }

    /// Returns a block, which the caller then owns, and a number for its operation.
    #[inline(always)]
    pub(crate) fn take(&self) -> (BlockPtr<V, T>, u64) {
        if self.immortal
            && let Some(taken) = self.take_from_magazine()
        {
            return taken;
        }
        self.take_from_shard()
    }

    /// A number that no operation has.
    #[inline]
    pub(crate) fn number(&self) -> u64 {
        let number = if self.immortal { self.number_from_magazine() } else { None };
        number.unwrap_or_else(|| self.ids.fetch_add(1, Ordering::Relaxed))
    }

    #[cold]
    fn take_from_shard(&self) -> (BlockPtr<V, T>, u64) {
        if self.generation.is_inherited() {
            return self.take_unshared();
        }
        loop {
            let taken = self.shards[shard_of_this_thread()].with(|free| {
                // SAFETY: blocks in this list are free, and the list is locked.
                let block = unsafe { free.list.pop() }?;
                Some((block, free.number(&self.ids)))
            });
            if let Some(taken) = taken {
                return taken;
            }
            self.resupply();
        }
    }

    /// Takes back a block without references.
    #[inline(always)]
    pub(crate) fn release(&self, block: BlockPtr<V, T>) {
        if !(self.immortal && self.release_to_magazine(block)) {
            self.release_list(List { ends: Some((block, block)) });
        }
    }

    /// Returns blocks, which the caller then owns, and their number: at least one, at most `count`.
    pub(crate) fn take_list(&self, count: usize) -> (List<V, T>, usize) {
        if self.generation.is_inherited() {
            // SAFETY: the list is ours, and what is left of it is lost.
            return unsafe { Self::chain(Self::allocate()).cut(count) }.expect("a chunk has blocks");
        }
        loop {
            // SAFETY: blocks in this list are free, and the list is locked.
            let taken = self.shards[shard_of_this_thread()].with(|free| unsafe { free.list.cut(count) });
            if let Some(taken) = taken {
                return taken;
            }
            self.resupply();
        }
    }

    /// Takes free blocks back.
    pub(crate) fn release_list(&self, list: List<V, T>) {
        if self.generation.is_inherited() {
            // The lock may be held for ever: the blocks are lost.
            return;
        }
        // SAFETY: the blocks are free and in no other list.
        self.shards[shard_of_this_thread()].with(|free| unsafe { free.list.prepend(list) });
    }

    /// Numbers for the next operations of a thread, from the first up to the second.
    pub(crate) fn reserve_ids(&self) -> (u64, u64) {
        let first = self.ids.fetch_add(ID_BATCH, Ordering::Relaxed);
        (first, first + ID_BATCH)
    }

    /// As [`take`](Self::take), without a lock: in a forked child, locks may be held for ever.
    #[cold]
    fn take_unshared(&self) -> (BlockPtr<V, T>, u64) {
        let mut list = Self::chain(Self::allocate());
        // SAFETY: the list is ours, and what is left of it is lost.
        let block = unsafe { list.pop() }.expect("a chunk has blocks");
        (block, self.reserve_ids().0)
    }

    /// Brings blocks to the shard of this thread.
    #[cold]
    fn resupply(&self) {
        let more = self.steal(shard_of_this_thread()).unwrap_or_else(|| self.grow());
        self.release_list(more);
    }

    /// Takes all free blocks of another shard.
    fn steal(&self, own: usize) -> Option<List<V, T>> {
        let others = self.shards[own + 1..].iter().chain(&self.shards[..own]);
        others
            .into_iter()
            .find_map(|shard| shard.with(|free| free.list.ends.take().map(|ends| List { ends: Some(ends) })))
    }

    fn grow(&self) -> List<V, T> {
        let chunk = Self::allocate();
        self.chunks.lock().push(chunk);
        Self::chain(chunk)
    }

    fn allocate() -> Chunk<V, T> {
        let chunk: Box<[Block<V, T>]> = (0..CHUNK).map(|_| Block::empty()).collect();
        // From here on the chunk is only reached through raw pointers: moving a box would invalidate them.
        NonNull::from(Box::leak(chunk))
    }

    /// The blocks of a chunk that was just allocated, as a list.
    fn chain(chunk: Chunk<V, T>) -> List<V, T> {
        let first: BlockPtr<V, T> = chunk.cast();
        // SAFETY: the indices lie in the chunk, whose blocks are ours and in no list.
        unsafe {
            for index in 0..CHUNK - 1 {
                first.add(index).as_ref().next(|next| *next = Some(first.add(index + 1)));
            }
            List { ends: Some((first, first.add(CHUNK - 1))) }
        }
    }
}

impl<V, T> Drop for Slab<V, T> {
    fn drop(&mut self) {
        // The slab is dropped when no graph handle, no variable and no block in use is left. Every block is
        // free then, and a free block holds nothing but spill memory. (Also checked in models, which are
        // built without debug assertions, and where a block touched too late would go unnoticed.)
        if cfg!(any(debug_assertions, estafette_loom)) {
            let chunks = self.chunks.lock().len();
            let free: usize = self.shards.iter().map(Shard::count).sum();
            assert_eq!(free, chunks * CHUNK, "a block is in use while its slab is dropped");
        }
        for chunk in self.chunks.lock().drain(..) {
            // SAFETY: made from a box in `grow`, freed once.
            drop(unsafe { Box::from_raw(chunk.as_ptr()) });
        }
    }
}

impl<V, T> Shard<V, T> {
    #[inline]
    fn with<R>(&self, f: impl FnOnce(&mut Free<V, T>) -> R) -> R {
        let word = self.lock.lock(std::ptr::null);
        // SAFETY: we hold the lock; the closures of this file neither panic nor call this function.
        let result = self.free.with_mut(|free| f(unsafe { &mut *free }));
        self.lock.unlock(word);
        result
    }

    /// The number of blocks in the list.
    fn count(&self) -> usize {
        self.with(|free| {
            let first = free.list.ends.map(|(head, _)| head);
            // SAFETY: blocks in this list are free, and the list is locked.
            std::iter::successors(first, |block| unsafe { block.as_ref().next(|next| *next) }).count()
        })
    }
}

impl<V, T> Free<V, T> {
    fn number(&mut self, ids: &AtomicU64) -> u64 {
        if self.next_id == self.end_id {
            self.next_id = ids.fetch_add(ID_BATCH, Ordering::Relaxed);
            self.end_id = self.next_id + ID_BATCH;
        }
        self.next_id += 1;
        self.next_id - 1
    }
}

impl<V, T> List<V, T> {
    pub(crate) const EMPTY: Self = Self { ends: None };

    /// # Safety
    /// The caller has the list for itself.
    pub(crate) unsafe fn pop(&mut self) -> Option<BlockPtr<V, T>> {
        let (head, tail) = self.ends?;
        // SAFETY: the head is in this list.
        let next = unsafe { head.as_ref().next(Option::take) };
        self.ends = next.map(|next| (next, tail));
        Some(head)
    }

    /// Takes the first blocks out, at most `limit`; says how many. `None`: there are none.
    ///
    /// # Safety
    /// The caller has the list for itself.
    unsafe fn cut(&mut self, limit: usize) -> Option<(Self, usize)> {
        let (head, tail) = self.ends?;
        let (mut last, mut count) = (head, 1);
        while count < limit
            // SAFETY: the block is in this list.
            && let Some(next) = unsafe { last.as_ref().next(|next| *next) }
        {
            last = next;
            count += 1;
        }
        // SAFETY: as above.
        let rest = unsafe { last.as_ref().next(Option::take) };
        self.ends = rest.map(|rest| (rest, tail));
        Some((Self { ends: Some((head, last)) }, count))
    }

    /// # Safety
    /// The caller has both lists for itself.
    pub(crate) unsafe fn prepend(&mut self, other: Self) {
        let Some((head, tail)) = other.ends else { return };
        let Some((old_head, old_tail)) = self.ends else {
            self.ends = other.ends;
            return;
        };
        // SAFETY: the tail of the other list is in it, and has no next.
        unsafe { tail.as_ref().next(|next| *next = Some(old_head)) };
        self.ends = Some((head, old_tail));
    }
}

/// A small number that differs between most threads: which shard is used is a matter of speed only, so the
/// address of a thread-local will do and no counter is needed.
fn shard_of_this_thread() -> usize {
    if SHARDS == 1 || cfg!(estafette_shuttle) {
        // An execution of a model must not depend on addresses.
        return 0;
    }
    thread_local!(static MARK: u8 = const { 0 });
    let address = MARK.with(|mark| std::ptr::from_ref(mark).addr());
    // Fibonacci hashing: the high bits depend on all bits of the address.
    (address as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15) as usize >> 60 & (SHARDS - 1)
}

// SAFETY: blocks are reached only through the locked lists and their owners; see `GraphState`.
unsafe impl<V: Send, T: Send + Sync> Send for Slab<V, T> {}
// SAFETY: as above.
unsafe impl<V: Send, T: Send + Sync> Sync for Slab<V, T> {}

#[cfg(all(test, unix, not(any(estafette_loom, estafette_shuttle))))]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use estafette_sync::platform::child::in_forked_child;

    use super::*;

    /// Longer than a process needs that does not hang.
    const WITHIN: Duration = Duration::from_secs(20);

    #[test]
    fn a_forked_child_waits_for_no_lock_that_its_parent_held() {
        for immortal in [true, false] {
            let slab: &'static Slab<u8, u8> = Box::leak(Box::new(Slab::new(immortal)));
            let _chunks = slab.chunks.lock();
            for shard in &slab.shards {
                shard.lock.lock(std::ptr::null);
            }
            assert!(in_forked_child(|| {
                let (done, is_done) = mpsc::channel();
                // At its end the thread empties its magazine.
                let thread = std::thread::spawn(move || {
                    let taken: Vec<_> = (0..3 * CHUNK).map(|_| slab.take()).collect();
                    let numbers: std::collections::HashSet<_> = taken.iter().map(|(_, id)| *id).collect();
                    let are_given_once = numbers.len() == taken.len();
                    taken.into_iter().for_each(|(block, _)| slab.release(block));
                    done.send(are_given_once)
                });
                is_done.recv_timeout(WITHIN) == Ok(true) && thread.join().is_ok()
            }));
        }
    }
}
