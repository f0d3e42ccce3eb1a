use std::fmt;

use estafette_sync::platform::clock;

/// An interval of time in which work ran on its device, in nanoseconds of the host's monotonic clock; on a
/// simulated device, of its virtual time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceSpan {
    /// The first of the work began.
    pub began_ns: u64,
    /// The last of it ended; not earlier.
    pub ended_ns: u64,
}

/// A measurement of when work runs on its device: see [`Queue::time`](crate::Queue::time).
pub trait Timing: Send + Sync + fmt::Debug {
    /// The times between which the work ran. `None` as long as it has not ended, and where nothing was
    /// enqueued or the driver does not say. It may ask the driver, so it is called under no lock.
    fn span(&self) -> Option<DeviceSpan>;
}

/// The relation of a device's clock to the host's, from observations of single moments: a bracket around
/// their difference.
///
/// Work cannot have been submitted before the host called for it, nor can it have ended later than the host
/// saw it done. Each such observation moves one end of the bracket, as in Cristian's algorithm
/// ("Probabilistic clock synchronization", 1989), but nothing is sent for the sake of measuring. A bracket
/// that holds 0 means that both clocks are one, which is taken as it is; else its middle is used, and the
/// error is at most half its width. Clocks that drift empty the bracket, which then begins anew.
#[derive(Clone, Copy, Debug)]
pub struct ClockBracket {
    /// Host minus device lies between these.
    least_ns: i128,
    most_ns: i128,
}

impl Default for ClockBracket {
    fn default() -> Self {
        Self { least_ns: i128::MIN, most_ns: i128::MAX }
    }
}

impl ClockBracket {
    /// Notes that the device's `device_ns` was not before `host_ns`.
    pub fn not_before(&mut self, device_ns: u64, host_ns: u64) {
        let least = i128::from(host_ns) - i128::from(device_ns);
        if least > self.most_ns {
            *self = Self::default();
        }
        self.least_ns = self.least_ns.max(least);
    }

    /// Notes that the device's `device_ns` was not after `host_ns`.
    pub fn not_after(&mut self, device_ns: u64, host_ns: u64) {
        let most = i128::from(host_ns) - i128::from(device_ns);
        if most < self.least_ns {
            *self = Self::default();
        }
        self.most_ns = self.most_ns.min(most);
    }

    /// The host's time for a time of the device; `None` until something is known on either side.
    pub fn host_ns(&self, device_ns: u64) -> Option<u64> {
        if self.least_ns == i128::MIN || self.most_ns == i128::MAX {
            return None;
        }
        let one_clock = self.least_ns <= 0 && self.most_ns >= 0;
        let offset = if one_clock { 0 } else { (self.least_ns + self.most_ns) / 2 };
        u64::try_from(i128::from(device_ns) + offset).ok()
    }
}

/// Nanoseconds of the host's monotonic clock, the unit and origin of [`DeviceSpan`].
pub fn host_now_ns() -> u64 {
    clock::monotonic_ns()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error_ns(bracket: ClockBracket) -> i128 {
        (bracket.most_ns - bracket.least_ns) / 2
    }

    #[test]
    fn one_clock_is_taken_as_it_is() {
        let mut bracket = ClockBracket::default();
        assert_eq!(bracket.host_ns(5), None, "nothing is known");
        bracket.not_before(1_000, 900);
        assert_eq!(bracket.host_ns(5), None, "nothing is known on the other side");
        bracket.not_after(2_000, 2_300);
        assert_eq!(bracket.host_ns(1_500), Some(1_500));
        assert_eq!(error_ns(bracket), 200);
    }

    #[test]
    fn another_clock_is_met_within_half_the_bracket() {
        // The device began to count when the host read a million; calls take up to 700 ns, seeing the end up
        // to 500.
        let offset = 1_000_000;
        let mut bracket = ClockBracket::default();
        for (at, call, seen) in [(10_000, 700, 500), (20_000, 300, 450), (30_000, 650, 100)] {
            bracket.not_before(at, at + offset - call);
            bracket.not_after(at + 5_000, at + 5_000 + offset + seen);
        }
        let error = error_ns(bracket) as u64;
        assert_eq!(error, 200);
        let mapped = bracket.host_ns(40_000).unwrap();
        assert!(mapped.abs_diff(40_000 + offset) <= error, "{mapped}");
    }

    #[test]
    fn a_clock_that_drifts_is_measured_anew() {
        let mut bracket = ClockBracket::default();
        bracket.not_before(100, 1_000);
        bracket.not_after(200, 1_150);
        // The device's clock has lost 1,000 since.
        bracket.not_before(10_000, 11_900);
        assert_eq!(bracket.host_ns(10_000), None, "what was known is known no more");
        bracket.not_after(10_100, 12_050);
        assert_eq!(bracket.host_ns(10_000), Some(11_925));
    }
}
