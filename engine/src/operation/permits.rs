//! Places in the window: taken at submission, given back when the operation has ended, counted at the seat of the calling
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
    /// Takes a place in the window or refuses.
    #[inline(always)]
    pub(crate) fn try_admit(&self) -> Result<(), Error> {
        if self.admitted_in_advance() { Ok(()) } else { self.try_admit_slowly() }
    }

    /// What nearly every submission gets by with.
    #[inline(always)]
    fn admitted_in_advance(&self) -> bool {
        self.is_open() && self.with_seat(|seat| seat.is_some_and(Seat::begin_admitted))
    }

    #[cold]
    fn try_admit_slowly(&self) -> Result<(), Error> {
        self.check_usable()?;
        self.with_seat(|seat| self.admit_at(seat))
    }

    fn admit_at(&self, seat: Option<&Seat>) -> Result<(), Error> {
        // Operations submitted from inside operations may exceed the window, or a full window could never drain.
        let inside = context::current().is_some();
        let limit = if inside { self.window().saturating_mul(HARD_CAP) } else { self.window() };
        let refused = |full: Full| Error::WindowFull { in_flight: full.under_way, limit };
        self.tally.begin(seat, limit, !inside).map_err(refused)
    }

    /// Gives a place in the window back. The caller tells those who wait, now or soon ([`Core::tell_ended`]).
    #[inline(always)]
    pub(crate) fn count_ended(&self) {
        self.with_taken_seat(|seat| match seat {
            Some(seat) => seat.end(),
            None => self.tally.end_standing(),
        });
    }

    /// Takes a place in the window; while there is none, waits, and in an engine without workers runs what is ready.
    #[inline(always)]
    pub(crate) fn admit(&self) -> Result<(), Error> {
        if self.admitted_in_advance() { Ok(()) } else { self.admit_slowly() }
    }

    #[cold]
    fn admit_slowly(&self) -> Result<(), Error> {
        // Comes once in a while, which is often enough for what operations that were run at once have made ready beside the
        // one that follows them.
        if self.is_flowing() && context::current().is_none() {
            self.flow();
        }
        let mut checks: Option<Checks<'_>> = None;
        loop {
            match self.try_admit() {
                Err(Error::WindowFull { in_flight, limit }) => {
                    let checks = checks.get_or_insert_with(|| self.checks_of_room());
                    self.wait_for_room(in_flight, limit, checks)?;
                }
                other => return other,
            }
        }
    }

    /// As [`admit`](Self::admit), without blocking the thread.
    pub(crate) async fn admit_async(&self) -> Result<(), Error> {
        let mut listening = self.bell.listen_async();
        let mut pending = Pending::default();
        std::future::poll_fn(|cx| {
            for _ in 0..2 {
                match self.try_admit() {
                    // Register first, then look again, or a place freed in between would go unnoticed.
                    Err(Error::WindowFull { .. }) => listening.wake_at_ring(cx.waker()),
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
