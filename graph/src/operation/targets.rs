//! The variables of one operation, collected before it is submitted.

use std::hint;

use smallvec::SmallVec;

use crate::operation::access::Target;
use crate::operation::block::INLINE;
use crate::variable::var::VarNode;

/// A list of targets. As many as fit into a block need no heap.
pub(crate) type Targets<V, T> = SmallVec<[Target<V, T>; INLINE]>;

/// Sorts by variable and merges duplicates.
///
/// # Safety
/// The caller keeps the nodes alive.
pub(crate) unsafe fn normalize<V, T>(targets: &mut Targets<V, T>) {
    // SAFETY: forwarded to the caller.
    targets.sort_unstable_by_key(|target| unsafe { VarNode::lock_rank(target.node()) });
    targets.dedup_by(|target, kept| {
        let is_same = target.node() == kept.node();
        if is_same {
            *kept = Target::new(kept.node(), kept.mode().merge(target.mode()));
        }
        is_same
    });
}

/// Sorts two to four targets by variable, by the smallest sorting networks (Knuth, The Art of Computer
/// Programming 3, 5.3.4): the results of comparisons are unpredictable here, so most branches of an ordinary
/// sort would be mispredicted.
///
/// # Safety
/// The caller keeps the nodes alive.
#[inline(always)]
pub(crate) unsafe fn sort_few<V, T, const N: usize>(list: &mut [Target<V, T>; N]) {
    const {
        assert!(matches!(N, 2..=4), "each size has a network of its own");
    }
    let network: &[(usize, usize)] = match N {
        2 => &[(0, 1)],
        3 => &[(1, 2), (0, 2), (0, 1)],
        _ => &[(0, 1), (2, 3), (0, 2), (1, 3), (1, 2)],
    };
    for &(a, b) in network {
        let (first, second) = (list[a], list[b]);
        // SAFETY: forwarded to the caller.
        let ordered = unsafe { VarNode::lock_rank(first.node()) <= VarNode::lock_rank(second.node()) };
        list[a] = hint::select_unpredictable(ordered, first, second);
        list[b] = hint::select_unpredictable(ordered, second, first);
    }
}
