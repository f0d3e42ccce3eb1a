//! The result of a measurement, as a line of text and as a line of JSON. The format is described in
//! `README.md`.

use std::fmt::Write;

use serde_json::{Value, json};

use crate::spread::Spread;

/// One measured quantity. Its name ends with its unit.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Quantity {
    /// One sample for each round.
    Spread(Spread),
    /// A single number.
    Number(f64),
    /// No value, with the reason.
    Missing(&'static str),
}

impl Quantity {
    /// One sample for each round.
    pub(crate) fn of(samples: Vec<f64>) -> Self {
        Spread::of(samples).map_or(Self::Missing("no measured round"), Self::Spread)
    }

    /// The median, or the number.
    pub(crate) fn middle(&self) -> Option<f64> {
        match *self {
            Self::Spread(spread) => Some(spread.median),
            Self::Number(number) => Some(number),
            Self::Missing(_) => None,
        }
    }

    /// This quantity divided by `other`.
    pub(crate) fn ratio_to(&self, other: &Self) -> Self {
        match (self.middle(), other.middle()) {
            (Some(ours), Some(theirs)) if theirs > 0.0 => Self::Number(ours / theirs),
            _ => Self::Missing("nothing to compare"),
        }
    }

    fn json(&self) -> Value {
        match *self {
            Self::Spread(Spread { median, min, max }) => {
                json!({ "median": rounded(median), "min": rounded(min), "max": rounded(max) })
            }
            Self::Number(number) => rounded(number),
            Self::Missing(_) => Value::Null,
        }
    }

    fn text(&self) -> String {
        match *self {
            Self::Spread(Spread { median, min, max }) => {
                format!("{} [{}-{}]", short(median), short(min), short(max))
            }
            Self::Number(number) => short(number),
            Self::Missing(why) => format!("not available ({why})"),
        }
    }
}

/// The outcome of a workload.
#[derive(Debug, Clone)]
pub struct Record {
    /// The workload's name.
    pub workload: &'static str,
    /// Worker threads beside the submitting thread.
    pub workers: usize,
    /// Operations of one run.
    pub n: usize,
    /// Measured runs.
    pub rounds: usize,
    /// Quantities by name.
    pub quantities: Vec<(&'static str, Quantity)>,
}

impl Record {
    /// The heading of [`text`](Self::text).
    pub fn heading() -> String {
        format!(
            "{:<22} {:>7} {:>9} {:>6}  quantities: median [min-max]",
            "workload", "workers", "n", "rounds"
        )
    }

    /// A line of text.
    pub fn text(&self) -> String {
        let Self { workload, workers, n, rounds, quantities } = self;
        let mut line = format!("{workload:<22} {workers:>7} {n:>9} {rounds:>6} ");
        for (name, quantity) in quantities {
            write!(line, " {name} {},", quantity.text()).expect("writing to a string succeeds");
        }
        line.trim_end_matches(',').to_owned()
    }

    /// A line of JSON.
    pub fn json(&self) -> String {
        let Self { workload, workers, n, rounds, quantities } = self;
        let mut line = json!({ "workload": workload, "engine": "estafette", "workers": workers, "n": n, "rounds": rounds });
        quantities.iter().for_each(|(name, quantity)| line[*name] = quantity.json());
        line.to_string()
    }
}

/// A number with its significant digits. Infinity becomes null, since JSON has none.
/// Whole numbers are integers in JSON.
fn rounded(number: f64) -> Value {
    let number = (number * 1e3).round() / 1e3;
    if number.fract() == 0.0 && number.abs() < 1e15 {
        Value::from(number as i64)
    } else {
        Value::from(number)
    }
}

fn short(number: f64) -> String {
    if number.abs() < 100.0 && number.fract() != 0.0 {
        format!("{number:.2}")
    } else {
        format!("{number:.0}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_says_everything_in_one_line_of_json() {
        let record = Record {
            workload: "chain",
            workers: 0,
            n: 10,
            rounds: 2,
            quantities: vec![
                ("ns_per_op", Quantity::of(vec![1.5, 2.5])),
                ("ratio", Quantity::Number(0.1234567)),
                ("bytes_per_op", Quantity::Missing("no such file")),
            ],
        };
        assert_eq!(
            record.json(),
            concat!(
                r#"{"bytes_per_op":null,"engine":"estafette","n":10,"ns_per_op":{"max":2.5,"median":2,"min":1.5},"#,
                r#""ratio":0.123,"rounds":2,"workers":0,"workload":"chain"}"#
            )
        );
        assert!(record.text().ends_with("bytes_per_op not available (no such file)"));
    }
}
