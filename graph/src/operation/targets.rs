//! The variables of one operation, collected before it is submitted.

use std::hint;
use std::mem::MaybeUninit;

use crate::operation::access::Target;
use crate::operation::block::INLINE;
use crate::variable::var::VarNode;

/// A list of targets. As many as fit into a block need no heap.
pub(crate) struct Targets<V, T> {
    len: usize,
    /// The first `len` are set, unless there are more than fit.
    few: [MaybeUninit<Target<V, T>>; INLINE],
    /// All targets, or none if they fit above.
    many: Vec<Target<V, T>>,
}

impl<V, T> Targets<V, T> {
    #[inline(always)]
    pub(crate) fn new() -> Self {
        Self { len: 0, few: [const { MaybeUninit::uninit() }; INLINE], many: Vec::new() }
    }

    #[inline(always)]
    pub(crate) fn push(&mut self, target: Target<V, T>) {
        if self.len >= INLINE {
            return self.push_another(target);
        }
        self.few[self.len].write(target);
        self.len += 1;
    }

    #[cold]
    fn push_another(&mut self, target: Target<V, T>) {
        if self.many.is_empty() {
            self.many = self.as_slice().to_vec();
        }
        self.many.push(target);
        self.len += 1;
    }

    #[inline(always)]
    pub(crate) fn as_slice(&self) -> &[Target<V, T>] {
        if !self.many.is_empty() {
            return &self.many;
        }
        // SAFETY: the first `len` are initialized.
        unsafe { self.few[..self.len].assume_init_ref() }
    }

    #[inline(always)]
    pub(crate) fn as_mut_slice(&mut self) -> &mut [Target<V, T>] {
        if !self.many.is_empty() {
            return &mut self.many;
        }
        // SAFETY: as in `as_slice`.
        unsafe { self.few[..self.len].assume_init_mut() }
    }

    /// Sorts by variable and merges duplicates.
    ///
    /// # Safety
    /// The caller keeps the nodes alive.
    #[inline(always)]
    pub(crate) unsafe fn normalize(&mut self) {
        if self.len > 1 {
            // SAFETY: forwarded to the caller.
            self.len = unsafe { sort_and_merge(self.as_mut_slice()) };
            self.many.truncate(self.len);
        }
    }
}

impl<V, T> FromIterator<Target<V, T>> for Targets<V, T> {
    fn from_iter<I: IntoIterator<Item = Target<V, T>>>(targets: I) -> Self {
        let mut list = Self::new();
        targets.into_iter().for_each(|target| list.push(target));
        list
    }
}

/// Sorts by variable and merges duplicates. Returns the number of targets that are left, in front.
///
/// # Safety
/// The caller keeps the nodes alive.
unsafe fn sort_and_merge<V, T>(list: &mut [Target<V, T>]) -> usize {
    // SAFETY: forwarded to the caller.
    list.sort_unstable_by_key(|target| unsafe { VarNode::lock_rank(target.node()) });
    let mut kept = 0;
    for next in 1..list.len() {
        let (last, target) = (list[kept], list[next]);
        if last.node() == target.node() {
            list[kept] = Target::new(last.node(), last.mode().merge(target.mode()));
        } else {
            kept += 1;
            list[kept] = target;
        }
    }
    kept + 1
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
