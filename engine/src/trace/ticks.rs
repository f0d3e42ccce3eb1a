//! The recorder's clock: a counter of the processor where it is steady, else the monotonic clock.
//!
//! Reading the counter costs a third of reading the clock. It counts in its own unit, so both are read at the
//! beginning and at the end, and their ratio over the whole trace says what a tick is worth.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use estafette_devices::host_now_ns;
use estafette_sync::platform::ticks;
use estafette_sync::time::Instant;

type Clock = Arc<dyn Fn() -> u64 + Send + Sync>;

/// The source of time, and its beginning.
pub(super) struct Ticks {
    source: ClockSource,
    first: u64,
    began: Instant,
    /// The same moment on the host's clock, which is the clock of devices' times.
    began_ns: u64,
    /// And on the clock of the calendar: nanoseconds since 1970.
    pub(super) began_unix_ns: u64,
}

enum ClockSource {
    Counter,
    Monotonic,
    Given(Clock),
}

impl ClockSource {
    #[inline]
    fn read(&self, began: Instant) -> u64 {
        match self {
            Self::Counter => ticks::read(),
            Self::Monotonic => began.elapsed().as_nanos() as u64,
            Self::Given(clock) => clock(),
        }
    }
}

impl Ticks {
    pub(super) fn start(given: Option<Clock>) -> Self {
        let source = match given {
            Some(clock) => ClockSource::Given(clock),
            None if ticks::are_steady() => ClockSource::Counter,
            None => ClockSource::Monotonic,
        };
        let mut ticks = Self { source, first: 0, began: Instant::now(), began_ns: 0, began_unix_ns: 0 };
        (ticks.began, ticks.began_ns, ticks.began_unix_ns, ticks.first) = closest(|| {
            let began = Instant::now();
            let began_ns = host_now_ns();
            let unix = SystemTime::now().duration_since(UNIX_EPOCH);
            let unix_ns = unix.map_or(0, |unix| unix.as_nanos().try_into().unwrap_or(u64::MAX));
            let first = ticks.source.read(began);
            (began.elapsed(), (began, began_ns, unix_ns, first))
        });
        ticks
    }

    /// Ticks since the start.
    #[inline]
    pub(super) fn now(&self) -> u64 {
        self.source.read(self.began).saturating_sub(self.first)
    }

    /// The time at which it began, on the clock that processes of this machine share; `None` if time is
    /// another clock's.
    pub(super) fn started_ns(&self) -> Option<u64> {
        (!matches!(self.source, ClockSource::Given(_))).then_some(self.began_ns)
    }

    /// Nanoseconds from the start to `at_ns` of the host's clock, or of the one that was given, which then is
    /// the device's too.
    pub(super) fn since_start(&self, at_ns: u64) -> u64 {
        at_ns.saturating_sub(if matches!(self.source, ClockSource::Given(_)) {
            self.first
        } else {
            self.began_ns
        })
    }

    /// The scale of the ticks, seen from now on.
    pub(super) fn scale(&self) -> Scale {
        let per_tick = match self.source {
            ClockSource::Counter => {
                let (ticks, elapsed) = closest(|| {
                    let before = self.began.elapsed();
                    let ticks = self.now();
                    let after = self.began.elapsed();
                    (after - before, (ticks, (before + after) / 2))
                });
                if ticks > 0 { elapsed.as_nanos() as f64 / ticks as f64 } else { 1.0 }
            }
            ClockSource::Monotonic | ClockSource::Given(_) => 1.0,
        };
        Scale { per_tick, first: 0, last: self.now() }
    }
}

/// The closest reading of several clocks by `read`, which returns its own duration as well: a thread that
/// loses the processor in between reads them at different moments, so the quickest of some readings counts.
fn closest<T>(mut read: impl FnMut() -> (Duration, T)) -> T {
    const ENOUGH: Duration = Duration::from_micros(2);
    let mut best = read();
    for _ in 0..10 {
        if best.0 < ENOUGH {
            break;
        }
        let again = read();
        if again.0 < best.0 {
            best = again;
        }
    }
    best.1
}

impl std::fmt::Debug for Ticks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ticks").field("first", &self.first).finish_non_exhaustive()
    }
}

/// Turns ticks into nanoseconds.
pub(super) struct Scale {
    per_tick: f64,
    /// The first tick that is not left out.
    first: u64,
    last: u64,
}

impl Scale {
    /// The scale of `last` ticks in all, of `per_tick` nanoseconds each.
    pub(super) fn of(last: u64, per_tick: f64) -> Self {
        Self { per_tick, first: 0, last }
    }

    /// The parts that [`of`](Self::of) makes it of.
    pub(super) fn parts(&self) -> (u64, f64) {
        (self.last, self.per_tick)
    }

    /// Leaves out what comes before `first`.
    pub(super) fn from(self, first: u64) -> Self {
        Self { first: first.min(self.last), ..self }
    }

    pub(super) fn first(&self) -> u64 {
        self.first
    }

    /// True if something is left out.
    pub(super) fn is_cut(&self) -> bool {
        self.first > 0
    }

    /// True if a moment is not left out.
    pub(super) fn has(&self, ticks: u64) -> bool {
        ticks >= self.first
    }

    /// The time until [`nanos`](Self::nanos) begins.
    pub(super) fn cut_ns(&self) -> u64 {
        (self.first as f64 * self.per_tick) as u64
    }

    /// The nanoseconds that [`nanos`](Self::nanos) gives, of nanoseconds since the start.
    pub(super) fn since_cut(&self, ns: u64) -> u64 {
        ns.saturating_sub(self.cut_ns())
    }

    /// Nanoseconds since the beginning of what is not left out. What was read before counts as the beginning,
    /// and what was read after the end as the end.
    pub(super) fn nanos(&self, ticks: u64) -> u64 {
        let ticks = ticks.min(self.last).saturating_sub(self.first);
        if self.per_tick == 1.0 { ticks } else { (ticks as f64 * self.per_tick) as u64 }
    }

    /// The duration of all.
    pub(super) fn duration(&self) -> u64 {
        self.nanos(self.last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_become_the_time_that_the_monotonic_clock_shows() {
        let measure = || {
            let ticks = Ticks::start(None);
            let began = Instant::now();
            let first = ticks.now();
            std::thread::sleep(std::time::Duration::from_millis(30));
            let second = ticks.now();
            let took = began.elapsed().as_nanos() as f64;
            let scale = ticks.scale();
            ((scale.nanos(second) - scale.nanos(first)) as f64, took)
        };
        // Another thread may take the processor between a reading of one clock and that of the other. In one
        // of several measurements it does not.
        let measurements: Vec<_> = (0..10).map(|_| measure()).collect();
        let agree = |(measured, took): &(f64, f64)| (measured / took - 1.0).abs() < 0.05;
        assert!(measurements.iter().any(agree), "{measurements:?}");
    }

    #[test]
    fn the_quickest_reading_counts() {
        let mut took = [30, 5, 9, 1, 40].map(Duration::from_micros).into_iter();
        assert_eq!(
            closest(|| took.next().map(|took| (took, took)).expect("enough")),
            Duration::from_micros(1)
        );
        let mut slow = (1..).map(|n| Duration::from_millis(100 - n));
        assert_eq!(
            closest(|| slow.next().map(|took| (took, took)).expect("enough")),
            Duration::from_millis(89)
        );
    }

    #[test]
    fn a_given_clock_is_taken_as_it_is() {
        let time = Arc::new(std::sync::atomic::AtomicU64::new(500));
        let given = Arc::clone(&time);
        let ticks = Ticks::start(Some(Arc::new(move || given.load(std::sync::atomic::Ordering::Relaxed))));
        time.store(750, std::sync::atomic::Ordering::Relaxed);
        let scale = ticks.scale();
        assert_eq!((ticks.now(), scale.nanos(ticks.now()), scale.duration()), (250, 250, 250));
    }
}
