//! The call of an operator as its implementation gets it, and its end.

use std::sync::Arc;

use estafette_devices::{DLDevice, Fence, Queue};
use estafette_report::shown::shown;
use estafette_sync::process::Generation;

use crate::core::core_ref::CoreRef;
use crate::core::error::{BodyError, BodyResult};
use crate::core::lost::lost;
use crate::engine::{Engine, WeakEngine};
use crate::operation::completion::{Completion, Scope};
use crate::operation::import::Produced;
use crate::tensor::handle::{Definition, Tensor};

use super::attributes::Attributes;
use super::operator::Operator;

/// The use of the results.
pub(super) enum Results {
    /// Nothing: they were written to the outputs.
    Written,
    /// They become the promised tensors.
    Promised,
}

/// A call that has begun: its inputs are there, and its outputs, if it was given any, are free to be written.
///
/// Dropping the invocation without [finishing](Self::finish) it fails the call.
pub struct Invocation {
    pub(super) completion: Completion,
    pub(super) results: Results,
    pub(super) parts: Arc<CallParts>,
    /// Dropped last, after the end of the call. `None` on the host.
    pub(super) left: Option<LeavesWork>,
}

/// A call that may put work on a queue: however it ends, the operator stays until that work is over.
pub(super) struct LeavesWork {
    operator: Arc<Operator>,
    queue: Arc<dyn Queue>,
    marked: Option<Fence>,
    generation: Generation,
}

impl LeavesWork {
    pub(super) fn new(operator: &Arc<Operator>, queue: &Arc<dyn Queue>) -> Self {
        let (operator, queue) = (Arc::clone(operator), Arc::clone(queue));
        Self { operator, queue, marked: None, generation: Generation::current() }
    }

    /// Marks the end of the work. If it cannot be known, the memory that the work uses is never released.
    fn mark(&mut self) -> Fence {
        let fence = self.queue.record().unwrap_or_else(lost);
        self.marked = Some(fence.clone());
        fence
    }
}

impl Drop for LeavesWork {
    fn drop(&mut self) {
        // In a forked child the queue is the parent's.
        if self.generation.is_current() {
            let marked = self.marked.take().unwrap_or_else(|| self.mark());
            self.operator.keep_until(marked);
        }
    }
}

/// The parts of a call.
pub(super) struct CallParts {
    pub(super) operator: Arc<Operator>,
    /// A call ends no engine, and keeps none.
    pub(super) engine: WeakEngine,
    pub(super) inputs: Vec<Tensor>,
    pub(super) outputs: Vec<Tensor>,
    pub(super) attributes: Attributes,
    pub(super) queue: Option<Arc<dyn Queue>>,
}

impl Invocation {
    /// The operator that was called.
    pub fn operator(&self) -> &Operator {
        &self.parts.operator
    }

    /// The engine that runs the call.
    pub fn engine(&self) -> Engine {
        self.parts.engine.to_engine()
    }

    pub(super) fn core(&self) -> &CoreRef {
        self.parts.engine.core()
    }

    /// The inputs.
    pub fn inputs(&self) -> &[Tensor] {
        &self.parts.inputs
    }

    /// The outputs; empty when the call produces its results.
    pub fn outputs(&self) -> &[Tensor] {
        &self.parts.outputs
    }

    /// The options of the call.
    pub fn attributes(&self) -> &Attributes {
        &self.parts.attributes
    }

    /// Lends the operands out, and has the [queue](Scope::queue) to enqueue on; there is none on the host.
    pub fn scope(&self) -> &Scope {
        self.completion.scope()
    }

    /// The native stream to enqueue on; 0 on the host, where the work is done when the call is finished.
    pub(super) fn stream(&self) -> usize {
        self.parts.queue.as_ref().map_or(0, |queue| queue.native())
    }

    /// The device of results that have no memory yet: where the first input is, or on the host.
    pub(super) fn device(&self) -> DLDevice {
        self.parts.inputs.first().and_then(|input| input.device().ok()).unwrap_or(DLDevice::CPU)
    }

    /// # Errors
    /// [`Error::NotDefined`](crate::Error::NotDefined) for an input whose producer's failure was cleared: it
    /// has no memory.
    pub(super) fn input_definitions(&self) -> BodyResult<Vec<&Definition>> {
        Ok(self.parts.inputs.iter().map(|tensor| tensor.inner.definition()).collect::<Result<_, _>>()?)
    }

    pub(super) fn output_definitions(&self) -> Vec<&Definition> {
        self.parts.outputs.iter().map(|tensor| tensor.inner.granted_definition()).collect()
    }

    /// Ends the call, with a result for each output that it had not been given, or with a failure.
    pub fn finish(self, result: BodyResult<Vec<Produced>>) {
        let Self { completion, results, parts, mut left } = self;
        let result = result.and_then(|produced| {
            let wanted =
                if matches!(results, Results::Written) { 0 } else { parts.operator.signature.outputs };
            if produced.len() == wanted {
                return Ok(produced);
            }
            let name = shown(&parts.operator.name);
            Err(BodyError::from(format!("operator `{name}` gave {} results, not {wanted}", produced.len())))
        });
        // Even a function that failed may have enqueued something, so its end is marked all the same.
        let marked = left.as_mut().map(LeavesWork::mark);
        match results {
            Results::Written => match marked {
                Some(fence) => completion.complete_after(&fence, result.map(drop)),
                None => completion.complete(result.map(drop)),
            },
            Results::Promised => completion.produce_all(result),
        }
    }
}

impl std::fmt::Debug for Invocation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Invocation")
            .field("operator", &self.parts.operator.name)
            .field("inputs", &self.parts.inputs.len())
            .finish_non_exhaustive()
    }
}
