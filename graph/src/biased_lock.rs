//! A biased lock: one thread uses the graph without locked instructions, until a second thread comes.
//!
//! Two thirds of the cost of a short operation are locked instructions that keep out threads which do not
//! exist. So a graph may be *biased* towards the first thread that uses it. That thread enters and leaves
//! critical sections with plain stores; inside, it reads and writes locks and counters plainly. The first
//! other thread ends the bias for good, and from then on every thread takes locks. (Biased locking as in
//! Kawachiya, Koseki and Onodera, "Lock Reservation", 2002, for a whole graph at once.)
//!
//! ```text
//! UNCLAIMED ──first thread──► its token ──another thread──► REVOKING ──the owner is outside──► SHARED
//!     └──────────────────────────────── share() ──────────────────────────────────────────────────▲
//! ```
//!
//! # Why two threads never meet inside
//! The owner stores that it is inside, fences (the light side of [`estafette_sync::barrier`]), and loads the
//! owner. A revoker stores that it revokes, fences (the heavy side), and waits until the owner is outside.
//! Whichever fence comes first, either the owner sees that it is no longer the owner, leaves, and waits for
//! `SHARED`; or the revoker sees it inside. The owner's writes inside are published by its leaving (Release)
//! to the revoker (Acquire), and by `SHARED` (Release) to all other threads (Acquire).
//!
//! A thread never waits inside: variables' locks need not be taken there, and every other lock of the graph
//! is taken outside, or its holders never enter.
//!
//! # Why critical sections do not nest
//! A critical section lends state to closures, which must not use the graph. A closure that does is refused
//! by a panic: the owner finds its own token in `inside`, whether the bias lasts or is being revoked. The
//! bias cannot have ended, since the revoker waits for the section.

use std::cell::Cell;
use std::ptr::NonNull;

use estafette_sync::process::Generation;
use estafette_sync::sync::atomic::{AtomicU64, Ordering};
use estafette_sync::{barrier, thread, thread_local};

use crate::reentry;

/// Every thread takes locks. Final.
const SHARED: u64 = 0;
/// No thread has used the graph yet.
const UNCLAIMED: u64 = 1;
/// A revoker waits until the owner is outside.
const REVOKING: u64 = 2;
/// Tokens of threads are greater.
const FIRST_TOKEN: u64 = 3;

const OUTSIDE: u64 = 0;

/// The thread that uses the graph without locked instructions, if one does.
pub(crate) struct BiasedLock {
    owner: AtomicU64,
    /// The owner's token while it is in a section, else [`OUTSIDE`]. Only the owner writes it.
    inside: AtomicU64,
    generation: Generation,
}

/// The time in which the calling thread takes and releases locks. Critical sections do not nest. Not every
/// section is [exclusive](Self::is_exclusive).
pub(crate) struct CriticalSection {
    /// Of a graph that is never freed; `None` if the section is not exclusive.
    biased: Option<NonNull<BiasedLock>>,
}

impl BiasedLock {
    /// For a graph that is never biased.
    pub(crate) fn shared() -> Self {
        Self::owned_by(SHARED)
    }

    /// For a graph that is never freed. Where both sides of the fence cost the same, the lock is shared from
    /// the start.
    pub(crate) fn unclaimed() -> Self {
        let owner = if barrier::is_asymmetric() { UNCLAIMED } else { SHARED };
        Self::owned_by(owner)
    }

    fn owned_by(owner: u64) -> Self {
        Self {
            owner: AtomicU64::new(owner),
            inside: AtomicU64::new(OUTSIDE),
            generation: Generation::current(),
        }
    }

    /// Enters a critical section. A graph whose lock was made [`unclaimed`](Self::unclaimed) is never freed.
    ///
    /// # Panics
    /// If the thread owns the lock and is in a section already.
    #[inline(always)]
    pub(crate) fn acquire(&self) -> CriticalSection {
        // Acquire: after `SHARED`, what the last owner did is visible.
        let owner = self.owner.load(Ordering::Acquire);
        if owner == SHARED {
            return CriticalSection { biased: None };
        }
        if owner == TOKEN.with(Cell::get) {
            // A plain load of the thread's own line: nothing else refuses a nested section.
            if self.inside.load(Ordering::Relaxed) != OUTSIDE {
                reentry::panic_reentered();
            }
            self.inside.store(owner, Ordering::Relaxed);
            barrier::light();
            if self.owner.load(Ordering::Relaxed) == owner {
                return CriticalSection { biased: Some(NonNull::from(self)) };
            }
            self.inside.store(OUTSIDE, Ordering::Release);
        }
        self.acquire_slow()
    }

    #[cold]
    fn acquire_slow(&self) -> CriticalSection {
        let token = token();
        self.refuse_inside(token);
        let owner = self.owner.load(Ordering::Relaxed);
        if owner == UNCLAIMED && self.becomes(owner, token) || owner == token {
            return self.acquire();
        }
        self.share();
        CriticalSection { biased: None }
    }

    /// Ends the bias.
    ///
    /// # Panics
    /// If the thread is in a section: it would wait for itself.
    #[cold]
    pub(crate) fn share(&self) {
        self.refuse_inside(token());
        loop {
            match self.owner.load(Ordering::Acquire) {
                SHARED => return,
                REVOKING if self.generation.is_inherited() => self.owner.store(SHARED, Ordering::Relaxed),
                REVOKING => thread::yield_now(),
                UNCLAIMED if self.becomes(UNCLAIMED, SHARED) => return,
                owner if self.becomes(owner, REVOKING) => {
                    barrier::heavy();
                    // In a forked child, the owner's thread may not exist; then it never leaves.
                    while self.inside.load(Ordering::Acquire) != OUTSIDE && self.generation.is_current() {
                        thread::yield_now();
                    }
                    self.owner.store(SHARED, Ordering::Release);
                    return;
                }
                _ => {}
            }
        }
    }

    /// While the bias is being revoked, the owner finds its own token here as long as its section lasts.
    fn refuse_inside(&self, token: u64) {
        if self.inside.load(Ordering::Relaxed) == token {
            reentry::panic_reentered();
        }
    }

    fn becomes(&self, before: u64, after: u64) -> bool {
        self.owner.compare_exchange(before, after, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }
}

impl CriticalSection {
    /// A section of no graph.
    pub(crate) const NONE: Self = Self { biased: None };

    /// True if only the calling thread uses the graph, so that it need not take locks.
    #[inline(always)]
    pub(crate) fn is_exclusive(&self) -> bool {
        self.biased.is_some()
    }
}

impl Drop for CriticalSection {
    #[inline(always)]
    fn drop(&mut self) {
        if let Some(biased) = self.biased {
            // SAFETY: the graph is never freed.
            unsafe { biased.as_ref() }.inside.store(OUTSIDE, Ordering::Release);
        }
    }
}

thread_local! {
    /// A number that no other thread has had; 0 until the first call of [`token`].
    static TOKEN: Cell<u64> = const { Cell::new(0) };
}

fn token() -> u64 {
    // A plain `std` atomic: the only promise is that every number is returned once.
    static NEXT: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(FIRST_TOKEN);
    TOKEN.with(|token| {
        if token.get() == 0 {
            token.set(NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed));
        }
        token.get()
    })
}

#[cfg(all(test, estafette_loom))]
mod models {
    use estafette_sync::cell::UnsafeCell;
    use estafette_sync::sync::{Arc, Mutex};

    use super::*;

    /// A value for one thread at a time: accessed plainly in an exclusive section, under a lock otherwise.
    struct Guarded {
        biased: BiasedLock,
        lock: Mutex<()>,
        value: UnsafeCell<usize>,
    }

    // SAFETY: that this holds is what the models check.
    unsafe impl Sync for Guarded {}
    // SAFETY: as above.
    unsafe impl Send for Guarded {}

    impl Guarded {
        fn new() -> Arc<Self> {
            let (lock, value) = (Mutex::new(()), UnsafeCell::new(0));
            Arc::new(Self { biased: BiasedLock::unclaimed(), lock, value })
        }

        /// Adds one. True: the section was exclusive.
        fn add(&self) -> bool {
            let section = self.biased.acquire();
            let _locked = (!section.is_exclusive()).then(|| self.lock.lock());
            // SAFETY: claimed by the protocol, and watched by loom.
            self.value.with_mut(|value| unsafe { *value += 1 });
            section.is_exclusive()
        }

        fn value(&self) -> usize {
            // SAFETY: all other threads have ended.
            self.value.with(|value| unsafe { *value })
        }
    }

    fn model(preemptions: usize, f: impl Fn() + Sync + Send + 'static) {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(preemptions);
        // Threads that wait for the owner poll.
        builder.max_branches = 100_000;
        builder.check(f);
    }

    #[test]
    fn the_owner_and_a_second_thread_never_meet_inside() {
        let alone = std::sync::Arc::new(std::sync::Mutex::new([0; 3]));
        let seen = std::sync::Arc::clone(&alone);
        model(3, move || {
            let guarded = Guarded::new();
            assert!(guarded.add(), "the first thread is alone");
            let other = {
                let guarded = Arc::clone(&guarded);
                thread::spawn(move || assert!(!guarded.add(), "the second one is not"))
            };
            let mine = [guarded.add(), guarded.add()].map(usize::from).iter().sum::<usize>();
            other.join().expect("the other thread ends well");
            assert!(!guarded.add(), "no section is exclusive from now on");
            assert_eq!(guarded.value(), 5);
            seen.lock().expect("no model panics under it")[mine] += 1;
        });
        // The second thread has come before, between and after the owner's two additions.
        assert!(alone.lock().expect("no model panics under it").iter().all(|times| *times > 0));
    }

    #[test]
    fn two_threads_take_an_unclaimed_graph_at_once() {
        model(3, || {
            let guarded = Guarded::new();
            let other = {
                let guarded = Arc::clone(&guarded);
                thread::spawn(move || (guarded.add(), guarded.add()))
            };
            let _ = guarded.add();
            other.join().expect("the other thread ends well");
            assert_eq!(guarded.value(), 3);
        });
    }

    #[test]
    fn two_threads_end_the_bias_of_a_third() {
        model(2, || {
            let guarded = Guarded::new();
            guarded.add();
            let others = [(); 2].map(|()| {
                let guarded = Arc::clone(&guarded);
                thread::spawn(move || assert!(!guarded.add()))
            });
            guarded.add();
            others.into_iter().for_each(|other| other.join().expect("the other thread ends well"));
            assert_eq!(guarded.value(), 4);
        });
    }
}
