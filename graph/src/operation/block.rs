//! The memory of one operation: a slab block with its accesses, its payload and its two counters.

use std::mem::MaybeUninit;
use std::ptr::NonNull;

use estafette_sync::cell::UnsafeCell;
use estafette_sync::sync::atomic::{AtomicU32, Ordering};

use crate::biased_lock::CriticalSection;
use crate::graph::{GraphRef, GraphState};
use crate::id::OpId;
use crate::operation::access::{AccessNode, Accesses, Spilled, Target};
use crate::operation::targets::{self, Targets};
use crate::variable::var::VarNode;

/// Accesses that fit into the block. Most operations have two or three; a fifth costs a heap allocation,
/// which the block then keeps for its next operation.
pub(crate) const INLINE: usize = 4;

/// Spilled accesses a free block may keep memory for (1 KiB). More is released, so that one operation over
/// thousands of variables does not keep memory for ever.
const SPILL_KEPT: usize = 32;

/// In place of the number of accesses that wait: the operation leaves its queues, or has left them.
const OVER: u32 = u32::MAX;

/// References to one operation that may exist. Beyond it the process aborts, as `Arc` does: a counter that
/// wraps would free memory in use.
const REFS_LIMIT: u32 = u32::MAX / 2;

/// One operation, from submission until its last reference is gone.
///
/// Fields are in the order of use, from the start of a cache line: first those that a granting thread reads.
#[repr(C, align(64))]
pub(crate) struct Block<V, T> {
    /// Accesses not granted. Written plainly by the submitter while it holds all locks; decremented under the
    /// lock of the variable that grants. Zero: granted, and owned by the `Granted` token. [`OVER`]: being
    /// completed, or withdrawn.
    pending: AtomicU32,
    /// References: one for the operation in flight, one for each `OpRef`.
    refs: AtomicU32,
    /// The next block in a free list or in a list of granted operations; belongs to the owner of that list.
    next: UnsafeCell<Option<BlockPtr<V, T>>>,
    /// Keeps the slab alive while the block is in use. In an immortal graph, a free block keeps its
    /// reference, too.
    graph: UnsafeCell<Option<GraphRef<V, T>>>,
    /// Set by the submitter, constant while in flight or referenced.
    id: UnsafeCell<u64>,
    /// Set by the submitter, constant while in flight, but for accesses that are
    /// [withdrawn](Self::keep_writes).
    fixed: UnsafeCell<Fixed<V, T>>,
    pub(crate) inline: [AccessNode<V, T>; INLINE],
    /// Initialized while in flight or referenced.
    payload: UnsafeCell<MaybeUninit<T>>,
}

pub(crate) type BlockPtr<V, T> = NonNull<Block<V, T>>;

struct Fixed<V, T> {
    /// Accesses. If there are more than [`INLINE`], they are all spilled.
    len: u32,
    /// True if lists of what is queued leave the operation out.
    unlisted: bool,
    /// Made by the first operation in this block that needs it.
    spill: Option<Box<Spill<V, T>>>,
}

struct Spill<V, T> {
    accesses: Vec<Spilled<V, T>>,
}

/// A block whose last reference is gone. Returns to its slab when dropped.
struct RecycleOnDrop<V, T>(BlockPtr<V, T>);

impl<V, T> Drop for RecycleOnDrop<V, T> {
    #[cold]
    fn drop(&mut self) {
        self.return_to_slab();
    }
}

impl<V, T> RecycleOnDrop<V, T> {
    #[inline(always)]
    fn return_to_slab(&self) {
        // SAFETY: no other thread can reach the block.
        unsafe {
            let block = self.0.as_ref();
            block.trim();
            // A reference that is not counted stays with the block, for its next operation.
            let immortal = block.graph.with(|graph| (*graph).as_ref().and_then(GraphRef::immortal));
            match immortal {
                Some(graph) => graph.as_ref().slab.release(self.0),
                None => self.return_to_counted_slab(),
            }
        }
    }

    #[cold]
    fn return_to_counted_slab(&self) {
        // SAFETY: no other thread can reach the block.
        let graph = unsafe { self.0.as_ref().graph.with_mut(|graph| (*graph).take()) };
        let graph = graph.expect("a block in use refers to its graph");
        graph.slab.release(self.0);
    }
}

impl<V, T> Block<V, T> {
    pub(crate) fn empty() -> Self {
        Self {
            pending: AtomicU32::new(0),
            refs: AtomicU32::new(0),
            next: UnsafeCell::new(None),
            graph: UnsafeCell::new(None),
            id: UnsafeCell::new(0),
            fixed: UnsafeCell::new(Fixed { len: 0, unlisted: false, spill: None }),
            inline: std::array::from_fn(|_| AccessNode::empty()),
            payload: UnsafeCell::new(MaybeUninit::uninit()),
        }
    }

    /// Makes a block that was just taken from the slab of `graph` an operation without accesses. `init`
    /// writes the payload to its place; if it panics, the block is lost. `refs` counts the operation itself
    /// and the references that the caller makes at once.
    ///
    /// # Safety
    /// The caller owns the block, and `init` initializes the payload.
    #[inline(always)]
    pub(crate) unsafe fn begin(
        this: BlockPtr<V, T>,
        id: u64,
        graph: GraphRef<V, T>,
        init: impl FnOnce(*mut T),
        refs: u32,
    ) {
        // SAFETY: the caller owns the block, so no other thread reads it.
        unsafe {
            let block = this.as_ref();
            block.refs.store(refs, Ordering::Relaxed);
            block.id.with_mut(|place| *place = id);
            block.fixed.with_mut(|fixed| {
                (*fixed).len = 0;
                (*fixed).unlisted = false;
            });
            block.payload.with_mut(|payload| init((*payload).as_mut_ptr()));
            block.graph.with_mut(|place| {
                // The block of an immortal graph has kept its reference.
                if (*place).is_none() {
                    *place = Some(graph);
                }
            });
        }
    }

    /// Leaves the operation out of lists of what is queued (`OpRef::of_listed`).
    ///
    /// # Safety
    /// The caller owns the block, which is in no queue.
    pub(crate) unsafe fn keep_out_of_lists(&self) {
        // SAFETY: the caller owns the block.
        self.fixed.with_mut(|fixed| unsafe { (*fixed).unlisted = true });
    }

    /// Sets the accesses to `targets`; may be repeated until the operation is appended.
    ///
    /// # Safety
    /// The caller owns the block.
    #[inline]
    pub(crate) unsafe fn set_targets(this: BlockPtr<V, T>, targets: &[Target<V, T>]) {
        // SAFETY: the caller owns the block.
        let block = unsafe { this.as_ref() };
        // SAFETY: as above.
        block.fixed.with_mut(|fixed| unsafe {
            (*fixed).len = targets.len() as u32;
            if targets.len() > INLINE {
                let spilled = targets.iter().map(|target| Spilled::new(*target, this));
                (*fixed).spill_again().extend(spilled);
            }
        });
        if targets.len() <= INLINE {
            for (slot, target) in targets.iter().enumerate() {
                // SAFETY: the caller owns the block.
                unsafe { block.inline[slot].set_inline_target(*target, slot) };
            }
        }
    }

    /// Adds `target` to the accesses of an operation that is not complete yet: unsorted, and perhaps again.
    ///
    /// # Safety
    /// The caller owns the block.
    #[inline(always)]
    pub(crate) unsafe fn add_target(this: BlockPtr<V, T>, target: Target<V, T>) {
        // SAFETY: the caller owns the block.
        unsafe {
            let block = this.as_ref();
            let len = block.len();
            if len >= INLINE {
                return Self::add_spilled_target(this, target);
            }
            block.inline[len].set_inline_target(target, len);
            block.fixed.with_mut(|fixed| (*fixed).len += 1);
        }
    }

    /// As [`add_target`](Self::add_target), beyond the inline accesses.
    ///
    /// # Safety
    /// The caller owns the block.
    #[cold]
    unsafe fn add_spilled_target(this: BlockPtr<V, T>, target: Target<V, T>) {
        // SAFETY: the caller owns the block.
        unsafe {
            let block = this.as_ref();
            block.fixed.with_mut(|fixed| {
                if (*fixed).len as usize == INLINE {
                    let inline = block.inline.iter().map(|access| Spilled::new(access.target(), this));
                    (*fixed).spill_again().extend(inline);
                }
                let spill = (*fixed).spill.as_mut().expect("made for the last inline one");
                spill.accesses.push(Spilled::new(target, this));
                (*fixed).len += 1;
            });
        }
    }

    /// The accesses, with pointers that lead back to the block.
    ///
    /// # Safety
    /// The operation is in flight, or the block the caller's, for as long as the pointers are used; the
    /// iterator itself does not access the block again.
    #[inline(always)]
    pub(crate) unsafe fn accesses(this: BlockPtr<V, T>) -> Accesses<V, T> {
        // SAFETY: `fixed` is constant while in flight. The pointers are derived from the block's own pointer
        // and from the vector's buffer, so they may be walked back (`AccessNode::op`).
        unsafe {
            (*this.as_ptr()).fixed.with(|fixed| {
                let left = (*fixed).len as usize;
                if left <= INLINE {
                    let first = (&raw mut (*this.as_ptr()).inline).cast::<AccessNode<V, T>>();
                    Accesses {
                        next: NonNull::new_unchecked(first),
                        left,
                        stride: size_of::<AccessNode<V, T>>(),
                    }
                } else {
                    let spill = (*fixed).spill.as_ref().expect("there are more than fit inline");
                    let first = spill.accesses.as_ptr().cast_mut().cast();
                    Accesses { next: NonNull::new_unchecked(first), left, stride: size_of::<Spilled<V, T>>() }
                }
            })
        }
    }

    /// Moves the accesses that write to the front, and forgets the others.
    ///
    /// # Safety
    /// The operation waits. The caller holds the locks of the variables that it writes, and the registry's
    /// lock, so that no other thread reads its accesses; those that read are in no queue.
    pub(crate) unsafe fn keep_writes(this: BlockPtr<V, T>) {
        // SAFETY: forwarded to the caller. Each access that is written to is in no queue: it read, or was
        // moved already, or is an inline one of an operation whose accesses were spilled.
        unsafe {
            let accesses = Self::accesses(this);
            let kept: Vec<_> = accesses.filter(|access| access.as_ref().target().is_exclusive()).collect();
            let inline = kept.len() <= INLINE;
            let mut places = accesses;
            for (place, from) in kept.iter().enumerate() {
                let to = if inline {
                    let first = (&raw mut (*this.as_ptr()).inline).cast::<AccessNode<V, T>>();
                    Some(NonNull::new_unchecked(first.add(place)))
                } else {
                    places.next()
                };
                if let Some(to) = to.filter(|to| to != from) {
                    AccessNode::move_to(*from, to, inline.then_some(place));
                }
            }
            this.as_ref().fixed.with_mut(|fixed| {
                (*fixed).len = kept.len() as u32;
                if inline {
                    (*fixed).spill = None;
                }
            });
        }
    }

    /// Sorts the accesses by variable and merges those of one variable.
    ///
    /// # Safety
    /// The caller owns the block, which is in no queue, and keeps the variables alive.
    #[inline(always)]
    pub(crate) unsafe fn normalize(this: BlockPtr<V, T>) {
        // SAFETY: forwarded to the caller.
        unsafe {
            let len = this.as_ref().len();
            if len > 1 {
                let sorted = match len {
                    2 => Self::sort_inline::<2>(this),
                    3 => Self::sort_inline::<3>(this),
                    4 => Self::sort_inline::<4>(this),
                    _ => false,
                };
                if !sorted {
                    Self::normalize_any(this);
                }
            }
        }
    }

    /// As [`normalize`](Self::normalize), for exactly `N` inline accesses; false if some of them need to be
    /// merged.
    ///
    /// # Safety
    /// As for [`normalize`](Self::normalize).
    #[inline(always)]
    unsafe fn sort_inline<const N: usize>(this: BlockPtr<V, T>) -> bool {
        // SAFETY: forwarded to the caller.
        unsafe {
            let inline = &this.as_ref().inline;
            let mut targets: [Target<V, T>; N] = std::array::from_fn(|slot| inline[slot].target());
            targets::sort_few(&mut targets);
            for slot in 0..N {
                inline[slot].set_inline_target(targets[slot], slot);
            }
            targets.windows(2).all(|pair| pair[0].node() != pair[1].node())
        }
    }

    /// As [`normalize`](Self::normalize), however many there are.
    ///
    /// # Safety
    /// As for [`normalize`](Self::normalize).
    #[cold]
    unsafe fn normalize_any(this: BlockPtr<V, T>) {
        // SAFETY: forwarded to the caller.
        unsafe {
            let mut targets: Targets<V, T> =
                Self::accesses(this).map(|access| access.as_ref().target()).collect();
            targets::normalize(&mut targets);
            Self::set_targets(this, &targets);
        }
    }

    /// # Safety
    /// The operation is in flight, or referenced.
    #[inline]
    pub(crate) unsafe fn id(&self) -> OpId {
        // SAFETY: constant while in flight.
        OpId::new(self.id.with(|id| unsafe { *id }))
    }

    /// The number of distinct variables of the operation.
    ///
    /// # Safety
    /// The operation is in flight.
    #[inline]
    pub(crate) unsafe fn len(&self) -> usize {
        // SAFETY: constant while in flight.
        self.fixed.with(|fixed| unsafe { (*fixed).len as usize })
    }

    /// # Safety
    /// The operation is in flight, or referenced, for as long as the result is used.
    #[inline]
    pub(crate) unsafe fn payload(&self) -> &T {
        // SAFETY: written before the operation became visible, read out only when the last reference is gone.
        self.payload.with(|payload| unsafe { (*payload).assume_init_ref() })
    }

    /// # Safety
    /// The caller owns the block, alone, and `begin` was called.
    #[expect(clippy::mut_from_ref, reason = "the caller has the block alone")]
    #[inline]
    pub(crate) unsafe fn payload_mut(&self) -> &mut T {
        // SAFETY: forwarded to the caller.
        self.payload.with_mut(|payload| unsafe { (*payload).assume_init_mut() })
    }

    /// States how many accesses are not granted. Plain: the submitter holds all locks, and releasing them
    /// publishes it.
    #[inline]
    pub(crate) fn set_pending(&self, count: u32) {
        self.pending.store(count, Ordering::Relaxed);
    }

    /// The number of accesses that wait.
    pub(crate) fn pending(&self) -> u32 {
        match self.pending.load(Ordering::Acquire) {
            OVER => 0,
            pending => pending,
        }
    }

    /// True if no access waits: the operation is granted, or over.
    pub(crate) fn is_granted(&self) -> bool {
        self.pending() == 0
    }

    /// States that the operation leaves its queues. Plain: the first lock that is released afterwards
    /// publishes it.
    #[inline(always)]
    pub(crate) fn set_over(&self) {
        self.pending.store(OVER, Ordering::Relaxed);
    }

    /// True if the operation leaves its queues, or has left them. Under the lock of one of its variables,
    /// false means that the operation is in that variable's queue until the lock is released.
    pub(crate) fn is_over(&self) -> bool {
        self.pending.load(Ordering::Acquire) == OVER
    }

    /// Grants one access. True: it was the last, and the caller now owns the operation.
    ///
    /// Acquire and release: the last granter sees everything done before the other grants. If one access is
    /// left it is the caller's, and in an exclusive section there is no other thread: then only the caller
    /// writes the counter, and saves the locked instruction.
    #[inline(always)]
    pub(crate) fn grant_one(&self, section: &CriticalSection) -> bool {
        let pending = self.pending.load(Ordering::Acquire);
        if pending == 1 || section.is_exclusive() {
            self.pending.store(pending - 1, Ordering::Relaxed);
            return pending == 1;
        }
        self.pending.fetch_sub(1, Ordering::AcqRel) == 1
    }

    /// Counts one more reference. Relaxed suffices: the caller already has one, or keeps the operation in
    /// flight.
    #[inline]
    pub(crate) fn retain(&self) {
        if self.refs.fetch_add(1, Ordering::Relaxed) > REFS_LIMIT {
            std::process::abort();
        }
    }

    /// Drops the second of the two references that the block began with, before any other thread has seen the
    /// block.
    #[inline]
    pub(crate) fn forget_reference(&self) {
        self.refs.store(1, Ordering::Relaxed);
    }

    /// True if there are references beside the caller's.
    #[inline]
    pub(crate) fn is_shared(&self) -> bool {
        self.refs.load(Ordering::Acquire) > 1
    }

    /// Releases one reference. True: it was the last, and the caller must recycle the block.
    ///
    /// Acquire and release as in `Arc`. If the counter reads 1, the reference is the caller's, and no thread
    /// can make another.
    #[inline]
    fn release_reference(&self) -> bool {
        self.refs.load(Ordering::Acquire) == 1 || self.refs.fetch_sub(1, Ordering::AcqRel) == 1
    }

    /// Releases one reference. The last one drops the payload in place and returns the block to its slab.
    ///
    /// # Safety
    /// The caller holds a reference, which is gone afterwards, and no lock.
    #[inline(always)]
    pub(crate) unsafe fn release(this: BlockPtr<V, T>) {
        // SAFETY: our reference keeps the block.
        unsafe {
            if this.as_ref().release_reference() {
                Self::recycle(this);
            }
        }
    }

    /// Drops the payload in place, and returns the block to its slab.
    ///
    /// # Safety
    /// The caller holds the last reference, which is gone afterwards, and no lock.
    #[inline(always)]
    pub(crate) unsafe fn recycle(this: BlockPtr<V, T>) {
        // The block returns also when the payload's drop panics.
        let recycled = RecycleOnDrop(this);
        // SAFETY: no other thread can reach the block, and its payload is initialized since `begin`.
        unsafe { recycled.0.as_ref().payload.with_mut(|payload| (*payload).assume_init_drop()) };
        recycled.return_to_slab();
        std::mem::forget(recycled);
    }

    /// Empties the list of spilled accesses.
    ///
    /// # Safety
    /// The caller has the block for itself.
    #[inline(always)]
    unsafe fn trim(&self) {
        // SAFETY: forwarded to the caller.
        self.fixed.with_mut(|fixed| unsafe {
            if (*fixed).len as usize > INLINE {
                (*fixed).trim();
            }
        });
    }

    /// True if lists of what is queued may contain the operation.
    ///
    /// # Safety
    /// The operation is in flight.
    pub(crate) unsafe fn is_listed(&self) -> bool {
        // SAFETY: constant while in flight.
        self.fixed.with(|fixed| unsafe { !(*fixed).unlisted })
    }

    /// # Safety
    /// The operation is in flight or referenced, or the block is the caller's since `begin`, for as long as
    /// the result is used.
    #[inline(always)]
    pub(crate) unsafe fn graph(&self) -> &GraphState<V, T> {
        // SAFETY: the reference to the graph was set in `begin`, and stays until the block returns to its
        // slab.
        let graph = self.graph.with(|graph| unsafe { (*graph).as_ref() });
        graph.expect("a block in use refers to its graph")
    }

    /// Fails for a variable of another graph.
    ///
    /// # Safety
    /// The caller owns the operation.
    #[inline(always)]
    pub(crate) unsafe fn assert_same_graph(&self, node: &VarNode<V, T>) {
        // SAFETY: forwarded to the caller.
        assert!(unsafe { self.is_of_graph_of(node) }, "{} belongs to another graph", node.id());
    }

    /// True if the variable belongs to the graph of the block.
    ///
    /// # Safety
    /// The caller owns the block.
    #[inline(always)]
    pub(crate) unsafe fn is_of_graph_of(&self, node: &VarNode<V, T>) -> bool {
        // SAFETY: forwarded to the caller.
        self.graph.with(|graph| unsafe {
            (*graph).as_ref().is_some_and(|graph| std::ptr::eq(&raw const **graph, &raw const *node.graph))
        })
    }

    /// Lends the link to the next block.
    ///
    /// # Safety
    /// The caller owns the list in which the block is.
    #[inline]
    pub(crate) unsafe fn next<R>(&self, f: impl FnOnce(&mut Option<BlockPtr<V, T>>) -> R) -> R {
        // SAFETY: a block is in at most one list, and that list is the caller's.
        self.next.with_mut(|next| f(unsafe { &mut *next }))
    }
}

impl<V, T> Fixed<V, T> {
    /// The place of spilled accesses, empty.
    #[cold]
    fn spill_again(&mut self) -> &mut Vec<Spilled<V, T>> {
        let spill = self.spill.get_or_insert_with(|| Box::new(Spill { accesses: Vec::new() }));
        spill.accesses.clear();
        &mut spill.accesses
    }

    /// Gives up what is too much to keep.
    #[cold]
    fn trim(&mut self) {
        if self.spill.as_ref().is_some_and(|spill| spill.accesses.capacity() > SPILL_KEPT) {
            self.spill = None;
        }
    }
}
