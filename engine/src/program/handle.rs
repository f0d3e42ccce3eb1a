//! The handle of a recorded program.

use std::sync::Arc;

use smallvec::SmallVec;

use super::plan::Plan;
use super::run;
use crate::core::error::Error;
use crate::core::inputs::Inputs;
use crate::core::operation::{Op, Role};
use crate::engine::Engine;
use crate::operation::builder::OpBuilder;
use crate::operation::completion::Completion;
use crate::operation::operands::Tensors;
use crate::tensor::variable::Variable;

/// Operations that were recorded once and can be replayed any number of times. Made by
/// [`ProgramBuilder::finish`](crate::program::ProgramBuilder::finish).
///
/// A program keeps its bodies and tensors, and a handle of its engine. A clone is another handle of the same
/// program. A program may be dropped while replays are in flight.
#[derive(Clone)]
pub struct Program {
    engine: Engine,
    plan: Arc<Plan>,
}

impl Program {
    pub(super) fn new(engine: Engine, plan: Plan) -> Self {
        Self { engine, plan: Arc::new(plan) }
    }

    /// True if the program is [one graph](crate::program::ProgramBuilder::finish_as_graph) of its device.
    pub(crate) fn is_graph(&self) -> bool {
        self.plan.graph.is_some()
    }

    /// True if a replay is in flight, or another handle of this program exists.
    pub(crate) fn is_in_use(&self) -> bool {
        Arc::strong_count(&self.plan) > 1
    }

    /// Submits one run of all nodes as one operation.
    ///
    /// The operation uses what the nodes use. A tensor that nodes only read is read. A tensor that is
    /// overwritten before any node reads it is written. Every other tensor that a node writes is updated. So
    /// a replay is ordered with all other operations, and with other replays; replays of a program that only
    /// reads may run at the same time.
    ///
    /// A node whose input comes from a failed node of the same run is skipped; all other nodes run. The
    /// failure of the replay is that of the failed node that was recorded first, and *everything* that the
    /// program writes fails with it, as for any failed operation.
    ///
    /// Nodes that may run at the same time may also run one after the other, so no node may wait for the body
    /// of another.
    ///
    /// A replay with device nodes ends when all nodes are issued, as a device operation does. Users of its
    /// outputs are ordered after the device work, on the device where possible.
    ///
    /// Blocks the thread while no permit is free, as [`OpBuilder::run`] does.
    ///
    /// # Errors
    /// As [`OpBuilder::run_external`].
    pub fn replay(&self) -> Result<Op, Error> {
        let (described, body) = self.describe();
        described.run_external(body)
    }

    /// As [`replay`](Self::replay), but waits for a permit by awaiting: no thread blocks. For asynchronous
    /// code.
    ///
    /// # Errors
    /// As [`OpBuilder::permit`].
    pub async fn replay_async(&self) -> Result<Op, Error> {
        let (described, body) = self.describe();
        described.permit().await?.run_external(body)
    }

    pub(crate) fn describe(&self) -> (Described<'_>, impl FnOnce(Completion) + Send + 'static) {
        let uses = &self.plan.footprint;
        let reads: SmallVec<[&Variable; 8]> = uses.reads_vars.iter().collect();
        let mutex = self.plan.graph.as_ref().map(|graph| &graph.mutex);
        let writes: SmallVec<[&Variable; 8]> = uses.writes_vars.iter().chain(mutex).collect();
        let described = OpBuilder::new(self.engine.core(), self.plan.name.clone())
            .reads(&uses.reads)
            .writes(&uses.writes)
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
        // The closure holds the core, not the engine's handle: a thread that ends an operation must not drop
        // the last handle.
        let (plan, core) = (Arc::clone(&self.plan), self.engine.core().clone());
        let body = move |completion| run::start(plan, &core, inputs.as_deref(), completion);
        (described, body)
    }
}

type Described<'e> = OpBuilder<'e, Tensors, Tensors>;

impl std::fmt::Debug for Program {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Program")
            .field("name", &self.plan.name.as_str())
            .field("nodes", &self.plan.len())
            .finish()
    }
}
