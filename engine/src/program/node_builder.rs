//! Descriptions of nodes: the methods that take the body and record the node.

use estafette_devices::Queue;
use estafette_graph::AccessMode;
use smallvec::SmallVec;

use super::node::{External, NodeBody};
use super::plan::PlanNode;
use super::program_builder::ProgramBuilder;
use crate::core::error::{BodyResult, Error};
use crate::core::operation::Name;
use crate::operation::builder::{Description, Nothing, Target};
use crate::operation::completion::Completion;
use crate::operation::operands::{Grant, Operands, with_modes};
use crate::tensor::handle::{Tensor, make_reachable};
use crate::tensor::variable::Variable;
use crate::tensor::views::ViewMut;

/// A node of a program being described: an operation whose body can be called again. Made by
/// [`ProgramBuilder::op`].
pub type NodeBuilder<'r, R = Nothing, W = Nothing, U = ()> = Description<PendingNode<'r>, R, W, U>;

/// The target of a [`NodeBuilder`]: the next node of a program.
#[derive(Debug)]
pub struct PendingNode<'r> {
    program: &'r mut ProgramBuilder,
    name: Name,
    vars: SmallVec<[(Variable, AccessMode); 4]>,
    worker_only: bool,
    is_forked: bool,
}

impl<'v> Target<'v> for PendingNode<'_> {
    fn access(&mut self, variable: &'v Variable, mode: AccessMode) {
        self.is_forked |= variable.var.is_inherited();
        match self.vars.iter_mut().find(|(known, _)| known.id() == variable.id()) {
            Some((_, known)) if *known != mode => *known = AccessMode::Update,
            Some(_) => {}
            None => self.vars.push((variable.clone(), mode)),
        }
    }

    fn set_worker_only(&mut self, _needs_lock: bool) {
        self.worker_only = true;
    }

    fn is_forked(&self) -> bool {
        self.is_forked
    }
}

impl<'r> NodeBuilder<'r> {
    pub(super) fn new(program: &'r mut ProgramBuilder, name: Name) -> Self {
        Self::describe(PendingNode {
            program,
            name,
            vars: SmallVec::new(),
            worker_only: false,
            is_forked: false,
        })
    }
}

impl<'r, R: Operands, W: Operands, U: Operands> NodeBuilder<'r, R, W, U> {
    fn record(self, body: impl FnOnce(R, W, U) -> NodeBody) {
        let Self {
            target: PendingNode { program, name, vars, worker_only, .. },
            reads,
            writes,
            updates,
            options,
        } = self;
        program.note_accesses(reads.tensors(), AccessMode::Read);
        program.note_accesses(writes.tensors(), AccessMode::Write);
        program.note_accesses(updates.tensors(), AccessMode::Update);
        let (body, queue) = (body(reads, writes, updates), options.and_then(|options| options.queue));
        program.record(&vars, PlanNode { name, body, queue }, worker_only);
    }

    /// Records the node with a body that starts work elsewhere and reports its end through the
    /// [`Completion`], from any thread, as
    /// [`OpBuilder::run_external`](crate::operation::OpBuilder::run_external) does. Each replay calls the
    /// body once, with the node's own scope. On a [queue](Self::on), the node is what the body has enqueued
    /// there by then; the body takes the queue from the [scope](crate::Scope::queue).
    ///
    /// A view of an operand that outlives the node belongs to the replay: it becomes a lease when the replay
    /// ends, and later nodes of the same replay do not wait for it.
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

    /// The first half of [`run_external`](Self::run_external): all of its errors. For callers that give
    /// something away after the last error.
    ///
    /// # Errors
    /// As there.
    pub(crate) fn checked_external(self) -> Result<CheckedNode<'r, R, W, U>, Error> {
        self.check_external()?;
        Ok(CheckedNode { node: self })
    }
}

/// A node that passed all checks. Made by `bindings::program::checked_external`.
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
            let operands = with_modes(reads, writes, updates);
            NodeBody::External(Box::new(External { operands, start: Box::new(start) }))
        });
    }
}

impl<R: Operands + Sync, W: Operands + Sync, U: Operands + Sync> NodeBuilder<'_, R, W, U> {
    fn record_on_host<F>(self, body: F) -> Result<(), Error>
    where
        F: for<'a> Fn(R::Views<'a>, W::ViewsMut<'a>, U::ViewsMut<'a>) -> BodyResult + Send + Sync + 'static,
    {
        self.check_on_host("node", &self.target.name)?;
        self.record(|reads, writes, updates| {
            NodeBody::Host(Box::new(move || {
                let grant = &Grant::OF_BODY;
                body(reads.defined()?.views(grant), writes.views_mut(grant), updates.views_mut(grant))
            }))
        });
        Ok(())
    }

    fn record_on_device<F>(self, body: F) -> Result<(), Error>
    where
        F: for<'a> Fn(&'a dyn Queue, R::Views<'a>, W::ViewsMut<'a>, U::ViewsMut<'a>) -> BodyResult
            + Send
            + Sync
            + 'static,
    {
        self.queue_for_body()?;
        self.check()?;
        self.record(|reads, writes, updates| {
            NodeBody::Device(Box::new(move |queue, grant| {
                make_reachable(
                    queue,
                    [reads.tensors(), writes.tensors(), updates.tensors()].into_iter().flatten(),
                );
                body(queue, reads.defined()?.views(grant), writes.views_mut(grant), updates.views_mut(grant))
            }))
        });
        Ok(())
    }
}

impl<R: Operands + Sync, W: Operands + Sync> NodeBuilder<'_, R, W, ()> {
    /// Records the node. Its body gets views of the tensors that it reads and of those that it writes. Each
    /// replay calls the body once, as part of the replay's operation.
    ///
    /// # Errors
    /// [`Error::Conflict`] when a written operand overlaps another operand or may not be written. An error of
    /// the body itself is a failure of the replay.
    pub fn run<F>(self, body: F) -> Result<(), Error>
    where
        F: for<'a> Fn(R::Views<'a>, W::ViewsMut<'a>) -> BodyResult + Send + Sync + 'static,
    {
        self.record_on_host(move |reads, writes, ()| body(reads, writes))
    }

    /// Records the node with a device body, which enqueues work on the queue that it gets, named by
    /// [`on`](Self::on), and returns. The node is done when that work is done. Nodes on one in-order queue
    /// wait for nothing between them; nodes on several queues wait on the device where it can wait.
    ///
    /// # Errors
    /// As [`run`](Self::run), and [`Error::Invalid`] without a queue.
    pub fn run_on<F>(self, body: F) -> Result<(), Error>
    where
        F: for<'a> Fn(&'a dyn Queue, R::Views<'a>, W::ViewsMut<'a>) -> BodyResult + Send + Sync + 'static,
    {
        self.record_on_device(move |queue, reads, writes, ()| body(queue, reads, writes))
    }
}

impl<R: Operands + Sync, W: Operands + Sync, const N: usize> NodeBuilder<'_, R, W, [Tensor; N]> {
    /// As without [`updates`](Self::updates). The body gets the tensors that it updates in place as a third
    /// argument.
    pub fn run<F>(self, body: F) -> Result<(), Error>
    where
        F: for<'a> Fn(R::Views<'a>, W::ViewsMut<'a>, [ViewMut<'a>; N]) -> BodyResult + Send + Sync + 'static,
    {
        self.record_on_host(body)
    }

    /// As without [`updates`](Self::updates). The body gets the tensors that it updates in place as a fourth
    /// argument.
    pub fn run_on<F>(self, body: F) -> Result<(), Error>
    where
        F: for<'a> Fn(&'a dyn Queue, R::Views<'a>, W::ViewsMut<'a>, [ViewMut<'a>; N]) -> BodyResult
            + Send
            + Sync
            + 'static,
    {
        self.record_on_device(body)
    }
}
