//! What the variables of a replay carried when it was granted.

use estafette_devices::{Fence, FenceSet};
use estafette_sync::sync::Mutex;

/// The fences of earlier work that a replay comes after, where its nodes settle them: each in its own way, so that a program
/// on a device waits there and not on the host. Nodes that come after no other one wait for all of them, and the others come
/// after those.
#[derive(Default)]
pub(crate) struct Inputs(Mutex<Earlier>);

#[derive(Clone, Default)]
pub(crate) struct Earlier {
    /// Of those who wrote what the replay reads: their failure would be its own.
    pub(crate) writers: FenceSet,
    /// Of those who are only in the way.
    pub(crate) others: FenceSet,
}

impl Inputs {
    /// The replay may begin.
    pub(crate) fn set(&self, earlier: Earlier) {
        *self.0.lock() = earlier;
    }

    pub(super) fn take(&self) -> Earlier {
        std::mem::take(&mut *self.0.lock())
    }
}

impl Earlier {
    /// Whether `fence` is one of `writers`.
    pub(super) fn has_written(&self, fence: &Fence) -> bool {
        let same = |known: &Fence| known.same_or_later_on_queue(fence) && fence.same_or_later_on_queue(known);
        self.writers.iter().any(same)
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &Fence> {
        self.writers.iter().chain(&self.others)
    }
}
