//! Descriptions of work: the operands, the variables and the options of an operation or of a program's node.

use std::sync::Arc;

use estafette_devices::{DLDevice, Queue};
use estafette_graph::AccessMode;
use estafette_report::shown::shown;
use smallvec::SmallVec;

use crate::core::core_ref::CoreRef;
use crate::core::error::{Error, OperationError};
use crate::core::operation::{self, Name, OpKind, OpPending, OpState};
use crate::exchange::{DType, Layout};
use crate::lease::check_writable;
use crate::operation::disjoint::check_disjoint;
use crate::operation::import::Copying;
use crate::operation::operands::{IntoOperands, Operands};
use crate::operation::own_leases::check_own_leases;
use crate::tensor::handle::{Tensor, VarSet};
use crate::tensor::variable::Variable;

/// No operands.
pub(crate) type Nothing = [Tensor; 0];

/// A description of work: what it uses, and how it runs.
///
/// `T` says what is described: an operation ([`OpBuilder`]) or a node of a program
/// ([`NodeBuilder`](crate::program::NodeBuilder)). `R`, `W` and `U` are the tensors that the work reads,
/// overwrites, and updates in place.
#[derive(Debug)]
#[must_use = "a description does nothing until `run` or another method takes its body"]
pub struct Description<T, R = Nothing, W = Nothing, U = ()> {
    pub(crate) target: T,
    pub(crate) reads: R,
    pub(crate) writes: W,
    pub(crate) updates: U,
    /// Options that few descriptions have, behind one pointer.
    pub(crate) options: Option<Box<RareOptions>>,
}

/// An operation being described. Made by [`Engine::op`](crate::Engine::op).
///
/// A description ends with a body:
///
/// | method | the body |
/// |---|---|
/// | [`run`](OpBuilder::run) | a function on a worker; it gets views of the operands |
/// | [`run_detached`](OpBuilder::run_detached) | the same, of an operation without a handle |
/// | [`run_on`](OpBuilder::run_on) | enqueues work on a queue of a device |
/// | [`run_future`](OpBuilder::run_future) | a future on the engine's tokio runtime; it gets guards of the operands |
/// | [`run_external`](OpBuilder::run_external) | starts work elsewhere, which reports its end through a [`Completion`](crate::Completion) |
/// | [`produce`](OpBuilder::produce), [`produce_future`](OpBuilder::produce_future), [`produce_external`](OpBuilder::produce_external) | the same three forms, whose result becomes a tensor |
/// | [`receive`](OpBuilder::receive) | hands the completion out at once |
///
/// Every operation in flight holds a permit, and an engine has as many permits as its [in-flight
/// limit](crate::engine::EngineBuilder::in_flight_limit). Where no permit is free, submission
///
/// - blocks the thread by default,
/// - fails with [`Error::InFlightLimit`] after [`without_waiting`](OpBuilder::without_waiting),
/// - suspends the task with [`permit`](OpBuilder::permit)`().await`, the form for asynchronous code.
pub type OpBuilder<'e, R = Nothing, W = Nothing, U = ()> = Description<Submission<'e>, R, W, U>;

/// The target of an [`OpBuilder`]: an operation that is not submitted.
#[derive(Debug)]
pub struct Submission<'e> {
    /// The operation's own memory holds its name, priority and variables already. Nothing else is here: a
    /// description passes from call to call, and fields that are written one by one and read as one make the
    /// processor wait.
    pub(crate) pending_op: OpPending<'e>,
}

/// The target of a [`Description`].
pub trait Target<'v> {
    /// Notes a variable.
    fn access(&mut self, variable: &'v Variable, mode: AccessMode);
    /// Keeps waiting threads from running the body; with `needs_lock`, which is the engine's shared lock,
    /// only where they have no slot.
    fn set_worker_only(&mut self, needs_lock: bool);
    /// True if a noted variable is of a process that this one was forked from.
    fn is_forked(&self) -> bool;
}

impl<'e> Target<'e> for Submission<'e> {
    #[inline(always)]
    fn access(&mut self, variable: &'e Variable, mode: AccessMode) {
        if self.pending_op.may_access(&variable.var) {
            self.pending_op.access(&variable.var, mode);
        } else {
            // All engines of a process share its graph.
            self.pending_op.payload_mut().is_forked = true;
        }
    }

    #[inline(always)]
    fn is_forked(&self) -> bool {
        self.pending_op.payload().is_forked
    }

    fn set_worker_only(&mut self, needs_lock: bool) {
        self.pending_op.payload_mut().kind = if needs_lock { OpKind::NeedsLock } else { OpKind::WorkerOnly };
    }
}

/// The facts that are known of a result before it is there: see [`OpBuilder::result`].
#[derive(Debug, Clone, Copy, Default)]
pub struct ResultOptions<'a> {
    /// Tensors that the result is a view of: operations are ordered with both, and the result is not copied.
    pub alias_of: &'a [&'a Tensor],
    /// Type and shape, which the promise then has before the body has run. A result with others fails the
    /// operation.
    pub like: Option<(DType, &'a [i64])>,
    /// The choice between a copy of the result and its memory.
    pub copying: Copying,
}

/// Options that few descriptions have.
#[derive(Debug, Default)]
pub(crate) struct RareOptions {
    pub(crate) queue: Option<Arc<dyn Queue>>,
    pub(crate) alias_of: VarSet,
    pub(crate) declared: Option<(DType, SmallVec<[i64; 4]>)>,
    pub(crate) copying: Copying,
}

impl<'e> OpBuilder<'e> {
    #[inline(always)]
    pub(crate) fn new(core: &'e CoreRef, name: Name) -> Self {
        let pending_op = operation::pending_op(core, name, OpKind::Work);
        Self::describe(Submission { pending_op })
    }
}

impl<T> Description<T> {
    #[inline(always)]
    pub(crate) fn describe(target: T) -> Self {
        Self { target, reads: [], writes: [], updates: (), options: None }
    }
}

impl<T, R, W, U> Description<T, R, W, U> {
    /// Tensors that the body reads: an array, or a slice where their number is known only at run time.
    pub fn reads<O: IntoOperands>(self, tensors: O) -> Description<T, O::Operands, W, U> {
        let Self { target, writes, updates, options, .. } = self;
        Description { target, reads: tensors.into_operands(), writes, updates, options }
    }

    /// Tensors that the body overwrites without reading them: an array or a slice. A write makes a failed
    /// tensor usable again.
    pub fn writes<O: IntoOperands>(self, tensors: O) -> Description<T, R, O::Operands, U> {
        let Self { target, reads, updates, options, .. } = self;
        Description { target, reads, writes: tensors.into_operands(), updates, options }
    }

    /// Tensors that the body reads and writes in place. The body gets them as its last argument.
    pub fn updates<const N: usize>(self, tensors: [&Tensor; N]) -> Description<T, R, W, [Tensor; N]> {
        let Self { target, reads, writes, options, .. } = self;
        Description { target, reads, writes, updates: tensors.map(Tensor::clone), options }
    }

    /// Plain variables that the body uses without changing what they stand for.
    #[inline(always)]
    pub fn reads_vars<'v>(self, variables: &[&'v Variable]) -> Self
    where
        T: Target<'v>,
    {
        self.use_vars(variables, AccessMode::Read)
    }

    /// Plain variables that the body changes.
    #[inline(always)]
    pub fn writes_vars<'v>(self, variables: &[&'v Variable]) -> Self
    where
        T: Target<'v>,
    {
        self.use_vars(variables, AccessMode::Write)
    }

    #[inline(always)]
    fn use_vars<'v>(mut self, variables: &[&'v Variable], mode: AccessMode) -> Self
    where
        T: Target<'v>,
    {
        for variable in variables {
            self.target.access(variable, mode);
        }
        self
    }

    /// The queue that the body enqueues on. A body of `run_on` needs one; a body of `run_external` or
    /// `produce_external` may have one; other bodies work on the host and are refused on a queue.
    pub fn on(mut self, queue: &Arc<dyn Queue>) -> Self {
        self.options().queue = Some(Arc::clone(queue));
        self
    }

    /// Keeps threads that wait from running the body. Meant for bodies that need a global lock, such as
    /// Python's. In a program one such node decides for all of its nodes.
    pub(crate) fn worker_only<'v>(mut self) -> Self
    where
        T: Target<'v>,
    {
        self.target.set_worker_only(false);
        self
    }

    fn options(&mut self) -> &mut RareOptions {
        self.options.get_or_insert_default()
    }

    pub(crate) fn queue(&self) -> Option<&Arc<dyn Queue>> {
        self.options.as_ref()?.queue.as_ref()
    }

    /// # Errors
    /// [`Error::Invalid`] without a queue.
    pub(crate) fn queue_for_body(&self) -> Result<Arc<dyn Queue>, Error> {
        self.queue().cloned().ok_or_else(|| Error::invalid("a device body needs a queue; name one with `on`"))
    }
}

impl<T, R: Operands, W: Operands, U: Operands> Description<T, R, W, U> {
    /// Checks what a body needs that gets views: no memory that is written may be seen twice.
    #[inline]
    pub(crate) fn check<'v>(&self) -> Result<(), Error>
    where
        T: Target<'v>,
    {
        if self.has_nothing_to_check() {
            return Ok(());
        }
        self.check_process()?;
        self.check_declared()?;
        self.check_leases()?;
        let (reads, writes, updates) = (self.reads.tensors(), self.writes.tensors(), self.updates.tensors());
        writes.iter().chain(updates).try_for_each(check_writable)?;
        check_disjoint(reads, writes, updates)
    }

    /// As [`check`](Self::check), for a body that works on the host. On a queue, the queue alone would wait
    /// for pending work.
    #[inline]
    pub(crate) fn check_on_host<'v>(&self, what: &str, name: &Name) -> Result<(), Error>
    where
        T: Target<'v>,
    {
        if self.queue().is_some() {
            let name = shown(name.as_str());
            return Err(Error::invalid(format!(
                "{what} `{name}` names a queue, and its body works on the host; end its description with `run_on`"
            )));
        }
        self.check()
    }

    /// As [`check`](Self::check), for a body that gets no views and so may see memory twice: an operand that
    /// is both read and written is updated in place.
    #[inline]
    pub(crate) fn check_external<'v>(&self) -> Result<(), Error>
    where
        T: Target<'v>,
    {
        if self.has_nothing_to_check() {
            return Ok(());
        }
        self.check_process()?;
        self.check_declared()?;
        self.writes.tensors().iter().chain(self.updates.tensors()).try_for_each(check_writable)?;
        self.check_leases()
    }

    /// True if only variables are named, which every operation may use.
    #[inline(always)]
    fn has_nothing_to_check<'v>(&self) -> bool
    where
        T: Target<'v>,
    {
        let operands = [self.reads.tensors(), self.writes.tensors(), self.updates.tensors()];
        self.options.is_none()
            && !self.target.is_forked()
            && operands.iter().all(|tensors| tensors.is_empty())
    }

    /// Refuses work that would wait for the lease that one of its own operands keeps.
    fn check_leases(&self) -> Result<(), Error> {
        let written = self.writes.tensors().iter().chain(self.updates.tensors());
        check_own_leases(self.reads.tensors().iter(), written)
    }

    /// Refuses what belongs to a process that this one was forked from.
    #[inline(always)]
    fn check_process<'v>(&self) -> Result<(), Error>
    where
        T: Target<'v>,
    {
        let operands = [self.reads.tensors(), self.writes.tensors(), self.updates.tensors()];
        let mut operands = operands.into_iter().flatten();
        if operands.any(|tensor| tensor.inner.core.generation.is_inherited()) || self.target.is_forked() {
            return Err(Error::Forked);
        }
        Ok(())
    }

    /// Refuses a declared type and shape that no memory can have.
    fn check_declared(&self) -> Result<(), Error> {
        let declared = self.options.as_ref().and_then(|options| options.declared.as_ref());
        declared
            .map_or(Ok(()), |(dtype, shape)| Ok(Layout::contiguous(*dtype, DLDevice::CPU, shape).map(drop)?))
    }
}

impl<'e, R, W, U> OpBuilder<'e, R, W, U> {
    pub(crate) fn core(&self) -> &CoreRef {
        &self.target.pending_op.payload().core
    }

    pub(crate) fn state_mut(&mut self) -> &mut OpState {
        self.target.pending_op.payload_mut()
    }

    /// Among ready operations, higher ones are started first. Default 0.
    ///
    /// Priorities age, so no operation waits for ever. While operations with a priority wait, of any 64
    /// operations that threads take at least one is of priority 0, and one of the oldest of those, if one is
    /// ready; and at least one is the oldest of those with another priority. An operation and those that it
    /// makes ready, one after the other and up to 32, count as one.
    pub fn priority(mut self, priority: i32) -> Self {
        self.state_mut().priority = priority;
        self
    }

    /// Calls `on_skip` in place of the body where the operation is skipped: an input has failed, or the
    /// operation was cancelled. It runs in the operation's turn, on a thread that could have run the body,
    /// and gets the cause. The operation then fails with that cause, as without `on_skip`. A panic of it is
    /// logged. What the body itself does, fails in or is dropped in is no skip.
    ///
    /// So the turn of the operation always comes. Collective operations need that: those of NCCL, MPI and
    /// Gloo wait for all ranks, and a rank where an input has failed must abort the communicator, or tell the
    /// others. Let each collective write a variable of its communicator: then all ranks call them in the
    /// order in which their programs submit them.
    ///
    /// ```
    /// use std::sync::atomic::{AtomicBool, Ordering};
    /// # let engine = estafette::Engine::builder().workers(1).build()?;
    /// # let gradient = engine.from_vec(vec![1.0_f32], &[1])?;
    /// # static ABORTED: AtomicBool = AtomicBool::new(false);
    /// let communicator = engine.var();
    /// engine.op("backward").updates([&gradient]).run(|[], [], [_]| Err("the loss is no number".into()))?;
    /// let all_reduce = engine
    ///     .op("all_reduce")
    ///     .updates([&gradient])
    ///     .writes_vars(&[&communicator])
    ///     .on_skip(|_cause| ABORTED.store(true, Ordering::SeqCst)) // ncclCommAbort(..)
    ///     .run(|[], [], [_gradient]| Ok(()))?; // ncclAllReduce(..)
    /// assert!(all_reduce.wait().is_err());
    /// assert!(ABORTED.load(Ordering::SeqCst));
    /// # Ok::<(), estafette::Error>(())
    /// ```
    pub fn on_skip(mut self, on_skip: impl FnOnce(&OperationError) + Send + 'static) -> Self {
        self.state_mut().set_on_skip(Box::new(on_skip));
        self
    }

    /// Makes submission fail with [`Error::InFlightLimit`] where no permit is free, instead of waiting for
    /// one.
    pub fn without_waiting(mut self) -> Self {
        self.state_mut().without_waiting = true;
        self
    }

    /// Says what is known of the result of a body that produces a tensor.
    pub fn result(mut self, result: ResultOptions<'_>) -> Self {
        let ResultOptions { alias_of, like, copying } = result;
        self.state_mut().is_forked |=
            alias_of.iter().any(|tensor| tensor.inner.core.generation.is_inherited());
        let mut vars = VarSet::new();
        for var in alias_of.iter().flat_map(|tensor| &tensor.inner.vars) {
            if vars.iter().all(|known| known.id() != var.id()) {
                vars.push(var.clone());
            }
        }
        let declared = like.map(|(dtype, shape)| (dtype, SmallVec::from_slice(shape)));
        let options = self.options();
        (options.alias_of, options.declared, options.copying) = (vars, declared, copying);
        self
    }
}
