//! The thread that queries fences whose subscriptions are long not called.
//!
//! A foreign scheduler that has arranged a call may never make it. What the fence says when it is queried
//! counts in the end, so it is queried now and then. The thread is not the reactor's: that one sleeps without
//! a time where nothing is polled, and a `query` that blocks holds up the other overdue fences only. Where
//! the system refuses the thread, threads that look at what waits do its part, and try to start it each time.

use std::io;

use estafette_sync::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use estafette_sync::time::{Duration, Instant};
use estafette_sync::{daemon, essential::essential, stack, thread};

estafette_sync::statics! {
    /// Nanoseconds for which a subscription is left alone at first, and between two rounds of the thread.
    static FIRST: AtomicU64 = AtomicU64::new(1_000_000_000);
}
estafette_sync::per_process! {
    /// The system has refused the thread.
    static MISSING: AtomicBool = AtomicBool::new(false);
}
/// The longest pause between two queries for one subscription.
const LAST: Duration = Duration::from_secs(60);

fn first() -> Duration {
    Duration::from_nanos(FIRST.load(Ordering::Relaxed))
}

/// Sets after which pause a subscription that has not called is first queried: for subscriptions from now on,
/// in this process. At least a microsecond. For tests; others leave it at a second.
pub fn query_overdue_after(pause: Duration) {
    let nanoseconds = u64::try_from(pause.as_nanos()).unwrap_or(u64::MAX);
    FIRST.store(nanoseconds.max(1_000), Ordering::Relaxed);
}

/// True if the system has refused the thread, which no later try has started.
pub(super) fn is_missing() -> bool {
    MISSING.load(Ordering::Relaxed)
}

/// The time at which the fence of a subscription is to be queried. Each pause is twice as long as the one
/// before, up to [`LAST`].
pub(super) struct Due {
    at: Instant,
    pause: Duration,
}

impl Due {
    /// For a subscription that begins now.
    pub(super) fn first() -> Self {
        let pause = first();
        Self { at: Instant::now() + pause, pause }
    }

    /// True if it is time. The next time is set then.
    pub(super) fn is_reached(&mut self, now: Instant) -> bool {
        let is_reached = self.at <= now;
        if is_reached {
            self.pause = (self.pause * 2).min(LAST);
            self.at = now + self.pause;
        }
        is_reached
    }
}

/// The thread, as the registry of subscriptions knows it, under the registry's lock.
///
/// It makes a round each [`first`] pause while there are subscriptions and sleeps without a time while there
/// are none. That it rests is noted under the lock under which it has found none, so a subscription that
/// arrives later wakes it.
#[derive(Default)]
pub(super) struct Thread {
    thread: Option<thread::Thread>,
    is_resting: bool,
}

impl Thread {
    /// A subscription has arrived: starts or wakes the thread, which calls `round` each time until it returns
    /// false.
    ///
    /// Returns the error where the system gives no thread. The next subscription and the next look at what
    /// waits try again ([`is_missing`]).
    pub(super) fn arrived(&mut self, round: fn() -> bool) -> Result<(), io::Error> {
        if let Some(thread) = self.thread.as_ref().filter(|_| self.is_resting) {
            thread.unpark();
        }
        self.is_resting = false;
        self.start(round)
    }

    /// Starts the thread if there is none.
    pub(super) fn start(&mut self, round: fn() -> bool) -> Result<(), io::Error> {
        if self.thread.is_none() {
            let spawned =
                stack::thread("estafette-overdue").spawn(move || essential("the queries", || run(round)));
            MISSING.store(spawned.is_err(), Ordering::Relaxed);
            self.thread = Some(daemon(spawned?).thread().clone());
        }
        Ok(())
    }

    /// Notes that the thread sleeps until a subscription arrives.
    pub(super) fn rests(&mut self) {
        self.is_resting = true;
    }
}

fn run(round: fn() -> bool) -> ! {
    loop {
        if round() {
            thread::park_timeout(first());
        } else {
            thread::park();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_between_queries_grow_to_a_minute() {
        let mut due = Due::first();
        let began = due.at;
        assert!(!due.is_reached(began - Duration::from_millis(1)));
        let mut pauses = Vec::new();
        for _ in 0..8 {
            let now = due.at;
            assert!(due.is_reached(now) && !due.is_reached(now));
            pauses.push((due.at - now).as_secs());
        }
        assert_eq!(pauses, [2, 4, 8, 16, 32, 60, 60, 60]);
    }
}
