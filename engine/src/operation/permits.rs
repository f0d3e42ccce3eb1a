//! Permits: taken at submission, given back when the operation has ended, counted at the seat of the calling
//! thread.

use std::task::Poll;

use estafette_devices::tally::{Full, Seat};

use crate::core::coalesced;
use crate::core::context;
use crate::core::core_ref::CoreRef;
use crate::core::error::Error;
use crate::wait::awaits::{Awaited, Pending};
use crate::wait::deadlock::Checks;

/// This many times the window is the end of it for operations submitted from inside operations.
const HARD_CAP: usize = 4;

impl CoreRef {
    /// Takes a permit or refuses.
    #[inline(always)]
    pub(crate) fn try_acquire_permit(&self) -> Result<(), Error> {
        if self.acquired_in_advance() { Ok(()) } else { self.try_acquire_slowly() }
    }

    /// What nearly every submission gets by with.
    #[inline(always)]
    fn acquired_in_advance(&self) -> bool {
        self.is_open() && self.with_seat(|seat| seat.is_some_and(Seat::begin_admitted))
    }

    #[cold]
    fn try_acquire_slowly(&self) -> Result<(), Error> {
        self.check_usable()?;
        self.with_seat(|seat| self.acquire_at(seat))
    }

    fn acquire_at(&self, seat: Option<&Seat>) -> Result<(), Error> {
        // Operations submitted from inside operations may exceed the window, or a reached in-flight limit could never drain.
        let inside = context::current().is_some();
        let limit =
            if inside { self.in_flight_limit().saturating_mul(HARD_CAP) } else { self.in_flight_limit() };
        let refused = |full: Full| Error::InFlightLimit { in_flight: full.under_way, limit };
        self.tally.begin(seat, limit, !inside).map_err(refused)
    }

    /// Gives a permit back. The caller tells those who wait, now or soon ([`Core::tell_ended`]).
    #[inline(always)]
    pub(crate) fn count_ended(&self) {
        self.with_taken_seat(|seat| match seat {
            Some(seat) => seat.end(),
            None => self.tally.end_standing(),
        });
    }

    /// Takes a permit; while there is none, waits, and in an engine without workers runs what is ready.
    #[inline(always)]
    pub(crate) fn acquire_permit(&self) -> Result<(), Error> {
        if self.acquired_in_advance() { Ok(()) } else { self.acquire_slowly() }
    }

    #[cold]
    fn acquire_slowly(&self) -> Result<(), Error> {
        // Comes once in a while, which is often enough for what operations that were run at once have made ready beside the
        // one that follows them.
        if self.is_flowing() && context::current().is_none() {
            self.flow();
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

    /// As [`acquire_permit`](Self::acquire_permit), without blocking the thread.
    pub(crate) async fn acquire_permit_async(&self) -> Result<(), Error> {
        let mut listening = self.bell.listen_async();
        let mut pending = Pending::default();
        std::future::poll_fn(|cx| {
            for _ in 0..2 {
                match self.try_acquire_permit() {
                    // Register first, then look again, or a place freed in between would go unnoticed.
                    Err(Error::InFlightLimit { .. }) => listening.wake_at_ring(cx.waker()),
                    other => return Poll::Ready(other),
                }
            }
            coalesced::tell();
            // Room is not a matter of leases: this has no error.
            let _ = pending.poll(cx, || Awaited::room(self));
            Poll::Pending
        })
        .await
    }
}
