//! Operators in Rust.

use estafette_devices::DLDevice;

use crate::core::error::{BodyResult, Error};
use crate::exchange::{DType, Layout};
use crate::operation::import::Produced;
use crate::tensor::handle::Definition;
use crate::tensor::views::{View, ViewMut};

use super::attributes::Attributes;
use super::invocation::Invocation;
use super::kernel::{Kernel, Run};
use super::operator::{OperatorKind, Signature};
use super::registry::Operators;

/// Says of each output which element type and shape it has.
type Infer = dyn Fn(&[View<'_>], &Attributes) -> BodyResult<Vec<(DType, Vec<i64>)>> + Send + Sync;
/// Writes outputs.
type Fill = dyn Fn(&[View<'_>], &mut [ViewMut<'_>], &Attributes) -> BodyResult + Send + Sync;
/// Makes outputs.
type Make = dyn Fn(&[View<'_>], &Attributes) -> BodyResult<Vec<Produced>> + Send + Sync;

/// A closure of one of the [three kinds](OperatorKind).
pub enum Closure {
    /// Writes to outputs which the caller passes.
    Destination(Box<Fill>),
    /// The second writes to outputs which the engine makes as the first says: the element type and the shape
    /// of each.
    Inferred(Box<Infer>, Box<Fill>),
    /// Makes its results itself.
    Allocating(Box<Make>),
}

impl std::fmt::Debug for Closure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Closure({})", self.kind())
    }
}

impl Closure {
    fn kind(&self) -> OperatorKind {
        match self {
            Self::Destination(_) => OperatorKind::Destination,
            Self::Inferred(..) => OperatorKind::Inferred,
            Self::Allocating(_) => OperatorKind::Allocating,
        }
    }
}

impl Operators {
    /// Registers a closure with so many inputs and outputs.
    ///
    /// # Errors
    /// [`Error::Conflict`] for a name that is taken; [`Error::Invalid`] for more outputs than
    /// [`OUTPUTS_MAX`](super::OUTPUTS_MAX) or a name that cannot be; [`Error::Forked`].
    pub fn register_closure(
        &self,
        name: &str,
        inputs: usize,
        outputs: usize,
        closure: Closure,
    ) -> Result<(), Error> {
        // Slices must not see memory twice, so a closure never works in place.
        let signature = Signature { kind: closure.kind(), inputs: Some(inputs), outputs, in_place: false };
        self.register(name, signature, "Rust", Run(closure))
    }
}

fn views<'a>(definitions: &[&'a Definition]) -> Vec<View<'a>> {
    definitions.iter().map(|definition| View::new(definition)).collect()
}

/// For outputs that overlap nothing else: fresh memory, or operands that submission has checked.
fn views_mut<'a>(definitions: &[&'a Definition]) -> Vec<ViewMut<'a>> {
    definitions.iter().map(|definition| ViewMut::new(definition)).collect()
}

fn wrong_kind<T>() -> BodyResult<T> {
    Err("the operator is of another kind".into())
}

impl Kernel for Closure {
    fn infer(&self, call: &Invocation, inputs: &[&Definition]) -> BodyResult<Vec<Layout>> {
        let Self::Inferred(infer, _) = self else { return wrong_kind() };
        let device: DLDevice = call.device();
        let described = infer(&views(inputs), call.attributes())?;
        let layouts = described.iter().map(|(dtype, shape)| Ok(Layout::contiguous(*dtype, device, shape)?));
        layouts.collect()
    }

    fn fill(&self, call: &Invocation, inputs: &[&Definition], outputs: &[&Definition]) -> BodyResult {
        let (Self::Destination(fill) | Self::Inferred(_, fill)) = self else { return wrong_kind() };
        fill(&views(inputs), &mut views_mut(outputs), call.attributes())
    }

    fn make(&self, call: &Invocation, inputs: &[&Definition]) -> BodyResult<Vec<Produced>> {
        let Self::Allocating(make) = self else { return wrong_kind() };
        make(&views(inputs), call.attributes())
    }
}
