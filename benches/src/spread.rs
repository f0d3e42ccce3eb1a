//! Statistics of samples, for benches, the command line and `xtask`. The crates `xtask` and `estafette-links` include this file.

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
}
