//! What all runs of a program share.

use std::sync::PoisonError;

use estafette_graph::replay::{Countdown, Order};
use estafette_sync::sync::Mutex;

use super::footprint::Footprint;
use super::pace::Pace;
use crate::error::BodyResult;
use crate::operation::Name;

/// The body of a node, which owns its operands. Called once per run, never twice at once within a run.
pub(super) type NodeBody = Box<dyn Fn() -> BodyResult + Send + Sync>;

/// Countdowns kept for the next run. Runs of one program overlap only when all of it is read only, and then rarely.
const SPARE_MAX: usize = 2;

/// A program after recording.
pub(super) struct Plan {
    pub(super) name: Name,
    /// In the order of recording, as everything that goes by the number of a node.
    pub(super) bodies: Box<[NodeBody]>,
    pub(super) names: Box<[Name]>,
    pub(super) order: Order,
    pub(super) footprint: Footprint,
    /// How fast the last run was.
    pub(super) pace: Pace,
    /// Whether never two nodes may run at once.
    pub(super) chain: bool,
    spare: Mutex<Vec<Countdown>>,
}

impl Plan {
    pub(super) fn new(name: Name, nodes: Vec<(Name, NodeBody)>, order: Order, footprint: Footprint) -> Self {
        assert_eq!(order.len(), nodes.len(), "every node was recorded");
        let (names, bodies): (Vec<_>, Vec<_>) = nodes.into_iter().unzip();
        let chain = order.is_chain();
        Self {
            name,
            bodies: bodies.into(),
            names: names.into(),
            order,
            footprint,
            pace: Pace::default(),
            chain,
            spare: Mutex::default(),
        }
    }

    /// Number of nodes.
    pub(super) fn len(&self) -> usize {
        self.bodies.len()
    }

    /// A countdown for a run of which the first `done` nodes have been run.
    pub(super) fn countdown(&self, done: usize) -> Countdown {
        let spare = self.spare.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let mut countdown = spare.unwrap_or_else(|| Countdown::new(self.len()));
        countdown.restart(&self.order, done);
        countdown
    }

    /// Takes a countdown back from a run that no thread looks at any more.
    pub(super) fn recycle(&self, countdown: Countdown) {
        let mut spare = self.spare.lock().unwrap_or_else(PoisonError::into_inner);
        if spare.len() < SPARE_MAX {
            spare.push(countdown);
        }
    }
}
