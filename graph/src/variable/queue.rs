//! The queue of a variable: its accesses in submission order, the granted ones first.

use std::ptr::NonNull;

use estafette_sync::cell::UnsafeCell;
use estafette_sync::platform::prefetch::prefetch;

use crate::operation::access::{AccessMode, AccessNode, AccessPtr, LinkPtr, Links};

/// An intrusive ring of accesses, closed by a link of the queue's own: so no access is the first or the last,
/// and linking and unlinking need no (unpredictable) branch.
///
/// Everything before `waiting` is granted: one write, or a run of reads, or a write and what was split off
/// it. Granted accesses stay until they are completed, so that a stall can always be explained. The
/// variable may also have *pins*: granted reads that are only counted, and precede everything that waits.
///
/// All methods belong to the holder of the variable's lock.
pub(crate) struct Queue<V, T> {
    /// Before the first access and behind the last.
    ends: UnsafeCell<Links<V, T>>,
    state: UnsafeCell<AccessQueueState<V, T>>,
}

struct AccessQueueState<V, T> {
    /// The first access that is not granted; everything behind it is not granted either. The queue's own link
    /// if there is none.
    waiting: LinkPtr<V, T>,
    /// Writes in the ring, granted or not.
    writes: u32,
    /// Granted reads without an operation, which are not in the ring.
    pins: u32,
}

impl<V, T> Queue<V, T> {
    /// The queue of a variable that still moves. [`close_ring`](Self::close_ring) makes it usable.
    pub(crate) fn new() -> Self {
        Self {
            ends: UnsafeCell::new(Links::UNLINKED),
            state: UnsafeCell::new(AccessQueueState { waiting: LinkPtr::dangling(), writes: 0, pins: 0 }),
        }
    }

    /// Closes the empty ring. From now on the queue must not move.
    pub(crate) fn close_ring(&self) {
        let end = self.end();
        // SAFETY: no other thread can reach the queue yet.
        unsafe {
            self.ends.with_mut(|ends| *ends = Links { previous: end, next: end });
            self.state.with_mut(|state| (*state).waiting = end);
        }
    }

    #[inline(always)]
    fn end(&self) -> LinkPtr<V, T> {
        NonNull::from(&self.ends)
    }

    /// # Safety
    /// The caller holds the variable's lock.
    #[inline(always)]
    unsafe fn first(&self) -> LinkPtr<V, T> {
        // SAFETY: forwarded to the caller.
        self.ends.with(|ends| unsafe { (*ends).next })
    }

    /// Lends the state.
    ///
    /// # Safety
    /// The caller holds the variable's lock, and `f` does not come back here.
    #[inline(always)]
    unsafe fn state<R>(&self, f: impl FnOnce(&mut AccessQueueState<V, T>) -> R) -> R {
        // SAFETY: forwarded to the caller.
        self.state.with_mut(|state| f(unsafe { &mut *state }))
    }

    /// # Safety
    /// The caller holds the variable's lock.
    #[inline(always)]
    pub(crate) unsafe fn is_empty(&self) -> bool {
        // SAFETY: forwarded to the caller.
        unsafe { self.first() == self.end() }
    }

    /// # Safety
    /// The caller holds the variable's lock.
    #[inline(always)]
    pub(crate) unsafe fn writes(&self) -> u32 {
        // SAFETY: forwarded to the caller.
        unsafe { self.state(|state| state.writes) }
    }

    /// # Safety
    /// The caller holds the variable's lock.
    #[inline(always)]
    pub(crate) unsafe fn pins(&self) -> u32 {
        // SAFETY: forwarded to the caller.
        unsafe { self.state(|state| state.pins) }
    }

    /// Counts a read without an operation, if a read would be granted at once.
    ///
    /// # Safety
    /// The caller holds the variable's lock.
    #[inline(always)]
    pub(crate) unsafe fn try_pin(&self) -> bool {
        let end = self.end();
        // SAFETY: forwarded to the caller.
        unsafe {
            self.state(|state| {
                // A count that is full refuses, as if a write were in the way.
                let granted = (state.waiting == end) & (state.writes == 0) & (state.pins < u32::MAX);
                state.pins += u32::from(granted);
                granted
            })
        }
    }

    /// Takes back one [pin](Self::try_pin); then the caller [advances](Self::advance) the queue.
    ///
    /// # Safety
    /// The caller holds the variable's lock.
    ///
    /// # Panics
    /// If there is none.
    #[inline(always)]
    pub(crate) unsafe fn unpin(&self) {
        // SAFETY: forwarded to the caller.
        unsafe {
            self.state(|state| {
                state.pins = state.pins.checked_sub(1).expect("a pin is released once");
            });
        }
    }

    /// Links `access` at the end. True: it is granted at once.
    ///
    /// # Safety
    /// The caller holds the variable's lock and owns `access`, which is in no list.
    #[inline(always)]
    pub(crate) unsafe fn append(&self, access: AccessPtr<V, T>, exclusive: bool) -> bool {
        let end = self.end();
        // SAFETY: forwarded to the caller; whatever is linked here is ours by the lock.
        unsafe {
            let link = AccessNode::link(access);
            let (last, empty) = self.ends.with(|ends| ((*ends).previous, (*ends).next == end));
            let granted = self.state(|state| {
                let none_waits = state.waiting == end;
                // If nothing waits, everything queued is granted; without a write it is a run of reads.
                let granted =
                    if exclusive { empty & (state.pins == 0) } else { none_waits & (state.writes == 0) };
                if none_waits & !granted {
                    state.waiting = link;
                }
                state.writes += u32::from(exclusive);
                granted
            });
            link.as_ref().with_mut(|links| *links = Links { previous: last, next: end });
            last.as_ref().with_mut(|links| (*links).next = link);
            self.ends.with_mut(|ends| (*ends).previous = link);
            granted
        }
    }

    /// Links `access`, granted, behind `neighbour`.
    ///
    /// # Safety
    /// The caller holds the variable's lock; `neighbour` is in this list and granted; the caller owns
    /// `access`, which is in no list.
    pub(crate) unsafe fn insert_behind(
        &self,
        neighbour: AccessPtr<V, T>,
        access: AccessPtr<V, T>,
        mode: AccessMode,
    ) {
        // SAFETY: the neighbours are linked here and we hold the lock; `access` is ours.
        unsafe {
            let (before, link) = (AccessNode::link(neighbour), AccessNode::link(access));
            let behind = before.as_ref().with(|links| (*links).next);
            link.as_ref().with_mut(|links| *links = Links { previous: before, next: behind });
            before.as_ref().with_mut(|links| (*links).next = link);
            behind.as_ref().with_mut(|links| (*links).previous = link);
            self.state(|state| {
                debug_assert!(state.waiting != before, "only a granted access has granted neighbours");
                state.writes += u32::from(mode.is_exclusive());
            });
        }
    }

    /// Takes a granted access out.
    ///
    /// # Safety
    /// The caller holds the variable's lock; `access` is in this list and granted.
    #[inline(always)]
    pub(crate) unsafe fn unlink(&self, access: AccessPtr<V, T>, exclusive: bool) {
        // SAFETY: the access and its neighbours are linked here, and we hold the lock.
        unsafe {
            let link = AccessNode::link(access);
            let (previous, next) = link.as_ref().with(|links| ((*links).previous, (*links).next));
            previous.as_ref().with_mut(|links| (*links).next = next);
            next.as_ref().with_mut(|links| (*links).previous = previous);
            self.state(|state| {
                debug_assert!(state.waiting != link, "only granted accesses are completed");
                state.writes -= u32::from(exclusive);
            });
        }
    }

    /// Takes an access out, granted or not.
    ///
    /// # Safety
    /// The caller holds the variable's lock; `access` is in this list.
    pub(crate) unsafe fn withdraw(&self, access: AccessPtr<V, T>, exclusive: bool) {
        let link = AccessNode::link(access);
        // SAFETY: forwarded to the caller.
        unsafe {
            let next = Self::next(link);
            self.state(|state| {
                if state.waiting == link {
                    state.waiting = next;
                }
            });
            self.unlink(access, exclusive);
        }
    }

    /// Puts `to` where `from` is.
    ///
    /// # Safety
    /// The caller holds the variable's lock; `from` is in this list; the caller owns `to`, which is in no
    /// list.
    pub(crate) unsafe fn replace(&self, from: AccessPtr<V, T>, to: AccessPtr<V, T>) {
        let (old, new) = (AccessNode::link(from), AccessNode::link(to));
        // SAFETY: the access and its neighbours are linked here, and we hold the lock.
        unsafe {
            let (previous, next) = old.as_ref().with(|links| ((*links).previous, (*links).next));
            new.as_ref().with_mut(|links| *links = Links { previous, next });
            previous.as_ref().with_mut(|links| (*links).next = new);
            next.as_ref().with_mut(|links| (*links).previous = new);
            self.state(|state| {
                if state.waiting == old {
                    state.waiting = new;
                }
            });
        }
    }

    /// True if `write`, a write of an operation that waits, is granted. Such an operation was not split, so
    /// its granted write is the first of the queue.
    ///
    /// # Safety
    /// The caller holds the variable's lock; `write` is in this list.
    pub(crate) unsafe fn is_granted_write(&self, write: AccessPtr<V, T>) -> bool {
        let link = AccessNode::link(write);
        // SAFETY: forwarded to the caller.
        unsafe { self.first() == link && self.state(|state| state.waiting != link) }
    }

    /// The number of writes ahead of `access`, granted or not.
    ///
    /// # Safety
    /// The caller holds the variable's lock; `access` is in this list.
    pub(crate) unsafe fn writes_ahead_of(&self, access: AccessPtr<V, T>) -> u64 {
        // SAFETY: the lock is held, so linked accesses are in flight.
        let ahead = unsafe {
            let ahead = self.iter().take_while(|(linked, _)| *linked != access);
            ahead.filter(|(linked, _)| linked.as_ref().target().is_exclusive()).count()
        };
        ahead as u64
    }

    /// After an access, `exclusive` or not, was unlinked: grants what may go next, handing each to `grant`.
    /// Grants the next write if nothing granted is left, or the next run of reads if nothing but reads is.
    ///
    /// # Safety
    /// The caller holds the variable's lock.
    #[inline(always)]
    pub(crate) unsafe fn advance(&self, exclusive: bool, mut grant: impl FnMut(AccessPtr<V, T>)) {
        let end = self.end();
        // SAFETY: linked accesses are in flight and we hold the lock; a granted operation cannot leave this
        // list before we release the lock, so reading `next` after the grant is sound too.
        unsafe {
            let mut waiting = self.state(|state| state.waiting);
            if waiting == end {
                return;
            }
            let idle = self.first() == waiting;
            if AccessNode::of(waiting).as_ref().target().is_exclusive() {
                if !idle || self.pins() > 0 {
                    return;
                }
                grant(AccessNode::of(waiting));
                waiting = Self::next(waiting);
                // An access that was submitted long ago has left the cache.
                prefetch::<1, _>(waiting);
            } else {
                let joins = idle || exclusive && self.only_reads_are_granted();
                if !joins {
                    return;
                }
                while waiting != end && !AccessNode::of(waiting).as_ref().target().is_exclusive() {
                    grant(AccessNode::of(waiting));
                    waiting = Self::next(waiting);
                }
            }
            self.state(|state| state.waiting = waiting);
        }
    }

    /// True if no granted access has the variable alone. A completed write leaves granted accesses behind
    /// only if it was split.
    ///
    /// # Safety
    /// The caller holds the variable's lock.
    #[cold]
    unsafe fn only_reads_are_granted(&self) -> bool {
        // SAFETY: the lock is held, so linked accesses are in flight.
        unsafe {
            self.iter()
                .take_while(|(_, granted)| *granted)
                .all(|(access, _)| access.as_ref().target().mode() == AccessMode::Read)
        }
    }

    /// Every access ahead of `access`, the nearest first, and whether it is known to be granted. Of a granted
    /// access it is not.
    ///
    /// # Safety
    /// The caller holds the variable's lock, also while it uses the iterator; `access` is in this list.
    pub(crate) unsafe fn ahead_of(
        &self,
        access: AccessPtr<V, T>,
    ) -> impl Iterator<Item = (AccessPtr<V, T>, bool)> + use<'_, V, T> {
        let end = self.end();
        // SAFETY: forwarded to the caller.
        let waiting = unsafe { self.state(|state| state.waiting) };
        let mut granted = false;
        let mut behind = AccessNode::link(access);
        std::iter::from_fn(move || {
            granted |= behind == waiting;
            // SAFETY: the link is in this ring, and the caller holds the lock.
            behind = unsafe { behind.as_ref() }.with(|links| unsafe { (*links).previous });
            // SAFETY: every link but the queue's own is an access's.
            (behind != end).then(|| (unsafe { AccessNode::of(behind) }, granted))
        })
    }

    /// Every access in order, and whether it is granted.
    ///
    /// # Safety
    /// The caller holds the variable's lock, also while it uses the iterator.
    pub(crate) unsafe fn iter(&self) -> impl Iterator<Item = (AccessPtr<V, T>, bool)> + use<'_, V, T> {
        let end = self.end();
        let mut granted = true;
        // SAFETY: forwarded to the caller.
        let (first, waiting) = unsafe { (self.first(), self.state(|state| state.waiting)) };
        // SAFETY: as above.
        std::iter::successors(Some(first), |link| Some(unsafe { Self::next(*link) }))
            .take_while(move |link| *link != end)
            .map(move |link| {
                granted &= waiting != link;
                // SAFETY: every link but the queue's own is an access's.
                (unsafe { AccessNode::of(link) }, granted)
            })
    }

    /// The accesses behind `access`, in order.
    ///
    /// # Safety
    /// The caller holds the variable's lock, also while it uses the iterator; `access` is in this list.
    pub(crate) unsafe fn behind(
        &self,
        access: AccessPtr<V, T>,
    ) -> impl Iterator<Item = AccessPtr<V, T>> + use<'_, V, T> {
        let end = self.end();
        // SAFETY: the links are in this ring, and the caller holds the lock.
        let first = unsafe { Self::next(AccessNode::link(access)) };
        // SAFETY: as above.
        std::iter::successors(Some(first), |link| Some(unsafe { Self::next(*link) }))
            .take_while(move |link| *link != end)
            // SAFETY: every link but the queue's own is an access's.
            .map(|link| unsafe { AccessNode::of(link) })
    }

    /// # Safety
    /// The caller holds the lock of the variable in whose ring the link is.
    #[inline(always)]
    unsafe fn next(link: LinkPtr<V, T>) -> LinkPtr<V, T> {
        // SAFETY: forwarded to the caller.
        unsafe { link.as_ref() }.with(|links| unsafe { (*links).next })
    }
}
