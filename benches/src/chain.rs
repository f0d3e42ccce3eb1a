//! Every operation writes the same variable, so each waits for the one before.

use crate::access::Access;
use crate::measure::by_accesses;
use crate::workload::{OPERATIONS_DEFAULT, Workload};

pub(crate) const CHAIN: Workload =
    Workload::plain("chain", "every operation writes the same variable", OPERATIONS_DEFAULT, |settings| {
        by_accesses(settings, 1, &accesses(settings.n))
    });

pub(crate) fn accesses(n: usize) -> Vec<Access> {
    (0..n).map(|_| Access::new(&[], Some(0))).collect()
}
