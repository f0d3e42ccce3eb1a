//! Submission of operations, one method for each form of body.

use std::future::Future;

use estafette_devices::{CurrentGuard, Fence, Queue};
use estafette_graph::AccessMode;
use smallvec::SmallVec;

use crate::core::error::{BodyResult, Error, OperationError};
use crate::core::lost::lost;
use crate::core::operation::{Op, OpGranted, OpPending, OpTag, OpVar, Role};
use crate::exchange::{Releasing, releasing};
use crate::operation::bodies::{external_body, future_body, if_usable, sync_body};
use crate::operation::body::Body;
use crate::operation::builder::{OpBuilder, Submission};
use crate::operation::completion::{Completion, Promised};
use crate::operation::guards::WriteGuard;
use crate::operation::operands::{Declared, Grant, Operands};
use crate::operation::run::{self, Running};
use crate::tensor::handle::{Tensor, make_reachable};
use crate::tensor::views::ViewMut;
use crate::trace::hooks;

impl<R: Operands, W: Operands, U: Operands> OpBuilder<'_, R, W, U> {
    /// Waits for a permit by awaiting: no thread blocks, however many operations are in flight. The operation
    /// holds the permit until its end, so submitting it waits for nothing. Dropping the description releases
    /// the permit. In an engine without workers a submission may run operations that are ready on the calling
    /// thread, unless helping is [forbidden](crate::wait::without_helping).
    ///
    /// ```
    /// # let engine = estafette::Engine::builder().workers(1).build()?;
    /// # let x = engine.from_vec(vec![1.0_f32, 2.0], &[2])?;
    /// # futures::executor::block_on(async {
    /// let op = engine.op("sum").reads([&x]).permit().await?.run(|[x], []| {
    ///     assert_eq!(x.as_slice::<f32>()?.iter().sum::<f32>(), 3.0);
    ///     Ok(())
    /// })?;
    /// op.await
    /// # })?;
    /// # Ok::<(), estafette::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Conflict`] as [`run`](OpBuilder::run), but for operands that overlap; [`Error::Shutdown`],
    /// [`Error::Forked`]; [`Error::LeaseHeld`] and [`Error::WouldDeadlock`] after the engine's
    /// [`lease_timeout`](crate::engine::EngineBuilder::lease_timeout).
    pub async fn permit(mut self) -> Result<Self, Error> {
        self.check_external()?;
        if !self.target.pending_op.payload().is_counted() {
            self.core().acquire_permit_async().await?;
            self.hold_permit();
        }
        Ok(self)
    }

    /// Holds a permit whatever the limit.
    ///
    /// # Errors
    /// [`Error::Shutdown`], [`Error::Forked`].
    pub(crate) fn beyond_limit(mut self) -> Result<Self, Error> {
        self.core().acquire_permit_beyond_limit()?;
        self.hold_permit();
        Ok(self)
    }

    /// Acquires a permit in the way that the description says.
    #[inline(always)]
    pub(crate) fn acquire_permit(&self) -> Result<(), Error> {
        let state = self.target.pending_op.payload();
        if state.is_counted() {
            Ok(())
        } else if state.without_waiting {
            state.core.try_acquire_permit()
        } else {
            state.core.acquire_permit()
        }
    }

    /// Notes that the operation holds a permit. From here on, dropping the operation releases the permit.
    pub(crate) fn hold_permit(&mut self) {
        self.state_mut().hold_permit();
    }

    /// Submits the operation with `body`, which works on the host. `produced` are the tensors that the
    /// operation will define.
    #[inline(always)]
    pub(crate) fn submit_on_host(
        self,
        produced: &[Tensor],
        body: impl FnOnce(R, W, U) -> Body,
    ) -> Result<Op, Error> {
        self.check_on_host("operation", &self.target.pending_op.payload().name)?;
        self.submit_checked(produced, body)
    }

    #[inline(always)]
    pub(crate) fn submit_checked(
        self,
        produced: &[Tensor],
        body: impl FnOnce(R, W, U) -> Body,
    ) -> Result<Op, Error> {
        self.acquire_permit()?;
        Ok(self.submit_permitted(produced, body))
    }

    #[inline(always)]
    pub(crate) fn submit_permitted(self, produced: &[Tensor], body: impl FnOnce(R, W, U) -> Body) -> Op {
        self.complete_description(produced, body, submit_to_graph)
    }

    /// Moves the description into the operation, and calls `submit`.
    #[inline(always)]
    pub(crate) fn complete_description<T>(
        self,
        produced: &[Tensor],
        body: impl FnOnce(R, W, U) -> Body,
        submit: impl FnOnce(OpPending<'_>) -> T,
    ) -> T {
        let Self { target: Submission { mut pending_op, .. }, reads, writes, updates, options } = self;
        pending_op.payload_mut().hold_permit();
        if let Some(queue) = options.and_then(|options| options.queue) {
            pending_op.payload_mut().set_role(Role::Device(queue));
        }
        let tells = pending_op.payload().has_on_skip();
        let no_tensors =
            reads.tensors().is_empty() && writes.tensors().is_empty() && updates.tensors().is_empty();
        if no_tensors && produced.is_empty() && !tells {
            pending_op.payload_mut().set_body(body(reads, writes, updates));
            if pending_op.payload().noted {
                hooks::submitted(&pending_op);
            }
            return submit(pending_op);
        }
        if pending_op.payload().noted {
            [reads.tensors(), writes.tensors(), updates.tensors()].into_iter().for_each(hooks::uses);
        }
        // The tensors move into the body, which another thread may run and drop before this call ends.
        let mut accesses: SmallVec<[(OpVar, AccessMode); 6]> = SmallVec::new();
        let tensors = [
            (reads.tensors(), AccessMode::Read),
            (writes.tensors(), AccessMode::Write),
            (updates.tensors(), AccessMode::Update),
        ];
        for (tensors, mode) in tensors {
            for var in tensors.iter().flat_map(|tensor| &tensor.inner.vars) {
                accesses.push((var.clone(), mode));
            }
        }
        for tensor in produced {
            // The operation writes the tensor's own variable only: defining an alias does not change the
            // memory behind it.
            accesses.push((tensor.inner.vars[0].clone(), AccessMode::Write));
        }
        // The writability of these tensors is not known yet, and a pure write is not skipped by the failure
        // of a producer. A tensor that is read is there, unless the program has cleared the failure of its
        // producer; the body finds that out, too late for `on_skip`.
        let looked_at = tensors.into_iter().filter(|(_, mode)| tells || *mode != AccessMode::Read);
        let promised: Declared = looked_at
            .flat_map(|(tensors, mode)| tensors.iter().map(move |tensor| (tensor, mode)))
            .filter(|(tensor, _)| !tensor.is_defined())
            .map(|(tensor, mode)| (tensor.clone(), mode))
            .collect();
        let body = body(reads, writes, updates);
        let body = if promised.is_empty() && !tells { body } else { if_usable(promised, body) };
        pending_op.payload_mut().set_body(body);
        let mut pending_op: OpPending<'_> = pending_op;
        accesses.iter().for_each(|(var, mode)| pending_op.access(var, *mode));
        if pending_op.payload().noted {
            hooks::submitted(&pending_op);
        }
        submit(pending_op)
    }

    /// Submits an operation whose body starts work elsewhere. The [`Completion`] reports the end of that
    /// work, from any thread; dropping the completion unused fails the operation.
    ///
    /// The body gets its operands by [`Scope::export`](crate::Scope::export), not as slices, so operands may
    /// overlap.
    ///
    /// # Errors
    /// As [`run`](OpBuilder::run), but for overlapping operands.
    pub fn run_external<F>(self, start: F) -> Result<Op, Error>
    where
        F: FnOnce(Completion) + Send + 'static,
    {
        self.check_external()?;
        self.submit_checked(&[], |reads, writes, updates| {
            external_body((reads, writes, updates), Promised::new(), start)
        })
    }

    #[inline]
    fn submit_sync<F>(self, body: F) -> Result<Op, Error>
    where
        F: for<'a> FnOnce(R::Views<'a>, W::ViewsMut<'a>, U::ViewsMut<'a>) -> BodyResult + Send + 'static,
    {
        self.submit_on_host(&[], |reads, writes, updates| sync_body((reads, writes, updates), body))
    }

    #[inline]
    fn submit_sync_detached<F>(self, body: F) -> Result<(), Error>
    where
        F: for<'a> FnOnce(R::Views<'a>, W::ViewsMut<'a>, U::ViewsMut<'a>) -> BodyResult + Send + 'static,
    {
        self.check_on_host("operation", &self.target.pending_op.payload().name)?;
        self.acquire_permit()?;
        let body = |reads, writes, updates| sync_body((reads, writes, updates), body);
        self.complete_description(&[], body, submit_detached);
        Ok(())
    }

    fn submit_future<F, Fut>(self, body: F) -> Result<Op, Error>
    where
        F: FnOnce(R::Guards, W::GuardsMut, U::GuardsMut) -> Fut + Send + 'static,
        Fut: Future<Output = BodyResult> + Send + 'static,
    {
        self.submit_on_host(&[], |reads, writes, updates| {
            future_body(reads, writes, updates, None, |open, reads, writes: &W, updates: &U| {
                let future = body(reads, writes.guards_mut(open), updates.guards_mut(open));
                async move { future.await.map(|()| None) }
            })
        })
    }

    fn submit_on_queue<F>(self, body: F) -> Result<Op, Error>
    where
        F: for<'a> FnOnce(&'a dyn Queue, R::Views<'a>, W::ViewsMut<'a>, U::ViewsMut<'a>) -> BodyResult
            + Send
            + 'static,
    {
        let queue = self.queue_for_body()?;
        self.check()?;
        self.submit_checked(&[], |reads, writes, updates| {
            Body::new(move |running: Running| {
                let (queue, grant) = (queue.as_ref(), &Grant::ON_QUEUE);
                let (_releasing, next) = run_on(queue, running, || {
                    make_reachable(
                        queue,
                        [reads.tensors(), writes.tensors(), updates.tensors()].into_iter().flatten(),
                    );
                    let views = reads.defined()?.views(grant);
                    body(queue, views, writes.views_mut(grant), updates.views_mut(grant))
                });
                drop((reads, writes, updates));
                next
            })
        })
    }
}

/// Enters the operation in the queues of its variables, and dispatches it if it is granted at once.
#[inline(always)]
fn submit_to_graph(pending_op: OpPending<'_>) -> Op {
    let (handle, granted) = pending_op.submit();
    if let Some(granted) = granted {
        run::dispatch_one(granted);
    }
    Op::new(handle)
}

/// As [`submit_to_graph`], but an operation that is granted at once runs on this thread.
pub(crate) fn submit_and_start(pending_op: OpPending<'_>) -> Op {
    let (handle, granted) = pending_op.submit();
    granted.into_iter().for_each(run::execute_one);
    Op::new(handle)
}

/// As [`submit_to_graph`], without a handle.
#[inline(always)]
fn submit_detached(pending_op: OpPending<'_>) {
    if let Some(granted) = pending_op.submit_unreferenced() {
        run::dispatch_one(granted);
    }
}

impl<R: Operands, W: Operands> OpBuilder<'_, R, W, ()> {
    /// Submits the operation with a synchronous body, which gets views of the tensors that it reads and of
    /// those that it writes.
    ///
    /// Blocks the thread while no permit is free; see [`OpBuilder`] for the other two ways. Asynchronous code
    /// should use [`permit`](OpBuilder::permit)`().await` instead: on a runtime of one thread that also runs
    /// the engine's asynchronous bodies ([`EngineBuilder::tokio`](crate::engine::EngineBuilder::tokio)), a
    /// blocked thread would wait for bodies that only this thread can poll. A call that blocks a thread of a
    /// tokio runtime is logged once per engine, at the level *warn*. In an engine without workers, this call
    /// may run operations on the calling thread, unless that is [forbidden](crate::wait::without_helping); in
    /// an engine with workers it runs none.
    ///
    /// The compiler checks that the body takes as many views as the description has tensors:
    ///
    /// ```compile_fail
    /// # let engine = estafette::Engine::builder().build().unwrap();
    /// # let x = engine.from_vec(vec![1.0_f32], &[1]).unwrap();
    /// engine.op("one of two").reads([&x]).run(|[a, b], []| Ok(()))?;
    /// # Ok::<(), estafette::Error>(())
    /// ```
    ///
    /// that no view leaves the body:
    ///
    /// ```compile_fail
    /// # let engine = estafette::Engine::builder().build().unwrap();
    /// # let x = engine.from_vec(vec![1.0_f32], &[1]).unwrap();
    /// static KEPT: std::sync::Mutex<Option<&'static [f32]>> = std::sync::Mutex::new(None);
    /// engine.op("leak").reads([&x]).run(|[x], []| {
    ///     *KEPT.lock().unwrap() = Some(x.as_slice::<f32>()?);
    ///     Ok(())
    /// })?;
    /// # Ok::<(), estafette::Error>(())
    /// ```
    ///
    /// and that only a body gets views, neither from an array of tensors
    ///
    /// ```compile_fail,E0061
    /// # use estafette::operation::Operands as _;
    /// # let engine = estafette::Engine::builder().build().unwrap();
    /// # let x = engine.from_vec(vec![1.0_f32], &[1]).unwrap();
    /// let [mut view] = [x].views_mut();
    /// ```
    ///
    /// nor from any other operands:
    ///
    /// ```compile_fail,E0061
    /// fn views_of<T: estafette::operation::Operands>(operands: &T) -> T::Views<'_> {
    ///     operands.views()
    /// }
    /// ```
    ///
    /// # Errors
    /// [`Error::Conflict`] when a written operand overlaps another operand or may not be written, and when
    /// the operation would wait for the lease that one of its own operands keeps. [`Error::InFlightLimit`]
    /// after [`without_waiting`](OpBuilder::without_waiting). [`Error::WouldDeadlock`] when the in-flight
    /// limit is reached for ever: the operations in flight wait for the calling operation, or for leases of
    /// the calling thread. [`Error::LeaseHeld`] when leases of other threads have kept the limit reached for
    /// the [lease timeout](crate::engine::EngineBuilder::lease_timeout). [`Error::Invalid`] [on](Self::on) a
    /// queue. [`Error::Shutdown`], [`Error::Forked`].
    ///
    /// An error of the body itself is the failure of the operation, and appears where the operation or its
    /// outputs are awaited.
    #[inline]
    pub fn run<F>(self, body: F) -> Result<Op, Error>
    where
        F: for<'a> FnOnce(R::Views<'a>, W::ViewsMut<'a>) -> BodyResult + Send + 'static,
    {
        self.submit_sync(|reads, writes, ()| body(reads, writes))
    }

    /// As [`run`](Self::run), without a handle: for operations that are awaited by their outputs. Costs less
    /// than `run`.
    #[inline]
    pub fn run_detached<F>(self, body: F) -> Result<(), Error>
    where
        F: for<'a> FnOnce(R::Views<'a>, W::ViewsMut<'a>) -> BodyResult + Send + 'static,
    {
        self.submit_sync_detached(|reads, writes, ()| body(reads, writes))
    }

    /// Submits the operation with a body that is a future on the engine's tokio runtime. The body gets owned
    /// guards of its operands. `body`, which makes the future, is called on a worker with that runtime as the
    /// current one. The operation ends when the future has ended and the last guard was dropped.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    pub fn run_future<F, Fut>(self, body: F) -> Result<Op, Error>
    where
        F: FnOnce(R::Guards, W::GuardsMut) -> Fut + Send + 'static,
        Fut: Future<Output = BodyResult> + Send + 'static,
    {
        self.submit_future(|reads, writes, ()| body(reads, writes))
    }

    /// Submits the operation with a device body, which enqueues work on the queue given by [`on`](Self::on)
    /// and returns. The operation has ended then; what it writes is ready when the work is done, and fails if
    /// the work does. The queue comes after earlier device work on the operands; a view shows the host no
    /// memory where such work is pending.
    ///
    /// # Errors
    /// As [`run`](Self::run), and [`Error::Invalid`] without a queue.
    pub fn run_on<F>(self, body: F) -> Result<Op, Error>
    where
        F: for<'a> FnOnce(&'a dyn Queue, R::Views<'a>, W::ViewsMut<'a>) -> BodyResult + Send + 'static,
    {
        self.submit_on_queue(|queue, reads, writes, ()| body(queue, reads, writes))
    }
}

/// Runs a body that enqueues on `queue`, and ends its operation. The caller drops the operands, and then the
/// first of the results.
fn run_on(
    queue: &dyn Queue,
    running: Running,
    body: impl FnOnce() -> BodyResult,
) -> (Releasing, Option<OpGranted>) {
    let current = match CurrentGuard::queue(queue) {
        Ok(current) => current,
        Err(error) => {
            let cause = running.tag().device_failure(error);
            let next = running.skip(cause);
            return (releasing(), next);
        }
    };
    let result = running.call(body);
    let (fence, marked) = record_end(queue, || running.tag());
    drop(current);
    (releasing(), running.finish_with(Some(&fence), result.and(marked)))
}

/// Records the fence of the work that a body has enqueued on `queue`. A body that failed may have enqueued
/// work before, so its fence is recorded as well. If the queue records no fence, the end of the work cannot
/// be known, and that fails the operation.
pub(crate) fn record_end(
    queue: &dyn Queue,
    tag: impl FnOnce() -> OpTag,
) -> (Fence, Result<(), OperationError>) {
    match queue.record() {
        Ok(fence) => (fence, Ok(())),
        Err(error) => {
            let failure = tag().device_failure(error.clone());
            (lost(error), Err(failure))
        }
    }
}

impl<R: Operands, W: Operands, const N: usize> OpBuilder<'_, R, W, [Tensor; N]> {
    /// As without [`updates`](Self::updates). The body gets the tensors that it updates in place as a third
    /// argument.
    #[inline]
    pub fn run<F>(self, body: F) -> Result<Op, Error>
    where
        F: for<'a> FnOnce(R::Views<'a>, W::ViewsMut<'a>, [ViewMut<'a>; N]) -> BodyResult + Send + 'static,
    {
        self.submit_sync(body)
    }

    /// As without [`updates`](Self::updates). The body gets the tensors that it updates in place as a third
    /// argument.
    #[inline]
    pub fn run_detached<F>(self, body: F) -> Result<(), Error>
    where
        F: for<'a> FnOnce(R::Views<'a>, W::ViewsMut<'a>, [ViewMut<'a>; N]) -> BodyResult + Send + 'static,
    {
        self.submit_sync_detached(body)
    }

    /// As without [`updates`](Self::updates). The body gets the tensors that it updates in place as a fourth
    /// argument.
    pub fn run_on<F>(self, body: F) -> Result<Op, Error>
    where
        F: for<'a> FnOnce(&'a dyn Queue, R::Views<'a>, W::ViewsMut<'a>, [ViewMut<'a>; N]) -> BodyResult
            + Send
            + 'static,
    {
        self.submit_on_queue(body)
    }

    /// As without [`updates`](Self::updates). The body gets the tensors that it updates in place as a third
    /// argument.
    pub fn run_future<F, Fut>(self, body: F) -> Result<Op, Error>
    where
        F: FnOnce(R::Guards, W::GuardsMut, [WriteGuard; N]) -> Fut + Send + 'static,
        Fut: Future<Output = BodyResult> + Send + 'static,
    {
        self.submit_future(body)
    }
}
