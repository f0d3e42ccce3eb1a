//! The word of a variable: a spin lock, and flags that are read without the lock.

use estafette_sync::sync::atomic::{AtomicU32, Ordering};
use estafette_sync::{hint, thread};

use crate::biased_lock::CriticalSection;
use crate::reentry::{GraphAddress, panic_if_lent};

/// A thread holds the lock: the queue, the state `V` and this word belong to it.
const LOCKED: u32 = 1 << 0;
/// At least one write is queued or granted and not completed.
const UNFINISHED_WRITE: u32 = 1 << 1;
/// The last handle is gone: the thread that finds (or makes) the queue empty retires the variable. Set once,
/// never cleared.
const ORPHANED: u32 = 1 << 2;
/// Accesses go to another variable (`VarNode::forward`) from now on. Set once, never cleared.
const FORWARDED: u32 = 1 << 3;
/// Other variables forward to this one, or did (`VarNode::group` is present). Set once, never cleared.
const GROUP: u32 = 1 << 4;
/// Everything from here up is the user's.
const USER_SHIFT: u32 = 8;
/// The flags a user may set: 24 bits.
pub(crate) const USER_MASK: u32 = u32::MAX >> USER_SHIFT;

/// Failed attempts before a waiter yields its time slice. The lock is held for tens of nanoseconds, so a
/// holder that is not done after this many pauses (about a microsecond) has most likely been preempted.
const SPIN_LIMIT: u32 = 64;

/// A value of the word, without the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct VarWord(u32);

impl VarWord {
    pub(crate) fn unfinished_write(self) -> bool {
        self.0 & UNFINISHED_WRITE != 0
    }

    pub(crate) fn orphaned(self) -> bool {
        self.0 & ORPHANED != 0
    }

    pub(crate) fn forwarded(self) -> bool {
        self.0 & FORWARDED != 0
    }

    pub(crate) fn group(self) -> bool {
        self.0 & GROUP != 0
    }

    pub(crate) fn user(self) -> u32 {
        self.0 >> USER_SHIFT
    }

    /// Neither an unfinished write nor a user flag: one comparison.
    pub(crate) fn has_no_write_or_flag(self) -> bool {
        self.0 & (UNFINISHED_WRITE | USER_MASK << USER_SHIFT) == 0
    }

    #[must_use]
    pub(crate) fn with_unfinished_write(self, yes: bool) -> Self {
        Self(if yes { self.0 | UNFINISHED_WRITE } else { self.0 & !UNFINISHED_WRITE })
    }

    #[must_use]
    pub(crate) fn with_orphaned(self) -> Self {
        Self(self.0 | ORPHANED)
    }

    #[must_use]
    pub(crate) fn with_forwarded(self) -> Self {
        Self(self.0 | FORWARDED)
    }

    #[must_use]
    pub(crate) fn with_group(self) -> Self {
        Self(self.0 | GROUP)
    }

    #[must_use]
    pub(crate) fn with_user(self, flags: u32) -> Self {
        debug_assert!(flags <= USER_MASK, "user flags are 24 bits");
        Self(self.0 & ((1 << USER_SHIFT) - 1) | flags << USER_SHIFT)
    }
}

#[derive(Debug)]
pub(crate) struct VarLock(AtomicU32);

impl VarLock {
    pub(crate) fn new() -> Self {
        Self(AtomicU32::new(0))
    }

    /// Takes the lock and returns the word. Acquire: everything done under the lock before is visible.
    /// `graph` is called only if the thread has to wait.
    #[inline]
    pub(crate) fn lock(&self, graph: impl FnOnce() -> GraphAddress) -> VarWord {
        let free = self.peek() & !LOCKED;
        match self.0.compare_exchange(free, free | LOCKED, Ordering::Acquire, Ordering::Relaxed) {
            Ok(word) => VarWord(word),
            Err(_) => self.lock_contended(graph()),
        }
    }

    /// Takes the lock in a critical section. In an exclusive section no other thread can come, so nothing
    /// need be stored.
    #[inline(always)]
    pub(crate) fn lock_within(
        &self,
        section: &CriticalSection,
        graph: impl FnOnce() -> GraphAddress,
    ) -> VarWord {
        if !section.is_exclusive() {
            return self.lock(graph);
        }
        let word = self.load_locked();
        if cfg!(debug_assertions) {
            assert_eq!(self.0.load(Ordering::Relaxed) & LOCKED, 0, "taken twice by one thread");
            self.0.store(word.0 | LOCKED, Ordering::Relaxed);
        }
        word
    }

    /// As [`lock_within`](Self::lock_within), without waiting: `None` if the lock is taken.
    pub(crate) fn try_lock_within(&self, section: &CriticalSection) -> Option<VarWord> {
        if section.is_exclusive() {
            return Some(self.lock_within(section, std::ptr::null));
        }
        let free = self.peek() & !LOCKED;
        let taken = self.0.compare_exchange(free, free | LOCKED, Ordering::Acquire, Ordering::Relaxed);
        taken.is_ok().then_some(VarWord(free))
    }

    #[cold]
    fn lock_contended(&self, graph: GraphAddress) -> VarWord {
        // If this thread holds the lock itself, it would wait for ever.
        panic_if_lent(graph);
        let mut pauses = 0;
        loop {
            if pauses < SPIN_LIMIT {
                pauses += 1;
                hint::spin_loop();
            } else {
                thread::yield_now();
            }
            // Read before the compare-exchange: waiters that only read leave the cache line with the holder.
            let free = self.peek();
            if free & LOCKED == 0
                && self.0.compare_exchange(free, free | LOCKED, Ordering::Acquire, Ordering::Relaxed).is_ok()
            {
                return VarWord(free);
            }
        }
    }

    /// A first guess of the word, which the compare-exchange that follows verifies.
    ///
    /// In a model, a compare-exchange that fails: it sees the newest value, so that old ones (which would
    /// only make the next step fail) need not be explored, and loom counts it as a conflict with loads of
    /// other threads, of which it remembers only the last one to the same place.
    #[inline]
    fn peek(&self) -> u32 {
        if cfg!(estafette_loom) {
            const NEVER: u32 = u32::MAX;
            let seen = self.0.compare_exchange(NEVER, NEVER, Ordering::Relaxed, Ordering::Relaxed);
            return seen.unwrap_or_else(|word| word);
        }
        self.0.load(Ordering::Relaxed)
    }

    /// Releases the lock and publishes `word`. Release: pairs with [`Self::lock`] and [`Self::load`]. A plain
    /// store suffices, because only the holder changes a locked word.
    #[inline]
    pub(crate) fn unlock(&self, word: VarWord) {
        debug_assert_eq!(self.0.load(Ordering::Relaxed) & LOCKED, LOCKED, "only the holder unlocks");
        debug_assert_eq!(word.0 & LOCKED, 0, "a word in hand never carries the bit");
        self.0.store(word.0, Ordering::Release);
    }

    /// Publishes `word` and keeps the lock. Release: pairs with [`Self::load`].
    #[inline]
    pub(crate) fn publish(&self, word: VarWord) {
        debug_assert_eq!(self.0.load(Ordering::Relaxed) & LOCKED, LOCKED, "only the holder publishes");
        self.0.store(word.0 | LOCKED, Ordering::Release);
    }

    /// The current word, locked or not. Acquire: what a completed write published under the lock is visible.
    #[inline]
    pub(crate) fn load(&self) -> VarWord {
        VarWord(self.0.load(Ordering::Acquire) & !LOCKED)
    }

    /// The current word, read by the holder of the lock.
    #[inline]
    pub(crate) fn load_locked(&self) -> VarWord {
        VarWord(self.0.load(Ordering::Relaxed) & !LOCKED)
    }
}
