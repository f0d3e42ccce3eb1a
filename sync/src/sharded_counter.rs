//! A counter of what is under way, without locked instructions.
//!
//! Each thread has a *shard* with counters that only this thread writes: what it has begun, what it has
//! ended. One thread may end what another has begun. A reader adds all shards up.
//!
//! # Why the sum can be trusted
//! [`ShardedCounter::under_way`] reads all `ended`, and then all `begun`. Let *E* be the first sum and *B*
//! the second, and *t* any moment between the two. Counters only rise, so E is at most what had ended at *t*,
//! and B at least what had begun at *t*: the difference is never too small, and if it is 0, nothing was under
//! way at *t*. An end that is read (Acquire) was stored (Release) after its beginning, so that beginning is
//! in B.
//!
//! # Limits
//! A thread that begins something needs the sum, and a sum is expensive. So a thread reserves several
//! beginnings at once: `reserved` runs ahead of `begun`, is written under a lock, and counts as under way for
//! other threads. A thread holds at most `AHEAD_MAX` beginnings in reserve, and at most an eighth of the
//! limit divided by the threads seen so far. So all threads together hold less than two thirds of the limit
//! (the harmonic sum of `SHARDS` is 4.8), and idle threads cannot starve busy ones. With a small limit
//! nothing is reserved.
//!
//! # Waiting for an end
//! An end is a plain store. A waiter announces itself, fences, and reads the sum; a thread that ends
//! something fences, then looks for waiters. Whichever fence comes first, one of the two sees the other. The
//! waiter takes the heavy side of [`crate::barrier`].

use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

/// Threads that can have a shard. More share the last resort, where counting takes locked instructions.
const SHARDS: usize = if cfg!(estafette_loom) { 2 } else { 64 };

/// The greatest number that one thread reserves.
const AHEAD_MAX: usize = 64;

/// The counters of all threads.
pub struct ShardedCounter {
    shards: Box<[Shard]>,
    /// Shards from the first that have ever been taken; the others need not be read.
    used: AtomicUsize,
    /// For threads without a shard.
    standing: Shard,
    /// Held while a thread reserves.
    limit_lock: Mutex<()>,
}

/// The counters of one thread.
#[derive(Default)]
#[repr(align(64))]
pub struct Shard {
    begun: AtomicU64,
    reserved: AtomicU64,
    ended: AtomicU64,
    taken: AtomicBool,
}

/// The number under way, when it is too high already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Full {
    /// The number that is under way.
    pub under_way: usize,
}

impl ShardedCounter {
    /// Nothing is under way.
    pub fn new() -> Self {
        Self {
            shards: (0..SHARDS).map(|_| Shard::default()).collect(),
            used: AtomicUsize::new(0),
            standing: Shard::default(),
            limit_lock: Mutex::new(()),
        }
    }

    /// A free shard, for the calling thread.
    pub fn take_shard(&self) -> Option<&Shard> {
        let free = |shard: &&Shard| {
            shard.taken.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).is_ok()
        };
        let place = self.shards.iter().position(|shard| free(&shard))?;
        self.used.fetch_max(place + 1, Ordering::Release);
        Some(&self.shards[place])
    }

    /// Begins one, if fewer than `limit` are under way. `ahead` allows the thread to reserve several
    /// at once.
    ///
    /// # Errors
    /// [`Full`], with what is under way.
    pub fn begin(&self, shard: Option<&Shard>, limit: usize, ahead: bool) -> Result<(), Full> {
        let _limit = self.limit_lock.lock();
        let room = self.room(limit);
        if room == 0 {
            return Err(Full { under_way: self.under_way() });
        }
        match shard {
            Some(shard) => {
                let used = self.used.load(Ordering::Relaxed);
                let share = if ahead { AHEAD_MAX.min(limit / (8 * used)).min(room / 2).max(1) } else { 1 };
                // Beginnings that this thread has reserved and has not begun are part of the sum already.
                let reserved = shard.reserved.load(Ordering::Relaxed) + share as u64;
                shard.reserved.store(reserved, Ordering::Relaxed);
                shard.begun.store(shard.begun.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
            }
            None => {
                self.standing.reserved.fetch_add(1, Ordering::Relaxed);
                self.standing.begun.fetch_add(1, Ordering::Relaxed);
            }
        }
        Ok(())
    }

    /// Ends one for a thread that has no shard.
    pub fn end_standing(&self) {
        // A read-modify-write keeps the release sequences of those before.
        self.standing.ended.fetch_add(1, Ordering::Release);
    }

    /// The number that may begin beside those that threads have reserved already. Never too many, but for
    /// what begins meanwhile.
    pub fn room(&self, limit: usize) -> usize {
        let ended = self.ended();
        let reserved = self.sum(|shard| shard.reserved.load(Ordering::Relaxed));
        limit.saturating_sub(reserved.wrapping_sub(ended) as usize)
    }

    /// The number under way. Never too few; 0 only if at some moment during the call there were none.
    pub fn under_way(&self) -> usize {
        let ended = self.ended();
        let begun = self.sum(|shard| shard.begun.load(Ordering::Relaxed));
        begun.wrapping_sub(ended) as usize
    }

    /// The number that has ended. Wraps around.
    pub fn ended(&self) -> u64 {
        self.sum(|shard| shard.ended.load(Ordering::Acquire))
    }

    fn sum(&self, counter: impl Fn(&Shard) -> u64) -> u64 {
        let used = self.used.load(Ordering::Acquire);
        self.shards[..used].iter().chain([&self.standing]).map(counter).sum()
    }
}

impl Default for ShardedCounter {
    fn default() -> Self {
        Self::new()
    }
}

debug_as!(counter: ShardedCounter, "ShardedCounter({})", counter.under_way());

/// All but [`release`](Self::release) only by the thread that has taken this shard.
impl Shard {
    /// Begins one that the thread has reserved; false if there is none.
    #[inline(always)]
    pub fn begin_reserved(&self) -> bool {
        let begun = self.begun.load(Ordering::Relaxed);
        let reserved = begun < self.reserved.load(Ordering::Relaxed);
        if reserved {
            self.begun.store(begun + 1, Ordering::Relaxed);
        }
        reserved
    }

    /// Ends one.
    #[inline]
    pub fn end(&self) {
        self.ended.store(self.ended.load(Ordering::Relaxed) + 1, Ordering::Release);
    }

    /// Gives the shard up, and what was reserved. What was counted stays counted. Returns whether anything
    /// was reserved: there is more room.
    pub fn release(&self) -> bool {
        let begun = self.begun.load(Ordering::Relaxed);
        let reserved = self.reserved.load(Ordering::Relaxed);
        self.reserved.store(begun, Ordering::Relaxed);
        self.taken.store(false, Ordering::Release);
        reserved != begun
    }
}

debug_as!(shard: Shard, "Shard({:?}, {:?})", shard.begun, shard.ended);

#[cfg(all(test, not(estafette_loom)))]
mod tests {
    use super::*;

    #[test]
    fn one_thread_is_admitted_up_to_the_limit_exactly() {
        for limit in [1, 7, 64, 1_000, 100_000] {
            let sharded_counter = ShardedCounter::new();
            let shard = sharded_counter.take_shard().expect("the first shard is free");
            let begin = || shard.begin_reserved() || sharded_counter.begin(Some(shard), limit, true).is_ok();
            assert_eq!((0..2 * limit).filter(|_| begin()).count(), limit);
            assert_eq!(sharded_counter.begin(None, limit, true), Err(Full { under_way: limit }));
            shard.end();
            assert_eq!(sharded_counter.under_way(), limit - 1);
            assert!(begin() && !begin());
        }
    }

    #[test]
    fn seats_run_out_and_come_back() {
        let sharded_counter = ShardedCounter::new();
        let shards: Vec<_> = std::iter::from_fn(|| sharded_counter.take_shard()).collect();
        assert_eq!(shards.len(), SHARDS);
        sharded_counter.begin(None, 10, true).expect("there is room");
        sharded_counter.begin(Some(shards[3]), 100_000, true).expect("there is room");
        shards[3].release();
        assert_eq!(sharded_counter.under_way(), 2);
        let again = sharded_counter.take_shard().expect("one is free");
        assert!(!again.begin_reserved(), "what was reserved is gone");
        again.end();
        sharded_counter.end_standing();
        assert_eq!(sharded_counter.under_way(), 0);
    }

    #[test]
    fn idle_threads_do_not_starve_others() {
        let (sharded_counter, limit) = (ShardedCounter::new(), 4_096);
        let shards: Vec<_> = std::iter::from_fn(|| sharded_counter.take_shard()).collect();
        for shard in &shards {
            sharded_counter.begin(Some(shard), limit, true).expect("there is room for all");
            shard.end();
        }
        let busy = shards[0];
        let begun = (0..limit)
            .filter(|_| busy.begin_reserved() || sharded_counter.begin(Some(busy), limit, true).is_ok());
        assert!(begun.count() >= limit / 3);
    }
}

#[cfg(all(test, estafette_loom))]
mod models {
    use crate::barrier;
    use crate::sync::Arc;
    use crate::thread;

    use super::*;

    #[test]
    fn idle_means_that_what_has_begun_has_ended() {
        loom::model(|| {
            let sharded_counter = Arc::new(ShardedCounter::new());
            let ended = Arc::new(AtomicBool::new(false));
            sharded_counter.begin(sharded_counter.take_shard(), 10, true).expect("there is room");
            let other = thread::spawn({
                let (sharded_counter, ended) = (sharded_counter.clone(), ended.clone());
                move || {
                    let shard = sharded_counter.take_shard().expect("the second shard is free");
                    sharded_counter.begin(Some(shard), 10, true).expect("there is room");
                    ended.store(true, Ordering::Relaxed);
                    // The one that the first thread has begun, and its own.
                    shard.end();
                    shard.end();
                }
            });
            if sharded_counter.under_way() == 0 {
                assert!(ended.load(Ordering::Relaxed));
            }
            other.join().expect("ends well");
            assert_eq!(sharded_counter.under_way(), 0);
        });
    }

    #[test]
    fn the_limit_holds_for_two_threads() {
        loom::model(|| {
            let sharded_counter = Arc::new(ShardedCounter::new());
            let begin = |sharded_counter: &ShardedCounter| {
                sharded_counter.begin(sharded_counter.take_shard(), 1, true).is_ok()
            };
            let other = thread::spawn({
                let sharded_counter = sharded_counter.clone();
                move || begin(&sharded_counter)
            });
            let mine = begin(&sharded_counter);
            assert!(mine ^ other.join().expect("ends well"));
        });
    }

    #[test]
    fn a_waiter_sees_the_end_or_is_seen() {
        loom::model(|| {
            let sharded_counter = Arc::new(ShardedCounter::new());
            let waits = Arc::new(AtomicBool::new(false));
            sharded_counter.begin(sharded_counter.take_shard(), 10, true).expect("there is room");
            let ender = thread::spawn({
                let (sharded_counter, waits) = (sharded_counter.clone(), waits.clone());
                move || {
                    sharded_counter.take_shard().expect("the second shard is free").end();
                    barrier::light();
                    waits.load(Ordering::Relaxed)
                }
            });
            waits.store(true, Ordering::Relaxed);
            barrier::heavy();
            let idle = sharded_counter.under_way() == 0;
            assert!(ender.join().expect("ends well") || idle, "the waiter sleeps for ever");
        });
    }
}
