//! Statistics of samples, for benches, the command line and `xtask`. The crates `xtask` and `estafette-links`
//! include this file.
#![allow(dead_code, reason = "each crate that includes this file uses a part of it")]

use std::time::Duration;

/// Median, least and greatest of some samples.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Spread {
    /// The middle sample, or the mean of the two in the middle.
    pub median: f64,
    /// The least sample.
    pub min: f64,
    /// The greatest sample.
    pub max: f64,
}

impl Spread {
    /// `None` without samples.
    pub fn of(mut samples: Vec<f64>) -> Option<Self> {
        samples.sort_by(f64::total_cmp);
        let (min, max) = (*samples.first()?, *samples.last()?);
        let middle = samples.len() / 2;
        let median = if samples.len() % 2 == 1 {
            samples[middle]
        } else {
            (samples[middle - 1] + samples[middle]) / 2.0
        };
        Some(Self { median, min, max })
    }
}

/// The median of some times, in microseconds. Panics without any.
pub fn median_us(times: impl IntoIterator<Item = Duration>) -> f64 {
    let times = times.into_iter().map(|time| time.as_secs_f64() * 1e6).collect();
    Spread::of(times).expect("it was measured").median
}

/// The least sample that `percent` of a hundred samples do not exceed. `None` without samples.
pub fn percentile(mut samples: Vec<f64>, percent: usize) -> Option<f64> {
    samples.sort_by(f64::total_cmp);
    let rank = (samples.len() * percent).div_ceil(100);
    samples.get(rank.saturating_sub(1)).copied()
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_median_of_an_even_number_of_samples_is_between_the_two_in_the_middle() {
        // Here and not above, as a bench that includes this file has no test.
        use super::Spread;

        assert_eq!(Spread::of(vec![4.0, 1.0, 3.0, 2.0]), Some(Spread { median: 2.5, min: 1.0, max: 4.0 }));
        assert_eq!(Spread::of(vec![5.0]), Some(Spread { median: 5.0, min: 5.0, max: 5.0 }));
        assert_eq!(Spread::of(Vec::new()), None);
    }

    #[test]
    fn a_percentile_leaves_out_the_rare() {
        use super::percentile;

        let samples: Vec<f64> = (1..=200).map(f64::from).rev().collect();
        assert_eq!(
            [1, 50, 99, 100].map(|percent| percentile(samples.clone(), percent)),
            [2.0, 100.0, 198.0, 200.0].map(Some)
        );
        assert_eq!(percentile(vec![7.0], 99), Some(7.0));
        assert_eq!(percentile(Vec::new(), 50), None);
    }
}
