//! One access of one operation to one variable, as it is linked into the variable's queue; all accesses of
//! one operation.

use std::mem::offset_of;
use std::ptr::NonNull;

use estafette_sync::cell::UnsafeCell;

use crate::operation::block::{Block, BlockPtr, INLINE};
use crate::variable::var::VarNode;

/// The mode in which an operation uses a variable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum AccessMode {
    /// Shares the variable with other reads.
    Read,
    /// Uses the variable alone, and replaces its content without reading it.
    Write,
    /// Uses the variable alone, and changes its content. Reading and writing one variable is an update.
    /// Ordered as a write.
    Update,
}

impl AccessMode {
    /// True if the access uses the variable alone.
    #[inline]
    pub const fn is_exclusive(self) -> bool {
        !matches!(self, Self::Read)
    }

    /// True if the access reads what earlier operations wrote.
    #[inline]
    pub const fn reads(self) -> bool {
        !matches!(self, Self::Write)
    }

    /// The mode of two merged accesses of one variable by one operation.
    #[inline]
    pub(crate) fn merge(self, other: Self) -> Self {
        if self == other { self } else { Self::Update }
    }
}

/// An access, linked into its variable's queue from submission until completion.
///
/// `target` is set by the submitter before the access is linked and constant while it is; `links` belong to
/// the holder of the variable's lock.
#[repr(C)]
pub(crate) struct AccessNode<V, T> {
    /// First, so that a pointer to it is a pointer to the access.
    links: UnsafeCell<Links<V, T>>,
    target: UnsafeCell<Option<Target<V, T>>>,
}

pub(crate) type AccessPtr<V, T> = NonNull<AccessNode<V, T>>;

/// A link of a queue's ring: of an access, or the queue's own. Belongs to the holder of the variable's lock.
pub(crate) type LinkPtr<V, T> = NonNull<UnsafeCell<Links<V, T>>>;

pub(crate) struct Links<V, T> {
    pub(crate) previous: LinkPtr<V, T>,
    pub(crate) next: LinkPtr<V, T>,
}

impl<V, T> Links<V, T> {
    /// In no ring.
    pub(crate) const UNLINKED: Self = Self { previous: NonNull::dangling(), next: NonNull::dangling() };
}

/// An access beyond the inline ones: it carries its operation, which an inline one finds by its own address.
#[repr(C)]
pub(crate) struct Spilled<V, T> {
    /// First, so that a pointer to it is a pointer to the whole.
    access: AccessNode<V, T>,
    op: BlockPtr<V, T>,
}

/// A variable, the mode it is used in, and the slot of the access within its operation, in one pointer.
///
/// Bit 0 is set for an exclusive access, bit 4 for an update; bits 1 to 3 are the inline slot, or
/// [`SPILLED`].
pub(crate) struct Target<V, T>(NonNull<VarNode<V, T>>);

const EXCLUSIVE: usize = 0b0_0001;
const SLOT_SHIFT: u32 = 1;
const SLOT: usize = 0b0_1110;
const SPILLED: usize = 7;
const UPDATE: usize = 0b1_0000;
const TAG: usize = 0b1_1111;

const _: () = assert!(INLINE <= SPILLED, "an inline slot and the spilled mark must differ");

impl<V, T> Target<V, T> {
    #[inline]
    pub(crate) fn new(node: NonNull<VarNode<V, T>>, mode: AccessMode) -> Self {
        const { assert!(align_of::<VarNode<V, T>>() > TAG, "the tag lives in the alignment bits") };
        let tag = match mode {
            AccessMode::Read => 0,
            AccessMode::Write => EXCLUSIVE,
            AccessMode::Update => EXCLUSIVE | UPDATE,
        };
        Self(node.map_addr(|address| address | tag))
    }

    #[inline]
    pub(crate) fn node(self) -> NonNull<VarNode<V, T>> {
        let untagged = self.0.as_ptr().map_addr(|address| address & !TAG);
        // SAFETY: a node is aligned beyond the tag, so clearing the tag leaves its address, which is not
        // null.
        unsafe { NonNull::new_unchecked(untagged) }
    }

    #[inline(always)]
    pub(crate) fn mode(self) -> AccessMode {
        let tag = self.0.addr().get();
        if tag & EXCLUSIVE == 0 {
            AccessMode::Read
        } else if tag & UPDATE == 0 {
            AccessMode::Write
        } else {
            AccessMode::Update
        }
    }

    #[inline(always)]
    pub(crate) fn is_exclusive(self) -> bool {
        self.0.addr().get() & EXCLUSIVE != 0
    }

    #[inline]
    fn with_slot(self, slot: usize) -> Self {
        let marked = self.0.as_ptr().map_addr(|address| address & !SLOT | slot << SLOT_SHIFT);
        // SAFETY: a node is aligned beyond the tag, so whatever the tag, the address is not null.
        Self(unsafe { NonNull::new_unchecked(marked) })
    }

    #[inline]
    fn slot(self) -> usize {
        (self.0.addr().get() & SLOT) >> SLOT_SHIFT
    }
}

impl<V, T> AccessNode<V, T> {
    pub(crate) fn empty() -> Self {
        Self { links: UnsafeCell::new(Links::UNLINKED), target: UnsafeCell::new(None) }
    }

    /// Sets the target of the inline access in `slot` of its block.
    ///
    /// # Safety
    /// The caller owns the block: it is not linked anywhere.
    #[inline]
    pub(crate) unsafe fn set_inline_target(&self, target: Target<V, T>, slot: usize) {
        debug_assert!(slot < INLINE);
        // SAFETY: the caller owns the access, so no other thread reads it.
        self.target.with_mut(|place| unsafe { *place = Some(target.with_slot(slot)) });
    }

    /// # Safety
    /// The access has a target and its operation has not been recycled meanwhile: the caller owns the
    /// operation or holds the lock of a variable in whose queue the operation is.
    #[inline]
    pub(crate) unsafe fn target(&self) -> Target<V, T> {
        // SAFETY: the target is constant while the operation is in flight.
        self.target.with(|place| unsafe {
            debug_assert!((*place).is_some(), "an access in flight has a target");
            (*place).unwrap_unchecked()
        })
    }

    /// Replaces `from` by `to`, which is inline in `slot`, or spilled without one. Afterwards `from` is in no
    /// ring.
    ///
    /// # Safety
    /// The caller holds the lock of the variable in whose queue `from` is, and no other thread accesses the
    /// operation; `to` is in no ring, and of the same operation.
    pub(crate) unsafe fn move_to(from: AccessPtr<V, T>, to: AccessPtr<V, T>, slot: Option<usize>) {
        // SAFETY: forwarded to the caller.
        unsafe {
            let target = from.as_ref().target();
            let moved = target.with_slot(slot.unwrap_or(SPILLED));
            to.as_ref().target.with_mut(|place| *place = Some(moved));
            target.node().as_ref().queue.replace(from, to);
        }
    }

    #[inline(always)]
    pub(crate) fn link(access: AccessPtr<V, T>) -> LinkPtr<V, T> {
        access.cast()
    }

    /// The access of a link that is not the queue's own.
    ///
    /// # Safety
    /// The link is an access's, and was made by [`link`](Self::link).
    #[inline(always)]
    pub(crate) unsafe fn of(link: LinkPtr<V, T>) -> AccessPtr<V, T> {
        link.cast()
    }

    /// # Safety
    /// As for [`Self::target`].
    #[inline]
    pub(crate) unsafe fn op(access: AccessPtr<V, T>) -> BlockPtr<V, T> {
        // SAFETY: forwarded to the caller.
        let slot = unsafe { access.as_ref().target() }.slot();
        if slot == SPILLED {
            // SAFETY: an access marked spilled is the first field of a `Spilled`, reached through a pointer
            // to it.
            return unsafe { access.cast::<Spilled<V, T>>().as_ref() }.op;
        }
        let offset = offset_of!(Block<V, T>, inline) + slot * size_of::<Self>();
        // SAFETY: an inline access lies `offset` bytes into its block, and its pointer was derived from the
        // block's.
        unsafe { access.byte_sub(offset).cast() }
    }
}

impl<V, T> Spilled<V, T> {
    #[inline]
    pub(crate) fn new(target: Target<V, T>, op: BlockPtr<V, T>) -> Self {
        let access = AccessNode::empty();
        // SAFETY: the access was made a line above.
        access.target.with_mut(|place| unsafe { *place = Some(target.with_slot(SPILLED)) });
        Self { access, op }
    }
}

impl<V, T> Clone for Target<V, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<V, T> Copy for Target<V, T> {}

debug_as!([V, T] target: Target<V, T>, "{:?} of {:p}", target.mode(), target.node());

/// All accesses of one operation, inline or spilled.
pub(crate) struct Accesses<V, T> {
    pub(crate) next: AccessPtr<V, T>,
    pub(crate) left: usize,
    /// The distance from one access to the next, in bytes.
    pub(crate) stride: usize,
}

impl<V, T> Accesses<V, T> {
    /// The access at index `place`.
    ///
    /// # Panics
    /// If there are fewer accesses.
    pub(crate) fn get(&self, place: usize) -> AccessPtr<V, T> {
        assert!(place < self.left, "a place within the list");
        // SAFETY: one of `left`.
        unsafe { self.next.byte_add(place * self.stride) }
    }
}

impl<V, T> Iterator for Accesses<V, T> {
    type Item = AccessPtr<V, T>;

    #[inline(always)]
    fn next(&mut self) -> Option<AccessPtr<V, T>> {
        self.left = self.left.checked_sub(1)?;
        let access = self.next;
        // SAFETY: at most one past the last of `left`.
        self.next = unsafe { access.byte_add(self.stride) };
        Some(access)
    }

    #[inline]
    fn nth(&mut self, count: usize) -> Option<AccessPtr<V, T>> {
        let skipped = count.min(self.left);
        // SAFETY: at most one past the last of `left`.
        self.next = unsafe { self.next.byte_add(skipped * self.stride) };
        self.left -= skipped;
        self.next()
    }

    #[inline(always)]
    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

impl<V, T> ExactSizeIterator for Accesses<V, T> {}

impl<V, T> Clone for Accesses<V, T> {
    #[inline(always)]
    fn clone(&self) -> Self {
        *self
    }
}

impl<V, T> Copy for Accesses<V, T> {}
