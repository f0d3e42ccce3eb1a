//! Describing the nodes of a program.

use std::sync::Arc;

use estafette_devices::Queue;
use estafette_graph::Mode;
use smallvec::SmallVec;

use super::node::{External, NodeBody};
use super::plan::Node;
use super::program_builder::ProgramBuilder;
use crate::core::error::{BodyResult, Error};
use crate::core::operation::Name;
use crate::lease::check_writable;
use crate::operation::builder::Nothing;
use crate::operation::completion::Completion;
use crate::operation::disjoint::check_disjoint;
use crate::operation::operands::{Declared, Grant, Operands, Tensors};
use crate::operation::own_leases::check_own_leases;
use crate::tensor::handle::Tensor;
use crate::tensor::variable::Variable;
use crate::tensor::views::ViewMut;

/// A node of a program being described: an operation, with a body that can be called again. Made by [`ProgramBuilder::op`].
///
/// `R`, `W` and `U` are what it reads, what it overwrites, and what it reads and writes in place.
#[must_use = "a node is recorded by `run` or one of its kin"]
pub struct NodeBuilder<'r, R = Nothing, W = Nothing, U = ()> {
    builder: &'r mut ProgramBuilder,
    name: Name,
    reads: R,
    writes: W,
    updates: U,
    vars: SmallVec<[(Variable, Mode); 4]>,
    queue: Option<Arc<dyn Queue>>,
    worker_only: bool,
}

impl<'r> NodeBuilder<'r> {
    pub(super) fn new(builder: &'r mut ProgramBuilder, name: Name) -> Self {
        let vars = SmallVec::new();
        Self { builder, name, reads: [], writes: [], updates: (), vars, queue: None, worker_only: false }
    }
}

impl<'r, R, W, U> NodeBuilder<'r, R, W, U> {
    /// Tensors that the body reads.
    pub fn reads<const N: usize>(self, tensors: [&Tensor; N]) -> NodeBuilder<'r, [Tensor; N], W, U> {
        let Self { builder, name, writes, updates, vars, queue, worker_only, .. } = self;
        NodeBuilder {
            builder,
            name,
            reads: tensors.map(Tensor::clone),
            writes,
            updates,
            vars,
            queue,
            worker_only,
        }
    }

    /// As [`reads`](Self::reads), for a number known only at run time.
    pub fn reads_slice(self, tensors: &[Tensor]) -> NodeBuilder<'r, Tensors, W, U> {
        let Self { builder, name, writes, updates, vars, queue, worker_only, .. } = self;
        NodeBuilder { builder, name, reads: tensors.into(), writes, updates, vars, queue, worker_only }
    }

    /// Tensors that the body overwrites without reading them.
    pub fn writes<const N: usize>(self, tensors: [&Tensor; N]) -> NodeBuilder<'r, R, [Tensor; N], U> {
        let Self { builder, name, reads, updates, vars, queue, worker_only, .. } = self;
        NodeBuilder {
            builder,
            name,
            reads,
            writes: tensors.map(Tensor::clone),
            updates,
            vars,
            queue,
            worker_only,
        }
    }

    /// As [`writes`](Self::writes), for a number known only at run time.
    pub fn writes_slice(self, tensors: &[Tensor]) -> NodeBuilder<'r, R, Tensors, U> {
        let Self { builder, name, reads, updates, vars, queue, worker_only, .. } = self;
        NodeBuilder { builder, name, reads, writes: tensors.into(), updates, vars, queue, worker_only }
    }

    /// Tensors that the body reads and writes in place; it gets them as its last argument.
    pub fn updates<const N: usize>(self, tensors: [&Tensor; N]) -> NodeBuilder<'r, R, W, [Tensor; N]> {
        let Self { builder, name, reads, writes, vars, queue, worker_only, .. } = self;
        NodeBuilder {
            builder,
            name,
            reads,
            writes,
            updates: tensors.map(Tensor::clone),
            vars,
            queue,
            worker_only,
        }
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

    /// The queue that the body enqueues on; for [`run_on`](Self::run_on), and [`run_external`](Self::run_external) where that
    /// starts work of a device.
    pub fn on(mut self, queue: &Arc<dyn Queue>) -> Self {
        self.queue = Some(Arc::clone(queue));
        self
    }

    /// Keeps threads that wait for a replay from running its bodies in the meantime; as for
    /// [operations](crate::OpBuilder::worker_only). One node decides for the program.
    pub fn worker_only(mut self) -> Self {
        self.worker_only = true;
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

impl<'r, R: Operands, W: Operands, U: Operands> NodeBuilder<'r, R, W, U> {
    /// As for an operation: memory that is written must not be seen twice.
    fn check(&self) -> Result<(), Error> {
        let written = || self.writes.tensors().iter().chain(self.updates.tensors());
        check_own_leases(self.reads.tensors().iter(), written())?;
        written().try_for_each(check_writable)?;
        check_disjoint(self.reads.tensors(), self.writes.tensors(), self.updates.tensors())
    }

    fn record_on_host(self, body: impl FnOnce(R, W, U) -> NodeBody) -> Result<(), Error> {
        if self.queue.is_some() {
            return Err(Error::invalid(format!(
                "node `{}` names a queue, and its body works on the host; record it with `run_on`",
                self.name.as_str()
            )));
        }
        self.check()?;
        self.record(body);
        Ok(())
    }

    fn record_on_device(self, body: impl FnOnce(R, W, U) -> NodeBody) -> Result<(), Error> {
        if self.queue.is_none() {
            return Err(Error::invalid("a device body needs a queue; name one with `on`"));
        }
        self.check()?;
        self.record(body);
        Ok(())
    }

    fn record(self, body: impl FnOnce(R, W, U) -> NodeBody) {
        let Self { builder, name, reads, writes, updates, vars, queue, worker_only } = self;
        let lists = [reads.tensors().to_vec(), writes.tensors().to_vec(), updates.tensors().to_vec()];
        let body = body(reads, writes, updates);
        let [reads, writes, updates] = &lists;
        let tensors = [(&**reads, Mode::Read), (&**writes, Mode::Write), (&**updates, Mode::Update)];
        builder.record(tensors, &vars, Node { name, body, queue }, worker_only);
    }

    /// Records the node with a body that starts work elsewhere and reports its end through the [`Completion`], from any thread,
    /// as [`OpBuilder::run_external`](crate::OpBuilder::run_external) does: called once per replay, with the node's own scope.
    /// On a [queue](Self::on), what it has enqueued there by then is the node; the queue to use is that of the
    /// [scope](crate::Scope::queue).
    ///
    /// A view of an operand that is kept beyond the node belongs to the replay: it becomes a lease when that ends, and later
    /// nodes of the same replay do not wait for it.
    ///
    /// # Errors
    /// [`Error::Conflict`] when a written operand may not be written.
    pub fn run_external<F>(self, start: F) -> Result<(), Error>
    where
        F: Fn(Completion) + Send + Sync + 'static,
    {
        self.checked_external()?.run(start);
        Ok(())
    }

    /// The first half of [`run_external`](Self::run_external), for callers that must know that nothing can fail any more before
    /// they give something away.
    ///
    /// # Errors
    /// As there.
    pub fn checked_external(self) -> Result<CheckedNode<'r, R, W, U>, Error> {
        let written = || self.writes.tensors().iter().chain(self.updates.tensors());
        written().try_for_each(check_writable)?;
        check_own_leases(self.reads.tensors().iter(), written())?;
        Ok(CheckedNode { node: self })
    }
}

/// A node that cannot be refused any more. Made by [`NodeBuilder::checked_external`].
#[derive(Debug)]
#[must_use = "a node is recorded by `run`"]
pub struct CheckedNode<'r, R, W, U> {
    node: NodeBuilder<'r, R, W, U>,
}

impl<R: Operands, W: Operands, U: Operands> CheckedNode<'_, R, W, U> {
    /// As [`NodeBuilder::run_external`].
    pub fn run<F>(self, start: F)
    where
        F: Fn(Completion) + Send + Sync + 'static,
    {
        self.node.record(|reads, writes, updates| {
            let mut operands = Declared::new();
            reads.each(|tensor| operands.push((tensor, Mode::Read)));
            writes.each(|tensor| operands.push((tensor, Mode::Write)));
            updates.each(|tensor| operands.push((tensor, Mode::Update)));
            NodeBody::External(Box::new(External { operands, start: Box::new(start) }))
        });
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
        self.record_on_host(|reads, writes, _none| {
            NodeBody::Host(Box::new(move || {
                body(reads.defined()?.views(&Grant::OF_BODY), writes.views_mut(&Grant::OF_BODY))
            }))
        })
    }

    /// Records the node with a device body: it enqueues work on the queue that it is given, the one named by [`on`](Self::on),
    /// and returns; what it has enqueued there is the node. Nodes on one in-order queue wait for nothing between them; those on
    /// several wait on the device where it can.
    ///
    /// # Errors
    /// As [`run`](Self::run), and [`Error::Invalid`] without a queue.
    pub fn run_on<F>(self, body: F) -> Result<(), Error>
    where
        F: for<'a> Fn(&'a dyn Queue, R::Views<'a>, W::ViewsMut<'a>) -> BodyResult + Send + Sync + 'static,
    {
        self.record_on_device(|reads, writes, _none| {
            NodeBody::Device(Box::new(move |queue| {
                body(queue, reads.defined()?.views(&Grant::OF_BODY), writes.views_mut(&Grant::OF_BODY))
            }))
        })
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
        self.record_on_host(|reads, writes, updates| {
            NodeBody::Host(Box::new(move || {
                body(
                    reads.defined()?.views(&Grant::OF_BODY),
                    writes.views_mut(&Grant::OF_BODY),
                    updates.views_mut(&Grant::OF_BODY),
                )
            }))
        })
    }

    /// As without `updates`.
    ///
    /// # Errors
    /// As without `updates`.
    pub fn run_on<F>(self, body: F) -> Result<(), Error>
    where
        F: for<'a> Fn(&'a dyn Queue, R::Views<'a>, W::ViewsMut<'a>, [ViewMut<'a>; N]) -> BodyResult
            + Send
            + Sync
            + 'static,
    {
        self.record_on_device(|reads, writes, updates| {
            NodeBody::Device(Box::new(move |queue| {
                body(
                    queue,
                    reads.defined()?.views(&Grant::OF_BODY),
                    writes.views_mut(&Grant::OF_BODY),
                    updates.views_mut(&Grant::OF_BODY),
                )
            }))
        })
    }
}

impl<R, W, U> std::fmt::Debug for NodeBuilder<'_, R, W, U> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NodeBuilder").field("name", &self.name.as_str()).finish_non_exhaustive()
    }
}
