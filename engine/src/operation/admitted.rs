//! Submitting in two steps, for callers that must know that nothing can fail any more before they give something away.

use crate::core::error::Error;
use crate::core::operation::Op;
use crate::import::Copying;
use crate::operation::bodies::external_body;
use crate::operation::builder::{Nothing, OpBuilder};
use crate::operation::completion::Completion;
use crate::operation::operands::Operands;
use crate::tensor::handle::Tensor;

/// An operation that has its place in the window. Dropping it gives the place back.
#[must_use = "an admitted operation does nothing until it is submitted"]
#[derive(Debug)]
pub struct Admitted<'e, R, W, U> {
    builder: OpBuilder<'e, R, W, U>,
}

impl<'e, R: Operands, W: Operands, U: Operands> OpBuilder<'e, R, W, U> {
    /// Checks the operands and waits for room in the window, as [`run`](OpBuilder::run) does. The rest cannot fail.
    ///
    /// # Errors
    /// As [`run_external`](OpBuilder::run_external).
    pub fn admit(self) -> Result<Admitted<'e, R, W, U>, Error> {
        self.core().check_usable()?;
        self.check_external()?;
        self.core().admit()?;
        Ok(self.admitted())
    }

    /// As [`admit`](Self::admit), but refuses instead of waiting.
    ///
    /// # Errors
    /// As [`admit`](Self::admit), and [`Error::WindowFull`].
    pub fn try_admit(self) -> Result<Admitted<'e, R, W, U>, Error> {
        self.core().check_usable()?;
        self.check_external()?;
        self.core().try_admit()?;
        Ok(self.admitted())
    }

    fn admitted(mut self) -> Admitted<'e, R, W, U> {
        // From here on whoever drops the operation gives the place back.
        self.pending_op.payload_mut().admitted();
        Admitted { builder: self }
    }
}

impl<R: Operands, W: Operands, U: Operands> Admitted<'_, R, W, U> {
    /// As [`OpBuilder::run_external`].
    pub fn run_external<F>(self, start: F) -> Op
    where
        F: FnOnce(Completion) + Send + 'static,
    {
        self.builder.submit_admitted(None, |reads, writes, updates| {
            external_body((reads, writes, updates), None, start)
        })
    }
}

impl<R: Operands> Admitted<'_, R, Nothing, ()> {
    /// As [`OpBuilder::produce_external`].
    pub fn produce_external<F>(self, start: F) -> (Tensor, Op)
    where
        F: FnOnce(Completion) + Send + 'static,
    {
        let (tensor, copying): (Tensor, Copying) = self.builder.promise();
        let target = Some((tensor.clone(), copying));
        let op = self.builder.submit_admitted(Some(&tensor), |reads, writes, updates| {
            external_body((reads, writes, updates), target, start)
        });
        (tensor, op)
    }
}
