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

type Infer = dyn Fn(&[View<'_>], &Attributes) -> BodyResult<Vec<(DType, Vec<i64>)>> + Send + Sync;
type Fill = dyn Fn(&[View<'_>], &mut [ViewMut<'_>], &Attributes) -> BodyResult + Send + Sync;
type Make = dyn Fn(&[View<'_>], &Attributes) -> BodyResult<Vec<Produced>> + Send + Sync;

enum Closure {
    Destination(Box<Fill>),
    Inferred(Box<Infer>, Box<Fill>),
    Allocating(Box<Make>),
}

impl Operators {
    /// Registers a closure that writes to outputs which the caller passes.
    ///
    /// # Errors
    /// As [`register`](Self::register).
    pub fn register_destination<F>(
        &self,
        name: &str,
        inputs: usize,
        outputs: usize,
        fill: F,
    ) -> Result<(), Error>
    where
        F: Fn(&[View<'_>], &mut [ViewMut<'_>], &Attributes) -> BodyResult + Send + Sync + 'static,
    {
        self.register_closure(name, inputs, outputs, Closure::Destination(Box::new(fill)))
    }

    /// Registers a closure that writes to outputs which the engine makes as `infer` says: the element type and the shape of
    /// each.
    ///
    /// # Errors
    /// As [`register`](Self::register).
    pub fn register_inferred<I, F>(
        &self,
        name: &str,
        inputs: usize,
        outputs: usize,
        infer: I,
        fill: F,
    ) -> Result<(), Error>
    where
        I: Fn(&[View<'_>], &Attributes) -> BodyResult<Vec<(DType, Vec<i64>)>> + Send + Sync + 'static,
        F: Fn(&[View<'_>], &mut [ViewMut<'_>], &Attributes) -> BodyResult + Send + Sync + 'static,
    {
        self.register_closure(name, inputs, outputs, Closure::Inferred(Box::new(infer), Box::new(fill)))
    }

    /// Registers a closure that makes its results itself.
    ///
    /// # Errors
    /// As [`register`](Self::register).
    pub fn register_allocating<F>(
        &self,
        name: &str,
        inputs: usize,
        outputs: usize,
        make: F,
    ) -> Result<(), Error>
    where
        F: Fn(&[View<'_>], &Attributes) -> BodyResult<Vec<Produced>> + Send + Sync + 'static,
    {
        self.register_closure(name, inputs, outputs, Closure::Allocating(Box::new(make)))
    }

    fn register_closure(
        &self,
        name: &str,
        inputs: usize,
        outputs: usize,
        closure: Closure,
    ) -> Result<(), Error> {
        let kind = match closure {
            Closure::Destination(_) => OperatorKind::Destination,
            Closure::Inferred(..) => OperatorKind::Inferred,
            Closure::Allocating(_) => OperatorKind::Allocating,
        };
        // Slices must not see memory twice, so a closure never works in place.
        let signature = Signature { kind, inputs: Some(inputs), outputs, in_place: false };
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
