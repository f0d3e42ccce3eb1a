//! The points of the step before that a task reads: the patterns of Task Bench.

/// The points that a task reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Pattern {
    /// Nothing.
    Trivial,
    /// Itself and both neighbours.
    Stencil,
    /// The five nearest.
    Nearest,
    /// Five points spread over the whole width. Four of them move at each step.
    Spread,
    /// Itself and the two at a distance that doubles at each step, as in a fast Fourier transform.
    Fft,
}

/// Points that `Nearest` and `Spread` read.
const RADIX: usize = 5;

/// Steps after which `Spread` repeats.
const SPREAD_PERIOD: usize = 3;

impl Pattern {
    /// Steps after which the pattern repeats.
    pub(super) fn period(self, width: usize) -> usize {
        match self {
            Self::Trivial | Self::Stencil | Self::Nearest => 1,
            Self::Spread => SPREAD_PERIOD,
            Self::Fft => (width.ilog2() as usize).max(1),
        }
    }

    /// The points that the task of `point` reads, in the `turn`-th step of a period.
    pub(super) fn inputs(self, turn: usize, point: usize, width: usize) -> Vec<usize> {
        let around = |reach: usize| (point.saturating_sub(reach)..=(point + reach).min(width - 1)).collect();
        match self {
            Self::Trivial => Vec::new(),
            Self::Stencil => around(1),
            Self::Nearest => around(RADIX / 2),
            Self::Spread => {
                let moved = |i| if i > 0 { turn } else { 0 };
                (0..RADIX).map(|i| (point + i * width / RADIX + moved(i)) % width).collect()
            }
            Self::Fft => {
                let distance = 1 << turn;
                let before = point.checked_sub(distance);
                let after = Some(point + distance).filter(|after| *after < width);
                before.into_iter().chain([point]).chain(after).collect()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inputs_are_as_task_bench_defines_them() {
        let inputs = |pattern: Pattern, turn, point| pattern.inputs(turn, point, 32);
        assert!(inputs(Pattern::Trivial, 0, 5).is_empty());
        assert_eq!(inputs(Pattern::Stencil, 0, 0), [0, 1]);
        assert_eq!(inputs(Pattern::Stencil, 0, 31), [30, 31]);
        assert_eq!(inputs(Pattern::Nearest, 0, 10), [8, 9, 10, 11, 12]);
        assert_eq!(inputs(Pattern::Spread, 0, 1), [1, 7, 13, 20, 26]);
        assert_eq!(inputs(Pattern::Spread, 2, 30), [30, 6, 12, 19, 25]);
        assert_eq!(inputs(Pattern::Fft, 0, 0), [0, 1]);
        assert_eq!(inputs(Pattern::Fft, 3, 9), [1, 9, 17]);
        assert_eq!(Pattern::Fft.period(32), 5);
    }

    #[test]
    fn no_task_reads_a_point_twice() {
        for pattern in [Pattern::Stencil, Pattern::Nearest, Pattern::Spread, Pattern::Fft] {
            for turn in 0..pattern.period(32) {
                for point in 0..32 {
                    let mut inputs = pattern.inputs(turn, point, 32);
                    assert!(inputs.iter().all(|input| *input < 32));
                    let count = inputs.len();
                    inputs.sort_unstable();
                    inputs.dedup();
                    assert_eq!(inputs.len(), count, "{pattern:?} {turn} {point}");
                }
            }
        }
    }
}
