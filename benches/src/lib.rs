//! Criterion benches, one for each piece: `cargo bench -p benches --bench graph` (or `engine`, `ready`, `exchange`,
//! `replay`).
//!
//! This library holds the access patterns that they share. First figures are in `results/`.

pub mod replay;

/// Operations of one measured run.
pub const OPERATIONS: usize = 10_000;

/// Variables of a pattern that has many.
pub const VARIABLES: usize = 1_000;

/// Which variables each operation uses, as indices below [`VARIABLES`].
#[derive(Debug, Clone)]
pub struct Access {
    /// Variables that the operation reads.
    pub reads: Vec<usize>,
    /// The variable that it writes.
    pub write: usize,
}

/// Every operation writes the same variable.
pub fn chain() -> Vec<Access> {
    (0..OPERATIONS).map(|_| Access { reads: Vec::new(), write: 0 }).collect()
}

/// Operations write all the variables in turn, so there is always much that may run.
pub fn independent() -> Vec<Access> {
    (0..OPERATIONS).map(|op| Access { reads: Vec::new(), write: op % VARIABLES }).collect()
}

/// Every operation reads two variables and writes a third, all drawn at random; the same in every run.
pub fn random() -> Vec<Access> {
    let mut dice = Dice(0x5eed);
    let draw = |_| {
        let write = dice.below(VARIABLES);
        let mut reads = Vec::with_capacity(2);
        while reads.len() < 2 {
            let read = dice.below(VARIABLES);
            if read != write && !reads.contains(&read) {
                reads.push(read);
            }
        }
        Access { reads, write }
    };
    (0..OPERATIONS).map(draw).collect()
}

/// All patterns with their names.
pub fn patterns() -> [(&'static str, Vec<Access>); 3] {
    [("chain", chain()), ("independent", independent()), ("random 2r+1w", random())]
}

/// Numbers that look random: splitmix64.
struct Dice(u64);

impl Dice {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        // The remainder's bias is far below anything a bench could notice.
        ((mixed ^ (mixed >> 31)) % limit as u64) as usize
    }
}
