//! Describing operations.

use std::sync::Arc;

use estafette_devices::Queue;
use estafette_graph::Mode;
use smallvec::SmallVec;

use crate::core::core_ref::CoreRef;
use crate::core::operation::{self, Kind, Name, OpPending};
use crate::exchange::DType;
use crate::import::Copying;
use crate::operation::operands::Tensors;
use crate::tensor::handle::{Tensor, VarSet};
use crate::tensor::variable::Variable;

/// No operands.
pub(crate) type Nothing = [Tensor; 0];

/// An operation being described. Made by [`Engine::op`](crate::Engine::op).
///
/// `R`, `W` and `U` are what it reads, what it overwrites, and what it reads and writes in place.
#[derive(Debug)]
#[must_use = "an operation does nothing until it is submitted with `run` or one of its kin"]
pub struct OpBuilder<'e, R = Nothing, W = Nothing, U = ()> {
    /// Most of it is in the operation already.
    pub(crate) pending_op: OpPending<'e>,
    pub(crate) reads: R,
    pub(crate) writes: W,
    pub(crate) updates: U,
    /// What few operations have, out of the way of the others.
    pub(crate) options: Option<Box<Options>>,
}

/// What few operations have.
#[derive(Debug, Default)]
pub(crate) struct Options {
    pub(crate) queue: Option<Arc<dyn Queue>>,
    pub(crate) alias_of: VarSet,
    pub(crate) declared: Option<(DType, SmallVec<[i64; 4]>)>,
    pub(crate) copying: Copying,
}

impl<'e> OpBuilder<'e> {
    #[inline(always)]
    pub(crate) fn new(core: &'e CoreRef, name: Name) -> Self {
        Self {
            pending_op: operation::pending_op(core, name, Kind::Work),
            reads: [],
            writes: [],
            updates: (),
            options: None,
        }
    }
}

impl<'e, R, W, U> OpBuilder<'e, R, W, U> {
    /// Tensors that the body reads.
    pub fn reads<const N: usize>(self, tensors: [&Tensor; N]) -> OpBuilder<'e, [Tensor; N], W, U> {
        let Self { pending_op, writes, updates, options, .. } = self;
        OpBuilder { pending_op, reads: tensors.map(Tensor::clone), writes, updates, options }
    }

    /// As [`reads`](Self::reads), for a number known only at run time.
    pub fn reads_slice(self, tensors: &[Tensor]) -> OpBuilder<'e, Tensors, W, U> {
        let Self { pending_op, writes, updates, options, .. } = self;
        OpBuilder { pending_op, reads: tensors.into(), writes, updates, options }
    }

    /// As [`reads_slice`](Self::reads_slice), with handles that are given up.
    pub fn reads_owned(self, tensors: Tensors) -> OpBuilder<'e, Tensors, W, U> {
        let Self { pending_op, writes, updates, options, .. } = self;
        OpBuilder { pending_op, reads: tensors, writes, updates, options }
    }

    /// Tensors that the body overwrites without reading them. A pure write heals a failed tensor.
    pub fn writes<const N: usize>(self, tensors: [&Tensor; N]) -> OpBuilder<'e, R, [Tensor; N], U> {
        let Self { pending_op, reads, updates, options, .. } = self;
        OpBuilder { pending_op, reads, writes: tensors.map(Tensor::clone), updates, options }
    }

    /// As [`writes`](Self::writes), for a number known only at run time.
    pub fn writes_slice(self, tensors: &[Tensor]) -> OpBuilder<'e, R, Tensors, U> {
        let Self { pending_op, reads, updates, options, .. } = self;
        OpBuilder { pending_op, reads, writes: tensors.into(), updates, options }
    }

    /// As [`writes_slice`](Self::writes_slice), with handles that are given up.
    pub fn writes_owned(self, tensors: Tensors) -> OpBuilder<'e, R, Tensors, U> {
        let Self { pending_op, reads, updates, options, .. } = self;
        OpBuilder { pending_op, reads, writes: tensors, updates, options }
    }

    /// Tensors that the body reads and writes in place; it gets them as its last argument.
    pub fn updates<const N: usize>(self, tensors: [&Tensor; N]) -> OpBuilder<'e, R, W, [Tensor; N]> {
        let Self { pending_op, reads, writes, options, .. } = self;
        OpBuilder { pending_op, reads, writes, updates: tensors.map(Tensor::clone), options }
    }

    pub(crate) fn core(&self) -> &CoreRef {
        &self.pending_op.payload().core
    }

    fn options(&mut self) -> &mut Options {
        self.options.get_or_insert_default()
    }

    /// Plain variables that the body uses without changing what they stand for.
    #[inline(always)]
    pub fn reads_vars(mut self, variables: &[&'e Variable]) -> Self {
        for variable in variables {
            self.pending_op.access(&variable.var, Mode::Read);
        }
        self
    }

    /// Plain variables that the body changes.
    #[inline(always)]
    pub fn writes_vars(mut self, variables: &[&'e Variable]) -> Self {
        for variable in variables {
            self.pending_op.access(&variable.var, Mode::Write);
        }
        self
    }

    /// Among ready operations, higher ones are started first. Default 0.
    ///
    /// Priorities age, so nothing waits for ever: while operations with a priority wait, of any 64 operations that are taken to be run
    /// at least one is an ordinary one (priority 0) if one is ready, one of the oldest; and at least one is the oldest of those with a
    /// priority other than 0. An operation and those that it makes ready, one after the other and up to 32, count as one.
    pub fn priority(mut self, priority: i32) -> Self {
        self.pending_op.payload_mut().priority = priority;
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
    /// such as the Python lock. To keep a thread from running any body, see [`without_helping`](crate::without_helping).
    pub fn worker_only(mut self) -> Self {
        self.pending_op.payload_mut().kind = Kind::WorkerOnly;
        self
    }
}
