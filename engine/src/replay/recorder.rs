//! Recording a program.

use std::borrow::Cow;

use estafette_graph::recording::Recording;
use estafette_graph::replay::Order;
use estafette_graph::{Mode, OpId};
use smallvec::SmallVec;

use super::footprint::Uses;
use super::plan::{NodeBody, Plan};
use super::program::Program;
use crate::engine::Engine;
use crate::error::{BodyResult, Error};
use crate::lease::check_writable;
use crate::operands::{Operands, Tensors};
use crate::operation::{Name, OpVar};
use crate::submit::check_disjoint;
use crate::tensor::Tensor;
use crate::variable::Variable;
use crate::views::ViewMut;

/// Nodes of one program. More would not be wrong but slow: the whole program is one operation, and whoever waits for one of
/// its outputs waits for all of it.
const NODES_MAX: usize = 1 << 24;

/// Accesses of all nodes of one program. Each makes at most two dependences, and those are numbered with 32 bits.
const ACCESSES_MAX: usize = 1 << 30;

type Nothing = [Tensor; 0];

/// Collects the nodes of a program. Made by [`Engine::record`]. Nothing runs before the program is
/// [finished](Self::finish) and [replayed](Program::replay).
pub struct Recorder {
    engine: Engine,
    name: Name,
    nodes: Vec<(Name, NodeBody)>,
    uses: Uses,
    /// The variables of all nodes, one after the other. They become a recording only at the end: by then memory may have been
    /// imported that makes several of them one.
    accesses: Vec<(OpVar, Mode)>,
    /// Where in `accesses` the node after each one begins.
    ends: Vec<usize>,
}

/// A node of a program being described: an operation, with a body that can be called again. Made by [`Recorder::op`].
///
/// `R`, `W` and `U` are what it reads, what it overwrites, and what it reads and writes in place.
#[must_use = "a node is recorded by `run`"]
pub struct NodeBuilder<'r, R = Nothing, W = Nothing, U = ()> {
    recorder: &'r mut Recorder,
    name: Name,
    reads: R,
    writes: W,
    updates: U,
    vars: SmallVec<[(Variable, Mode); 4]>,
}

impl Recorder {
    pub(crate) fn new(engine: &Engine, name: Name) -> Self {
        Self {
            engine: engine.clone(),
            name,
            nodes: Vec::new(),
            uses: Uses::default(),
            accesses: Vec::new(),
            ends: Vec::new(),
        }
    }

    /// Begins the description of a node. Nodes have the meaning that they would have as operations submitted in the order of
    /// recording.
    pub fn op(&mut self, name: impl Into<Cow<'static, str>>) -> NodeBuilder<'_> {
        let name = Name::from(name.into());
        NodeBuilder { recorder: self, name, reads: [], writes: [], updates: (), vars: SmallVec::new() }
    }

    /// Works the order of the nodes out. This takes time and memory in proportion to their number; do it once.
    ///
    /// # Errors
    /// [`Error::Invalid`] for more than 2²⁴ nodes or 2³⁰ accesses.
    pub fn finish(self) -> Result<Program, Error> {
        let Self { engine, name, nodes, uses, accesses, ends } = self;
        if nodes.len() > NODES_MAX || accesses.len() > ACCESSES_MAX {
            return Err(Error::invalid(format!(
                "a program of {} nodes with {} accesses is too long; the limits are {NODES_MAX} and {ACCESSES_MAX}",
                nodes.len(),
                accesses.len()
            )));
        }
        let mut recording = Recording::new();
        let mut begin = 0;
        for (number, ((name, _body), end)) in (1..).zip(nodes.iter().zip(ends)) {
            let accesses = accesses[begin..end].iter().map(|(var, mode)| (var.ordering().id(), *mode));
            recording.submitted(OpId::new(number), name.as_str(), accesses, 0);
            begin = end;
        }
        let plan = Plan::new(name, nodes, Order::of(&recording), uses.footprint());
        Ok(Program::new(engine, plan))
    }

    fn record(
        &mut self,
        name: Name,
        tensors: [(&[Tensor], Mode); 3],
        vars: &[(Variable, Mode)],
        body: NodeBody,
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
        self.nodes.push((name, body));
    }
}

impl<'r, R, W, U> NodeBuilder<'r, R, W, U> {
    /// Tensors that the body reads.
    pub fn reads<const N: usize>(self, tensors: [&Tensor; N]) -> NodeBuilder<'r, [Tensor; N], W, U> {
        let Self { recorder, name, writes, updates, vars, .. } = self;
        NodeBuilder { recorder, name, reads: tensors.map(Tensor::clone), writes, updates, vars }
    }

    /// As [`reads`](Self::reads), for a number known only at run time.
    pub fn reads_slice(self, tensors: &[Tensor]) -> NodeBuilder<'r, Tensors, W, U> {
        let Self { recorder, name, writes, updates, vars, .. } = self;
        NodeBuilder { recorder, name, reads: tensors.into(), writes, updates, vars }
    }

    /// Tensors that the body overwrites without reading them.
    pub fn writes<const N: usize>(self, tensors: [&Tensor; N]) -> NodeBuilder<'r, R, [Tensor; N], U> {
        let Self { recorder, name, reads, updates, vars, .. } = self;
        NodeBuilder { recorder, name, reads, writes: tensors.map(Tensor::clone), updates, vars }
    }

    /// As [`writes`](Self::writes), for a number known only at run time.
    pub fn writes_slice(self, tensors: &[Tensor]) -> NodeBuilder<'r, R, Tensors, U> {
        let Self { recorder, name, reads, updates, vars, .. } = self;
        NodeBuilder { recorder, name, reads, writes: tensors.into(), updates, vars }
    }

    /// Tensors that the body reads and writes in place; it gets them as its last argument.
    pub fn updates<const N: usize>(self, tensors: [&Tensor; N]) -> NodeBuilder<'r, R, W, [Tensor; N]> {
        let Self { recorder, name, reads, writes, vars, .. } = self;
        NodeBuilder { recorder, name, reads, writes, updates: tensors.map(Tensor::clone), vars }
    }

    /// Plain variables that the body uses without changing what they stand for.
    pub fn reads_vars(mut self, variables: &[&Variable]) -> Self {
        self.vars_in(Mode::Read, variables);
        self
    }

    /// Plain variables that the body changes. One that it reads as well is updated.
    pub fn writes_vars(mut self, variables: &[&Variable]) -> Self {
        self.vars_in(Mode::Write, variables);
        self
    }

    fn vars_in(&mut self, mode: Mode, variables: &[&Variable]) {
        for &variable in variables {
            match self.vars.iter_mut().find(|(known, _)| known.id() == variable.id()) {
                Some((_, known)) if *known != mode => *known = Mode::Update,
                Some(_) => {}
                None => self.vars.push((variable.clone(), mode)),
            }
        }
    }
}

impl<R: Operands, W: Operands, U: Operands> NodeBuilder<'_, R, W, U> {
    /// As for an operation: memory that is written must not be seen twice.
    fn check(&self) -> Result<(), Error> {
        let written = || self.writes.tensors().iter().chain(self.updates.tensors());
        for (at, tensor) in written().enumerate() {
            check_writable(tensor)?;
            let mut others = self.reads.tensors().iter().chain(written().skip(at + 1));
            others.try_for_each(|other| check_disjoint(tensor, other))?;
        }
        Ok(())
    }

    fn record(self, body: impl FnOnce(R, W, U) -> NodeBody) -> Result<(), Error> {
        self.check()?;
        let Self { recorder, name, reads, writes, updates, vars } = self;
        let lists = [reads.tensors().to_vec(), writes.tensors().to_vec(), updates.tensors().to_vec()];
        let body = body(reads, writes, updates);
        let [reads, writes, updates] = &lists;
        let tensors = [(&**reads, Mode::Read), (&**writes, Mode::Write), (&**updates, Mode::Update)];
        recorder.record(name, tensors, &vars, body);
        Ok(())
    }
}

impl<R: Operands + Sync, W: Operands + Sync> NodeBuilder<'_, R, W, ()> {
    /// Records the node. Its body gets views of what it reads and of what it writes, and is called once per replay, as the
    /// replay's operation.
    ///
    /// # Errors
    /// [`Error::Conflict`] when a written operand overlaps another one or may not be written. Errors of the body itself
    /// appear at whoever waits for the replay or its outputs.
    pub fn run<F>(self, body: F) -> Result<(), Error>
    where
        F: for<'a> Fn(R::Views<'a>, W::ViewsMut<'a>) -> BodyResult + Send + Sync + 'static,
    {
        self.record(|reads, writes, _none| Box::new(move || body(reads.views(), writes.views_mut())))
    }
}

impl<R: Operands + Sync, W: Operands + Sync, const N: usize> NodeBuilder<'_, R, W, [Tensor; N]> {
    /// As without [`updates`](Self::updates), with the tensors that are updated in place as a third argument.
    ///
    /// # Errors
    /// As without `updates`.
    pub fn run<F>(self, body: F) -> Result<(), Error>
    where
        F: for<'a> Fn(R::Views<'a>, W::ViewsMut<'a>, [ViewMut<'a>; N]) -> BodyResult + Send + Sync + 'static,
    {
        self.record(|reads, writes, updates| {
            Box::new(move || body(reads.views(), writes.views_mut(), updates.views_mut()))
        })
    }
}

impl std::fmt::Debug for Recorder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Recorder")
            .field("name", &self.name.as_str())
            .field("nodes", &self.nodes.len())
            .finish()
    }
}

impl<R, W, U> std::fmt::Debug for NodeBuilder<'_, R, W, U> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NodeBuilder").field("name", &self.name.as_str()).finish_non_exhaustive()
    }
}
