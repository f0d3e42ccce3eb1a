use std::collections::HashMap;

use smallvec::SmallVec;

use crate::{Fence, FenceState, QueueId};

/// A set of fences: what has to settle before a range of memory is free of earlier work.
///
/// It keeps at most the newest fence per queue whose fences are ordered among themselves, since that one
/// settles last. Stand-alone fences are kept each. Two fit without an allocation: one writer and one reader
/// elsewhere is the usual set.
#[derive(Clone, Debug, Default)]
pub struct FenceSet {
    fences: SmallVec<[Fence; 2]>,
    /// The index of each fence, of a set of more than [`SEARCHED_MAX`]. Made by the next insertion after some
    /// were taken out.
    #[expect(clippy::box_collection, reason = "hardly any set has one, so that it takes little room")]
    index: Option<Box<HashMap<Key, usize>>>,
}

/// Fences that are searched one by one. Hardly any set is larger.
const SEARCHED_MAX: usize = 16;

/// The key that two fences of a set do not have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Key {
    Queue(QueueId),
    /// The address of a stand-alone event.
    Event(usize),
}

impl Key {
    fn of(fence: &Fence) -> Self {
        match (fence.queue(), fence.as_event()) {
            (Some(queue), _) => Self::Queue(queue),
            (None, event) => Self::Event(event.map_or(0, |event| std::sync::Arc::as_ptr(event).addr())),
        }
    }
}

impl FenceSet {
    /// True if there is nothing to wait for.
    pub fn is_empty(&self) -> bool {
        self.fences.is_empty()
    }

    /// The number of fences.
    pub fn len(&self) -> usize {
        self.fences.len()
    }

    /// The fences, in no particular order.
    pub fn iter(&self) -> std::slice::Iter<'_, Fence> {
        self.fences.iter()
    }

    /// Adds a fence. On a queue that is in the set already, only the newer one stays.
    pub fn insert(&mut self, fence: Fence) {
        drop(self.insert_replacing(fence));
    }

    /// As [`insert`](Self::insert), and gives the fence that does not stay: that is for callers under a lock,
    /// where nothing of a user's may be dropped.
    #[must_use = "dropping a fence may run a user's code"]
    pub fn insert_replacing(&mut self, fence: Fence) -> Option<Fence> {
        let key = Key::of(&fence);
        let Some(at) = self.place(key) else {
            if let Some(index) = &mut self.index {
                index.insert(key, self.fences.len());
            }
            self.fences.push(fence);
            if self.index.is_none() && self.fences.len() > SEARCHED_MAX {
                let places = self.fences.iter().enumerate().map(|(at, fence)| (Key::of(fence), at));
                self.index = Some(Box::new(places.collect()));
            }
            return None;
        };
        let present = &mut self.fences[at];
        let newer = fence.queue().is_some() && fence.same_or_later_on_queue(present);
        Some(if newer { std::mem::replace(present, fence) } else { fence })
    }

    /// The fence of the set on the queue of `fence`, or the same stand-alone fence.
    pub fn counterpart(&self, fence: &Fence) -> Option<&Fence> {
        self.place(Key::of(fence)).map(|at| &self.fences[at])
    }

    fn place(&self, key: Key) -> Option<usize> {
        match &self.index {
            Some(index) => index.get(&key).copied(),
            None => self.fences.iter().position(|present| Key::of(present) == key),
        }
    }

    /// Moves every fence that is `gone` to `into`. Asks no backend.
    pub fn take_out(&mut self, mut gone: impl FnMut(&Fence) -> bool, into: &mut impl Extend<Fence>) {
        let mut at = 0;
        while let Some(fence) = self.fences.get(at) {
            if gone(fence) {
                self.index = None;
                into.extend([self.fences.swap_remove(at)]);
            } else {
                at += 1;
            }
        }
    }

    /// Adds all fences of `other`.
    pub fn merge(&mut self, other: &FenceSet) {
        if self.is_empty() {
            self.clone_from(other);
            return;
        }
        for fence in &other.fences {
            self.insert(fence.clone());
        }
    }

    /// Drops the fences that are known to be done. Asks no backend; failed fences stay.
    pub fn prune(&mut self) {
        self.index = None;
        self.fences.retain(|fence| !fence.observed_done());
    }

    /// Drops every fence.
    pub fn clear(&mut self) {
        self.index = None;
        self.fences.clear();
    }

    /// Pending while any fence is; then failed with the first failure in the set, else done.
    pub fn state(&self) -> FenceState {
        let mut failure = None;
        for fence in &self.fences {
            match fence.state() {
                FenceState::Pending => return FenceState::Pending,
                FenceState::Done => {}
                FenceState::Failed(error) => failure = failure.or(Some(error)),
            }
        }
        failure.map_or(FenceState::Done, FenceState::Failed)
    }
}

impl From<Fence> for FenceSet {
    fn from(fence: Fence) -> Self {
        Self { fences: SmallVec::from_iter([fence]), index: None }
    }
}

impl Extend<Fence> for FenceSet {
    fn extend<I: IntoIterator<Item = Fence>>(&mut self, fences: I) {
        fences.into_iter().for_each(|fence| self.insert(fence));
    }
}

impl FromIterator<Fence> for FenceSet {
    fn from_iter<I: IntoIterator<Item = Fence>>(fences: I) -> Self {
        let mut fence_set = Self::default();
        fence_set.extend(fences);
        fence_set
    }
}

impl IntoIterator for FenceSet {
    type Item = Fence;
    type IntoIter = smallvec::IntoIter<[Fence; 2]>;

    fn into_iter(self) -> Self::IntoIter {
        self.fences.into_iter()
    }
}

impl<'a> IntoIterator for &'a FenceSet {
    type Item = &'a Fence;
    type IntoIter = std::slice::Iter<'a, Fence>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}
