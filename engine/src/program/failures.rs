//! Failures within a run: they follow data, as between operations.
//!
//! A node that reads (or updates) something whose last writer in this run failed, or was itself left out for such a
//! reason, is left out. A node that only overwrites heals, and nodes that merely come later run.

use estafette_graph::program::ProgramOrder;
use estafette_sync::sync::atomic::{AtomicBool, Ordering};
use estafette_sync::sync::{Mutex, OnceLock};

use crate::core::error::OperationError;

/// The failures of one run. Costs one load per node as long as there are none.
#[derive(Debug, Default)]
pub(super) struct Failures {
    /// For each node whether it must not run. Made by the first failure.
    poisoned: OnceLock<Box<[AtomicBool]>>,
    /// The failure of the node that was recorded first among those that failed, with its number.
    cause: Mutex<Option<(u32, OperationError)>>,
}

impl Failures {
    /// Whether nothing has failed.
    pub(super) fn is_empty(&self) -> bool {
        self.poisoned.get().is_none()
    }

    /// Whether `node` must not run. The nodes that it reads from have ended.
    pub(super) fn is_poisoned(&self, node: u32) -> bool {
        // Relaxed: dooming a node happens before the end of the one that poisoned it, and so before this.
        self.poisoned.get().is_some_and(|poisoned| poisoned[node as usize].load(Ordering::Relaxed))
    }

    /// Notes that `node` has failed.
    pub(super) fn note(&self, order: &ProgramOrder, node: u32, failure: OperationError) {
        self.poison_readers(order, node);
        let mut cause = self.cause.lock();
        // Not the first in time: who that is may differ from run to run.
        let dropped = match &*cause {
            Some((known, _)) if *known < node => Some((node, failure)),
            _ => cause.replace((node, failure)),
        };
        drop(cause);
        // The error of a body is foreign, and so is what happens when it is dropped.
        drop(dropped);
    }

    /// Dooms what reads from `node`, which has failed or is left out itself.
    pub(super) fn poison_readers(&self, order: &ProgramOrder, node: u32) {
        let poisoned =
            self.poisoned.get_or_init(|| (0..order.len()).map(|_| AtomicBool::new(false)).collect());
        for reader in order.readers(node) {
            poisoned[*reader as usize].store(true, Ordering::Relaxed);
        }
    }

    /// How the run has ended, once all nodes have.
    pub(super) fn outcome(&self) -> Result<(), OperationError> {
        match self.cause.lock().take() {
            None => Ok(()),
            Some((_node, failure)) => Err(failure),
        }
    }
}
