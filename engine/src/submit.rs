//! Describing and submitting operations.

use std::future::Future;
use std::sync::Arc;

use estafette_devices::{DeviceError, DeviceErrorKind, Fence, Queue, host};
use estafette_graph::Mode;
use smallvec::SmallVec;

use crate::bodies::{external_body, future_body, if_writable, operands, sync_body};
use crate::body::Body;
use crate::completion::Completion;
use crate::core::graph;
use crate::core_ref::CoreRef;
use crate::error::{BodyResult, Error};
use crate::exchange::DType;
use crate::guards::WriteGuard;
use crate::import::{Copying, Produced, define};
use crate::lease::check_writable;
use crate::operands::Operands;
use crate::operation::{Kind, Name, Op, OpDraft, OpState, OpVar, Role};
use crate::run::{self, Running};
use crate::tensor::{Tensor, VarSet};
use crate::variable::Variable;
use crate::views::ViewMut;

type Nothing = [Tensor; 0];

/// An operation being described. Made by [`Engine::op`](crate::Engine::op).
///
/// `R`, `W` and `U` are what it reads, what it overwrites, and what it reads and writes in place.
#[derive(Debug)]
#[must_use = "an operation does nothing until it is submitted with `run` or one of its kin"]
pub struct OpBuilder<'e, R = Nothing, W = Nothing, U = ()> {
    /// Most of it is in the operation already.
    draft: OpDraft<'e>,
    reads: R,
    writes: W,
    updates: U,
    /// What few operations have, out of the way of the others.
    options: Option<Box<Options>>,
}

#[derive(Debug, Default)]
struct Options {
    queue: Option<Arc<dyn Queue>>,
    alias_of: VarSet,
    declared: Option<(DType, SmallVec<[i64; 4]>)>,
    copying: Copying,
}

impl<'e> OpBuilder<'e> {
    #[inline(always)]
    pub(crate) fn new(core: &'e CoreRef, name: Name) -> Self {
        // SAFETY: `init` writes every field.
        let draft = unsafe { graph().draft(|place| OpState::init(place, core, name, Kind::Work)) };
        Self { draft, reads: [], writes: [], updates: (), options: None }
    }
}

impl<'e, R, W, U> OpBuilder<'e, R, W, U> {
    /// Tensors that the body reads.
    pub fn reads<const N: usize>(self, tensors: [&Tensor; N]) -> OpBuilder<'e, [Tensor; N], W, U> {
        let Self { draft, writes, updates, options, .. } = self;
        OpBuilder { draft, reads: tensors.map(Tensor::clone), writes, updates, options }
    }

    /// As [`reads`](Self::reads), for a number known only at run time.
    pub fn reads_slice(self, tensors: &[Tensor]) -> OpBuilder<'e, Vec<Tensor>, W, U> {
        let Self { draft, writes, updates, options, .. } = self;
        OpBuilder { draft, reads: tensors.to_vec(), writes, updates, options }
    }

    /// Tensors that the body overwrites without reading them. A pure write heals a failed tensor.
    pub fn writes<const N: usize>(self, tensors: [&Tensor; N]) -> OpBuilder<'e, R, [Tensor; N], U> {
        let Self { draft, reads, updates, options, .. } = self;
        OpBuilder { draft, reads, writes: tensors.map(Tensor::clone), updates, options }
    }

    /// As [`writes`](Self::writes), for a number known only at run time.
    pub fn writes_slice(self, tensors: &[Tensor]) -> OpBuilder<'e, R, Vec<Tensor>, U> {
        let Self { draft, reads, updates, options, .. } = self;
        OpBuilder { draft, reads, writes: tensors.to_vec(), updates, options }
    }

    /// Tensors that the body reads and writes in place; it gets them as its last argument.
    pub fn updates<const N: usize>(self, tensors: [&Tensor; N]) -> OpBuilder<'e, R, W, [Tensor; N]> {
        let Self { draft, reads, writes, options, .. } = self;
        OpBuilder { draft, reads, writes, updates: tensors.map(Tensor::clone), options }
    }

    fn core(&self) -> &CoreRef {
        &self.draft.payload().core
    }

    fn options(&mut self) -> &mut Options {
        self.options.get_or_insert_default()
    }

    /// Plain variables that the body uses without changing what they stand for.
    #[inline(always)]
    pub fn reads_vars(mut self, variables: &[&'e Variable]) -> Self {
        for variable in variables {
            self.draft.access(&variable.var, Mode::Read);
        }
        self
    }

    /// Plain variables that the body changes.
    #[inline(always)]
    pub fn writes_vars(mut self, variables: &[&'e Variable]) -> Self {
        for variable in variables {
            self.draft.access(&variable.var, Mode::Write);
        }
        self
    }

    /// Among ready operations, higher ones are started first. Default 0.
    pub fn priority(mut self, priority: i32) -> Self {
        self.draft.payload_mut().priority = priority;
        self
    }

    /// The queue that the body enqueues on; needed by [`run_on`](Self::run_on).
    pub fn on(mut self, queue: &Arc<dyn Queue>) -> Self {
        self.options().queue = Some(Arc::clone(queue));
        self
    }

    /// Declares that the produced tensor is a view of these, so that it is ordered with them instead of copied.
    pub fn alias_of(mut self, tensors: &[&Tensor]) -> Self {
        let alias_of = &mut self.options().alias_of;
        for var in tensors.iter().flat_map(|tensor| &tensor.inner.vars) {
            if alias_of.iter().all(|known| known.id() != var.id()) {
                alias_of.push(var.clone());
            }
        }
        self
    }

    /// Declares type and shape of the produced tensor, so that they are known before it is.
    pub fn like(mut self, dtype: DType, shape: &[i64]) -> Self {
        self.options().declared = Some((dtype, SmallVec::from_slice(shape)));
        self
    }

    /// Makes a produced result that overlaps known memory a conflict instead of a copy.
    pub fn no_copy(mut self) -> Self {
        self.options().copying = Copying::Refused;
        self
    }

    /// Makes the produced tensor a copy of the result, whether it overlaps known memory or not.
    pub fn always_copy(mut self) -> Self {
        self.options().copying = Copying::Always;
        self
    }

    /// Keeps threads that wait from running the body in the meantime; for bodies that need a lock of their own world,
    /// such as the Python lock.
    pub fn unhelped(mut self) -> Self {
        self.draft.payload_mut().kind = Kind::Unhelped;
        self
    }
}

/// Whether a submission waits for room in the window.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Room {
    Wait,
    Refuse,
}

impl<R: Operands, W: Operands, U: Operands> OpBuilder<'_, R, W, U> {
    fn check(&self) -> Result<(), Error> {
        let written = || self.writes.tensors().iter().chain(self.updates.tensors());
        for (at, tensor) in written().enumerate() {
            check_writable(tensor)?;
            let others = self.reads.tensors().iter().chain(written().skip(at + 1));
            for other in others {
                check_disjoint(tensor, other)?;
            }
        }
        Ok(())
    }

    /// As [`check`](Self::check), for a body that gets no slices and so may see memory twice: an operand that is both read
    /// and written is updated in place.
    fn check_external(&self) -> Result<(), Error> {
        self.writes.tensors().iter().chain(self.updates.tensors()).try_for_each(check_writable)
    }

    /// Submits the operation with `body`; `produced` is the tensor that it will define.
    #[inline(always)]
    fn submit(
        self,
        room: Room,
        produced: Option<&Tensor>,
        body: impl FnOnce(R, W, U) -> Body,
    ) -> Result<Op, Error> {
        self.check()?;
        self.submit_checked(room, produced, body)
    }

    #[inline(always)]
    fn submit_checked(
        self,
        room: Room,
        produced: Option<&Tensor>,
        body: impl FnOnce(R, W, U) -> Body,
    ) -> Result<Op, Error> {
        match room {
            Room::Wait => self.core().admit()?,
            Room::Refuse => self.core().try_admit()?,
        }
        Ok(self.submit_admitted(produced, body))
    }

    #[inline(always)]
    fn submit_admitted(self, produced: Option<&Tensor>, body: impl FnOnce(R, W, U) -> Body) -> Op {
        self.complete_draft(produced, body, submit_to_graph)
    }

    /// Puts everything into the draft and hands it to `submit`.
    #[inline(always)]
    fn complete_draft<T>(
        self,
        produced: Option<&Tensor>,
        body: impl FnOnce(R, W, U) -> Body,
        submit: impl FnOnce(OpDraft<'_>) -> T,
    ) -> T {
        let Self { mut draft, reads, writes, updates, options } = self;
        draft.payload_mut().admitted();
        if let Some(queue) = options.and_then(|options| options.queue) {
            draft.payload_mut().set_role(Role::Device(queue));
        }
        let no_tensors =
            reads.tensors().is_empty() && writes.tensors().is_empty() && updates.tensors().is_empty();
        if no_tensors && produced.is_none() {
            draft.payload_mut().set_body(body(reads, writes, updates));
            return submit(draft);
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
        draft.payload_mut().set_body(body);
        let mut draft: OpDraft<'_> = draft;
        accesses.iter().for_each(|(var, mode)| draft.access(var, *mode));
        submit(draft)
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
            external_body(operands(&reads, &writes, &updates), None, start)
        })
    }

    /// As [`run_external`](Self::run_external), waiting for room in the window without blocking the thread.
    ///
    /// # Errors
    /// As [`run`](OpBuilder::run).
    pub async fn run_external_async<F>(self, start: F) -> Result<Op, Error>
    where
        F: FnOnce(Completion) + Send + 'static,
    {
        self.check_external()?;
        self.core().admit_async().await?;
        Ok(self.submit_admitted(None, |reads, writes, updates| {
            external_body(operands(&reads, &writes, &updates), None, start)
        }))
    }
}

/// Enters the operation in the queues of its variables, and starts it if nothing is in front of it there.
#[inline(always)]
fn submit_to_graph(draft: OpDraft<'_>) -> Op {
    let (handle, granted) = draft.submit();
    if let Some(granted) = granted {
        run::dispatch_one(granted);
    }
    Op::new(handle)
}

/// As [`submit_to_graph`], but an operation with nothing in front of it starts on this thread.
fn submit_and_start(draft: OpDraft<'_>) -> Op {
    let (handle, granted) = draft.submit();
    granted.into_iter().for_each(run::execute_one);
    Op::new(handle)
}

/// As [`submit_to_graph`], without a handle.
#[inline(always)]
fn submit_detached(draft: OpDraft<'_>) {
    if let Some(granted) = draft.submit_unreferenced() {
        run::dispatch_one(granted);
    }
}

/// A fence for work whose end cannot be known: its memory is never given back.
fn lost(error: DeviceError) -> Fence {
    let (completer, fence) = host::promise("device work that could not be marked");
    let message = format!("the end of device work cannot be known: {error}");
    completer.fail(DeviceError::new(DeviceErrorKind::Fault, message));
    fence
}

/// In Rust, views are slices, so memory that is written must not be seen twice.
pub(crate) fn check_disjoint(written: &Tensor, other: &Tensor) -> Result<(), Error> {
    if written.same(other) {
        return Err(Error::Conflict(
            "a tensor is written and used again in the same operation; use `updates` to change it in place"
                .into(),
        ));
    }
    let shares =
        || written.inner.vars.iter().any(|var| other.inner.vars.iter().any(|its| its.id() == var.id()));
    if !(written.is_defined() && other.is_defined()) && shares() {
        return Err(Error::Conflict(
            "two operands of one operation may overlap, since one is a promised alias of the other, and one of them is \
             written; use `updates`"
                .into(),
        ));
    }
    if let (Ok(a), Ok(b)) = (written.inner.definition(), other.inner.definition()) {
        let (x, y) = (a.layout.byte_range(a.data), b.layout.byte_range(b.data));
        let spaces =
            (crate::exchange::Space::of(a.layout.device()), crate::exchange::Space::of(b.layout.device()));
        if spaces.0 == spaces.1 && x.start < y.end && y.start < x.end {
            return Err(Error::Conflict(
                "two operands of one operation overlap in memory and one of them is written; use `updates`"
                    .into(),
            ));
        }
    }
    Ok(())
}

impl<R: Operands, W: Operands> OpBuilder<'_, R, W, ()> {
    /// Submits the operation with a synchronous body, which gets views of what it reads and of what it writes. Waits for
    /// room in the window, helping to run what is ready.
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
    /// # Errors
    /// [`Error::Conflict`] when a written operand overlaps another one or may not be written;
    /// [`Error::WouldDeadlock`] when the window is full and can never drain; [`Error::Shutdown`], [`Error::Forked`].
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
        self.core().admit()?;
        self.complete_draft(None, |reads, writes, _none| sync_body(reads, writes, body), submit_detached);
        Ok(())
    }

    /// As [`run`](Self::run), but refuses with [`Error::WindowFull`] instead of waiting.
    ///
    /// # Errors
    /// As [`run`](Self::run), and [`Error::WindowFull`].
    pub fn try_run<F>(self, body: F) -> Result<Op, Error>
    where
        F: for<'a> FnOnce(R::Views<'a>, W::ViewsMut<'a>) -> BodyResult + Send + 'static,
    {
        self.submit(Room::Refuse, None, |reads, writes, _none| sync_body(reads, writes, body))
    }

    /// As [`run`](Self::run), but waits for room asynchronously. Nothing is submitted until then.
    ///
    /// # Errors
    /// As [`run`](Self::run), but never [`Error::WouldDeadlock`].
    pub async fn run_async<F>(self, body: F) -> Result<Op, Error>
    where
        F: for<'a> FnOnce(R::Views<'a>, W::ViewsMut<'a>) -> BodyResult + Send + 'static,
    {
        self.check()?;
        self.core().admit_async().await?;
        Ok(self.submit_admitted(None, |reads, writes, _none| sync_body(reads, writes, body)))
    }

    /// Submits the operation with an asynchronous body on the engine's tokio runtime. It gets owned guards; the access
    /// ends when the body has ended and the last guard is dropped.
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
        let Some(queue) = self.options.as_ref().and_then(|options| options.queue.clone()) else {
            return Err(Error::invalid("a device body needs a queue; name one with `on`"));
        };
        self.submit(Room::Wait, None, |reads, writes, _none| {
            Body::new(move |running: Running| {
                let result = running.call(|| body(queue.as_ref(), reads.views(), writes.views_mut()));
                // Even a body that failed may have enqueued something, so its end is marked all the same.
                let next = match queue.record() {
                    Ok(fence) => running.finish_with(Some(&fence), result),
                    Err(error) => {
                        // What it has enqueued may run, and nobody will know when it ends.
                        let cause = running.tag().device_failure(error.clone());
                        running.finish_with(Some(&lost(error)), result.and(Err(cause)))
                    }
                };
                drop((reads, writes));
                next
            })
        })
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
                let result = running.call(|| body(reads.views(), writes.views_mut(), updates.views_mut()));
                let next = running.finish(result);
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

impl<R: Operands> OpBuilder<'_, R, Nothing, ()> {
    /// Submits an operation whose result becomes a new tensor: a promise until then.
    ///
    /// # Errors
    /// As [`run`](OpBuilder::run). A result that does not fit fails the operation.
    pub fn produce<F, P>(self, body: F) -> Result<Tensor, Error>
    where
        F: for<'a> FnOnce(R::Views<'a>) -> BodyResult<P> + Send + 'static,
        P: Into<Produced>,
    {
        // Before anything is made: in a forked child the graph's locks may be held for ever.
        self.core().check_usable()?;
        let (tensor, copying) = self.promise();
        let target = tensor.clone();
        self.submit(Room::Wait, Some(&tensor), |reads, _none, _none_either| {
            Body::new(move |running: Running| {
                let result = running.call(|| body(reads.views())).and_then(|produced| {
                    let held = |tensor: &Tensor| reads.tensors().iter().any(|operand| operand.same(tensor));
                    define(&target.inner, produced.into(), copying, &held)
                        .map_err(|error| running.tag().result_failure(error))
                });
                let next = running.finish(result);
                drop((reads, target));
                next
            })
        })?;
        Ok(tensor)
    }

    /// As [`produce`](Self::produce), with an asynchronous body on the engine's tokio runtime.
    ///
    /// # Errors
    /// As [`produce`](Self::produce).
    pub fn produce_async<F, Fut, P>(self, body: F) -> Result<Tensor, Error>
    where
        F: FnOnce(R::Guards) -> Fut + Send + 'static,
        Fut: Future<Output = BodyResult<P>> + Send + 'static,
        P: Into<Produced>,
    {
        // Before anything is made: in a forked child the graph's locks may be held for ever.
        self.core().check_usable()?;
        let (tensor, copying) = self.promise();
        let target = Some((tensor.clone(), copying));
        self.submit(Room::Wait, Some(&tensor), |reads, none, none_either| {
            future_body(reads, none, none_either, target, move |_open, reads, _, _| {
                let future = body(reads);
                async move { future.await.map(|produced| Some(produced.into())) }
            })
        })?;
        Ok(tensor)
    }

    /// As [`produce`](Self::produce), with the result given to the [`Completion`] from any thread.
    ///
    /// # Errors
    /// As [`produce`](Self::produce).
    pub fn produce_external<F>(self, start: F) -> Result<Tensor, Error>
    where
        F: FnOnce(Completion) + Send + 'static,
    {
        // Before anything is made: in a forked child the graph's locks may be held for ever.
        self.core().check_usable()?;
        let (tensor, copying) = self.promise();
        let target = Some((tensor.clone(), copying));
        self.check_external()?;
        self.submit_checked(Room::Wait, Some(&tensor), |reads, writes, updates| {
            external_body(operands(&reads, &writes, &updates), target, start)
        })?;
        Ok(tensor)
    }

    /// As [`produce_external`](Self::produce_external), waiting for room in the window without blocking the thread.
    ///
    /// # Errors
    /// As [`produce`](Self::produce).
    pub async fn produce_external_async<F>(self, start: F) -> Result<Tensor, Error>
    where
        F: FnOnce(Completion) + Send + 'static,
    {
        self.check_external()?;
        self.core().admit_async().await?;
        let (tensor, copying) = self.promise();
        let target = Some((tensor.clone(), copying));
        self.submit_admitted(Some(&tensor), |reads, writes, updates| {
            external_body(operands(&reads, &writes, &updates), target, start)
        });
        Ok(tensor)
    }

    /// As [`produce_external`](Self::produce_external), for a result that somebody else brings: nothing is left for a worker
    /// to do, so an operation without operands calls `start` on this thread, before this returns.
    ///
    /// # Errors
    /// As [`produce`](Self::produce).
    pub fn receive<F>(self, start: F) -> Result<Tensor, Error>
    where
        F: FnOnce(Completion) + Send + 'static,
    {
        // Before anything is made: in a forked child the graph's locks may be held for ever.
        self.core().check_usable()?;
        self.check_external()?;
        self.core().admit()?;
        Ok(self.receive_admitted(start))
    }

    /// As [`receive`](Self::receive), waiting for room in the window without blocking the thread.
    ///
    /// # Errors
    /// As [`produce`](Self::produce).
    pub async fn receive_async<F>(self, start: F) -> Result<Tensor, Error>
    where
        F: FnOnce(Completion) + Send + 'static,
    {
        self.check_external()?;
        self.core().admit_async().await?;
        Ok(self.receive_admitted(start))
    }

    fn receive_admitted<F>(self, start: F) -> Tensor
    where
        F: FnOnce(Completion) + Send + 'static,
    {
        let (tensor, copying) = self.promise();
        let target = Some((tensor.clone(), copying));
        let body = |reads: R, writes: Nothing, updates: ()| {
            external_body(operands(&reads, &writes, &updates), target, start)
        };
        self.complete_draft(Some(&tensor), body, submit_and_start);
        tensor
    }

    /// The tensor that the operation will define: its own variable first, then those of what it aliases.
    fn promise(&self) -> (Tensor, Copying) {
        let mut vars = VarSet::from_iter([Variable::new().var]);
        let (declared, copying) = match &self.options {
            None => (None, Copying::default()),
            Some(options) => {
                vars.extend(options.alias_of.iter().cloned());
                (options.declared.clone(), options.copying)
            }
        };
        let tensor = Tensor::promised(self.core().clone(), vars, declared, self.draft.payload().name.clone());
        (tensor, copying)
    }
}
