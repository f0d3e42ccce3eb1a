//! Operations write all variables in turn, so many operations are ready at any time.

use crate::access::{Access, VARIABLES};
use crate::measure::by_accesses;
use crate::workload::{OPERATIONS_DEFAULT, Workload};

pub(crate) const INDEPENDENT: Workload = Workload::plain(
    "independent",
    "each operation writes one of 1,000 variables, round robin",
    OPERATIONS_DEFAULT,
    |settings| by_accesses(settings, VARIABLES, &accesses(settings.n)),
);

pub(crate) fn accesses(n: usize) -> Vec<Access> {
    (0..n).map(|op| Access::new(&[], Some(op % VARIABLES))).collect()
}
