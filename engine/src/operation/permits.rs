//! Permits of the in-flight limit. A submission acquires a permit, and the end of its operation releases the
//! permit. Permits are counted at a counter of the calling thread.

use std::task::Waker;

use estafette_sync::sharded_counter::{Full, Shard};

use crate::core::context;
use crate::core::core_ref::CoreRef;
use crate::core::engine_core::Core;
use crate::core::error::Error;
use crate::core::permit_waiters::{PermitWaiters, WaiterNumber};
use crate::core::wait_for;

/// Operations submitted from inside operations may exceed the in-flight limit, up to this multiple of it.
const HARD_CAP: usize = 4;

impl CoreRef {
    /// Acquires a permit, or fails where no permit is free.
    #[inline(always)]
    pub(crate) fn try_acquire_permit(&self) -> Result<(), Error> {
        if self.acquired_in_advance() { Ok(()) } else { Turn::new(self).try_acquire() }
    }

    /// The fast path of nearly every submission: the thread has acquired permits in advance.
    #[inline(always)]
    fn acquired_in_advance(&self) -> bool {
        self.is_open() && self.with_shard(|shard| shard.is_some_and(Shard::begin_admitted))
    }

    /// Acquires a permit whatever the limit, for what others wait for, or have sent: the end of what fills the limit may wait for them.
    pub(crate) fn acquire_permit_beyond_limit(&self) -> Result<(), Error> {
        self.check_usable()?;
        self.acquire_permit_always();
        Ok(())
    }

    /// Acquires a permit whatever the limit, after shutdown too.
    pub(crate) fn acquire_permit_always(&self) {
        if !self.acquired_in_advance() {
            let _never_full = self.with_shard(|shard| self.sharded_counter.begin(shard, usize::MAX, false));
        }
    }

    /// Releases a permit. The caller notifies waiters, now or soon ([`Core::notify_ended`]).
    #[inline(always)]
    pub(crate) fn count_ended(&self) {
        self.with_own_shard(|shard| match shard {
            Some(shard) => shard.end(),
            None => self.sharded_counter.end_standing(),
        });
    }

    /// Acquires a permit. While no permit is free, waits; in an engine without workers, runs what is ready.
    #[inline(always)]
    pub(crate) fn acquire_permit(&self) -> Result<(), Error> {
        if self.acquired_in_advance() { Ok(()) } else { self.acquire_slowly() }
    }
}

impl Core {
    /// The in-flight limit of submissions inside of operations, or outside. Submissions inside may exceed the
    /// limit of those outside, or an engine at its limit could never drain.
    fn limit_of(&self, inside: bool) -> usize {
        if inside { self.in_flight_limit().saturating_mul(HARD_CAP) } else { self.in_flight_limit() }
    }

    /// Whether a submission finds no room.
    pub(crate) fn is_full(&self, inside: bool) -> bool {
        self.in_flight() >= self.limit_of(inside)
    }

    pub(crate) fn waiters_for_permits(&self, inside: bool) -> &PermitWaiters {
        &self.permit_waiters[usize::from(inside)]
    }

    fn free_permits(&self, inside: bool) -> usize {
        self.sharded_counter.room(self.limit_of(inside))
    }

    /// Wakes as many waiters as there are permits.
    #[cold]
    pub(crate) fn wake_permit_waiters(&self) {
        for inside in [false, true] {
            self.waiters_for_permits(inside).wake(|| self.free_permits(inside));
        }
    }

    /// As [`wake_permit_waiters`](Self::wake_permit_waiters), for permits that woken waiters leave free.
    pub(crate) fn wake_more_permit_waiters(&self) {
        for inside in [false, true] {
            self.waiters_for_permits(inside).wake_despite_claims(|| self.free_permits(inside));
        }
    }
}

/// The turn of a submission that may have to wait for a permit.
pub(crate) struct Turn<'a> {
    core: &'a CoreRef,
    /// Whether it waits as a submission inside of an operation.
    inside: bool,
    number: WaiterNumber,
}

impl<'a> Turn<'a> {
    pub(crate) fn new(core: &'a CoreRef) -> Self {
        Self { core, inside: false, number: WaiterNumber::default() }
    }

    pub(crate) fn is_waiting(&self) -> bool {
        self.number.is_waiting()
    }

    /// Acquires a permit, or fails where no permit is free or others come first.
    #[cold]
    pub(crate) fn try_acquire(&mut self) -> Result<(), Error> {
        let Self { core, .. } = *self;
        core.check_usable()?;
        let current = context::current();
        current.map_or(Ok(()), wait_for::check_nesting)?;
        if current.is_some() != self.inside {
            // A body may hand its future on.
            self.leave();
            self.inside = current.is_some();
        }
        let (limit, waiters) = (core.limit_of(self.inside), core.waiters_for_permits(self.inside));
        let begin = |limit, ahead| {
            core.with_shard(|shard: Option<&Shard>| core.sharded_counter.begin(shard, limit, ahead))
        };
        let begun = if self.is_waiting() || waiters.has_waiters() {
            waiters.acquire(&mut self.number, |left| begin(limit.saturating_sub(left), false))
        } else {
            begin(limit, !self.inside)
        };
        // Permits that woken waiters have claims to are as good as acquired.
        begun.map_err(|Full { under_way }| Error::InFlightLimit { in_flight: under_way.max(limit), limit })
    }

    /// Wakes `waker` when it is the turn of the submission.
    pub(crate) fn wait(&mut self, waker: &Waker) {
        let (core, inside, is_new) = (self.core, self.inside, !self.is_waiting());
        core.waiters_for_permits(inside).wait(&mut self.number, waker, || core.free_permits(inside));
        if is_new && core.room.has_waiters() {
            // Threads that wait for much room would find none as long as others take each permit: from now on
            // they take turns.
            core.room.notify();
        }
    }

    fn leave(&mut self) {
        let (core, inside) = (self.core, self.inside);
        core.waiters_for_permits(inside).leave(&mut self.number, || core.free_permits(inside));
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.leave();
    }
}
