//! Submitting in two steps, for callers that must know that nothing can fail any more before they give something away.

use crate::core::error::Error;
use crate::core::operation::Op;
use crate::import::Copying;
use crate::operation::bodies::external_body;
use crate::operation::builder::{Nothing, OpBuilder};
use crate::operation::completion::Completion;
use crate::operation::operands::Operands;
use crate::tensor::handle::Tensor;

/// An operation that holds its permit. Dropping the operation releases the permit.
#[must_use = "a permitted operation does nothing until it is submitted"]
#[derive(Debug)]
pub struct SubmitPermit<'e, R, W, U> {
    builder: OpBuilder<'e, R, W, U>,
}

impl<'e, R: Operands, W: Operands, U: Operands> OpBuilder<'e, R, W, U> {
    /// Checks the operands and waits for a permit, as [`run`](OpBuilder::run) does. The rest cannot fail.
    ///
    /// # Errors
    /// As [`run_external`](OpBuilder::run_external).
    pub fn reserve(self) -> Result<SubmitPermit<'e, R, W, U>, Error> {
        self.core().check_usable()?;
        self.check_external()?;
        self.core().acquire_permit()?;
        Ok(self.permitted())
    }

    /// As [`reserve`](Self::reserve), but refuses instead of waiting.
    ///
    /// # Errors
    /// As [`reserve`](Self::reserve), and [`Error::InFlightLimit`].
    pub fn try_reserve(self) -> Result<SubmitPermit<'e, R, W, U>, Error> {
        self.core().check_usable()?;
        self.check_external()?;
        self.core().try_acquire_permit()?;
        Ok(self.permitted())
    }

    fn permitted(mut self) -> SubmitPermit<'e, R, W, U> {
        // From here on whoever drops the operation gives the place back.
        self.pending_op.payload_mut().hold_permit();
        SubmitPermit { builder: self }
    }
}

impl<R: Operands, W: Operands, U: Operands> SubmitPermit<'_, R, W, U> {
    /// As [`OpBuilder::run_external`].
    pub fn run_external<F>(self, start: F) -> Op
    where
        F: FnOnce(Completion) + Send + 'static,
    {
        self.builder.submit_permitted(None, |reads, writes, updates| {
            external_body((reads, writes, updates), None, start)
        })
    }
}

impl<R: Operands> SubmitPermit<'_, R, Nothing, ()> {
    /// As [`OpBuilder::produce_external`].
    pub fn produce_external<F>(self, start: F) -> (Tensor, Op)
    where
        F: FnOnce(Completion) + Send + 'static,
    {
        let (tensor, copying): (Tensor, Copying) = self.builder.promise();
        let target = Some((tensor.clone(), copying));
        let op = self.builder.submit_permitted(Some(&tensor), |reads, writes, updates| {
            external_body((reads, writes, updates), target, start)
        });
        (tensor, op)
    }
}
