//! A call as an operation of the graph.

use std::borrow::Cow;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use estafette_devices::Queue;

use crate::core::error::Error;
use crate::core::operation::{Name, Op};
use crate::engine::Engine;
use crate::operation::builder::OpBuilder;
use crate::operation::completion::Completion;
use crate::operation::operands::{Operands, Tensors};
use crate::tensor::handle::Tensor;

use super::attributes::Attributes;
use super::invocation::{CallParts, Invocation, LeavesWork, Results};
use super::operator::Operator;

/// A call being described. Made by [`Engine::operator`] by name.
#[derive(Clone)]
#[must_use = "a call does nothing until it is submitted with `run_into` or `produce`"]
pub struct OperatorCall {
    engine: Engine,
    pub(crate) operator: Arc<Operator>,
    inputs: Vec<Tensor>,
    pub(crate) attributes: Attributes,
    queue: Option<Arc<dyn Queue>>,
    priority: i32,
    without_waiting: bool,
}

impl OperatorCall {
    pub(crate) fn new(engine: Engine, operator: Arc<Operator>) -> Self {
        let (inputs, attributes) = (Vec::new(), Attributes::default());
        Self { engine, operator, inputs, attributes, queue: None, priority: 0, without_waiting: false }
    }

    /// Tensors that it reads.
    pub fn inputs(mut self, tensors: &[&Tensor]) -> Self {
        self.inputs = tensors.iter().map(|tensor| (*tensor).clone()).collect();
        self
    }

    /// An option of the call.
    pub fn attribute(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.attributes.set(key, value, false);
        self
    }

    /// The queue that the operator enqueues on, instead of running on the host. Only for calls that are given
    /// their outputs. A closure works on the host; so does a function in C on a queue without a native
    /// handle.
    pub fn on(mut self, queue: &Arc<dyn Queue>) -> Self {
        self.queue = Some(Arc::clone(queue));
        self
    }

    /// As [`OpBuilder::priority`].
    pub fn priority(mut self, priority: i32) -> Self {
        self.priority = priority;
        self
    }

    /// As [`OpBuilder::without_waiting`].
    pub fn without_waiting(mut self) -> Self {
        self.without_waiting = true;
        self
    }

    /// Submits the call, which writes to `outputs`.
    ///
    /// # Errors
    /// [`Error::Invalid`] for the wrong number of inputs or outputs, for an operator that takes no outputs,
    /// and on a queue for one that works on the host; [`Error::Conflict`] when an output overlaps another
    /// operand and the operator does not work in place, or may not be written; those of
    /// [`OpBuilder::run`](OpBuilder::run). Failures of the operator itself appear where the operation or its
    /// outputs are awaited.
    pub fn run_into(self, outputs: &[&Tensor]) -> Result<Op, Error> {
        at_once(self.submit_into(outputs, false))
    }

    /// As [`run_into`](Self::run_into), waiting for a permit without blocking the thread.
    pub async fn run_into_async(self, outputs: &[&Tensor]) -> Result<Op, Error> {
        self.submit_into(outputs, true).await
    }

    /// Submits the call, and gives promises of its results.
    ///
    /// # Errors
    /// As [`run_into`](Self::run_into), and [`Error::Invalid`] for an operator that has to be given its
    /// outputs.
    pub fn produce(self) -> Result<Vec<Tensor>, Error> {
        Ok(self.produce_with_op()?.0)
    }

    /// As [`produce`](Self::produce), with the operation.
    pub(crate) fn produce_with_op(self) -> Result<(Vec<Tensor>, Op), Error> {
        at_once(self.submit_producing(false))
    }

    /// As [`produce`](Self::produce), waiting for a permit without blocking the thread.
    pub async fn produce_async(self) -> Result<Vec<Tensor>, Error> {
        Ok(self.submit_producing(true).await?.0)
    }

    async fn submit_into(self, outputs: &[&Tensor], awaits: bool) -> Result<Op, Error> {
        self.operator.check_arity(self.inputs.len(), Some(outputs.len()))?;
        // The parts keep no engine, and the engine must not end before the submission.
        let _engine = self.engine.clone();
        let how = (self.priority, self.without_waiting);
        let parts = self.parts(outputs)?;
        let builder = describe(&parts, how).writes(&parts.outputs);
        check_overlap(&parts.operator, &builder)?;
        ready(builder, awaits).await?.run_external(starting(&parts, Results::Written))
    }

    async fn submit_producing(self, awaits: bool) -> Result<(Vec<Tensor>, Op), Error> {
        let _engine = self.engine.clone();
        let how = (self.priority, self.without_waiting);
        let parts = self.parts_producing()?;
        let builder = ready(describe(&parts, how), awaits).await?;
        builder.produce_several(parts.operator.signature.outputs, starting(&parts, Results::Promised))
    }

    fn parts_producing(self) -> Result<Arc<CallParts>, Error> {
        self.operator.check_arity(self.inputs.len(), None)?;
        if self.queue.is_some() {
            return Err(Error::invalid(format!(
                "operator `{}` is called on a queue, where it has to be given outputs to write",
                self.operator.name
            )));
        }
        self.parts(&[])
    }

    fn parts(self, outputs: &[&Tensor]) -> Result<Arc<CallParts>, Error> {
        let Self { engine, operator, inputs, attributes, queue, .. } = self;
        attributes.check()?;
        if queue.as_ref().is_some_and(|queue| !operator.implementation().can_enqueue_on(queue.as_ref())) {
            let name = &operator.name;
            return Err(Error::invalid(format!(
                "operator `{name}` works on the host, and cannot be called on this queue"
            )));
        }
        let outputs = outputs.iter().map(|tensor| (*tensor).clone()).collect();
        let engine = engine.downgrade();
        Ok(Arc::new(CallParts { operator, engine, inputs, outputs, attributes, queue }))
    }
}

/// The description, with a permit if the caller awaits it; otherwise the submission blocks the thread for
/// one.
async fn ready<R: Operands, W: Operands>(
    builder: OpBuilder<'_, R, W>,
    awaits: bool,
) -> Result<OpBuilder<'_, R, W>, Error> {
    if awaits { builder.permit().await } else { Ok(builder) }
}

/// The output of a submission that awaits nothing.
fn at_once<T>(submission: impl Future<Output = T>) -> T {
    match pin!(submission).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => output,
        Poll::Pending => unreachable!("it awaits nothing"),
    }
}

fn describe(parts: &CallParts, (priority, without_waiting): (i32, bool)) -> OpBuilder<'_, Tensors> {
    let name = Name::from(Cow::Owned(parts.operator.name.to_string()));
    let mut builder = OpBuilder::new(parts.engine.core(), name).priority(priority).reads(&parts.inputs);
    if without_waiting {
        builder = builder.without_waiting();
    }
    if parts.operator.implementation().takes_a_lock() {
        builder = builder.worker_only();
    }
    match &parts.queue {
        Some(queue) => builder.on(queue),
        None => builder,
    }
}

fn check_overlap(operator: &Operator, builder: &OpBuilder<'_, Tensors, Tensors>) -> Result<(), Error> {
    // An operator that may work in place gets pointers; the others may have slices, which must not see memory
    // twice.
    if operator.signature.in_place { Ok(()) } else { builder.check() }
}

/// The body of the operation that runs the operator.
fn starting(parts: &Arc<CallParts>, results: Results) -> impl FnOnce(Completion) + Send + 'static {
    let parts = Arc::clone(parts);
    move |completion| {
        let operator = Arc::clone(&parts.operator);
        let left = parts.queue.as_ref().map(|queue| LeavesWork::new(&operator, queue));
        operator.implementation().start(Invocation { completion, results, parts, left });
    }
}

impl std::fmt::Debug for OperatorCall {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OperatorCall")
            .field("operator", &self.operator.name)
            .field("inputs", &self.inputs.len())
            .field("attributes", &self.attributes)
            .finish_non_exhaustive()
    }
}
