//! Submitting operations.

use std::future::Future;
use std::sync::Arc;

use estafette_devices::{DLDevice, DeviceError, DeviceErrorKind, Entered, Fence, Queue, host};
use estafette_graph::Mode;
use smallvec::SmallVec;

use crate::core::error::{BodyResult, Error};
use crate::core::operation::{Op, OpGranted, OpPending, OpVar, Role};
use crate::exchange::Layout;
use crate::lease::check_writable;
use crate::operation::bodies::{external_body, future_body, if_writable, sync_body};
use crate::operation::body::Body;
use crate::operation::builder::OpBuilder;
use crate::operation::completion::Completion;
use crate::operation::disjoint::check_disjoint;
use crate::operation::operands::{Grant, Operands};
use crate::operation::own_leases::check_own_leases;
use crate::operation::run::{self, Running};
use crate::tensor::guards::WriteGuard;
use crate::tensor::handle::Tensor;
use crate::tensor::views::ViewMut;
use crate::trace::hooks;

/// Whether a submission waits for a permit.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Room {
    Wait,
    Refuse,
}

impl<R: Operands, W: Operands, U: Operands> OpBuilder<'_, R, W, U> {
    pub(crate) fn check(&self) -> Result<(), Error> {
        self.check_declared()?;
        self.check_leases()?;
        let (reads, writes, updates) = (self.reads.tensors(), self.writes.tensors(), self.updates.tensors());
        writes.iter().chain(updates).try_for_each(check_writable)?;
        check_disjoint(reads, writes, updates)
    }

    /// Refuses an operation that would wait for the lease that one of its own operands keeps.
    fn check_leases(&self) -> Result<(), Error> {
        let written = self.writes.tensors().iter().chain(self.updates.tensors());
        check_own_leases(self.reads.tensors().iter(), written)
    }

    /// Refuses a result that could not be what it was declared to be, wherever it is.
    fn check_declared(&self) -> Result<(), Error> {
        let declared = self.options.as_ref().and_then(|options| options.declared.as_ref());
        declared
            .map_or(Ok(()), |(dtype, shape)| Ok(Layout::contiguous(*dtype, DLDevice::CPU, shape).map(drop)?))
    }

    /// As [`check`](Self::check), for a body that gets no slices and so may see memory twice: an operand that is both read
    /// and written is updated in place.
    pub(crate) fn check_external(&self) -> Result<(), Error> {
        self.check_declared()?;
        self.writes.tensors().iter().chain(self.updates.tensors()).try_for_each(check_writable)?;
        self.check_leases()
    }

    /// Submits the operation with `body`; `produced` is the tensor that it will define.
    #[inline(always)]
    pub(crate) fn submit(
        self,
        room: Room,
        produced: Option<&Tensor>,
        body: impl FnOnce(R, W, U) -> Body,
    ) -> Result<Op, Error> {
        self.check()?;
        self.submit_checked(room, produced, body)
    }

    #[inline(always)]
    pub(crate) fn submit_checked(
        self,
        room: Room,
        produced: Option<&Tensor>,
        body: impl FnOnce(R, W, U) -> Body,
    ) -> Result<Op, Error> {
        match room {
            Room::Wait => self.core().acquire_permit()?,
            Room::Refuse => self.core().try_acquire_permit()?,
        }
        Ok(self.submit_permitted(produced, body))
    }

    #[inline(always)]
    pub(crate) fn submit_permitted(
        self,
        produced: Option<&Tensor>,
        body: impl FnOnce(R, W, U) -> Body,
    ) -> Op {
        self.complete_draft(produced, body, submit_to_graph)
    }

    /// Puts everything into the pending operation and hands it to `submit`.
    #[inline(always)]
    pub(crate) fn complete_draft<T>(
        self,
        produced: Option<&Tensor>,
        body: impl FnOnce(R, W, U) -> Body,
        submit: impl FnOnce(OpPending<'_>) -> T,
    ) -> T {
        let Self { mut pending_op, reads, writes, updates, options } = self;
        pending_op.payload_mut().hold_permit();
        if let Some(queue) = options.and_then(|options| options.queue) {
            pending_op.payload_mut().set_role(Role::Device(queue));
        }
        let no_tensors =
            reads.tensors().is_empty() && writes.tensors().is_empty() && updates.tensors().is_empty();
        if no_tensors && produced.is_none() {
            pending_op.payload_mut().set_body(body(reads, writes, updates));
            if pending_op.payload().noted {
                hooks::submitted(&pending_op);
            }
            return submit(pending_op);
        }
        if pending_op.payload().noted {
            [reads.tensors(), writes.tensors(), updates.tensors()].into_iter().for_each(hooks::uses);
        }
        // The tensors go into the body, which may be gone before this call ends.
        let mut accesses: SmallVec<[(OpVar, Mode); 6]> = SmallVec::new();
        let tensors = [
            (reads.tensors(), Mode::Read),
            (writes.tensors(), Mode::Write),
            (updates.tensors(), Mode::Update),
        ];
        for (tensors, mode) in tensors {
            for var in tensors.iter().flat_map(|tensor| &tensor.inner.vars) {
                accesses.push((var.clone(), mode));
            }
        }
        if let Some(tensor) = produced {
            // Only its own variable: what it aliases is not changed by its definition.
            accesses.push((tensor.inner.vars[0].clone(), Mode::Write));
        }
        // What these will be is not known yet, and a pure write does not look at why one may never come.
        let written = writes.tensors().iter().chain(updates.tensors());
        let promised: Vec<Tensor> = written.filter(|tensor| !tensor.is_defined()).cloned().collect();
        let body = body(reads, writes, updates);
        let body = if promised.is_empty() { body } else { if_writable(promised, body) };
        pending_op.payload_mut().set_body(body);
        let mut pending_op: OpPending<'_> = pending_op;
        accesses.iter().for_each(|(var, mode)| pending_op.access(var, *mode));
        if pending_op.payload().noted {
            hooks::submitted(&pending_op);
        }
        submit(pending_op)
    }

    /// Submits an operation whose body starts work elsewhere and reports its end through the [`Completion`], from any
    /// thread. Dropping the completion unused fails the operation.
    ///
    /// Such a body gets its operands by [`Scope::export`](crate::Scope::export), not as slices, so they may overlap.
    ///
    /// # Errors
    /// As [`run`](OpBuilder::run), but for overlapping operands.
    pub fn run_external<F>(self, start: F) -> Result<Op, Error>
    where
        F: FnOnce(Completion) + Send + 'static,
    {
        self.check_external()?;
        self.submit_checked(Room::Wait, None, |reads, writes, updates| {
            external_body((reads, writes, updates), None, start)
        })
    }

    /// As [`run_external`](Self::run_external), waiting for a permit without blocking the thread.
    ///
    /// # Errors
    /// As [`run`](OpBuilder::run).
    pub async fn run_external_async<F>(self, start: F) -> Result<Op, Error>
    where
        F: FnOnce(Completion) + Send + 'static,
    {
        self.check_external()?;
        self.core().acquire_permit_async().await?;
        Ok(self.submit_permitted(None, |reads, writes, updates| {
            external_body((reads, writes, updates), None, start)
        }))
    }
}

/// Enters the operation in the queues of its variables, and starts it if nothing is in front of it there.
#[inline(always)]
fn submit_to_graph(pending_op: OpPending<'_>) -> Op {
    let (handle, granted) = pending_op.submit();
    if let Some(granted) = granted {
        run::dispatch_one(granted);
    }
    Op::new(handle)
}

/// As [`submit_to_graph`], but an operation with nothing in front of it starts on this thread.
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

/// A fence for work whose end cannot be known: its memory is never given back.
pub fn lost(error: DeviceError) -> Fence {
    let (completer, fence) = host::promise("device work that could not be marked");
    let message = format!("the end of device work cannot be known: {error}");
    completer.fail(DeviceError::new(DeviceErrorKind::Fault, message));
    fence
}

impl<R: Operands, W: Operands> OpBuilder<'_, R, W, ()> {
    /// Submits the operation with a synchronous body, which gets views of what it reads and of what it writes. Waits for
    /// a permit. In an engine without workers it may run operations on this thread, unless that is
    /// [forbidden](crate::set_helping); where there is a worker it runs none.
    ///
    /// It blocks while the in-flight limit is reached, so in an asynchronous task use [`run_async`](Self::run_async): on a runtime of one
    /// thread that runs the engine's own asynchronous bodies ([`EngineBuilder::tokio`](crate::EngineBuilder::tokio)), it would wait
    /// for bodies that only this thread could poll.
    ///
    /// The compiler checks that the body takes as many views as tensors were named:
    ///
    /// ```compile_fail
    /// # let engine = estafette::Engine::builder().build().unwrap();
    /// # let x = engine.from_vec(vec![1.0_f32], &[1]).unwrap();
    /// engine.op("one of two").reads([&x]).run(|[a, b], []| Ok(()))?;
    /// # Ok::<(), estafette::Error>(())
    /// ```
    ///
    /// and that no view leaves it:
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
    /// and that nothing but a body gets views, neither from operands
    ///
    /// ```compile_fail,E0061
    /// # use estafette::Operands as _;
    /// # let engine = estafette::Engine::builder().build().unwrap();
    /// # let x = engine.from_vec(vec![1.0_f32], &[1]).unwrap();
    /// let [mut view] = [x].views_mut();
    /// ```
    ///
    /// nor from what is known to be operands:
    ///
    /// ```compile_fail,E0061
    /// fn views_of<T: estafette::Operands>(operands: &T) -> T::Views<'_> {
    ///     operands.views()
    /// }
    /// ```
    ///
    /// # Errors
    /// [`Error::Conflict`] when a written operand overlaps another one or may not be written, and when the operation would wait for
    /// the lease that one of its own operands keeps;
    /// [`Error::WouldDeadlock`] when the in-flight limit is reached and can never drain: what is in flight waits for the calling operation, or for
    /// leases of the calling thread; [`Error::LeaseHeld`] when leases of other threads have kept it full for the
    /// [lease timeout](crate::EngineBuilder::lease_timeout); [`Error::Shutdown`], [`Error::Forked`].
    /// Errors of the body itself do not appear here but at whoever waits for the operation or its outputs.
    #[inline]
    pub fn run<F>(self, body: F) -> Result<Op, Error>
    where
        F: for<'a> FnOnce(R::Views<'a>, W::ViewsMut<'a>) -> BodyResult + Send + 'static,
    {
        self.submit(Room::Wait, None, |reads, writes, _none| sync_body(reads, writes, body))
    }

    /// As [`run`](Self::run), without a handle: for operations that are known by what they write. What nobody can name costs
    /// less.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    #[inline]
    pub fn run_detached<F>(self, body: F) -> Result<(), Error>
    where
        F: for<'a> FnOnce(R::Views<'a>, W::ViewsMut<'a>) -> BodyResult + Send + 'static,
    {
        self.check()?;
        self.core().acquire_permit()?;
        self.complete_draft(None, |reads, writes, _none| sync_body(reads, writes, body), submit_detached);
        Ok(())
    }

    /// As [`run`](Self::run), but refuses with [`Error::InFlightLimit`] instead of waiting.
    ///
    /// # Errors
    /// As [`run`](Self::run), and [`Error::InFlightLimit`].
    pub fn try_run<F>(self, body: F) -> Result<Op, Error>
    where
        F: for<'a> FnOnce(R::Views<'a>, W::ViewsMut<'a>) -> BodyResult + Send + 'static,
    {
        self.submit(Room::Refuse, None, |reads, writes, _none| sync_body(reads, writes, body))
    }

    /// As [`run`](Self::run), but waits for room asynchronously. Nothing is submitted until then.
    ///
    /// # Errors
    /// As [`run`](Self::run), but never [`Error::WouldDeadlock`] or [`Error::LeaseHeld`].
    pub async fn run_async<F>(self, body: F) -> Result<Op, Error>
    where
        F: for<'a> FnOnce(R::Views<'a>, W::ViewsMut<'a>) -> BodyResult + Send + 'static,
    {
        self.check()?;
        self.core().acquire_permit_async().await?;
        Ok(self.submit_permitted(None, |reads, writes, _none| sync_body(reads, writes, body)))
    }

    /// Submits the operation with an asynchronous body on the engine's tokio runtime. It gets owned guards; the access
    /// ends when the body has ended and the last guard is dropped. Waits for room as [`run`](Self::run) does.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    pub fn run_future<F, Fut>(self, body: F) -> Result<Op, Error>
    where
        F: FnOnce(R::Guards, W::GuardsMut) -> Fut + Send + 'static,
        Fut: Future<Output = BodyResult> + Send + 'static,
    {
        self.submit(Room::Wait, None, |reads, writes, none| {
            future_body(reads, writes, none, None, move |open, reads, writes: &W, _| {
                let future = body(reads, writes.guards_mut(open));
                async move { future.await.map(|()| None) }
            })
        })
    }

    /// Submits the operation with a device body: it enqueues work on the queue given by [`on`](Self::on) and returns;
    /// what it has enqueued there is the operation.
    ///
    /// # Errors
    /// As [`run`](Self::run), and [`Error::Invalid`] without a queue.
    pub fn run_on<F>(self, body: F) -> Result<Op, Error>
    where
        F: for<'a> FnOnce(&'a dyn Queue, R::Views<'a>, W::ViewsMut<'a>) -> BodyResult + Send + 'static,
    {
        let queue = self.queue_for_body()?;
        self.submit(Room::Wait, None, |reads, writes, _none| {
            Body::new(move |running: Running| {
                let next = run_on(queue.as_ref(), running, || {
                    body(
                        queue.as_ref(),
                        reads.defined()?.views(&Grant::OF_BODY),
                        writes.views_mut(&Grant::OF_BODY),
                    )
                });
                drop((reads, writes));
                next
            })
        })
    }
}

impl<R, W, U> OpBuilder<'_, R, W, U> {
    fn queue_for_body(&self) -> Result<Arc<dyn Queue>, Error> {
        let queue = self.options.as_ref().and_then(|options| options.queue.clone());
        queue.ok_or_else(|| Error::invalid("a device body needs a queue; name one with `on`"))
    }
}

/// Runs a body that enqueues on `queue`, and ends its operation.
fn run_on(queue: &dyn Queue, running: Running, body: impl FnOnce() -> BodyResult) -> Option<OpGranted> {
    let entered = match Entered::queue(queue) {
        Ok(entered) => entered,
        Err(error) => {
            let cause = running.tag().device_failure(error);
            return running.skip(cause);
        }
    };
    let result = running.call(body);
    // Even a body that failed may have enqueued something, so its end is marked all the same.
    let marked = queue.record();
    drop(entered);
    match marked {
        Ok(fence) => running.finish_with(Some(&fence), result),
        Err(error) => {
            // What it has enqueued may run, and nobody will know when it ends.
            let cause = running.tag().device_failure(error.clone());
            running.finish_with(Some(&lost(error)), result.and(Err(cause)))
        }
    }
}

impl<R: Operands, W: Operands, const N: usize> OpBuilder<'_, R, W, [Tensor; N]> {
    /// As without [`updates`](Self::updates), with the tensors that are updated in place as a third argument.
    ///
    /// # Errors
    /// As without `updates`.
    #[inline]
    pub fn run<F>(self, body: F) -> Result<Op, Error>
    where
        F: for<'a> FnOnce(R::Views<'a>, W::ViewsMut<'a>, [ViewMut<'a>; N]) -> BodyResult + Send + 'static,
    {
        self.submit(Room::Wait, None, |reads, writes, updates| {
            Body::new(move |running: Running| {
                let result = running.call(|| {
                    body(
                        reads.defined()?.views(&Grant::OF_BODY),
                        writes.views_mut(&Grant::OF_BODY),
                        updates.views_mut(&Grant::OF_BODY),
                    )
                });
                let next = running.finish(result);
                drop((reads, writes, updates));
                next
            })
        })
    }

    /// As without [`updates`](Self::updates), with the tensors that are updated in place as a further argument.
    ///
    /// # Errors
    /// As without `updates`.
    pub fn run_on<F>(self, body: F) -> Result<Op, Error>
    where
        F: for<'a> FnOnce(&'a dyn Queue, R::Views<'a>, W::ViewsMut<'a>, [ViewMut<'a>; N]) -> BodyResult
            + Send
            + 'static,
    {
        let queue = self.queue_for_body()?;
        self.submit(Room::Wait, None, |reads, writes, updates| {
            Body::new(move |running: Running| {
                let next = run_on(queue.as_ref(), running, || {
                    body(
                        queue.as_ref(),
                        reads.defined()?.views(&Grant::OF_BODY),
                        writes.views_mut(&Grant::OF_BODY),
                        updates.views_mut(&Grant::OF_BODY),
                    )
                });
                drop((reads, writes, updates));
                next
            })
        })
    }

    /// As [`run`](Self::run), with an asynchronous body on the engine's tokio runtime.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    pub fn run_future<F, Fut>(self, body: F) -> Result<Op, Error>
    where
        F: FnOnce(R::Guards, W::GuardsMut, [WriteGuard; N]) -> Fut + Send + 'static,
        Fut: Future<Output = BodyResult> + Send + 'static,
    {
        self.submit(Room::Wait, None, |reads, writes, updates| {
            future_body(
                reads,
                writes,
                updates,
                None,
                move |open, reads, writes: &W, updates: &[Tensor; N]| {
                    let future = body(reads, writes.guards_mut(open), updates.guards_mut(open));
                    async move { future.await.map(|()| None) }
                },
            )
        })
    }
}
