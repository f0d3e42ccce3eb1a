//! One writer, then 16 readers that may run at the same time, repeated on the same variable.

use crate::access::Access;
use crate::measure::by_accesses;
use crate::workload::{OPERATIONS_DEFAULT, Workload};

/// Readers of each version.
const READERS: usize = 16;

pub(crate) const FAN: Workload = Workload::plain(
    "fan",
    "one writer, then 16 readers of the same variable, repeated",
    OPERATIONS_DEFAULT,
    |settings| by_accesses(settings, 1, &accesses(settings.n)),
);

fn accesses(n: usize) -> Vec<Access> {
    let access = |op| match op % (1 + READERS) {
        0 => Access::new(&[], Some(0)),
        _ => Access::new(&[0], None),
    };
    (0..n).map(access).collect()
}
