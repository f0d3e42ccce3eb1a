//! The handle of a recorded program.

use std::sync::Arc;

use smallvec::SmallVec;

use super::inputs::Inputs;
use super::plan::Plan;
use super::run;
use crate::core::error::Error;
use crate::core::operation::{Op, Role};
use crate::engine::Engine;
use crate::operation::builder::OpBuilder;
use crate::operation::completion::Completion;
use crate::operation::operands::Tensors;
use crate::tensor::variable::Variable;

/// Operations that were recorded once and may be run any number of times. Made by [`ProgramBuilder::finish`](crate::ProgramBuilder::finish).
///
/// It keeps its bodies and tensors, and a handle of its engine. Cloning gives another handle to the same program. It may be
/// dropped while replays are in flight.
#[derive(Clone)]
pub struct Program {
    engine: Engine,
    plan: Arc<Plan>,
}

impl Program {
    pub(super) fn new(engine: Engine, plan: Plan) -> Self {
        Self { engine, plan: Arc::new(plan) }
    }

    /// The name given when recording began.
    pub fn name(&self) -> &str {
        self.plan.name.as_str()
    }

    /// Number of nodes.
    pub fn len(&self) -> usize {
        self.plan.len()
    }

    /// Whether nothing was recorded.
    pub fn is_empty(&self) -> bool {
        self.plan.len() == 0
    }

    /// Whether it is [one graph](crate::ProgramBuilder::finish_as_graph) of its device.
    pub fn is_graph(&self) -> bool {
        self.plan.graph.is_some()
    }

    /// Whether a replay is in flight, or there is another handle of this program.
    pub fn is_in_use(&self) -> bool {
        Arc::strong_count(&self.plan) > 1
    }

    /// Submits one run of all nodes, as one operation. It uses what the nodes use: what only some node reads is read;
    /// what is overwritten before any node reads it is written; all else that some node writes is updated. So it is ordered
    /// with all other operations, and with other replays; those of a program that only reads may run at the same time.
    ///
    /// A node whose input was left by a failed node of the same run is not called, and all others are. The replay has then
    /// failed by the failure of the node that was recorded first among those that failed, and as with any failed operation
    /// *everything* that the program writes has failed with it.
    ///
    /// Nodes that may run at the same time may also run one after the other, so none may wait for another one's body.
    ///
    /// With nodes on devices the replay has ended when all of them are issued, as an operation on a device has: whoever uses
    /// what it writes is ordered after their work, on the device where that can be.
    ///
    /// Waits for a permit, helping to run what is ready.
    ///
    /// # Errors
    /// As [`OpBuilder::run_external`].
    pub fn replay(&self) -> Result<Op, Error> {
        let (described, body) = self.describe();
        described.run_external(body)
    }

    /// As [`replay`](Self::replay), waiting for a permit without blocking the thread.
    ///
    /// # Errors
    /// As [`OpBuilder::permit`].
    pub async fn replay_async(&self) -> Result<Op, Error> {
        let (described, body) = self.describe();
        described.permit().await?.run_external(body)
    }

    /// As [`replay`](Self::replay), but refuses with [`Error::InFlightLimit`] instead of waiting.
    ///
    /// # Errors
    /// As [`OpBuilder::run_external`], and [`Error::InFlightLimit`].
    pub fn try_replay(&self) -> Result<Op, Error> {
        let (described, body) = self.describe();
        described.without_waiting().run_external(body)
    }

    fn describe(&self) -> (Described<'_>, impl FnOnce(Completion) + Send + 'static) {
        let uses = &self.plan.footprint;
        let reads: SmallVec<[&Variable; 8]> = uses.reads_vars.iter().collect();
        let mutex = self.plan.graph.as_ref().map(|graph| &graph.mutex);
        let writes: SmallVec<[&Variable; 8]> = uses.writes_vars.iter().chain(mutex).collect();
        let described = OpBuilder::new(self.engine.core(), self.plan.name.clone())
            .reads_slice(&uses.reads)
            .writes_slice(&uses.writes)
            .reads_vars(&reads)
            .writes_vars(&writes);
        let mut described = if self.plan.worker_only { described.worker_only() } else { described };
        let mut inputs = None;
        if let Some(graph) = &self.plan.graph {
            described = described.on(&graph.queue);
        } else if self.plan.issue.is_some() {
            let place = Arc::<Inputs>::default();
            described.state_mut().set_role(Role::Replay(Arc::clone(&place)));
            inputs = Some(place);
        }
        // Not the engine's handle: whoever ends an operation must not be the last to hold the engine.
        let (plan, core) = (Arc::clone(&self.plan), self.engine.core().clone());
        let body = move |completion| run::start(plan, &core, inputs.as_deref(), completion);
        (described, body)
    }
}

type Described<'e> = OpBuilder<'e, Tensors, Tensors>;

impl std::fmt::Debug for Program {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Program").field("name", &self.name()).field("nodes", &self.len()).finish()
    }
}
