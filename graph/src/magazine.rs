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
    static MAGAZINE: Magazine = const { Magazine(Cell::new(Content::EMPTY)) };
}

/// What a thread keeps. Without types, since a thread-local cannot be generic.
struct Magazine(Cell<Content>);

#[derive(Clone, Copy)]
struct Content {
    slab: Option<Home>,
    head: Option<NonNull<()>>,
    count: usize,
    next_id: u64,
    end_id: u64,
}

/// Whose blocks these are, and how they are given back.
type Home = (NonNull<()>, unsafe fn(Content));

impl Content {
    const EMPTY: Self = Self { slab: None, head: None, count: 0, next_id: 0, end_id: 0 };

    fn give_back(self) {
        if let Some((_, give_back)) = self.slab {
            // SAFETY: the function was put there together with the slab and its blocks.
            unsafe { give_back(self) }
        }
    }
}

impl Drop for Magazine {
    fn drop(&mut self) {
        self.0.replace(Content::EMPTY).give_back();
    }
}

/// The magazine of the calling thread, with its types, while it belongs to `slab`.
struct Loaded<'a, V, T> {
    place: &'a Cell<Content>,
    content: Content,
    slab: &'a Slab<V, T>,
}

impl<V, T> Slab<V, T> {
    /// Takes a block and a number from the thread's magazine; `None` when the thread is ending and has none any more.
    #[inline]
    pub(crate) fn take_from_magazine(&self) -> Option<(BlockPtr<V, T>, u64)> {
        self.with_magazine(|magazine| {
            if magazine.content.head.is_none() {
                magazine.refill();
            }
            if magazine.content.next_id == magazine.content.end_id {
                (magazine.content.next_id, magazine.content.end_id) = magazine.slab.reserve_ids();
            }
            let id = magazine.content.next_id;
            magazine.content.next_id += 1;
            (magazine.pop(), id)
        })
    }

    /// Gives a block to the thread's magazine; false when the thread is ending.
    #[inline]
    pub(crate) fn give_to_magazine(&self, block: BlockPtr<V, T>) -> bool {
        let given = self.with_magazine(|magazine| {
            magazine.push(block);
            if magazine.content.count >= 2 * BATCH {
                magazine.slab.give_list(magazine.pop_list(BATCH));
            }
        });
        given.is_some()
    }

    #[inline]
    fn with_magazine<R>(&self, f: impl FnOnce(&mut Loaded<'_, V, T>) -> R) -> Option<R> {
        let in_magazine = |magazine: &Magazine| {
            let mut content = magazine.0.get();
            if content.slab.is_none_or(|(slab, _)| slab != NonNull::from(self).cast()) {
                content.give_back();
                content =
                    Content { slab: Some((NonNull::from(self).cast(), give_back::<V, T>)), ..Content::EMPTY };
            }
            let mut loaded = Loaded { place: &magazine.0, content, slab: self };
            let result = f(&mut loaded);
            loaded.place.set(loaded.content);
            result
        };
        MAGAZINE.try_with(in_magazine).ok()
    }
}

/// # Safety
/// `content` belongs to an immortal `Slab<V, T>`, and is not used again.
unsafe fn give_back<V, T>(content: Content) {
    let Some((slab, _)) = content.slab else { return };
    // SAFETY: an immortal slab is never freed.
    let slab = unsafe { slab.cast::<Slab<V, T>>().as_ref() };
    let mut loaded = Loaded { place: &Cell::new(Content::EMPTY), content, slab };
    let count = loaded.content.count;
    slab.give_list(loaded.pop_list(count));
}

impl<V, T> Loaded<'_, V, T> {
    #[inline]
    fn push(&mut self, block: BlockPtr<V, T>) {
        let head = self.content.head.map(NonNull::cast);
        // SAFETY: the block is free, in no list, and given to us.
        unsafe { block.as_ref().next(|next| *next = head) };
        self.content.head = Some(block.cast());
        self.content.count += 1;
    }

    #[inline]
    fn pop(&mut self) -> BlockPtr<V, T> {
        let head: BlockPtr<V, T> = self.content.head.expect("refilled when it was empty").cast();
        // SAFETY: blocks in the magazine are free, and it is ours.
        let next = unsafe { head.as_ref().next(Option::take) };
        self.content.head = next.map(NonNull::cast);
        self.content.count -= 1;
        head
    }

    fn pop_list(&mut self, count: usize) -> List<V, T> {
        let mut list = List::EMPTY;
        for _ in 0..count {
            let block = self.pop();
            // SAFETY: the block was just taken out, and the list is ours.
            unsafe { list.prepend(List::of(block)) };
        }
        list
    }

    #[cold]
    fn refill(&mut self) {
        let mut list = self.slab.take_list(BATCH);
        // SAFETY: the list is ours.
        while let Some(block) = unsafe { list.pop() } {
            self.push(block);
        }
    }
}
