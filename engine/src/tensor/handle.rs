//! Tensors: promise nodes that other libraries can use.

use std::sync::Arc;

use estafette_devices::{DLDevice, FenceSet, Queue};
use estafette_report::shown::shown;
use estafette_sync::sync::OnceLock;
use smallvec::SmallVec;

use crate::core::core_ref::CoreRef;
#[cfg(feature = "links")]
use crate::core::error::device_error;
use crate::core::error::{Error, OperationError};
use crate::core::operation::{Name, OpKind, OpTag, OpVar, Phase};
use crate::core::program_lock::without_program_lock;
use crate::core::var_state::VarState;
use crate::core::var_state::{BROKEN_FENCES, FAILED, Queried, READ_FENCES, Replaced, WRITE_FENCES};
#[cfg(feature = "links")]
use crate::exchange::loan::Loan;
use crate::exchange::reaper::ReleasedMemory;
use crate::exchange::{Abi, DType, Layout, Storage, reaper};
use crate::lease::LeaseState;
use crate::tensor::alias_map::Placed;
use crate::tensor::variable::version_of;

/// The variables that order the uses of a tensor: its own variable, and those of older tensors that overlap
/// its memory.
pub(crate) type VarSet = SmallVec<[OpVar; 1]>;

/// A promise of an n-dimensional array.
///
/// A program can query whether a tensor is ready, await it, use it in operations, and hand it to other
/// libraries. A tensor may be *defined late*: the operation that makes the tensor then also decides its
/// memory, and perhaps its shape. A clone is another handle to the same tensor. The memory goes back to its
/// owner when the last handle and the last operation that uses the tensor are gone, and the last device work
/// on the memory is done.
#[derive(Clone)]
pub struct Tensor {
    pub(crate) inner: Arc<TensorInner>,
}

pub(crate) struct TensorInner {
    pub(crate) core: CoreRef,
    pub(crate) vars: VarSet,
    definition: Defining,
    /// Type and shape that a late definition was promised to have.
    declared: Option<(DType, SmallVec<[i64; 4]>)>,
    /// Name of the operation that makes the tensor, for messages.
    pub(crate) producer: Option<Name>,
    /// The lease that this tensor was derived from. The tensor keeps the lease as long as it lives. The lease
    /// covers its reads.
    pub(crate) lease: Option<Arc<LeaseState>>,
}

/// A definition: most tensors are made with one; an operation gives the others theirs.
enum Defining {
    Known(Definition),
    Pending(OnceLock<Definition>),
}

impl Defining {
    #[inline]
    fn get(&self) -> Option<&Definition> {
        match self {
            Self::Known(definition) => Some(definition),
            Self::Pending(definition) => definition.get(),
        }
    }

    fn take(&mut self) -> Option<Definition> {
        match std::mem::replace(self, Self::Pending(OnceLock::new())) {
            Self::Known(definition) => Some(definition),
            Self::Pending(definition) => definition.into_inner(),
        }
    }
}

/// The address of a tensor's data, and its layout.
pub(crate) struct Definition {
    pub(crate) layout: Layout,
    /// Address of the first element, byte offset included; dangling when there is no element.
    pub(crate) data: *mut u8,
    pub(crate) storage: Storage,
    /// True if the host may load and store at `data`.
    pub(crate) host: bool,
    /// The owner of the memory forbids writing.
    pub(crate) read_only: bool,
    /// The tensor's entry in the process's alias map; taken out before the storage is released.
    pub(crate) placed: Option<Placed>,
}

// SAFETY: `data` is only dereferenced through views, whose access the graph orders; the other fields are
// `Send + Sync` or, in the case of the storage, only dropped.
unsafe impl Send for Definition {}
// SAFETY: as above; a shared reference gives no access to the memory behind `data`.
unsafe impl Sync for Definition {}

/// The state of a tensor.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum TensorState {
    /// The producing operation has not finished: the tensor has no memory yet.
    Undefined,
    /// Defined, with writes unfinished on host or device.
    Pending,
    /// The current version may be read.
    Ready,
    /// The current version is poisoned.
    Failed(Error),
}

impl Tensor {
    #[inline]
    pub(crate) fn defined(
        core: CoreRef,
        vars: VarSet,
        definition: Definition,
        lease: Option<Arc<LeaseState>>,
    ) -> Self {
        Self {
            inner: Arc::new(TensorInner {
                core,
                vars,
                definition: Defining::Known(definition),
                declared: None,
                producer: None,
                lease,
            }),
        }
    }

    pub(crate) fn promised(
        core: CoreRef,
        vars: VarSet,
        declared: Option<(DType, SmallVec<[i64; 4]>)>,
        producer: Name,
    ) -> Self {
        Self {
            inner: Arc::new(TensorInner {
                core,
                vars,
                definition: Defining::Pending(OnceLock::new()),
                declared,
                producer: Some(producer),
                lease: None,
            }),
        }
    }

    /// True if two handles are of the same tensor.
    pub(crate) fn same(&self, other: &Tensor) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }

    /// Length of each dimension. A shape that was declared at submission is known before the data.
    pub fn shape(&self) -> Result<SmallVec<[i64; 4]>, Error> {
        match (self.inner.definition.get(), &self.inner.declared) {
            (Some(definition), _) => Ok(SmallVec::from_slice(definition.layout.shape())),
            (None, Some((_, shape))) => Ok(shape.clone()),
            (None, None) => Err(self.undefined()),
        }
    }

    /// Element type. A type that was declared at submission is known before the data.
    pub fn dtype(&self) -> Result<DType, Error> {
        match (self.inner.definition.get(), &self.inner.declared) {
            (Some(definition), _) => Ok(definition.layout.dtype()),
            (None, Some((dtype, _))) => Ok(*dtype),
            (None, None) => Err(self.undefined()),
        }
    }

    #[inline]
    fn definition(&self) -> Result<&Definition, Error> {
        self.inner.definition.get().ok_or_else(|| self.undefined())
    }

    /// The reason why the tensor has no memory: its producer has failed, or has not finished.
    #[cold]
    fn undefined(&self) -> Error {
        let failure = self.inner.vars[0].with_ordering_state(|state, _| state.failure().cloned());
        failure.map_or_else(|| self.inner.not_defined(), |failure| Error::NotDefined(failure.to_string()))
    }

    /// The device of the data.
    #[inline]
    pub fn device(&self) -> Result<DLDevice, Error> {
        Ok(self.definition()?.layout.device())
    }

    /// Type, shape, strides and device together.
    pub fn layout(&self) -> Result<Layout, Error> {
        Ok(self.definition()?.layout.clone())
    }

    /// Address of the first element. Only operations and holders of a lease may read this memory.
    pub fn data_ptr(&self) -> Result<*const u8, Error> {
        Ok(self.definition()?.data)
    }

    /// True if the owner of the memory forbids writes.
    pub fn is_read_only(&self) -> Result<bool, Error> {
        Ok(self.definition()?.read_only)
    }

    /// True if the tensor is read-only without a statement of its owner. Its memory came in a DLPack struct
    /// before version 1.0, which cannot say whether the memory may be written, and its import did not vouch
    /// for writes.
    pub(crate) fn is_write_unsaid(&self) -> bool {
        self.inner.definition().is_ok_and(|definition| {
            let foreign = definition.storage.as_foreign();
            definition.read_only && foreign.is_some_and(|managed| managed.abi() == Abi::Legacy)
        })
    }

    /// True if the tensor has its memory and shape.
    pub(crate) fn is_defined(&self) -> bool {
        self.inner.definition.get().is_some()
    }

    /// Number of finished writes of the memory (of the variable that stands for the memory). In a forked
    /// child of the process whose tensor this is, 0.
    pub fn version(&self) -> u64 {
        self.inner.vars.iter().map(version_of).sum()
    }

    /// True if the current version is finished, well or not. The cost is one load per variable if no use is
    /// unfinished.
    ///
    /// "Current" means the version at the call: the newest write submitted so far counts.
    #[inline]
    pub fn is_ready(&self) -> bool {
        self.inner.is_quiet() || self.inner.inspect().is_some()
    }

    /// The state of the tensor.
    pub fn state(&self) -> TensorState {
        match self.inner.poll() {
            Some(Ok(())) => TensorState::Ready,
            Some(Err(error)) => TensorState::Failed(error),
            None if self.is_defined() => TensorState::Pending,
            None => TensorState::Undefined,
        }
    }

    /// Declares the current version good after a failure or cancellation that left the data intact.
    ///
    /// # Errors
    /// [`Error::Conflict`] while writes are unfinished: no version is current yet; [`Error::Forked`].
    pub fn clear_error(&self) -> Result<(), Error> {
        self.inner.core.generation.check()?;
        if let Some(var) = self.inner.vars.iter().find(|var| var.has_unfinished_write()) {
            return Err(unfinished_write(var));
        }
        let mut replaced = Replaced::default();
        for var in &self.inner.vars {
            let asked = Queried::query(&var.with_ordering_state(|state, _| state.writers()));
            var.with_ordering_state(|state, flags| state.heal(&asked, flags, &mut replaced));
        }
        // The program has judged the failures.
        replaced.retrieve();
        Ok(())
    }
}

/// The reason why no version can be judged: a write of `var` has not ended. The error names the first
/// operation or lease in the queue of `var`, which the write waits for if it is not the write itself.
#[cold]
fn unfinished_write(var: &OpVar) -> Error {
    let queued = var.queued();
    let first = queued.iter().find(|op| op.payload().kind != OpKind::ReadinessQuery);
    // A wait for a cancelled operation returns before the operation has left the queue.
    let advice = match first.map(|op| op.payload().phase()) {
        Some(Phase::Cancelled) => {
            "is cancelled and its turn has not come, and `clear_error` judges a version that no write changes any more: wait for `writable()`"
        }
        _ => {
            "has not ended, and `clear_error` judges a version that no write changes any more: wait for it, or for `writable()`"
        }
    };
    let first = first.map_or_else(
        || "a write".into(),
        |op| match op.payload().lease() {
            Some(lease) => format!("a {}", lease.info()),
            None => format!("operation {} `{}`", op.id().get(), shown(op.payload().name.as_str())),
        },
    );
    Error::Conflict(format!("{first} {advice}"))
}

/// Sees to it that work on `queue` reaches those of `tensors` that are in the memory of another device of the
/// same kind. An operation calls this before its body, which may use addresses alone. The driver may wait, so
/// the interpreter's lock is released.
pub(crate) fn make_reachable<'a>(queue: &dyn Queue, tensors: impl IntoIterator<Item = &'a Tensor>) {
    let user = queue.device();
    for tensor in tensors.into_iter().filter(|tensor| tensor.inner.is_of_peer(user)) {
        let device = tensor.inner.core.device(user);
        if let Some((device, definition)) = device.zip(tensor.inner.definition.get()) {
            without_program_lock(|| device.reach(definition.data));
        }
    }
}

/// The name of the operation that makes the tensor.
pub fn producer(tensor: &Tensor) -> Option<&str> {
    tensor.inner.producer.as_ref().map(Name::as_str)
}

impl std::fmt::Debug for Tensor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut out = f.debug_struct("Tensor");
        if let Some(definition) = self.inner.definition.get() {
            out.field("layout", &definition.layout);
        }
        out.field("state", &self.state()).finish()
    }
}

impl TensorInner {
    #[cold]
    pub(crate) fn not_defined(&self) -> Error {
        self.not_defined_as(self.vars.iter().any(OpVar::has_unfinished_write))
    }

    /// `pending`: whether the producer has not ended.
    fn not_defined_as(&self, pending: bool) -> Error {
        let producer = shown(self.producer.as_ref().map_or("?", |name| name.as_str()));
        let why = if pending { "has not finished" } else { "has failed or was cancelled" };
        Error::NotDefined(format!("operation `{producer}`, which makes it, {why}"))
    }

    /// The reason why a tensor that an operation was granted has no memory: the failure of its producer.
    pub(crate) fn why_undefined(&self, asking: &OpTag) -> OperationError {
        let failure = self.vars[0].with_ordering_state(|state, _| state.failure().cloned());
        // The asking operation may be a write of its own.
        failure.unwrap_or_else(|| asking.result_failure(self.not_defined_as(false)))
    }

    #[inline]
    pub(crate) fn definition(&self) -> Result<&Definition, Error> {
        self.definition.get().ok_or_else(|| self.not_defined())
    }

    /// True if the memory is another device's than `user`, of the same kind.
    pub(crate) fn is_of_peer(&self, user: DLDevice) -> bool {
        self.definition.get().is_some_and(|definition| {
            let place = definition.layout.device();
            place != user && place.device_type == user.device_type
        })
    }

    /// The data of a tensor that the graph says is there.
    pub(crate) fn granted_definition(&self) -> &Definition {
        self.definition
            .get()
            .expect("a granted reader comes after the operation that defines the tensor, or is skipped")
    }

    pub(crate) fn declared(&self) -> Option<&(DType, SmallVec<[i64; 4]>)> {
        self.declared.as_ref()
    }

    /// Defines the memory of a promised tensor. Only its producing operation calls this, once.
    pub(crate) fn define(&self, definition: Definition) {
        let fresh = match &self.definition {
            Defining::Known(_) => false,
            Defining::Pending(pending) => pending.set(definition).is_ok(),
        };
        debug_assert!(fresh, "only the producing operation defines, and it runs once");
    }

    pub(crate) fn take_definition(mut self) -> Option<Definition> {
        self.definition.take()
    }

    /// The outcome of the current version, for the program, if the version is finished. Queries fences that
    /// were pending when last queried.
    #[inline]
    pub(crate) fn poll(&self) -> Option<Result<(), Error>> {
        if self.vars.iter().all(OpVar::is_quiet) {
            return Some(Ok(()));
        }
        self.inspect().inspect(|outcome| {
            if let Err(error) = outcome {
                error.retrieve();
            }
        })
    }

    /// True if the current version is finished and well, and no fence has to be queried. The cost is one load
    /// per variable.
    #[inline]
    pub(crate) fn is_quiet(&self) -> bool {
        self.vars.iter().all(OpVar::is_quiet)
    }

    /// True if the current version is finished, as far as loads can tell: `None` where only a driver could.
    pub(crate) fn known_finished(&self) -> Option<bool> {
        let mut known = Some(true);
        for var in &self.vars {
            if var.is_quiet() {
                continue;
            }
            if var.has_unfinished_write() {
                return Some(false);
            }
            if var.flags() & WRITE_FENCES == 0 {
                continue;
            }
            let writers = var.with_ordering_state(|state, _| state.writers_unless_pending());
            for fence in writers.iter().flatten() {
                known = match fence.peek() {
                    Some(true) => known,
                    Some(false) => return Some(false),
                    None => None,
                };
            }
            if writers.is_none() {
                return Some(false);
            }
        }
        known
    }

    /// As [`poll`](Self::poll), when something is queued or carried on a variable.
    #[cold]
    pub(crate) fn inspect(&self) -> Option<Result<(), Error>> {
        if let Err(forked) = self.core.generation.check() {
            // Locks of what is inherited may be held for ever.
            return Some(Err(forked.into()));
        }
        for var in &self.vars {
            if var.is_quiet() {
                continue;
            }
            if var.has_unfinished_write() {
                return None;
            }
            let flags = var.flags();
            if flags & (FAILED | WRITE_FENCES) == 0 {
                continue;
            }
            // A program that polls while a device works gets its answer from the cached state, without a call
            // of the driver.
            let writers = var.with_ordering_state(|state, _| state.writers_unless_pending())?;
            if writers.iter().any(|fence| fence.peek() == Some(false)) {
                return None;
            }
            let asked = Queried::query(&writers);
            if !asked.pending.is_empty() {
                return None;
            }
            let mut replaced = Replaced::default();
            let outcome = var.with_ordering_state(|state, flags| {
                state.note(&asked, &Queried::default(), flags, &mut replaced);
                state.outcome()
            });
            if let Err(error) = outcome {
                return Some(Err(error));
            }
        }
        Some(Ok(()))
    }

    /// Every fence that the memory's uses have left so far.
    pub(crate) fn all_fences(&self) -> FenceSet {
        self.fences(VarState::all_fences)
    }

    /// True if device work may be writing the memory, or with `reads` reading it. What has failed may have
    /// written anything.
    pub(crate) fn has_device_work(&self, reads: bool) -> bool {
        self.writers().iter().any(|fence| !fence.is_done())
            || reads && self.fences(|state| [state.fences().1]).iter().any(|fence| fence.state().is_pending())
    }

    /// The fences of the version's writers.
    pub(crate) fn writers(&self) -> FenceSet {
        self.fences(|state| [state.writers()])
    }

    fn fences<const N: usize>(&self, of: impl Fn(&VarState) -> [FenceSet; N]) -> FenceSet {
        let mut fences = FenceSet::default();
        for var in &self.vars {
            // The flags are those of the group of a collapsed variable, whose own fences are there only when
            // the collapse was granted.
            if var.is_collapsed() || var.flags() & (WRITE_FENCES | READ_FENCES | BROKEN_FENCES) != 0 {
                let mut found: SmallVec<[FenceSet; 3]> = SmallVec::new();
                var.with_each_state(|state, _| found.extend(of(state)));
                found.iter().for_each(|found| fences.merge(found));
            }
        }
        fences
    }
}

impl Drop for TensorInner {
    fn drop(&mut self) {
        let inherited = self.core.generation.is_inherited();
        if inherited {
            // A forked child: locks of the graph, of the ranges and of the pool may be held by threads that
            // do not exist here.
            std::mem::forget((self.core.clone(), self.vars.clone()));
        }
        let Some(definition) = self.definition.take() else { return };
        let Definition { storage, placed, layout, .. } = definition;
        if inherited {
            std::mem::forget(placed);
            return reaper().leak(storage);
        }
        #[cfg(feature = "links")]
        if let Some(Loan::ForWriting(failure)) = storage.loan()
            && let Some(Err(error)) = self.inspect()
        {
            failure.get_or_init(|| device_error(error));
        }
        // The map entry goes first: once the deleter has run, the owner may give the same addresses to
        // another user.
        drop(placed);
        // Every operation on this tensor kept the tensor alive until its fences were on the variables. So all
        // fences are on the variables now.
        let variable = self.vars.first().map_or(0, |var| var.id().get());
        reaper().release_of(self.all_fences(), storage, || ReleasedMemory::tensor(variable, &layout));
    }
}
