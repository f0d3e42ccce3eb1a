//! What one process measured, and what all rounds of the same measurement say together.

use super::json::Value;

/// Median, least and greatest of some samples.
#[derive(Clone, Copy, Debug, PartialEq)]
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
        let half = samples.len() / 2;
        let median = match samples.len() % 2 {
            0 => (samples[half - 1] + samples[half]) / 2.0,
            _ => samples[half],
        };
        Some(Spread { median, min, max })
    }
}

/// One line of JSON that a program printed.
#[derive(Clone, Debug, PartialEq)]
pub struct Measurement {
    /// Operations in one run.
    pub n: f64,
    /// Threads that ran operations beside the submitting one.
    pub workers: f64,
    fields: Value,
}

impl Measurement {
    /// Reads the line of `workload` out of what a program printed; programs print other things around it.
    pub fn find(output: &str, workload: &str) -> Result<Self, String> {
        let wanted = Value::Text(workload.to_owned());
        for line in output.lines().filter(|line| line.starts_with('{')) {
            let fields = Value::parse(line).map_err(|error| format!("`{line}` is no JSON: {error}"))?;
            if fields.field("workload") == Some(&wanted) {
                let number = |name: &str| match fields.field(name).and_then(Value::number) {
                    Some(number) => Ok(number),
                    None => Err(format!("`{line}` has no number `{name}`")),
                };
                return Ok(Measurement { n: number("n")?, workers: number("workers")?, fields });
            }
        }
        Err(format!("printed no line of JSON about `{workload}`"))
    }

    /// The median of a quantity, or its only number; `None` if the program has no such quantity or found no value.
    pub fn quantity(&self, name: &str) -> Option<f64> {
        let value = self.fields.field(name)?;
        value.field("median").unwrap_or(value).number()
    }
}

/// All rounds of one measurement: what each process found, or why there is no more to come.
#[derive(Debug, Default)]
pub struct Series {
    /// One for each process that ended well.
    pub rounds: Vec<Measurement>,
    /// Why the measurement was given up.
    pub trouble: Option<String>,
}

impl Series {
    /// Over the rounds that have the quantity. If one of them lacks it, so does the series: a median of those that
    /// happened to find a value would look better than the truth.
    pub fn spread(&self, quantity: &str) -> Option<Spread> {
        let samples: Option<Vec<f64>> = self.rounds.iter().map(|round| round.quantity(quantity)).collect();
        Spread::of(samples?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: &str = r#"{"workload":"chain","engine":"x","workers":1,"n":10,"rounds":1,"ns_per_op":{"median":2.5,"min":1,"max":4},"bytes_per_op":7,"metg_us":null}"#;

    #[test]
    fn the_line_of_the_workload_is_found_among_other_output() {
        let output = format!("[12:00] starting\n{}\n{LINE}\n", LINE.replace("chain", "fan"));
        let found = Measurement::find(&output, "chain").unwrap();
        assert_eq!((found.n, found.workers), (10.0, 1.0));
        assert_eq!(found.quantity("ns_per_op"), Some(2.5));
        assert_eq!(found.quantity("bytes_per_op"), Some(7.0));
        assert_eq!(found.quantity("metg_us"), None);
        assert_eq!(found.quantity("push_ns"), None);
    }

    #[test]
    fn output_without_the_line_or_without_its_size_is_an_error() {
        assert!(Measurement::find("done\n", "chain").is_err_and(|why| why.contains("no line of JSON")));
        let nameless = LINE.replace("\"n\":10,", "");
        assert!(Measurement::find(&nameless, "chain").is_err_and(|why| why.contains("no number `n`")));
    }

    #[test]
    fn a_series_tells_median_least_and_greatest_of_its_rounds() {
        let round = |median: &str| {
            Measurement::find(&LINE.replace("\"median\":2.5", &format!("\"median\":{median}")), "chain")
                .unwrap()
        };
        let mut series = Series { rounds: vec![round("9"), round("2"), round("3")], trouble: None };
        assert_eq!(series.spread("ns_per_op"), Some(Spread { median: 3.0, min: 2.0, max: 9.0 }));
        series.rounds.push(round("5"));
        assert_eq!(series.spread("ns_per_op").map(|spread| spread.median), Some(4.0));
        series.rounds.push(round("null"));
        assert_eq!(series.spread("ns_per_op"), None);
        assert_eq!(Series::default().spread("ns_per_op"), None);
    }
}
