//! Blocks and operation numbers that a thread keeps for itself, so that taking and giving them needs no lock.
//!
//! Only for an immortal slab: a thread's magazine outlives every handle of the graph, and may be emptied when the thread
//! ends. A thread has one magazine; one that uses several immortal slabs in turn empties it at every change.

use std::cell::Cell;
use std::ptr::NonNull;

use crate::block::BlockPtr;
use crate::slab::{List, Slab};

/// Blocks that move between a thread and its shard at once. A thread keeps at most twice as many.
pub(crate) const BATCH: usize = 64;

thread_local! {
    static MAGAZINE: Magazine = const {
        Magazine {
            home: Cell::new(None),
            head: Cell::new(None),
            count: Cell::new(0),
            next_id: Cell::new(0),
            end_id: Cell::new(0),
        }
    };
}

/// What a thread keeps. Without types, since a thread-local cannot be generic.
struct Magazine {
    home: Cell<Option<Home>>,
    /// Free blocks, linked.
    head: Cell<Option<NonNull<()>>>,
    count: Cell<usize>,
    /// Numbers for operations, from the first up to the second.
    next_id: Cell<u64>,
    end_id: Cell<u64>,
}

/// Whose blocks these are, and how they are given back.
type Home = (NonNull<()>, unsafe fn(&Magazine, NonNull<()>));

impl Magazine {
    fn give_back(&self) {
        if let Some((slab, give_back)) = self.home.take() {
            // SAFETY: the function was put there together with the slab and its blocks.
            unsafe { give_back(self, slab) }
        }
        // Numbers that were not used are gone.
        self.end_id.set(self.next_id.get());
    }
}

impl Drop for Magazine {
    fn drop(&mut self) {
        self.give_back();
    }
}

/// The magazine of the calling thread, with its types, while it belongs to `slab`.
struct Loaded<'a, V, T> {
    magazine: &'a Magazine,
    slab: &'a Slab<V, T>,
}

impl<V, T> Slab<V, T> {
    /// Takes a block and a number from the thread's magazine; `None` when the thread is ending and has none any more.
    #[inline]
    pub(crate) fn take_from_magazine(&self) -> Option<(BlockPtr<V, T>, u64)> {
        self.with_magazine(|loaded| {
            let id = loaded.magazine.next_id.get();
            if loaded.magazine.head.get().is_none() || id == loaded.magazine.end_id.get() {
                loaded.refill();
            }
            let id = loaded.magazine.next_id.get();
            loaded.magazine.next_id.set(id + 1);
            (loaded.pop(), id)
        })
    }

    /// Gives a block to the thread's magazine; false when the thread is ending.
    #[inline]
    pub(crate) fn give_to_magazine(&self, block: BlockPtr<V, T>) -> bool {
        let given = self.with_magazine(|loaded| {
            loaded.push(block);
            if loaded.magazine.count.get() >= 2 * BATCH {
                loaded.unload(BATCH);
            }
        });
        given.is_some()
    }

    #[inline]
    fn with_magazine<R>(&self, f: impl FnOnce(Loaded<'_, V, T>) -> R) -> Option<R> {
        let in_magazine = |magazine: &Magazine| {
            let home = NonNull::from(self).cast();
            if magazine.home.get().is_none_or(|(slab, _)| slab != home) {
                magazine.give_back();
                magazine.home.set(Some((home, give_back::<V, T>)));
            }
            f(Loaded { magazine, slab: self })
        };
        MAGAZINE.try_with(in_magazine).ok()
    }
}

/// # Safety
/// What is in the magazine belongs to `slab`, an immortal `Slab<V, T>`.
unsafe fn give_back<V, T>(magazine: &Magazine, slab: NonNull<()>) {
    // SAFETY: an immortal slab is never freed.
    let slab = unsafe { slab.cast::<Slab<V, T>>().as_ref() };
    Loaded { magazine, slab }.unload(magazine.count.get());
}

impl<V, T> Loaded<'_, V, T> {
    #[inline]
    fn push(&self, block: BlockPtr<V, T>) {
        let head = self.magazine.head.get().map(NonNull::cast);
        // SAFETY: the block is free, in no list, and given to us.
        unsafe { block.as_ref().next(|next| *next = head) };
        self.magazine.head.set(Some(block.cast()));
        self.magazine.count.set(self.magazine.count.get() + 1);
    }

    #[inline]
    fn pop(&self) -> BlockPtr<V, T> {
        let head: BlockPtr<V, T> = self.magazine.head.get().expect("refilled when it was empty").cast();
        // SAFETY: blocks in the magazine are free, and it is ours.
        let next = unsafe { head.as_ref().next(Option::take) };
        self.magazine.head.set(next.map(NonNull::cast));
        self.magazine.count.set(self.magazine.count.get() - 1);
        head
    }

    /// Gives `count` blocks to the slab.
    #[cold]
    fn unload(&self, count: usize) {
        let mut list = List::EMPTY;
        for _ in 0..count {
            // SAFETY: the block was just taken out, and the list is ours.
            unsafe { list.prepend(List::of(self.pop())) };
        }
        self.slab.give_list(list);
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
            let mut list = self.slab.take_list(BATCH);
            // SAFETY: the list is ours.
            while let Some(block) = unsafe { list.pop() } {
                self.push(block);
            }
        }
    }
}
