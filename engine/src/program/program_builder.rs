//! Recording of programs.

use std::borrow::Cow;

use estafette_graph::program::ProgramLog;
use estafette_graph::program::ProgramOrder;
use estafette_graph::{AccessMode, VarId};

use super::footprint::Uses;
use super::graph::GraphPlan;
use super::handle::Program;
use super::node_builder::NodeBuilder;
use super::plan::{Plan, PlanNode, VarUses};
use crate::core::error::Error;
use crate::core::operation::{Name, OpVar};
use crate::engine::Engine;
use crate::operation::own_leases::check_own_leases;
use crate::tensor::handle::Tensor;
use crate::tensor::variable::Variable;

/// Nodes of one program. A longer program would be slow, not wrong: the whole program is one operation, so a
/// waiter for one output waits for all nodes.
const NODES_MAX: usize = 1 << 24;

/// Accesses of all nodes of one program. An access makes at most two dependences, which are numbered with 32
/// bits.
const ACCESSES_MAX: usize = 1 << 30;

/// Records the nodes of a program. Made by [`Engine::program`]. Nodes run when the program is
/// [finished](Self::finish) and [replayed](Program::replay).
pub struct ProgramBuilder {
    pub(crate) engine: Engine,
    name: Name,
    nodes: Vec<PlanNode>,
    uses: Uses,
    /// The variables of all nodes, one after the other. Dependences are computed at the end, since memory
    /// imported until then may merge several variables into one.
    accesses: Vec<(OpVar, AccessMode)>,
    /// For each node, the end of its variables in `accesses`.
    ends: Vec<usize>,
    /// True if waiting threads must not run the bodies.
    worker_only: bool,
}

impl Engine {
    /// Begins to record a program: operations that are described once and run many times. Each run is one
    /// operation called `name`.
    pub fn program(&self, name: impl Into<Cow<'static, str>>) -> ProgramBuilder {
        ProgramBuilder::new(self, Name::from(name.into()))
    }
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

    /// Begins the description of a node. Nodes have the effect of operations submitted in the order of
    /// recording.
    pub fn op(&mut self, name: impl Into<Cow<'static, str>>) -> NodeBuilder<'_> {
        NodeBuilder::new(self, Name::from(name.into()))
    }

    /// Computes the order of the nodes. Takes time and memory in proportion to their number.
    ///
    /// # Errors
    /// [`Error::Invalid`] for more than 2²⁴ nodes or 2³⁰ accesses; [`Error::Conflict`] when a replay would
    /// wait for the lease that an operand of one of its nodes keeps.
    pub fn finish(self) -> Result<Program, Error> {
        self.finish_with(None)
    }

    /// As [`finish`](Self::finish), for a program whose nodes are all on the engine's own queues of one
    /// device that captures graphs (CUDA). Each replay launches the program by one call of the driver.
    ///
    /// The first replay calls each body once, in the order of recording; later replays call no body. Work
    /// that a body enqueues is captured and does not run, and every replay runs the captured work. So values
    /// that a body reads on the host, such as a factor that it passes to a kernel, stay as they were then,
    /// and so do addresses: a body must use its operands, and memory that lives as long as the program. A
    /// body must enqueue on the queue that it gets, which is not the queue that was recorded, and must not
    /// wait there. A body that fails fails the replay, and the next replay captures again. Nodes on different
    /// queues may run at the same time if no dependence orders them.
    ///
    /// Replays run one after the other, also those of a program that only reads.
    ///
    /// # Errors
    /// As [`finish`](Self::finish), and [`Error::Invalid`] that names a node which no graph can have. If the
    /// driver refuses to capture a node, the first replay fails with the name of that node.
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
        let orders = orders(accesses.iter().map(|(var, _)| var));
        let mut begin = 0;
        for &end in &ends {
            let modes = accesses[begin..end].iter().map(|(_, mode)| *mode);
            log.push(orders[begin..end].iter().copied().zip(modes));
            begin = end;
        }
        let uses = || {
            let mut node = 0;
            VarUses::of(accesses.iter().zip(orders).enumerate().map(|(at, ((var, mode), order))| {
                while ends[node] <= at {
                    node += 1;
                }
                (node as u32, var, order, *mode)
            }))
        };
        let plan = Plan::new(name, nodes, ProgramOrder::of(&log), footprint, graph, worker_only, uses);
        Ok(Program::new(engine, plan))
    }

    /// Notes the accesses of the next node to `tensors`.
    pub(super) fn note_accesses(&mut self, tensors: &[Tensor], mode: AccessMode) {
        for tensor in tensors {
            self.uses.tensor(tensor, mode);
            self.accesses.extend(tensor.inner.vars.iter().map(|var| (var.clone(), mode)));
        }
    }

    /// Records the next node, whose accesses to tensors were noted.
    pub(super) fn record(&mut self, vars: &[(Variable, AccessMode)], node: PlanNode, worker_only: bool) {
        for (variable, mode) in vars {
            self.uses.variable(variable, *mode);
            self.accesses.push((variable.var.clone(), *mode));
        }
        self.ends.push(self.accesses.len());
        self.nodes.push(node);
        self.worker_only |= worker_only;
    }
}

/// The variables that order accesses of `vars`, all as of one moment: if an import collapsed some of them in
/// between, two accesses of one variable would seem to be of two, and lose their order.
fn orders<'a>(vars: impl Iterator<Item = &'a OpVar> + Clone) -> Vec<VarId> {
    let look = || vars.clone().map(|var| var.ordering().id()).collect::<Vec<_>>();
    let mut found = look();
    loop {
        // A variable never goes back to one that ordered it before. So what is found twice was so all the
        // time in between.
        let again = look();
        if again == found {
            return found;
        }
        found = again;
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

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use estafette_devices::DLDevice;

    use super::*;
    use crate::exchange::{Abi, DType, ExportFlags, Layout, export};

    /// So many parts collapse when a tensor overlaps them all.
    const PARTS: usize = 17;

    #[test]
    fn an_import_while_variables_are_looked_up_splits_no_group() {
        let engine = Engine::builder().workers(1).build().unwrap();
        let memory: &'static mut [f32] = Box::leak(Box::new([0.0; PARTS]));
        let start = memory.as_mut_ptr();
        let import = |at: usize, len: usize| {
            let layout = Layout::contiguous(DType::F32, DLDevice::CPU, &[len as i64]).unwrap();
            let data = start.wrapping_add(at).cast();
            // SAFETY: elements of memory that is never freed, and that only the engine uses.
            unsafe { engine.import(export(&layout, data, ExportFlags::default(), Abi::Versioned, || ())) }
                .unwrap()
        };
        let parts: Vec<Tensor> = (0..PARTS).map(|at| import(at, 1)).collect();
        let whole = RefCell::new(None);
        let vars = parts.iter().enumerate().flat_map(|(at, part)| {
            if at == PARTS / 2 {
                whole.borrow_mut().get_or_insert_with(|| import(0, PARTS));
            }
            &part.inner.vars
        });
        let orders = orders(vars);
        let group = whole.into_inner().unwrap().inner.vars[0].id();
        assert_eq!(orders, [group; PARTS]);
    }
}
