//! Failures within a run. They follow data, as between operations.
//!
//! A node is skipped if it reads or updates the output of a node that failed or was skipped. A node that only
//! overwrites such an output runs, and later readers of the new output run as well. Other nodes run.

use estafette_graph::program::ProgramOrder;
use estafette_sync::sync::atomic::{AtomicBool, Ordering};
use estafette_sync::sync::{Mutex, OnceLock};

use crate::core::error::OperationError;

/// The failures of one run. They cost one load per node as long as no node has failed.
#[derive(Debug, Default)]
pub(super) struct Failures {
    /// True for nodes that must not run. Allocated by the first failure.
    poisoned: OnceLock<Box<[AtomicBool]>>,
    /// Of the failed nodes, the one that was recorded first, and its failure.
    cause: Mutex<Option<(u32, OperationError)>>,
}

impl Failures {
    /// True if no node has failed.
    pub(super) fn is_empty(&self) -> bool {
        self.poisoned.get().is_none()
    }

    /// True if `node` must not run. The nodes that it reads from have ended.
    pub(super) fn is_poisoned(&self, node: u32) -> bool {
        // Relaxed is enough: a node is poisoned before the end of its predecessor, which happens before this
        // load.
        self.poisoned.get().is_some_and(|poisoned| poisoned[node as usize].load(Ordering::Relaxed))
    }

    /// Notes the failure of `node`.
    pub(super) fn note(&self, order: &ProgramOrder, node: u32, failure: OperationError) {
        self.poison_readers(order, node);
        let mut cause = self.cause.lock();
        // The first failure in time may differ from run to run, so the order of recording decides; of one
        // node it is the first.
        let dropped = match &*cause {
            Some((known, _)) if *known <= node => Some((node, failure)),
            _ => cause.replace((node, failure)),
        };
        drop(cause);
        // The error of a body is foreign code, and so is its drop: no lock is held here.
        drop(dropped);
    }

    /// Poisons the readers of `node`, which has failed or was skipped.
    pub(super) fn poison_readers(&self, order: &ProgramOrder, node: u32) {
        let poisoned =
            self.poisoned.get_or_init(|| (0..order.len()).map(|_| AtomicBool::new(false)).collect());
        for reader in order.readers(node) {
            poisoned[*reader as usize].store(true, Ordering::Relaxed);
        }
    }

    /// The outcome of the run, after all nodes have ended.
    pub(super) fn outcome(&self) -> Result<(), OperationError> {
        match self.cause.lock().take() {
            None => Ok(()),
            Some((_node, failure)) => Err(failure),
        }
    }
}
