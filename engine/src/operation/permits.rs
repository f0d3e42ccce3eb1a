//! Permits of the in-flight limit. A submission acquires a permit, and the end of its operation releases the
//! permit. Permits are counted at a counter of the calling thread.

use std::task::Waker;

use estafette_sync::sharded_counter::{Full, Shard};

use crate::core::context;
use crate::core::core_ref::CoreRef;
use crate::core::engine_core::Core;
use crate::core::error::Error;
use crate::core::wait_for;
use crate::core::wakers::WakerKey;

/// Operations submitted from inside operations may exceed the in-flight limit, up to this multiple of it.
const HARD_CAP: usize = 4;

impl CoreRef {
    /// Acquires a permit, or fails where no permit is free.
    #[inline(always)]
    pub(crate) fn try_acquire_permit(&self) -> Result<(), Error> {
        if self.acquired_in_advance() { Ok(()) } else { self.try_acquire_slowly() }
    }

    /// The fast path of nearly every submission: the thread has acquired permits in advance.
    #[inline(always)]
    fn acquired_in_advance(&self) -> bool {
        self.is_open() && self.with_shard(|shard| shard.is_some_and(Shard::begin_reserved))
    }

    #[cold]
    fn try_acquire_slowly(&self) -> Result<(), Error> {
        self.check_usable()?;
        self.with_shard(|shard| self.acquire_at(shard))
    }

    fn acquire_at(&self, shard: Option<&Shard>) -> Result<(), Error> {
        // Operations submitted from inside operations may exceed the in-flight limit, or an engine at its
        // limit could never drain.
        let current = context::current();
        current.map_or(Ok(()), wait_for::check_nesting)?;
        let inside = current.is_some();
        let limit = self.limit_of(inside);
        let refused = |full: Full| Error::InFlightLimit { in_flight: full.under_way, limit };
        self.sharded_counter.begin(shard, limit, !inside).map_err(refused)
    }

    /// Acquires a permit whatever the limit, for what others wait for, or have sent: the end of what fills
    /// the limit may wait for them.
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

    /// Releases a permit. The caller notifies waiters, now or soon ([`CoreRef::notify_ended`]).
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
    /// The in-flight limit of submissions inside of operations, or outside.
    fn limit_of(&self, inside: bool) -> usize {
        if inside { self.in_flight_limit().saturating_mul(HARD_CAP) } else { self.in_flight_limit() }
    }

    /// True if a submission finds no room, on a thread that has acquired no permit in advance.
    pub(crate) fn is_full(&self, inside: bool) -> bool {
        self.sharded_counter.room(self.limit_of(inside)) == 0
    }

    /// The permits for futures. Those that threads have acquired in advance are among them, since the thread
    /// of a future may be one.
    pub(crate) fn free_permits(&self, inside: bool) -> usize {
        self.limit_of(inside).saturating_sub(self.in_flight())
    }
}

/// A future among those that wait for a permit.
pub(crate) struct WaitsForPermit<'a> {
    core: &'a CoreRef,
    /// True if it waits as a submission inside of an operation.
    inside: bool,
    key: WakerKey,
}

impl<'a> WaitsForPermit<'a> {
    pub(crate) fn new(core: &'a CoreRef) -> Self {
        Self { core, inside: false, key: WakerKey::default() }
    }

    /// Wakes `waker` when there may be a permit. The future looks once more after this call.
    pub(crate) fn register(&mut self, waker: &Waker) {
        let inside = context::current().is_some();
        if inside != self.inside {
            // A body may hand its future on.
            self.unregister();
            self.inside = inside;
        }
        self.core.permit_waiters[usize::from(inside)].wait(&mut self.key, waker);
    }

    fn unregister(&mut self) {
        let Self { core, inside, .. } = *self;
        core.permit_waiters[usize::from(inside)].unregister(&mut self.key, || core.free_permits(inside));
    }
}

impl Drop for WaitsForPermit<'_> {
    fn drop(&mut self) {
        self.unregister();
    }
}
