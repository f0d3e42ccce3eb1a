//! [`std::time`] by the clock of the execution.

use std::ops::{Add, Sub};

pub use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::clock;

/// A moment of the execution. It has the interface of [`std::time::Instant`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Instant(Duration);

impl Instant {
    /// Now. The clock has moved a little since the last look.
    pub fn now() -> Self {
        Self(clock::read())
    }

    /// As in `std`.
    pub fn elapsed(&self) -> Duration {
        Self::now().saturating_duration_since(*self)
    }

    /// As in `std`.
    pub fn checked_add(&self, duration: Duration) -> Option<Self> {
        self.0.checked_add(duration).map(Self)
    }

    /// As in `std`.
    pub fn saturating_duration_since(&self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }

    /// Time since the execution began.
    pub fn since_the_beginning(&self) -> Duration {
        self.0
    }
}

impl Add<Duration> for Instant {
    type Output = Self;

    fn add(self, duration: Duration) -> Self {
        Self(self.0 + duration)
    }
}

impl Sub for Instant {
    type Output = Duration;

    fn sub(self, earlier: Self) -> Duration {
        self.saturating_duration_since(earlier)
    }
}
