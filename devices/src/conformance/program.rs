//! Random programs over several queues, with waits made as an engine makes them, against the sequential
//! result. A wait too few shows as a wrong byte; a fence set that drops a fence too much does as well.

use std::sync::Arc;

use crate::{Allocation, Fence, FenceSet, Queue};

use super::{Check, Skip, bench::Bench};

pub(super) const CHECKS: &[Check] =
    &[("program: random programs give the sequential result", random_programs)];

const PROGRAMS: u64 = 20;
const STEPS: usize = 120;
const QUEUES: usize = 3;
const CELLS: usize = 5;
const CELL_BYTES: usize = 64;

/// A range of memory with its fences, and what a sequential run has in it.
struct Cell {
    memory: Allocation,
    written: FenceSet,
    read: FenceSet,
    expected: u8,
}

fn random_programs(bench: &Bench<'_>) -> Result<(), Skip> {
    (0..PROGRAMS).for_each(|seed| random_program(bench, seed));
    Ok(())
}

fn random_program(bench: &Bench<'_>, seed: u64) {
    let mut chance = Chance(seed.wrapping_mul(0x2545_f491_4f6c_dd1d) | 1);
    let queues: Vec<_> = (0..QUEUES).map(|_| bench.queue()).collect();
    let mut cells: Vec<_> = (0..CELLS)
        .map(|_| Cell {
            memory: bench.memory(CELL_BYTES),
            written: FenceSet::default(),
            read: FenceSet::default(),
            expected: 0,
        })
        .collect();
    for step in 0..STEPS {
        let queue = &queues[chance.below(QUEUES)];
        let to = chance.below(CELLS);
        let from = chance.below(CELLS);
        if chance.below(4) == 0 || from == to {
            fill(bench, queue, &mut cells[to], step as u8);
        } else if let Ok([from, to]) = cells.get_disjoint_mut([from, to]) {
            copy(bench, queue, from, to);
        }
        if chance.below(8) == 0 {
            bench.harness.advance();
        }
    }
    for cell in &cells {
        for fence in cell.written.iter().chain(&cell.read) {
            assert!(bench.settle(fence).is_ok());
        }
        bench.assert_filled(&cell.memory, cell.expected);
    }
}

fn fill(bench: &Bench<'_>, queue: &Arc<dyn Queue>, cell: &mut Cell, value: u8) {
    order_write(bench, queue, cell);
    bench.fill(&**queue, &cell.memory, value);
    note_write(cell, &bench.record(&**queue));
    cell.expected = value;
}

fn copy(bench: &Bench<'_>, queue: &Arc<dyn Queue>, from: &mut Cell, to: &mut Cell) {
    from.written.prune();
    for fence in &from.written {
        bench.order(&**queue, fence);
    }
    order_write(bench, queue, to);
    bench.copy(&**queue, &from.memory, &to.memory);
    let fence = bench.record(&**queue);
    from.read.insert(fence.clone());
    note_write(to, &fence);
    to.expected = from.expected;
}

fn order_write(bench: &Bench<'_>, queue: &Arc<dyn Queue>, cell: &mut Cell) {
    cell.written.prune();
    cell.read.prune();
    for fence in cell.written.iter().chain(&cell.read) {
        bench.order(&**queue, fence);
    }
}

fn note_write(cell: &mut Cell, write: &Fence) {
    for fence_set in [&mut cell.written, &mut cell.read] {
        fence_set.take_out(|present| write.same_or_later_on_queue(present), &mut Vec::new());
        // Everything earlier was ordered before this write. Only what was done already, so that no wait was
        // needed, may be unknown to it.
        assert!(fence_set.iter().all(Fence::is_done));
        fence_set.insert(write.clone());
    }
}

/// A small xorshift generator (Marsaglia: "Xorshift RNGs", 2003): programs must be the same everywhere.
struct Chance(u64);

impl Chance {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        ((self.0 >> 16) % limit as u64) as usize
    }
}
