//! The fences that the variables of a replay carried when the replay was granted.

use estafette_devices::{Fence, FenceSet};
use estafette_sync::sync::Mutex;

use crate::core::var_state::has;

/// The fences of earlier work that a replay comes after. The nodes wait for these fences, each in its own
/// way, so that a program on a device waits there and not on the host. Root nodes (no predecessors) wait for
/// all of them, and other nodes come after root nodes.
#[derive(Default)]
pub(crate) struct Inputs {
    earlier: Mutex<Earlier>,
}

#[derive(Clone, Default)]
pub(crate) struct Earlier {
    /// Fences of the writers of what the replay reads. If one fails, the replay fails.
    pub(crate) writers: FenceSet,
    /// Fences of earlier readers, and of writers of what the replay overwrites.
    pub(crate) others: FenceSet,
}

impl Inputs {
    /// Sets the fences, before the replay begins.
    pub(crate) fn set(&self, earlier: Earlier) {
        *self.earlier.lock() = earlier;
    }

    pub(crate) fn take(&self) -> Earlier {
        std::mem::take(&mut *self.earlier.lock())
    }
}

impl Earlier {
    /// True if `fence` is one of `writers`.
    pub(crate) fn has_written(&self, fence: &Fence) -> bool {
        has(&self.writers, fence)
    }

    /// The fence whose failure is one of the replay, of a fence that nodes have passed on. Of one queue they
    /// pass the newest on: that of an earlier reader, whose failure is none of the replay, stands for that of
    /// a writer as well.
    pub(crate) fn input_behind<'a>(&'a self, fence: &'a Fence) -> Option<&'a Fence> {
        if has(&self.others, fence) { self.writers.counterpart(fence) } else { Some(fence) }
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = &Fence> {
        self.writers.iter().chain(&self.others)
    }
}
