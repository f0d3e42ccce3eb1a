//! What the implementation of an operator gets, and how it ends.

use std::sync::Arc;

use estafette_devices::{DLDevice, Fence, Queue};
use estafette_report::shown::shown;
use estafette_sync::sync::Mutex;

use crate::core::error::{BodyError, BodyResult};
use crate::engine::Engine;
use crate::operation::completion::{Completion, Scope};
use crate::operation::import::Produced;
use crate::tensor::handle::{Definition, Tensor};

use super::attributes::Attributes;
use super::operator::Operator;

/// Where results of an operator with several outputs wait for the operations that make tensors of them.
pub(super) type Slots = Arc<Mutex<Vec<Option<Produced>>>>;

/// What becomes of the results.
pub(super) enum Results {
    /// Nothing: they were written to the outputs.
    Written,
    /// The one becomes the promised tensor.
    One,
    /// They are left for others.
    Several(Slots),
}

/// A call that has begun: its inputs are there, and its outputs, if it was given any, are free to be written.
///
/// Dropping the invocation without [finishing](Self::finish) it fails the call.
pub struct Invocation {
    pub(super) completion: Completion,
    pub(super) results: Results,
    pub(super) parts: Arc<Parts>,
}

/// What a call consists of.
pub(super) struct Parts {
    pub(super) operator: Arc<Operator>,
    pub(super) engine: Engine,
    pub(super) inputs: Vec<Tensor>,
    pub(super) outputs: Vec<Tensor>,
    pub(super) attributes: Attributes,
    pub(super) queue: Option<Arc<dyn Queue>>,
}

impl Invocation {
    /// The operator that was called.
    #[doc(hidden)]
    pub fn operator(&self) -> &Operator {
        &self.parts.operator
    }

    /// The engine that runs the call.
    #[doc(hidden)]
    pub fn engine(&self) -> &Engine {
        &self.parts.engine
    }

    /// What to read.
    pub fn inputs(&self) -> &[Tensor] {
        &self.parts.inputs
    }

    /// What to write; empty when the call produces its results.
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

    /// Where results belong that have no place yet: where the first input is, or on the host.
    pub(super) fn device(&self) -> DLDevice {
        self.parts.inputs.first().and_then(|input| input.device().ok()).unwrap_or(DLDevice::CPU)
    }

    /// # Errors
    /// [`Error::NotDefined`](crate::Error::NotDefined) for an input whose producer's failure was cleared: it has no memory.
    pub(super) fn input_definitions(&self) -> BodyResult<Vec<&Definition>> {
        Ok(self.parts.inputs.iter().map(|tensor| tensor.inner.definition()).collect::<Result<_, _>>()?)
    }

    pub(super) fn output_definitions(&self) -> Vec<&Definition> {
        self.parts.outputs.iter().map(|tensor| tensor.inner.granted_definition()).collect()
    }

    /// Ends the call, with a result for each output that it had not been given, or with a failure.
    pub fn finish(self, result: BodyResult<Vec<Produced>>) {
        let Self { completion, results, parts } = self;
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
        let marked = parts.queue.as_ref().map(|queue| queue.record());
        match results {
            Results::Written => end_on(completion, result.map(drop), marked),
            Results::One => completion.produce(result.and_then(|mut produced| {
                produced.pop().ok_or_else(|| BodyError::from("the operator gave no result"))
            })),
            Results::Several(slots) => completion.complete(result.map(|produced| {
                let filled = produced.into_iter().map(Some).collect();
                *slots.lock() = filled;
            })),
        }
    }
}

/// Ends an operation that may have put work on a queue.
fn end_on(
    completion: Completion,
    result: BodyResult,
    marked: Option<Result<Fence, estafette_devices::DeviceError>>,
) {
    match (marked, result) {
        (None, result) => completion.complete(result),
        (Some(Ok(fence)), result) => completion.complete_after(&fence, result),
        (Some(Err(error)), _) => {
            // Enqueued work may run, and its end can never be known: the memory is never released.
            completion.complete_after(&crate::core::lost::lost(error), Ok(()));
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
