//! Waits, in as many parts as a page can hold.
//!
//! A wait may have dozens of causes at its root, most of them short. Of a long trace these would be nearly
//! all of the page and invisible on it, so there the short ones are drawn as part of their neighbour. All
//! sums are of the exact waits.

use crate::analysis::roots::Root;

/// Parts that a page holds without getting slow.
const PARTS_MAX: usize = 300_000;

/// Shares of a wait below which a part is drawn with its neighbour, tried in this order: 1/64, 1/32, ...
const SHARES: [u64; 6] = [64, 32, 16, 8, 4, 2];

/// The parts to draw.
pub struct WaitParts {
    pub parts: Vec<Root>,
    most: usize,
    /// The number of [`SHARES`] that were tried.
    tried: usize,
}

impl Default for WaitParts {
    fn default() -> Self {
        Self { parts: Vec::new(), most: PARTS_MAX, tried: 0 }
    }
}

impl WaitParts {
    /// Adds one wait.
    pub fn add(&mut self, wait: &[Root]) {
        match self.share() {
            None => self.parts.extend_from_slice(wait),
            Some(share) => self.parts.append(&mut join(wait, share)),
        }
        while self.parts.len() > self.most && self.tried < SHARES.len() {
            let share = SHARES[self.tried];
            self.tried += 1;
            let waits = self.parts.chunk_by(|a, b| a.waiter == b.waiter);
            self.parts = waits.flat_map(|wait| join(wait, share)).collect();
        }
    }

    /// The share of its wait that each part is at least (1/64 for 64), if any were left out.
    pub fn share(&self) -> Option<u64> {
        Some(SHARES[self.tried.checked_sub(1)?])
    }
}

/// The parts of one wait that are a `share` of it or longer; what is shorter goes to the one before, or else
/// after.
fn join(wait: &[Root], share: u64) -> Vec<Root> {
    let total: u64 = wait.iter().map(Root::duration).sum();
    let least = total / share;
    let mut parts: Vec<Root> = Vec::new();
    let mut early = None;
    for &root in wait {
        let adjacent = parts.last().is_some_and(|last| last.to == root.from);
        match parts.last_mut() {
            Some(last) if adjacent && root.duration() < least => last.to = root.to,
            None if root.duration() < least => early = early.or(Some(root.from)),
            _ => parts.push(root),
        }
        if let (Some(from), [only]) = (early, parts.as_mut_slice()) {
            only.from = from;
            early = None;
        }
    }
    if parts.is_empty() {
        // All are short: of what follows without a gap the longest is drawn for all.
        let whole = |block: &[Root]| {
            let longest = block.iter().copied().max_by_key(Root::duration);
            longest.map(|longest| Root { from: block[0].from, to: block[block.len() - 1].to, ..longest })
        };
        wait.chunk_by(|one, next| one.to == next.from).filter_map(whole).collect()
    } else {
        parts
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

    fn at_most(roots: &[Root], most: usize) -> WaitParts {
        let mut parts = WaitParts { most, ..WaitParts::default() };
        roots.chunk_by(|a, b| a.waiter == b.waiter).for_each(|wait| parts.add(wait));
        parts
    }

    fn spans(roots: &[Root]) -> Vec<(u64, u64, u64)> {
        roots.iter().map(|root| (root.waiter, root.from, root.to)).collect()
    }

    #[test]
    fn few_parts_stay_as_they_are() {
        let roots = vec![root(1, 0, 1), root(1, 1, 100)];
        let parts = at_most(&roots, 2);
        assert_eq!((parts.share(), parts.parts), (None, roots));
    }

    #[test]
    fn short_parts_join_their_neighbour_and_the_wait_stays_whole() {
        let roots = [root(1, 0, 1), root(1, 1, 100), root(1, 100, 101), root(1, 101, 200), root(2, 5, 6)];
        let parts = at_most(&roots, 3);
        assert_eq!(spans(&parts.parts), [(1, 0, 101), (1, 101, 200), (2, 5, 6)]);
        assert_eq!(parts.share(), Some(64));
    }

    #[test]
    fn a_wait_of_many_equal_parts_is_one_and_stays_whole() {
        let roots: Vec<Root> = (0..100).map(|at| root(1, at, at + 1)).collect();
        assert_eq!(spans(&at_most(&roots, 1).parts), [(1, 0, 100)]);
    }
}
