//! Permits of the in-flight limit. A submission acquires a permit, and the end of its operation releases the
//! permit. Permits are counted at a counter of the calling thread.

use std::task::Poll;

use estafette_sync::sharded_counter::{Full, Shard};

use crate::core::coalesced;
use crate::core::context;
use crate::core::core_ref::CoreRef;
use crate::core::error::Error;
use crate::wait::awaits::{Awaited, Pending};
use crate::wait::deadlock::Checks;

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
        self.is_open() && self.with_shard(|shard| shard.is_some_and(Shard::begin_admitted))
    }

    #[cold]
    fn try_acquire_slowly(&self) -> Result<(), Error> {
        self.check_usable()?;
        self.with_shard(|shard| self.acquire_at(shard))
    }

    fn acquire_at(&self, shard: Option<&Shard>) -> Result<(), Error> {
        // Operations submitted from inside operations may exceed the in-flight limit, or an engine at its
        // limit could never drain.
        let inside = context::current().is_some();
        let limit =
            if inside { self.in_flight_limit().saturating_mul(HARD_CAP) } else { self.in_flight_limit() };
        let refused = |full: Full| Error::InFlightLimit { in_flight: full.under_way, limit };
        self.sharded_counter.begin(shard, limit, !inside).map_err(refused)
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

    #[cold]
    fn acquire_slowly(&self) -> Result<(), Error> {
        // The thread comes here now and then. That is often enough to run what caller-runs operations have
        // made ready, apart from the first successor of each, which has run already.
        if self.is_caller_running() && context::current().is_none() {
            self.begin_caller_runs();
        }
        let mut checks: Option<Checks<'_>> = None;
        loop {
            match self.try_acquire_permit() {
                Err(Error::InFlightLimit { in_flight, limit }) => {
                    let checks = checks.get_or_insert_with(|| self.checks_of_room());
                    self.wait_for_room(in_flight, limit, checks)?;
                }
                other => return other,
            }
        }
    }

    /// As [`acquire_permit`](Self::acquire_permit), by awaiting: no thread blocks.
    pub(crate) async fn acquire_permit_async(&self) -> Result<(), Error> {
        let mut listening = self.notifier.listen_async();
        let mut pending = Pending::default();
        std::future::poll_fn(|cx| {
            for _ in 0..2 {
                match self.try_acquire_permit() {
                    // Registers the waker before the second attempt: a permit released in between would go
                    // unnoticed otherwise.
                    Err(Error::InFlightLimit { .. }) => listening.register_waker(cx.waker()),
                    other => return Poll::Ready(other),
                }
            }
            coalesced::wake_held_back();
            // Leases do not end this wait, so the poll returns no error.
            let _ = pending.poll(cx, || Awaited::room(self));
            Poll::Pending
        })
        .await
    }
}
