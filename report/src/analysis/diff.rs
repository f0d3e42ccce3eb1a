//! Two runs compared.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::analysis::summary::Report;
use crate::model::Nanos;

/// The changes from one report to another.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Difference {
    /// Run times.
    pub duration_ns: Change,
    /// Waiting, summed.
    pub waited_ns: Change,
    /// Critical paths.
    pub critical_path_ns: Change,
    /// By cause.
    pub causes: Vec<NamedChange>,
    /// Waiting by operation, greatest change first.
    pub operations: Vec<NamedChange>,
    /// Running by operation, greatest change first.
    pub running: Vec<NamedChange>,
    /// The losses of the first, in words.
    #[serde(default)]
    pub missing_before: Vec<String>,
    /// The losses of the second, in words.
    #[serde(default)]
    pub missing_after: Vec<String>,
}

/// A number in both.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Change {
    /// In the first.
    pub before: Nanos,
    /// In the second.
    pub after: Nanos,
}

/// A number in both, of something with a name. What one of them lacks is 0 there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NamedChange {
    /// Of what.
    pub name: String,
    /// In the first.
    pub before: Nanos,
    /// In the second.
    pub after: Nanos,
}

/// Compares two reports.
pub fn difference(before: &Report, after: &Report) -> Difference {
    type Times = fn(&Report) -> Vec<(String, Nanos)>;
    let both = |times: Times| named(times(before), times(after));
    Difference {
        duration_ns: Change { before: before.duration_ns, after: after.duration_ns },
        waited_ns: Change { before: before.totals.waited_ns, after: after.totals.waited_ns },
        critical_path_ns: Change {
            before: before.critical_path.length_ns,
            after: after.critical_path.length_ns,
        },
        causes: both(|it| it.causes.iter().map(|row| (row.cause.clone(), row.waited_ns)).collect()),
        operations: both(|it| it.operations.iter().map(|row| (row.name.clone(), row.waited_ns)).collect()),
        running: both(|it| it.operations.iter().map(|row| (row.name.clone(), row.running_ns)).collect()),
        missing_before: before.missing.clone(),
        missing_after: after.missing.clone(),
    }
}

fn named(before: Vec<(String, Nanos)>, after: Vec<(String, Nanos)>) -> Vec<NamedChange> {
    let mut both: BTreeMap<String, Change> = BTreeMap::new();
    for (name, time) in before {
        both.entry(name).or_default().before += time;
    }
    for (name, time) in after {
        both.entry(name).or_default().after += time;
    }
    let mut rows: Vec<NamedChange> = both
        .into_iter()
        .filter(|(_, change)| change.before != change.after)
        .map(|(name, Change { before, after })| NamedChange { name, before, after })
        .collect();
    rows.sort_by_key(|row| std::cmp::Reverse(row.before.abs_diff(row.after)));
    rows
}
