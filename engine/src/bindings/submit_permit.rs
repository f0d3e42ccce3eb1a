//! Submission in two steps, for callers that give something away after the last error.

use crate::core::error::{Error, OperationError};
use crate::core::operation::Op;
use crate::operation::bodies::external_body;
use crate::operation::builder::{Nothing, OpBuilder};
use crate::operation::completion::{Completion, Promised};
use crate::operation::operands::Operands;
use crate::tensor::handle::Tensor;

/// An operation that has passed all checks and holds its permit. Dropping it releases the permit.
#[must_use = "a permitted operation does nothing until it is submitted"]
#[derive(Debug)]
pub struct SubmitPermit<'e, R, W, U> {
    builder: OpBuilder<'e, R, W, U>,
}

/// Checks the operands and acquires a permit, as [`run_external`](OpBuilder::run_external) does.
/// Submission cannot fail after that.
///
/// # Errors
/// As [`run_external`](OpBuilder::run_external).
pub fn reserve<R: Operands, W: Operands, U: Operands>(
    mut builder: OpBuilder<'_, R, W, U>,
) -> Result<SubmitPermit<'_, R, W, U>, Error> {
    builder.core().check_usable()?;
    builder.check_external()?;
    builder.acquire_permit()?;
    builder.hold_permit();
    Ok(SubmitPermit { builder })
}

impl<R: Operands, W: Operands, U: Operands> SubmitPermit<'_, R, W, U> {
    /// As [`OpBuilder::on_skip`].
    pub fn on_skip(self, on_skip: impl FnOnce(&OperationError) + Send + 'static) -> Self {
        Self { builder: self.builder.on_skip(on_skip) }
    }

    /// As [`OpBuilder::run_external`].
    pub fn run_external<F>(self, start: F) -> Op
    where
        F: FnOnce(Completion) + Send + 'static,
    {
        self.builder.submit_permitted(&[], |reads, writes, updates| {
            external_body((reads, writes, updates), Promised::new(), start)
        })
    }
}

impl<R: Operands> SubmitPermit<'_, R, Nothing, ()> {
    /// As [`OpBuilder::produce_external`].
    pub fn produce_external<F>(self, start: F) -> (Tensor, Op)
    where
        F: FnOnce(Completion) + Send + 'static,
    {
        let (tensors, op) = self.builder.produce_permitted(1, start);
        (tensors.into_iter().next().expect("one was promised"), op)
    }
}
