//! The queue of a variable: its accesses in submission order, the granted ones first.

use crate::access::{Access, AccessPtr, Mode};

/// An intrusive list of accesses. Everything before `waiting` is granted: one write, or a run of reads, or a write and
/// what was split off it. Granted accesses stay until they are completed, so that a stuck graph can always be explained.
///
/// All methods belong to the holder of the variable's bit.
pub(crate) struct Queue<V, T> {
    head: Option<AccessPtr<V, T>>,
    tail: Option<AccessPtr<V, T>>,
    /// The first access that is not granted; everything behind it is not granted either.
    waiting: Option<AccessPtr<V, T>>,
    /// Writes in the list, granted or not.
    writes: u32,
}

impl<V, T> Queue<V, T> {
    pub(crate) const fn new() -> Self {
        Self { head: None, tail: None, waiting: None, writes: 0 }
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.head.is_none()
    }

    /// Unfinished writes.
    #[inline]
    pub(crate) fn writes(&self) -> u32 {
        self.writes
    }

    /// Links `access` at the end. True: it is granted at once.
    ///
    /// # Safety
    /// The caller holds the variable's bit and owns `access`, which is in no list.
    #[inline]
    pub(crate) unsafe fn append(&mut self, access: AccessPtr<V, T>, mode: Mode) -> bool {
        let granted = match mode {
            Mode::Write | Mode::Update => self.head.is_none(),
            // Nobody waits, so everything queued is granted, and without a write it is a run of reads.
            Mode::Read => self.waiting.is_none() && self.writes == 0,
        };
        let previous = self.tail.replace(access);
        // SAFETY: both are ours: `access` by contract, the old tail by the bit.
        unsafe {
            access.as_ref().links(|links| {
                links.previous = previous;
                links.next = None;
            });
            match previous {
                Some(tail) => tail.as_ref().links(|links| links.next = Some(access)),
                None => self.head = Some(access),
            }
        }
        if !granted && self.waiting.is_none() {
            self.waiting = Some(access);
        }
        self.writes += u32::from(mode.is_exclusive());
        granted
    }

    /// Links `access`, granted, behind `neighbour`.
    ///
    /// # Safety
    /// The caller holds the variable's bit; `neighbour` is in this list and granted; the caller owns `access`, which is
    /// in no list.
    pub(crate) unsafe fn insert_behind(
        &mut self,
        neighbour: AccessPtr<V, T>,
        access: AccessPtr<V, T>,
        mode: Mode,
    ) {
        debug_assert!(self.waiting != Some(neighbour), "only a granted access has granted neighbours");
        // SAFETY: the neighbours are linked here and we hold the bit; `access` is ours.
        unsafe {
            let next = neighbour.as_ref().links(|links| links.next.replace(access));
            access.as_ref().links(|links| {
                links.previous = Some(neighbour);
                links.next = next;
            });
            match next {
                Some(next) => next.as_ref().links(|links| links.previous = Some(access)),
                None => self.tail = Some(access),
            }
        }
        self.writes += u32::from(mode.is_exclusive());
    }

    /// Takes a granted access out.
    ///
    /// # Safety
    /// The caller holds the variable's bit; `access` is in this list and granted.
    #[inline]
    pub(crate) unsafe fn unlink(&mut self, access: AccessPtr<V, T>, mode: Mode) {
        debug_assert!(self.waiting != Some(access), "only granted accesses are completed");
        // SAFETY: the access and its neighbours are linked here, and we hold the bit.
        unsafe {
            let (previous, next) = access.as_ref().links(|links| (links.previous.take(), links.next.take()));
            match previous {
                Some(previous) => previous.as_ref().links(|links| links.next = next),
                None => self.head = next,
            }
            match next {
                Some(next) => next.as_ref().links(|links| links.previous = previous),
                None => self.tail = previous,
            }
        }
        self.writes -= u32::from(mode.is_exclusive());
    }

    /// After an access used in mode `completed` was unlinked: grants what may go next, handing each to `grant`. That is
    /// the next write if nothing granted is left, or the next run of reads if only reads are.
    ///
    /// # Safety
    /// The caller holds the variable's bit.
    #[inline]
    pub(crate) unsafe fn advance(&mut self, completed: Mode, mut grant: impl FnMut(AccessPtr<V, T>)) {
        let Some(first) = self.waiting else { return };
        // SAFETY: linked accesses are in flight and we hold the bit; a granted operation cannot leave this list
        // before we give the bit back, so reading `next` after the grant is sound too.
        unsafe {
            let idle = self.head == Some(first);
            let may_advance = idle || completed.is_exclusive() && self.only_reads_are_granted();
            if !may_advance {
                return;
            }
            if first.as_ref().target().mode().is_exclusive() {
                if idle {
                    grant(first);
                    self.waiting = Self::next(first);
                }
                return;
            }
            while let Some(access) = self.waiting
                && access.as_ref().target().mode() == Mode::Read
            {
                grant(access);
                self.waiting = Self::next(access);
            }
        }
    }

    /// Whether no granted access has the variable alone. A completed write leaves granted accesses behind only if it
    /// was split.
    ///
    /// # Safety
    /// The caller holds the variable's bit.
    #[cold]
    unsafe fn only_reads_are_granted(&self) -> bool {
        // SAFETY: the bit is held, so linked accesses are in flight.
        unsafe {
            self.iter()
                .take_while(|(_, granted)| *granted)
                .all(|(access, _)| access.as_ref().target().mode() == Mode::Read)
        }
    }

    /// Every access in order, and whether it is granted.
    ///
    /// # Safety
    /// The caller holds the variable's bit, also while it uses the iterator.
    pub(crate) unsafe fn iter(&self) -> impl Iterator<Item = (AccessPtr<V, T>, bool)> + use<'_, V, T> {
        let mut granted = true;
        // SAFETY: forwarded to the caller.
        std::iter::successors(self.head, |access| unsafe { Self::next(*access) }).map(move |access| {
            granted &= self.waiting != Some(access);
            (access, granted)
        })
    }

    /// # Safety
    /// The caller holds the bit of the variable in whose list `access` is.
    #[inline]
    unsafe fn next(access: AccessPtr<V, T>) -> Option<AccessPtr<V, T>> {
        // SAFETY: forwarded to the caller.
        unsafe { Access::links(access.as_ref(), |links| links.next) }
    }
}
