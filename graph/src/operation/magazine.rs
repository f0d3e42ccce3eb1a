//! Magazines: free blocks and operation numbers that a thread keeps for itself, so that it takes and returns
//! them without a lock.
//!
//! Only for an immortal slab: a thread's magazine outlives every handle of the graph, and may be flushed when
//! the thread ends. A thread has one magazine. A thread that uses several immortal slabs in turn flushes its
//! magazine at every change.

use std::cell::Cell;
use std::ptr::NonNull;

use estafette_sync::platform::prefetch::prefetch;
#[cfg(estafette_shuttle)]
use estafette_sync::thread_local;

use crate::operation::block::BlockPtr;
use crate::operation::slab::{List, Slab};

/// Blocks that move between a thread and its shard at once. A thread keeps at most twice as many, in two
/// lists (as in Bonwick and Adams, "Magazines and Vmem", 2001). A full list is returned as a whole.
pub(crate) const BATCH: usize = 64;

thread_local! {
    /// Has no destructor, which would cost a check at every use. [`FLUSH_AT_EXIT`] has one instead.
    static MAGAZINE: Magazine = const {
        Magazine {
            source: Cell::new(None),
            head: Cell::new(None),
            tail: Cell::new(None),
            count: Cell::new(0),
            spare: Cell::new(None),
            next_id: Cell::new(0),
            end_id: Cell::new(0),
        }
    };
    static FLUSH_AT_EXIT: FlushAtExit = const { FlushAtExit };
}

#[inline(always)]
fn magazine<'a>() -> &'a Magazine {
    // SAFETY: it has no destructor, so it lives as long as its thread; `Magazine` is not `Sync`, so the
    // reference stays there.
    MAGAZINE.with(|magazine| unsafe { &*std::ptr::from_ref(magazine) })
}

/// The blocks and numbers of a thread. Without type parameters, since a thread-local cannot be generic.
struct Magazine {
    source: Cell<Option<BlockSource>>,
    /// Free blocks, linked. The tail is meaningful only while there is a head.
    head: Cell<Option<NonNull<()>>>,
    tail: Cell<Option<NonNull<()>>>,
    count: Cell<usize>,
    /// [`BATCH`] more, by their ends.
    spare: Cell<Option<(NonNull<()>, NonNull<()>)>>,
    /// Numbers for operations, from the first up to the second.
    next_id: Cell<u64>,
    end_id: Cell<u64>,
}

/// Whose blocks these are, and how they are released.
type BlockSource = (NonNull<()>, unsafe fn(&Magazine, NonNull<()>));

impl Magazine {
    fn flush(&self) {
        if let Some((slab, flush)) = self.source.take() {
            // SAFETY: the function was put there together with the slab and its blocks.
            unsafe { flush(self, slab) }
        }
        // Unused numbers are lost.
        self.end_id.set(self.next_id.get());
    }
}

struct FlushAtExit;

impl Drop for FlushAtExit {
    fn drop(&mut self) {
        MAGAZINE.with(Magazine::flush);
    }
}

/// The magazine of the calling thread, with its types, while it belongs to `slab`.
struct TypedMagazine<'a, V, T> {
    magazine: &'a Magazine,
    slab: &'a Slab<V, T>,
}

impl<V, T> Slab<V, T> {
    /// Takes a block and a number from the thread's magazine; `None` when the thread is ending and has none
    /// any more.
    #[inline(always)]
    pub(crate) fn take_from_magazine(&self) -> Option<(BlockPtr<V, T>, u64)> {
        let magazine = magazine();
        let typed = self.load(magazine)?;
        let mut id = magazine.next_id.get();
        if magazine.head.get().is_none() || id == magazine.end_id.get() {
            typed.refill();
            id = magazine.next_id.get();
        }
        magazine.next_id.set(id + 1);
        Some((typed.pop(), id))
    }

    /// Takes a number from the thread's magazine; `None` when the thread is ending.
    #[inline]
    pub(crate) fn number_from_magazine(&self) -> Option<u64> {
        let magazine = magazine();
        let typed = self.load(magazine)?;
        if magazine.next_id.get() == magazine.end_id.get() {
            typed.refill();
        }
        Some(magazine.next_id.replace(magazine.next_id.get() + 1))
    }

    /// Puts a block into the thread's magazine; false when the thread is ending.
    #[inline(always)]
    pub(crate) fn release_to_magazine(&self, block: BlockPtr<V, T>) -> bool {
        let magazine = magazine();
        let Some(typed) = self.load(magazine) else { return false };
        if magazine.count.get() >= BATCH {
            typed.set_aside();
        }
        typed.push(block);
        true
    }

    /// The thread's magazine, which belongs to this slab from now on.
    #[inline(always)]
    fn load<'a>(&'a self, magazine: &'a Magazine) -> Option<TypedMagazine<'a, V, T>> {
        let mine = magazine.source.get().is_some_and(|(slab, _)| slab == NonNull::from(self).cast());
        (mine || self.adopt(magazine)).then_some(TypedMagazine { magazine, slab: self })
    }

    /// Makes the magazine this slab's, unless the thread is ending and would not flush it.
    #[cold]
    fn adopt(&self, magazine: &Magazine) -> bool {
        let lives = FLUSH_AT_EXIT.try_with(|_| ()).is_ok();
        magazine.flush();
        if lives {
            magazine.source.set(Some((NonNull::from(self).cast(), flush::<V, T>)));
        }
        lives
    }
}

/// # Safety
/// The blocks of the magazine belong to `slab`, an immortal `Slab<V, T>`.
unsafe fn flush<V, T>(magazine: &Magazine, slab: NonNull<()>) {
    // SAFETY: an immortal slab is never freed.
    let slab = unsafe { slab.cast::<Slab<V, T>>().as_ref() };
    let typed = TypedMagazine { magazine, slab };
    if let Some(spare) = typed.take_spare() {
        slab.release_list(spare);
    }
    slab.release_list(typed.take_list());
}

impl<V, T> TypedMagazine<'_, V, T> {
    #[inline(always)]
    fn push(&self, block: BlockPtr<V, T>) {
        let head = self.magazine.head.get().map(NonNull::cast);
        // SAFETY: the block is free, in no list, and given to us.
        unsafe { block.as_ref().next(|next| *next = head) };
        if head.is_none() {
            self.magazine.tail.set(Some(block.cast()));
        }
        self.magazine.head.set(Some(block.cast()));
        self.magazine.count.set(self.magazine.count.get() + 1);
    }

    #[inline(always)]
    fn pop(&self) -> BlockPtr<V, T> {
        let head: BlockPtr<V, T> = self.magazine.head.get().expect("refilled when it was empty").cast();
        // SAFETY: blocks in the magazine are free, and it is ours.
        let next = unsafe { head.as_ref().next(Option::take) };
        if let Some(next) = next {
            // After much traffic, neighbours in the list are far apart in memory.
            prefetch::<4, _>(next);
        }
        self.magazine.head.set(next.map(NonNull::cast));
        self.magazine.count.set(self.magazine.count.get() - 1);
        head
    }

    fn take_list(&self) -> List<V, T> {
        self.magazine.count.set(0);
        let ends = self.magazine.head.take().zip(self.magazine.tail.take());
        List { ends: ends.map(|(head, tail)| (head.cast(), tail.cast())) }
    }

    fn take_spare(&self) -> Option<List<V, T>> {
        let (head, tail) = self.magazine.spare.take()?;
        Some(List { ends: Some((head.cast(), tail.cast())) })
    }

    /// Makes the full list the spare list, and returns the old spare list to the slab.
    #[cold]
    fn set_aside(&self) {
        if let Some(spare) = self.take_spare() {
            self.slab.release_list(spare);
        }
        self.magazine.spare.set(self.magazine.head.take().zip(self.magazine.tail.take()));
        self.magazine.count.set(0);
    }

    /// Takes blocks or numbers from the slab, whichever have run out.
    #[cold]
    fn refill(&self) {
        if self.magazine.next_id.get() == self.magazine.end_id.get() {
            let (next, end) = self.slab.reserve_ids();
            self.magazine.next_id.set(next);
            self.magazine.end_id.set(end);
        }
        if self.magazine.head.get().is_none() {
            let spare = self.take_spare().map(|spare| (spare, BATCH));
            let (list, count) = spare.unwrap_or_else(|| self.slab.take_list(BATCH));
            let (head, tail) = list.ends.expect("a slab gives at least one block");
            self.magazine.head.set(Some(head.cast()));
            self.magazine.tail.set(Some(tail.cast()));
            self.magazine.count.set(count);
        }
    }
}
