//! Recording a program.

use std::borrow::Cow;

use estafette_graph::Mode;
use estafette_graph::program::ProgramLog;
use estafette_graph::program::ProgramOrder;

use super::footprint::Uses;
use super::graph::GraphPlan;
use super::node_builder::NodeBuilder;
use super::plan::{Node, Plan};
use super::program::Program;
use crate::core::error::Error;
use crate::core::operation::{Name, OpVar};
use crate::engine::Engine;
use crate::operation::own_leases::check_own_leases;
use crate::tensor::handle::Tensor;
use crate::tensor::variable::Variable;

/// Nodes of one program. More would not be wrong but slow: the whole program is one operation, and whoever waits for one of
/// its outputs waits for all of it.
const NODES_MAX: usize = 1 << 24;

/// Accesses of all nodes of one program. Each makes at most two dependences, and those are numbered with 32 bits.
const ACCESSES_MAX: usize = 1 << 30;

/// Collects the nodes of a program. Made by [`Engine::program`]. Nothing runs before the program is
/// [finished](Self::finish) and [replayed](Program::replay).
pub struct ProgramBuilder {
    engine: Engine,
    name: Name,
    nodes: Vec<Node>,
    uses: Uses,
    /// The variables of all nodes, one after the other. They become a recording only at the end: by then memory may have been
    /// imported that makes several of them one.
    accesses: Vec<(OpVar, Mode)>,
    /// Where in `accesses` the node after each one begins.
    ends: Vec<usize>,
    /// Whether threads that wait must not run the bodies.
    worker_only: bool,
}

impl ProgramBuilder {
    pub(crate) fn new(engine: &Engine, name: Name) -> Self {
        Self {
            engine: engine.clone(),
            name,
            nodes: Vec::new(),
            uses: Uses::default(),
            accesses: Vec::new(),
            ends: Vec::new(),
            worker_only: false,
        }
    }

    /// Begins the description of a node. Nodes have the meaning that they would have as operations submitted in the order of
    /// recording.
    pub fn op(&mut self, name: impl Into<Cow<'static, str>>) -> NodeBuilder<'_> {
        NodeBuilder::new(self, Name::from(name.into()))
    }

    /// The engine that the program will run in.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// Number of nodes so far.
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Whether nothing was recorded so far.
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// Works the order of the nodes out. This takes time and memory in proportion to their number; do it once.
    ///
    /// # Errors
    /// [`Error::Invalid`] for more than 2²⁴ nodes or 2³⁰ accesses; [`Error::Conflict`] when a replay would wait for the lease that
    /// an operand of one of its nodes keeps.
    pub fn finish(self) -> Result<Program, Error> {
        self.finish_with(None)
    }

    /// As [`finish`](Self::finish), for a program whose nodes are all on queues of ours of one device that records graphs
    /// (CUDA): it is launched by one call of the driver per replay.
    ///
    /// The bodies are called by the first replay, once each, in the order of recording, and by no later one: what they enqueue
    /// is recorded and not run, and every replay runs what was recorded. So what a body reads on the host, such as a factor
    /// that it passes to a kernel, stays as it was then, and so do addresses: a body must use its operands and what lives as
    /// long as the program. It enqueues on the queue that it is given, which is another one than the queue it was recorded
    /// with, and must not wait for anything there. If it fails the replay fails, and the next one tries again. Nodes that
    /// nothing orders may run at the same time if they were recorded with different queues.
    ///
    /// Replays run one after the other, also those of a program that only reads.
    ///
    /// # Errors
    /// As [`finish`](Self::finish), and [`Error::Invalid`] that names the node that stands in the way. What the driver refuses
    /// to record is a failure of the first replay, with the name of the node that did it.
    pub fn finish_as_graph(self) -> Result<Program, Error> {
        let graph = GraphPlan::of(&self.nodes)?;
        self.finish_with(Some(graph))
    }

    fn finish_with(self, graph: Option<GraphPlan>) -> Result<Program, Error> {
        let Self { engine, name, nodes, uses, accesses, ends, worker_only } = self;
        if nodes.len() > NODES_MAX || accesses.len() > ACCESSES_MAX {
            return Err(Error::invalid(format!(
                "a program of {} nodes with {} accesses is too long; the limits are {NODES_MAX} and {ACCESSES_MAX}",
                nodes.len(),
                accesses.len()
            )));
        }
        let footprint = uses.footprint();
        // A replay is one operation, which keeps the operands of all nodes until its end.
        check_own_leases(footprint.reads.iter(), footprint.writes.iter())?;
        let mut log = ProgramLog::new();
        let mut begin = 0;
        for end in ends {
            let accesses = accesses[begin..end].iter().map(|(var, mode)| (var.ordering().id(), *mode));
            log.push(accesses);
            begin = end;
        }
        let plan = Plan::new(name, nodes, ProgramOrder::of(&log), footprint, graph, worker_only);
        Ok(Program::new(engine, plan))
    }

    pub(super) fn record(
        &mut self,
        tensors: [(&[Tensor], Mode); 3],
        vars: &[(Variable, Mode)],
        node: Node,
        worker_only: bool,
    ) {
        for (tensors, mode) in tensors {
            for tensor in tensors {
                self.uses.tensor(tensor, mode);
                self.accesses.extend(tensor.inner.vars.iter().map(|var| (var.clone(), mode)));
            }
        }
        for (variable, mode) in vars {
            self.uses.variable(variable, *mode);
            self.accesses.push((variable.var.clone(), *mode));
        }
        self.ends.push(self.accesses.len());
        self.nodes.push(node);
        self.worker_only |= worker_only;
    }
}

impl std::fmt::Debug for ProgramBuilder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ProgramBuilder")
            .field("name", &self.name.as_str())
            .field("nodes", &self.nodes.len())
            .finish()
    }
}
