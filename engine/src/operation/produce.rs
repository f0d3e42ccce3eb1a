//! Submission of operations whose result becomes a tensor.

use std::future::Future;
use std::slice::from_ref;

use smallvec::SmallVec;

use crate::core::error::{BodyResult, Error};
use crate::core::operation::Op;
use crate::exchange::releasing;
use crate::operation::bodies::{external_body, future_body};
use crate::operation::body::Body;
use crate::operation::builder::{Nothing, OpBuilder};
use crate::operation::completion::{Completion, Promised};
use crate::operation::import::{Copying, Produced, define};
use crate::operation::operands::{Grant, Operands};
use crate::operation::run::Running;
use crate::operation::submit::submit_and_start;
use crate::tensor::handle::{Tensor, VarSet};
use crate::tensor::variable::Variable;

impl<R: Operands> OpBuilder<'_, R, Nothing, ()> {
    /// Submits an operation whose result becomes a new tensor. The tensor is a promise until the body has
    /// returned.
    ///
    /// # Errors
    /// As [`run`](OpBuilder::run). A result that cannot become the tensor fails the operation.
    pub fn produce<F, P>(self, body: F) -> Result<Tensor, Error>
    where
        F: for<'a> FnOnce(R::Views<'a>) -> BodyResult<P> + Send + 'static,
        P: Into<Produced>,
    {
        // Checked before anything is made: in a forked child the graph's locks may be held for ever.
        self.core().check_usable()?;
        let (tensor, copying) = self.promise();
        let target = tensor.clone();
        self.submit_on_host(from_ref(&tensor), |reads, _none, _none_either| {
            Body::new(move |running: Running| {
                // The conversion may run user code.
                let result = running.call(|| body(reads.defined()?.views(&Grant::OF_BODY)).map(Into::into));
                let result = result.and_then(|produced| {
                    let held = |tensor: &Tensor| reads.tensors().iter().any(|operand| operand.same(tensor));
                    define(&target.inner, produced, copying, running.op().id(), &held, None)
                        .map(drop)
                        .map_err(|error| running.tag().result_failure(error))
                });
                let _releasing = releasing();
                let next = running.finish(result);
                drop((reads, target));
                next
            })
        })?;
        Ok(tensor)
    }

    /// As [`produce`](Self::produce), with a body that is a future on the engine's tokio runtime.
    pub fn produce_future<F, Fut, P>(self, body: F) -> Result<Tensor, Error>
    where
        F: FnOnce(R::Guards) -> Fut + Send + 'static,
        Fut: Future<Output = BodyResult<P>> + Send + 'static,
        P: Into<Produced>,
    {
        // Checked before anything is made: in a forked child the graph's locks may be held for ever.
        self.core().check_usable()?;
        let (tensor, copying) = self.promise();
        let target = Some((tensor.clone(), copying));
        self.submit_on_host(from_ref(&tensor), |reads, none, none_either| {
            future_body(reads, none, none_either, target, move |_open, reads, _, _| {
                let future = body(reads);
                async move { future.await.map(|produced| Some(produced.into())) }
            })
        })?;
        Ok(tensor)
    }

    /// As [`produce`](Self::produce), with a result that is given to the [`Completion`], by any thread.
    pub fn produce_external<F>(self, start: F) -> Result<Tensor, Error>
    where
        F: FnOnce(Completion) + Send + 'static,
    {
        Ok(self.produce_checked(1, start)?.0.pop().expect("one was promised"))
    }

    /// As [`produce_external`](Self::produce_external), of so many results, which [`Completion::produce_all`]
    /// gets.
    #[cfg(feature = "operators")]
    pub(crate) fn produce_several<F>(self, results: usize, start: F) -> Result<(Vec<Tensor>, Op), Error>
    where
        F: FnOnce(Completion) + Send + 'static,
    {
        let (tensors, op) = self.produce_checked(results, start)?;
        Ok((tensors.into_vec(), op))
    }

    fn produce_checked<F>(self, results: usize, start: F) -> Result<(SmallVec<[Tensor; 1]>, Op), Error>
    where
        F: FnOnce(Completion) + Send + 'static,
    {
        // Checked before anything is made: in a forked child the graph's locks may be held for ever.
        self.core().check_usable()?;
        self.check_external()?;
        self.acquire_permit()?;
        Ok(self.produce_permitted(results, start))
    }

    /// Submits an operation that has a permit and passed all checks, and produces so many tensors.
    pub(crate) fn produce_permitted<F>(self, results: usize, start: F) -> (SmallVec<[Tensor; 1]>, Op)
    where
        F: FnOnce(Completion) + Send + 'static,
    {
        let target: Promised = (0..results).map(|_| self.promise()).collect();
        let tensors: SmallVec<[Tensor; 1]> = target.iter().map(|(tensor, _)| tensor.clone()).collect();
        let op = self.submit_permitted(&tensors, |reads, writes, updates| {
            external_body((reads, writes, updates), target, start)
        });
        (tensors, op)
    }

    /// As [`produce_external`](Self::produce_external), for a result that comes from outside of the engine. A
    /// worker has nothing to do for it, so `start` of an operation without operands runs on this thread,
    /// before this call returns.
    pub fn receive<F>(self, start: F) -> Result<Tensor, Error>
    where
        F: FnOnce(Completion) + Send + 'static,
    {
        // Checked before anything is made: in a forked child the graph's locks may be held for ever.
        self.core().check_usable()?;
        self.check_external()?;
        self.acquire_permit()?;
        Ok(self.received(start))
    }

    pub(crate) fn received(self, start: impl FnOnce(Completion) + Send + 'static) -> Tensor {
        let (tensor, copying) = self.promise();
        let target = Promised::from_iter([(tensor.clone(), copying)]);
        let body =
            |reads: R, writes: Nothing, updates: ()| external_body((reads, writes, updates), target, start);
        self.complete_description(from_ref(&tensor), body, submit_and_start);
        tensor
    }

    /// The tensor that the operation will define. Its variables are its own variable, and then those of the
    /// tensors it is an alias of.
    pub(crate) fn promise(&self) -> (Tensor, Copying) {
        let mut vars = VarSet::from_iter([Variable::new().var]);
        let (declared, copying) = match &self.options {
            None => (None, Copying::default()),
            Some(options) => {
                vars.extend(options.alias_of.iter().cloned());
                (options.declared.clone(), options.copying)
            }
        };
        let tensor = Tensor::promised(
            self.core().clone(),
            vars,
            declared,
            self.target.pending_op.payload().name.clone(),
        );
        (tensor, copying)
    }
}
