//! Bodies of a given length: a counted loop, because a reading of the clock takes longer than a short body.

use std::hint::black_box;
use std::time::Instant;

/// Turns of one loop of the calibration: some tenths of a millisecond.
const TURNS: u64 = 200_000;

/// Loops of the calibration. The fastest counts, since other load only makes a loop slower.
const LOOPS: usize = 20;

/// The body of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SpinBody {
    turns: u64,
}

impl SpinBody {
    /// Returns at once.
    pub const EMPTY: Self = Self { turns: 0 };

    /// A body that computes for `length_ns` nanoseconds at the present clock rate of this machine.
    pub(crate) fn lasting(length_ns: u64) -> Self {
        if length_ns == 0 { Self::EMPTY } else { Spin::calibrate().lasting(length_ns as f64) }
    }

    pub(crate) fn is_empty(self) -> bool {
        self.turns == 0
    }

    /// Computes a useless value for the length of the body.
    #[inline]
    pub(crate) fn run(self) {
        // Each turn needs the result of the turn before, so the processor cannot overlap turns.
        let mut value = black_box(self.turns);
        for _ in 0..self.turns {
            value = value.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(1);
        }
        black_box(value);
    }
}

/// Length of a turn.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Spin {
    ns_per_turn: f64,
}

impl Spin {
    pub(crate) fn calibrate() -> Self {
        let body = SpinBody { turns: TURNS };
        let time = |_| {
            let began = Instant::now();
            body.run();
            began.elapsed()
        };
        let quickest = (0..LOOPS).map(time).min().unwrap_or_default();
        Self { ns_per_turn: quickest.as_nanos() as f64 / TURNS as f64 }
    }

    /// The body of the nearest length, of at least one turn.
    pub(crate) fn lasting(self, length_ns: f64) -> SpinBody {
        SpinBody { turns: ((length_ns / self.ns_per_turn).round() as u64).max(1) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn twice_the_length_is_twice_the_turns() {
        let spin = Spin { ns_per_turn: 2.0 };
        assert_eq!(spin.lasting(1_000.0), SpinBody { turns: 500 });
        assert_eq!(spin.lasting(2_000.0), SpinBody { turns: 1_000 });
        assert_eq!(spin.lasting(0.1), SpinBody { turns: 1 });
    }

    #[test]
    fn a_turn_takes_time() {
        assert!(Spin::calibrate().ns_per_turn > 0.0);
        assert!(SpinBody::lasting(0).is_empty());
    }
}
