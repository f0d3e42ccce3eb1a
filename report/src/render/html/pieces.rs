//! Waits, in as many pieces as a page can hold.
//!
//! A wait may have dozens of causes at its root, most of them short. Of a long trace these would be nearly all of the page
//! and invisible on it, so there the short ones are drawn as part of their neighbour. All sums are of the exact waits.

use crate::analysis::roots::Root;

/// Pieces that a page holds without getting slow.
const PIECES_MAX: usize = 300_000;

/// Shares of a wait below which a piece is drawn with its neighbour, tried in this order: 1/64, 1/32, ...
const PARTS: [u64; 6] = [64, 32, 16, 8, 4, 2];

/// The pieces to draw.
pub struct Pieces {
    pub pieces: Vec<Root>,
    most: usize,
    /// The number of [`PARTS`] that were tried.
    tried: usize,
}

impl Default for Pieces {
    fn default() -> Self {
        Self { pieces: Vec::new(), most: PIECES_MAX, tried: 0 }
    }
}

impl Pieces {
    /// Adds one wait.
    pub fn add(&mut self, wait: &[Root]) {
        match self.part() {
            None => self.pieces.extend_from_slice(wait),
            Some(part) => self.pieces.append(&mut join(wait, part)),
        }
        while self.pieces.len() > self.most && self.tried < PARTS.len() {
            let part = PARTS[self.tried];
            self.tried += 1;
            let waits = self.pieces.chunk_by(|a, b| a.waiter == b.waiter);
            self.pieces = waits.flat_map(|wait| join(wait, part)).collect();
        }
    }

    /// The part of its wait that each piece is at least (1/64 for 64), if any were left out.
    pub fn part(&self) -> Option<u64> {
        Some(PARTS[self.tried.checked_sub(1)?])
    }
}

/// The pieces of one wait that are a `part` of it or longer; what is shorter goes to the one before, or else after.
fn join(wait: &[Root], part: u64) -> Vec<Root> {
    let total: u64 = wait.iter().map(Root::duration).sum();
    let least = total / part;
    let mut pieces: Vec<Root> = Vec::new();
    let mut early = None;
    for &root in wait {
        let adjacent = pieces.last().is_some_and(|last| last.to == root.from);
        match pieces.last_mut() {
            Some(last) if adjacent && root.duration() < least => last.to = root.to,
            None if root.duration() < least => early = early.or(Some(root.from)),
            _ => pieces.push(root),
        }
        if let (Some(from), [only]) = (early, pieces.as_mut_slice()) {
            only.from = from;
            early = None;
        }
    }
    if pieces.is_empty() {
        // All are short: of what follows without a gap the longest is drawn for all.
        let whole = |block: &[Root]| {
            let longest = block.iter().copied().max_by_key(Root::duration);
            longest.map(|longest| Root { from: block[0].from, to: block[block.len() - 1].to, ..longest })
        };
        wait.chunk_by(|one, next| one.to == next.from).filter_map(whole).collect()
    } else {
        pieces
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Blocker, Cause};

    fn root(waiter: u64, from: u64, to: u64) -> Root {
        let (cause, blocker) = (Cause::Computing, Blocker::Operation(from));
        Root { waiter, from, to, cause, blocker, hazard: None, via: None, access: 0, direct: None }
    }

    fn at_most(roots: &[Root], most: usize) -> Pieces {
        let mut pieces = Pieces { most, ..Pieces::default() };
        roots.chunk_by(|a, b| a.waiter == b.waiter).for_each(|wait| pieces.add(wait));
        pieces
    }

    fn spans(roots: &[Root]) -> Vec<(u64, u64, u64)> {
        roots.iter().map(|root| (root.waiter, root.from, root.to)).collect()
    }

    #[test]
    fn few_pieces_stay_as_they_are() {
        let roots = vec![root(1, 0, 1), root(1, 1, 100)];
        let pieces = at_most(&roots, 2);
        assert_eq!((pieces.part(), pieces.pieces), (None, roots));
    }

    #[test]
    fn short_pieces_join_their_neighbour_and_the_wait_stays_whole() {
        let roots = [root(1, 0, 1), root(1, 1, 100), root(1, 100, 101), root(1, 101, 200), root(2, 5, 6)];
        let pieces = at_most(&roots, 3);
        assert_eq!(spans(&pieces.pieces), [(1, 0, 101), (1, 101, 200), (2, 5, 6)]);
        assert_eq!(pieces.part(), Some(64));
    }

    #[test]
    fn a_wait_of_many_equal_pieces_is_one_and_stays_whole() {
        let roots: Vec<Root> = (0..100).map(|at| root(1, at, at + 1)).collect();
        assert_eq!(spans(&at_most(&roots, 1).pieces), [(1, 0, 100)]);
    }
}
