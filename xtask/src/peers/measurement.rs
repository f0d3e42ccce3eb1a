//! Measurements of one process, and the summary of all rounds of the same measurement.

use serde_json::Value;

#[path = "../../../benches/src/spread.rs"]
mod spread;

pub use self::spread::{Spread, percentile};

/// One line of JSON that a program printed.
#[derive(Clone, Debug, PartialEq)]
pub struct Measurement {
    pub n: f64,
    /// Threads that ran operations beside the submitting one.
    pub workers: f64,
    fields: Value,
}

impl Measurement {
    /// Reads the line of `workload` out of what a program printed; programs print other things around it.
    pub fn find(output: &str, workload: &str) -> Result<Self, String> {
        for line in output.lines().filter(|line| line.starts_with('{')) {
            let fields: Value =
                serde_json::from_str(line).map_err(|error| format!("`{line}` is no JSON: {error}"))?;
            if fields["workload"] == workload {
                let number = |name: &str| match fields[name].as_f64() {
                    Some(number) => Ok(number),
                    None => Err(format!("`{line}` has no number `{name}`")),
                };
                return Ok(Measurement { n: number("n")?, workers: number("workers")?, fields });
            }
        }
        Err(format!("printed no line of JSON about `{workload}`"))
    }

    /// The program's value of a quantity; `None` if it does not speak of it.
    pub fn quantity(&self, name: &str) -> Option<Quantity> {
        let value = self.fields.get(name)?;
        let number = value.get("median").unwrap_or(value).as_f64();
        Some(number.map_or(Quantity::NotFound, Quantity::Found))
    }
}

/// A quantity in one process.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Quantity {
    /// The median of the process's rounds, or its only number.
    Found(f64),
    /// The process looked for it and found no value.
    NotFound,
}

/// A quantity over all rounds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Summary {
    Spread(Spread),
    /// So many rounds of so many found no value. A median of the others would look better than the truth.
    NotFound(usize, usize),
}

impl Summary {
    /// The median, if every round found a value.
    pub fn median(self) -> Option<f64> {
        match self {
            Summary::Spread(spread) => Some(spread.median),
            Summary::NotFound(..) => None,
        }
    }
}

/// All rounds of one measurement: what each process found, or why there is no more to come.
#[derive(Debug, Default)]
pub struct Series {
    /// One for each process that ended well.
    pub rounds: Vec<Measurement>,
    /// The reason that the measurement was given up.
    pub trouble: Option<String>,
}

impl Series {
    /// Over all rounds; `None` if no round speaks of the quantity.
    pub fn summary(&self, quantity: &str) -> Option<Summary> {
        let answers: Vec<Quantity> =
            self.rounds.iter().filter_map(|round| round.quantity(quantity)).collect();
        let found: Vec<f64> = answers
            .iter()
            .filter_map(|answer| match answer {
                Quantity::Found(number) => Some(*number),
                Quantity::NotFound => None,
            })
            .collect();
        match answers.len() - found.len() {
            0 => Spread::of(found).map(Summary::Spread),
            without => Some(Summary::NotFound(without, answers.len())),
        }
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
        assert_eq!(found.quantity("ns_per_op"), Some(Quantity::Found(2.5)));
        assert_eq!(found.quantity("bytes_per_op"), Some(Quantity::Found(7.0)));
        assert_eq!(found.quantity("metg_us"), Some(Quantity::NotFound));
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
        let spread = Spread { median: 3.0, min: 2.0, max: 9.0 };
        assert_eq!(series.summary("ns_per_op"), Some(Summary::Spread(spread)));
        series.rounds.push(round("5"));
        assert_eq!(series.summary("ns_per_op").and_then(Summary::median), Some(4.0));
        assert_eq!(series.summary("push_ns"), None);
        assert_eq!(Series::default().summary("ns_per_op"), None);
    }

    #[test]
    fn a_round_without_a_value_is_not_hidden_by_the_others() {
        let found = Measurement::find(LINE, "chain").unwrap();
        let without = Measurement::find(&LINE.replace("2.5", "null"), "chain").unwrap();
        let series = Series { rounds: vec![found.clone(), without, found], trouble: None };
        assert_eq!(series.summary("ns_per_op"), Some(Summary::NotFound(1, 3)));
    }
}
