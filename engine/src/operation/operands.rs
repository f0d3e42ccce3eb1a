//! The tensors of an operation, in a form whose number the compiler checks.

use std::sync::Arc;

use estafette_graph::AccessMode;
use smallvec::SmallVec;

use crate::core::error::Error;
use crate::operation::guards::{OpenOperation, ReadGuard, WriteGuard};
use crate::tensor::handle::Tensor;
use crate::tensor::views::{EarlierNodes, OnQueue, View, ViewMut};

/// Tensors whose number is known only at run time.
pub type Tensors = SmallVec<[Tensor; 4]>;

/// Operands, each with its mode, of an operation that runs elsewhere.
pub(crate) type Declared = SmallVec<[(Tensor, AccessMode); 2]>;

/// All operands, each with its mode.
pub(crate) fn with_modes(reads: impl Operands, writes: impl Operands, updates: impl Operands) -> Declared {
    let mut operands = Declared::new();
    reads.each(|tensor| operands.push((tensor, AccessMode::Read)));
    writes.each(|tensor| operands.push((tensor, AccessMode::Write)));
    updates.each(|tensor| operands.push((tensor, AccessMode::Update)));
    operands
}

/// Operands of an operation: an array of tensors, whose number the compiler checks, or [`Tensors`].
///
/// Sealed: implemented for `[Tensor; N]` and `Tensors`.
pub trait Operands: sealed::Sealed + Send + 'static {
    /// Views that a synchronous body reads.
    type Views<'a>;
    /// Views that a synchronous body writes.
    type ViewsMut<'a>;
    /// Guards that an asynchronous body reads by.
    type Guards: Send + 'static;
    /// Guards that an asynchronous body writes by.
    type GuardsMut: Send + 'static;
    #[doc(hidden)]
    fn tensors(&self) -> &[Tensor];
    /// Returns the operands, unless one of them has no memory. An operation that reads such a tensor is
    /// normally skipped, because the producer has failed; the check matters where a program has cleared that
    /// failure.
    #[doc(hidden)]
    #[inline]
    fn defined(&self) -> Result<&Self, Error> {
        match self.tensors().iter().find(|tensor| !tensor.is_defined()) {
            Some(undefined) => Err(undefined.inner.not_defined()),
            None => Ok(self),
        }
    }
    #[doc(hidden)]
    fn each(self, take: impl FnMut(Tensor));
    #[doc(hidden)]
    fn views<'a>(&'a self, grant: &'a Grant<'_>) -> Self::Views<'a>;
    #[doc(hidden)]
    fn views_mut<'a>(&'a self, grant: &'a Grant<'_>) -> Self::ViewsMut<'a>;
    #[doc(hidden)]
    fn guards(&self, open: &OpenRef) -> Self::Guards;
    #[doc(hidden)]
    fn guards_mut(&self, open: &OpenRef) -> Self::GuardsMut;
}

/// Arguments of [`reads`](super::Description::reads) and [`writes`](super::Description::writes): an array of
/// references, a slice or vector of handles, or [`Tensors`].
pub trait IntoOperands {
    /// The operands: an array where the compiler knows their number, else [`Tensors`].
    type Operands: Operands;
    #[doc(hidden)]
    fn into_operands(self) -> Self::Operands;
}

impl<const N: usize> IntoOperands for [&Tensor; N] {
    type Operands = [Tensor; N];

    fn into_operands(self) -> [Tensor; N] {
        self.map(Tensor::clone)
    }
}

impl IntoOperands for &[Tensor] {
    type Operands = Tensors;

    fn into_operands(self) -> Tensors {
        self.into()
    }
}

impl IntoOperands for &Vec<Tensor> {
    type Operands = Tensors;

    fn into_operands(self) -> Tensors {
        self.as_slice().into()
    }
}

impl IntoOperands for Tensors {
    type Operands = Self;

    fn into_operands(self) -> Self {
        self
    }
}

/// Evidence that the operation with these operands was granted and has not ended. Only the engine makes a
/// `Grant`. Internal to [`Operands`].
#[doc(hidden)]
pub struct Grant<'a>(OperandPlace<'a>);

#[derive(Clone, Copy)]
enum OperandPlace<'a> {
    Host,
    Queue(Option<&'a EarlierNodes<'a>>),
}

impl<'a> Grant<'a> {
    /// The grant of a body on the host, of an operation or a node, until the body returns.
    pub(crate) const OF_BODY: Self = Self(OperandPlace::Host);
    /// The grant of the body of an operation on a queue.
    pub(crate) const ON_QUEUE: Self = Self(OperandPlace::Queue(None));

    /// The grant of the body of a node on a queue.
    pub(crate) fn of_node(earlier: &'a EarlierNodes<'a>) -> Self {
        Self(OperandPlace::Queue(Some(earlier)))
    }
}

impl std::fmt::Debug for Grant<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Grant").finish_non_exhaustive()
    }
}

/// Keeps an asynchronous operation open. The task and each guard hold one. Internal to [`Operands`].
#[doc(hidden)]
#[derive(Clone)]
pub struct OpenRef(pub(crate) Arc<OpenOperation>);

impl std::fmt::Debug for OpenRef {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OpenRef").finish_non_exhaustive()
    }
}

mod sealed {
    pub trait Sealed {}
    impl Sealed for () {}
    impl<const N: usize> Sealed for [crate::tensor::handle::Tensor; N] {}
    impl Sealed for super::Tensors {}
}

#[inline]
fn view<'a>(tensor: &'a Tensor, grant: &'a Grant<'_>) -> View<'a> {
    match grant.0 {
        OperandPlace::Host => View::new(tensor.inner.granted_definition()),
        OperandPlace::Queue(earlier_nodes) => {
            View::on_queue(OnQueue { tensor: &tensor.inner, earlier_nodes })
        }
    }
}

/// Only for tensors that the operation was granted to write. Submission has refused tensors that overlap.
#[inline]
fn view_mut<'a>(tensor: &'a Tensor, grant: &'a Grant<'_>) -> ViewMut<'a> {
    match grant.0 {
        OperandPlace::Host => ViewMut::new(tensor.inner.granted_definition()),
        OperandPlace::Queue(earlier_nodes) => {
            ViewMut::on_queue(OnQueue { tensor: &tensor.inner, earlier_nodes })
        }
    }
}

impl<const N: usize> Operands for [Tensor; N] {
    type Views<'a> = [View<'a>; N];
    type ViewsMut<'a> = [ViewMut<'a>; N];
    type Guards = [ReadGuard; N];
    type GuardsMut = [WriteGuard; N];

    fn tensors(&self) -> &[Tensor] {
        self
    }

    fn each(self, take: impl FnMut(Tensor)) {
        self.into_iter().for_each(take);
    }

    #[inline]
    fn views<'a>(&'a self, grant: &'a Grant<'_>) -> [View<'a>; N] {
        self.each_ref().map(|tensor| view(tensor, grant))
    }

    #[inline]
    fn views_mut<'a>(&'a self, grant: &'a Grant<'_>) -> [ViewMut<'a>; N] {
        self.each_ref().map(|tensor| view_mut(tensor, grant))
    }

    fn guards(&self, open: &OpenRef) -> [ReadGuard; N] {
        self.clone().map(|tensor| ReadGuard::new(tensor, open.clone()))
    }

    fn guards_mut(&self, open: &OpenRef) -> [WriteGuard; N] {
        self.clone().map(|tensor| WriteGuard::new(tensor, open.clone()))
    }
}

impl Operands for Tensors {
    type Views<'a> = Vec<View<'a>>;
    type ViewsMut<'a> = Vec<ViewMut<'a>>;
    type Guards = Vec<ReadGuard>;
    type GuardsMut = Vec<WriteGuard>;

    fn tensors(&self) -> &[Tensor] {
        self
    }

    fn each(self, take: impl FnMut(Tensor)) {
        self.into_iter().for_each(take);
    }

    fn views<'a>(&'a self, grant: &'a Grant<'_>) -> Vec<View<'a>> {
        self.iter().map(|tensor| view(tensor, grant)).collect()
    }

    fn views_mut<'a>(&'a self, grant: &'a Grant<'_>) -> Vec<ViewMut<'a>> {
        self.iter().map(|tensor| view_mut(tensor, grant)).collect()
    }

    fn guards(&self, open: &OpenRef) -> Vec<ReadGuard> {
        self.iter().map(|tensor| ReadGuard::new(tensor.clone(), open.clone())).collect()
    }

    fn guards_mut(&self, open: &OpenRef) -> Vec<WriteGuard> {
        self.iter().map(|tensor| WriteGuard::new(tensor.clone(), open.clone())).collect()
    }
}

/// No update in place.
impl Operands for () {
    type Views<'a> = ();
    type ViewsMut<'a> = ();
    type Guards = ();
    type GuardsMut = ();

    fn tensors(&self) -> &[Tensor] {
        &[]
    }

    fn each(self, _take: impl FnMut(Tensor)) {}

    fn views<'a>(&'a self, _grant: &'a Grant<'_>) {}

    #[inline]
    fn views_mut<'a>(&'a self, _grant: &'a Grant<'_>) {}

    fn guards(&self, _open: &OpenRef) {}

    fn guards_mut(&self, _open: &OpenRef) {}
}
