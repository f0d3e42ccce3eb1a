//! Every operation reads two variables and writes a third one. All are drawn at random, and are the same in
//! every run.

use crate::access::{Access, VARIABLES};
use crate::dice::Dice;
use crate::measure::by_accesses;
use crate::workload::{OPERATIONS_DEFAULT, Workload};

/// Seed of the generator, also in the programs that measure other engines.
pub(crate) const SEED: u64 = 0x5eed;

pub(crate) const RANDOM: Workload = Workload::plain(
    "random",
    "two random reads and one random write out of 1,000 variables",
    OPERATIONS_DEFAULT,
    |settings| by_accesses(settings, VARIABLES, &accesses(settings.n)),
);

pub(crate) fn accesses(n: usize) -> Vec<Access> {
    draw(n, VARIABLES, SEED)
}

/// `n` operations over the first `variables` variables.
pub(crate) fn draw(n: usize, variables: usize, seed: u64) -> Vec<Access> {
    let mut dice = Dice::new(seed);
    let draw = |_| {
        let write = dice.roll(variables);
        let first = other_than(&mut dice, variables, &[write]);
        let second = other_than(&mut dice, variables, &[write, first]);
        Access::new(&[first, second], Some(write))
    };
    (0..n).map(draw).collect()
}

fn other_than(dice: &mut Dice, variables: usize, taken: &[usize]) -> usize {
    loop {
        let drawn = dice.roll(variables);
        if !taken.contains(&drawn) {
            return drawn;
        }
    }
}
