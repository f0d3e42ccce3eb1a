//! A row of points, step by step. Each point reads its neighbours and itself, as the step before left them.
//!
//! Rows are double-buffered, so an operation also waits for the readers of the row that it overwrites.

use crate::access::Access;
use crate::error::Error;
use crate::measure::by_accesses;
use crate::workload::{Measured, Settings, Workload};

/// Default number of steps.
const STEPS: usize = 1_000;

pub(crate) const WIDTH_8: Workload = Workload::plain(
    "stencil-8",
    "rows of 8 points, each reads 3 of the row before; n is rounded down to whole rows",
    STEPS * 8,
    |settings| run(settings, 8),
);

pub(crate) const WIDTH_32: Workload =
    Workload::plain("stencil-32", "rows of 32 points, likewise", STEPS * 32, |settings| run(settings, 32));

pub(crate) const WIDTH_64: Workload =
    Workload::plain("stencil-64", "rows of 64 points, likewise", STEPS * 64, |settings| run(settings, 64));

fn run(settings: &Settings, width: usize) -> Result<Measured, Error> {
    by_accesses(settings, 2 * width, &accesses(width, (settings.n / width).max(1)))
}

fn accesses(width: usize, steps: usize) -> Vec<Access> {
    let access = |op: usize| {
        let (step, point) = (op / width, op % width);
        let (old, new) = ((step + 1) % 2 * width, step % 2 * width);
        let neighbours: Vec<usize> = if step == 0 {
            Vec::new()
        } else {
            (point.saturating_sub(1)..=(point + 1).min(width - 1)).map(|neighbour| old + neighbour).collect()
        };
        Access::new(&neighbours, Some(new + point))
    };
    (0..steps * width).map(access).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn points_read_their_neighbours_in_the_other_row() {
        let accesses = accesses(4, 3);
        let of = |step: usize, point: usize| {
            let access = accesses[step * 4 + point];
            (access.reads().collect::<Vec<_>>(), access.write())
        };
        assert_eq!(accesses.len(), 12);
        assert_eq!(of(0, 2), (vec![], Some(2)));
        assert_eq!(of(1, 2), (vec![1, 2, 3], Some(6)));
        assert_eq!(of(1, 0), (vec![0, 1], Some(4)));
        assert_eq!(of(2, 3), (vec![6, 7], Some(3)));
    }
}
