//! Hand-overs of device memory that nothing ordered after the work that made it.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

use crate::Trace;
use crate::analysis::exchanges::pair;
use crate::analysis::sentences::place;
use crate::model::shown::shown;
use crate::model::{Site, Text};

/// The hand-overs of one line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HandOver {
    /// `none`: nothing ordered them. `unknown`: nothing is known to have.
    pub order: String,
    /// The library whose memory it is.
    pub producer: String,
    /// The library that took it.
    pub consumer: String,
    /// The line behind which it was made; empty where that is not known.
    pub made: String,
    /// The line that took it; empty where that is not known.
    pub taken: String,
    /// The reason, in words.
    pub why: String,
    /// Their number.
    pub count: usize,
}

impl HandOver {
    /// In words.
    pub fn sentence(&self) -> String {
        let order = if self.order == "none" { "not ordered" } else { "order unknown" };
        let line = |word: &str, line: &str| match line {
            "" => String::new(),
            line => format!(", {word} {line}"),
        };
        let (made, taken) = (line("made after", &self.made), line("taken at", &self.taken));
        let (producer, consumer) = (shown(&self.producer), shown(&self.consumer));
        format!("{order}: {producer} → {consumer}, {} ×{made}{taken}: {}", self.count, shown(&self.why))
    }
}

/// The hand-overs of a trace, by lines: certain ones first, then the most frequent.
pub fn hand_overs(trace: &Trace) -> Vec<HandOver> {
    type Lines<'t> = (bool, (&'t str, &'t str), Option<&'t Site>, Option<&'t Site>, &'t Text);
    let mut counts: HashMap<Lines<'_>, usize> = HashMap::new();
    for operation in &trace.operations {
        let Some(disorder) = &operation.disorder else { continue };
        let Some(pair) = pair(trace, operation) else { continue };
        let lines =
            (disorder.is_known, pair, disorder.after.as_ref(), operation.site.as_ref(), &disorder.why);
        *counts.entry(lines).or_default() += 1;
    }
    let line = |site: Option<&Site>| site.map(place).unwrap_or_default();
    let row = |((is_known, (producer, consumer), made, taken, why), count): (Lines<'_>, usize)| HandOver {
        order: if is_known { "none" } else { "unknown" }.to_owned(),
        producer: producer.to_owned(),
        consumer: consumer.to_owned(),
        made: line(made),
        taken: line(taken),
        why: why.as_str().to_owned(),
        count,
    };
    let mut rows: Vec<HandOver> = counts.into_iter().map(row).collect();
    rows.sort_by(|a, b| {
        let key = |row: &HandOver| (row.order == "unknown", std::cmp::Reverse(row.count));
        key(a).cmp(&key(b)).then_with(|| (&a.taken, &a.made, &a.why).cmp(&(&b.taken, &b.made, &b.why)))
    });
    rows
}
