//! Tensors from outside and from Rust, and results of operations.

use std::sync::Arc;

use estafette_devices::{DLDevice, Fence, FenceSet};
use estafette_graph::OpId;
use estafette_sync::process::ProcessBound;
use smallvec::SmallVec;

use crate::copy::{self, KeepAlive, blocking::copied};
use crate::core::context;
use crate::core::core_ref::CoreRef;
use crate::core::engine_core::Core;
use crate::core::error::Error;
#[cfg(feature = "links")]
use crate::core::error::device_error;
use crate::core::operation::{Name, OpHandle, OpKind, OpVar};
#[cfg(feature = "links")]
use crate::exchange::loan::Loan;
use crate::exchange::{AddressSpace, DType, Element, Layout, ManagedTensor, ReleaseStream, Storage};
use crate::lease::{Access, Lease, LeaseState};
use crate::tensor::alias_map::{self, Origin, Placement};
use crate::tensor::handle::{Definition, Tensor, TensorInner, VarSet};
use crate::tensor::memory::{Memory, host_can_use};
#[cfg(feature = "links")]
use crate::tensor::variable::Variable;
use crate::trace::{self, hooks};

/// Memory with a description, not yet known to the engine.
struct ImportedMemory {
    layout: Layout,
    data: *mut u8,
    storage: Storage,
    read_only: bool,
}

impl ImportedMemory {
    fn of((layout, storage): (Layout, Storage)) -> Self {
        Self::from(OwnedMemory { layout, storage, read_only: false })
    }
}

impl From<OwnedMemory> for ImportedMemory {
    fn from(OwnedMemory { layout, storage, read_only }: OwnedMemory) -> Self {
        Self { data: storage.data(), layout, storage, read_only }
    }
}

/// Memory with its owner, for a tensor.
#[derive(Debug)]
pub struct OwnedMemory {
    layout: Layout,
    storage: Storage,
    read_only: bool,
}

impl OwnedMemory {
    /// Host memory of another library: as the DLPack struct of it would be, whose deleter drops `owner`, is
    /// quick and needs no lock but the program's. In a forked child `owner` is leaked.
    ///
    /// # Errors
    /// [`Error::InvalidTensor`] for strides and data that lead out of the address space. Then `owner` was
    /// dropped.
    ///
    /// # Safety
    /// `data` points to host memory as `layout` describes it, initialized, and valid until `owner` is
    /// dropped. Only the engine's operations and leases write the memory meanwhile; unless it is `read_only`,
    /// they may.
    pub unsafe fn of_host(
        layout: Layout,
        data: *mut u8,
        read_only: bool,
        owner: impl Send + 'static,
    ) -> Result<Self, Error> {
        layout.check_data(data)?;
        Ok(Self { layout, storage: Storage::host(Box::new(ProcessBound::new(owner)), data), read_only })
    }
}

/// Memory that an operation has given, and that becomes a tensor or is released when the operation's work is
/// done, by the reaper as its deleter is foreign code.
struct ResultMemory {
    layout: Layout,
    data: *mut u8,
    storage: KeepAlive<Storage>,
    read_only: bool,
}

impl ResultMemory {
    fn of(memory: ImportedMemory, ready: Option<&Fence>) -> Self {
        let ImportedMemory { layout, data, storage, read_only } = memory;
        Self { layout, data, storage: kept(storage, ready), read_only }
    }
}

fn kept(storage: Storage, ready: Option<&Fence>) -> KeepAlive<Storage> {
    KeepAlive::after(storage, fences(ready))
}

fn fences(ready: Option<&Fence>) -> FenceSet {
    ready.cloned().into_iter().collect()
}

/// A result that an operation's body gives to the tensor it was promised for.
///
/// Made by `From` from a [`Tensor`] or a [`ManagedTensor`], and with features of the crate by `TryFrom` from
/// arrays of other crates.
pub struct Produced(ProducedSource);

enum ProducedSource {
    Tensor(Tensor),
    Managed {
        managed: ManagedTensor,
        read_only: bool,
    },
    Memory(OwnedMemory),
    #[cfg(feature = "links")]
    Elsewhere(ManagedTensor, Option<Loan>),
}

impl std::fmt::Debug for Produced {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match &self.0 {
            ProducedSource::Tensor(_) => "Produced(tensor)",
            ProducedSource::Managed { .. } => "Produced(managed tensor)",
            ProducedSource::Memory(_) => "Produced(memory)",
            #[cfg(feature = "links")]
            ProducedSource::Elsewhere(..) => "Produced(tensor of another process)",
        })
    }
}

impl From<Tensor> for Produced {
    fn from(tensor: Tensor) -> Self {
        Self(ProducedSource::Tensor(tensor))
    }
}

impl From<ManagedTensor> for Produced {
    fn from(tensor: ManagedTensor) -> Self {
        Self(ProducedSource::Managed { managed: tensor, read_only: false })
    }
}

impl From<OwnedMemory> for Produced {
    fn from(memory: OwnedMemory) -> Self {
        Self(ProducedSource::Memory(memory))
    }
}

impl Produced {
    /// A tensor from outside that must not be written, even if its struct cannot say so.
    pub(crate) fn immutable(managed: ManagedTensor) -> Self {
        Self(ProducedSource::Managed { managed, read_only: true })
    }

    /// A tensor in memory of another process.
    #[cfg(feature = "links")]
    pub(crate) fn elsewhere(managed: ManagedTensor, loan: Option<Loan>) -> Self {
        Self(ProducedSource::Elsewhere(managed, loan))
    }

    /// Memory of an operation's own, described by `layout`.
    pub(crate) fn ready(layout: Layout, storage: Storage) -> Self {
        Self(ProducedSource::Memory(OwnedMemory { layout, storage, read_only: false }))
    }

    /// The elements of a vector, in row-major order.
    ///
    /// # Errors
    /// [`Error::Invalid`] when `shape` does not hold exactly the elements of `values`.
    pub fn from_vec<T: Element>(values: Vec<T>, shape: &[i64]) -> Result<Self, Error> {
        let layout = filled::<T>(values.len(), DLDevice::CPU, shape)?;
        Ok(Self::ready(layout, Storage::vec(values)))
    }
}

/// True if memory of `device` is opaque: its kind is younger than this version, so the engine only passes the
/// memory on from one library to another. The engine orders the uses that the host knows; work that the
/// device still does is unknown.
fn is_opaque(device: DLDevice) -> bool {
    device.device_type.name().is_none()
}

/// The row-major layout of `shape`, which must hold exactly `len` elements.
pub(crate) fn filled<T: Element>(len: usize, device: DLDevice, shape: &[i64]) -> Result<Layout, Error> {
    let layout = Layout::contiguous(T::DTYPE, device, shape)?;
    if layout.len() != len {
        return Err(Error::invalid(format!("{len} elements do not fill shape {shape:?}")));
    }
    Ok(layout)
}

/// Options of an import; see [`Engine::import_with`](crate::Engine::import_with).
#[derive(Default)]
pub struct ImportOptions<'a> {
    /// The memory is ready to be read once these fences are done. Default: at once.
    pub ready: FenceSet,
    /// True if the memory must not be written, even if the tensor's struct cannot say so. Default: the struct
    /// decides.
    pub read_only: bool,
    /// Device memory whose allocator reuses memory in the order of this stream. When the tensor is gone, the
    /// engine makes the stream wait for the pending uses of the memory and calls the deleter at once. Where
    /// the stream cannot wait, the engine calls the deleter when these uses are over.
    /// [`Stats::handed_back`](crate::engine::Stats::handed_back) counts the former.
    ///
    /// The importer promises that the stream is what [`ReleaseStream::new`] says of this memory.
    pub release_stream: Option<ReleaseStream>,
    /// Finds out where the memory comes from. The engine calls this, with no lock held, when a lease of
    /// the same memory is open.
    #[doc(hidden)]
    pub origin: Option<&'a dyn Fn() -> Origin>,
}

impl std::fmt::Debug for ImportOptions<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ImportOptions")
            .field("ready", &self.ready)
            .field("read_only", &self.read_only)
            .field("release_stream", &self.release_stream)
            .finish_non_exhaustive()
    }
}

/// A tensor that the engine does not adopt, and why.
pub(crate) type Refused = Box<(Error, ManagedTensor)>;

/// Adopts a foreign tensor. A tensor that the engine refuses comes back, and its deleter was not called.
#[inline]
pub(crate) fn import(
    core: &CoreRef,
    managed: ManagedTensor,
    options: ImportOptions<'_>,
) -> Result<Tensor, Refused> {
    let ImportOptions { ready, read_only, origin, release_stream } = options;
    let checked = core.check_usable().and_then(|()| describe(core, &managed));
    let layout = match checked.and_then(|layout| fits(layout, release_stream.as_ref())) {
        Ok(layout) => layout,
        Err(error) => return Err(Box::new((error, managed))),
    };
    let (read_only, data) = (read_only || managed.flags().read_only, managed.data());
    let storage = match release_stream {
        None => Storage::fenced(managed, ready.clone()),
        Some(stream) => Storage::stream_ordered(managed, stream),
    };
    let memory = ImportedMemory { layout, data, storage, read_only };
    Ok(register(core, memory, ready, || origin.map_or(Origin::Unknown, |origin| origin())))
}

/// Adopts host memory of another library.
#[inline]
pub(crate) fn import_host(
    core: &CoreRef,
    memory: OwnedMemory,
    origin: impl FnOnce() -> Origin,
) -> Result<Tensor, Error> {
    core.check_usable()?;
    Ok(register(core, memory.into(), FenceSet::default(), origin))
}

/// The layout, if memory on its device may be released in the order of `stream`.
fn fits(layout: Layout, stream: Option<&ReleaseStream>) -> Result<Layout, Error> {
    match stream.map(ReleaseStream::device) {
        Some(device) if device != layout.device() => {
            let message = format!("the memory is on {}, its release stream on {device}", layout.device());
            Err(Error::invalid(message))
        }
        _ => Ok(layout),
    }
}

/// The layout of the tensor, if the engine can have it.
fn describe(core: &Core, managed: &ManagedTensor) -> Result<Layout, Error> {
    let layout = managed.describe()?;
    let device = layout.device();
    let is_known =
        device.device_type.is_host_readable() || core.device(device).is_some() || is_opaque(device);
    if !is_known {
        return Err(Error::invalid(format!("device {device} is not available in this engine")));
    }
    Ok(layout)
}

pub(crate) fn from_vec<T: Element>(core: &CoreRef, values: Vec<T>, shape: &[i64]) -> Result<Tensor, Error> {
    core.check_usable()?;
    Ok(own(core, filled::<T>(values.len(), DLDevice::CPU, shape)?, Storage::vec(values)))
}

/// A tensor in memory that no other code reaches.
pub(crate) fn own(core: &CoreRef, layout: Layout, storage: Storage) -> Tensor {
    let memory = ImportedMemory { layout, data: storage.data(), storage, read_only: false };
    // Fresh memory cannot have been lent before.
    register(core, memory, FenceSet::default(), || Origin::Owner)
}

/// A tensor in fresh memory.
pub(crate) fn allocate(core: &CoreRef, memory: Memory, shape: &[i64], dtype: DType) -> Result<Tensor, Error> {
    core.check_usable()?;
    let layout = Layout::contiguous(dtype, memory.device(), shape)?;
    let storage = memory.allocate(core, &layout)?;
    Ok(own(core, layout, storage))
}

/// A tensor in memory of another `process`, which may be used once `ready` is done. It is ordered with
/// nothing: what is at the same place are other versions.
#[cfg(feature = "links")]
pub(crate) fn of_another_process(
    core: &CoreRef,
    managed: ManagedTensor,
    loan: Option<Loan>,
    ready: &Fence,
    process: u32,
) -> Result<Tensor, Error> {
    if let Err(error) = core.check_usable().and_then(|()| describe(core, &managed)) {
        // Before `managed` is dropped, which answers the owner.
        if let Some(Loan::ForWriting(failure)) = loan {
            let _ = failure.set(device_error(error.clone()));
        }
        return Err(error);
    }
    let memory = elsewhere(core, managed, loan)?;
    let own = Variable::new().var;
    let space = AddressSpace::of(memory.layout.device());
    let placed = alias_map::place_apart(space, memory.layout.byte_range(memory.data), own.clone());
    alias_map::carry(&own, &ready.clone().into());
    let name = Name::Shared(Arc::new(format!("tensor of process {process}")));
    own.with_ordering_state(|state, _| state.name_import(name));
    Ok(placed_at(core, memory, Placement { vars: VarSet::from_iter([own]), placed, lease: None }))
}

/// Memory of another process.
#[cfg(feature = "links")]
fn elsewhere(core: &Core, managed: ManagedTensor, loan: Option<Loan>) -> Result<ImportedMemory, Error> {
    let (layout, data) = (describe(core, &managed)?, managed.data());
    let read_only = !matches!(loan, Some(Loan::ForWriting(_)));
    Ok(ImportedMemory { layout, data, storage: Storage::elsewhere(managed, loan), read_only })
}

/// Registers memory in the alias map, and returns its tensor.
#[inline]
fn register(
    core: &CoreRef,
    memory: ImportedMemory,
    ready: FenceSet,
    origin: impl FnOnce() -> Origin,
) -> Tensor {
    let range = memory.layout.byte_range(memory.data);
    let space = AddressSpace::of(memory.layout.device());
    let placement = alias_map::place(core, space, range, &ready, origin);
    placed_at(core, memory, placement)
}

#[inline]
fn placed_at(core: &CoreRef, memory: ImportedMemory, placement: Placement) -> Tensor {
    let ImportedMemory { layout, data, storage, read_only } = memory;
    let Placement { vars, placed, lease } = placement;
    let read_only =
        read_only || lease.as_ref().is_some_and(|lease| lease.access() == crate::lease::Access::Read);
    let host = host_can_use(core, layout.device(), data);
    let definition = Definition { layout, data, host, storage, read_only, placed: Some(placed) };
    let tensor = Tensor::defined(core.clone(), vars, definition, lease);
    if trace::is_open() {
        hooks::came_in(&tensor.inner);
    }
    tensor
}

/// The choice between a copy of the result and its memory, for a produced tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Copying {
    /// If the result overlaps known memory.
    #[default]
    Allowed,
    /// Never: a result that overlaps known memory is a conflict.
    Refused,
    /// In any case.
    Always,
}

/// Makes `produced` the memory of the promised tensor `target`. `held` says which tensors the operation `by`
/// may read; the content is there when `ready` is done, which a copy of it is made after: on its device,
/// where there is one, and then the content is there when the fence is that this gives.
///
/// # Errors
/// [`Error::Conflict`] when it overlaps memory already known, was not declared an alias of it, and copying is
/// refused, or another operation has that memory and may write it during the copy; [`Error::Invalid`] when it
/// is not what was declared.
pub(crate) fn define(
    target: &TensorInner,
    produced: Produced,
    copying: Copying,
    by: OpId,
    held: &dyn Fn(&Tensor) -> bool,
    ready: Option<&Fence>,
) -> Result<Option<Fence>, Error> {
    let core = &target.core;
    #[cfg(feature = "links")]
    let is_elsewhere = matches!(produced.0, ProducedSource::Elsewhere(..));
    // Keeps writers of the memory out while it is copied.
    let mut readers = Readers::new();
    let memory = match produced.0 {
        ProducedSource::Managed { managed, read_only } => {
            let (layout, flags) = (describe(core, &managed), managed.flags());
            let (data, storage) = (managed.data(), kept(Storage::foreign(managed), ready));
            ResultMemory { layout: layout?, data, storage, read_only: read_only || flags.read_only }
        }
        #[cfg(feature = "links")]
        ProducedSource::Elsewhere(managed, loan) => ResultMemory::of(elsewhere(core, managed, loan)?, ready),
        ProducedSource::Memory(memory) => ResultMemory::of(memory.into(), ready),
        ProducedSource::Tensor(tensor) => {
            let held = held(&tensor);
            let (memory, reader) = adopt(core, tensor, held, ready)?;
            readers.extend(reader);
            ResultMemory::of(memory, ready)
        }
    };
    if let Some((dtype, shape)) = target.declared() {
        let found = &memory.layout;
        if found.dtype() != *dtype || found.shape() != shape.as_slice() {
            return Err(Error::invalid(format!(
                "the result is {} {:?}, but {dtype} {:?} was declared",
                found.dtype(),
                found.shape(),
                shape.as_slice()
            )));
        }
    }
    let range = memory.layout.byte_range(memory.data);
    let space = AddressSpace::of(memory.layout.device());
    let own = &target.vars[0];
    let placed = match copying {
        #[cfg(feature = "links")]
        _ if is_elsewhere => Ok(alias_map::place_apart(space, range, own.clone())),
        Copying::Always => Err(alias_map::strangers_of(space, range, &target.vars)),
        Copying::Allowed | Copying::Refused => alias_map::place_result(space, range, own, &target.vars),
    };
    let mut later = None;
    let (memory, placed) = match placed {
        Ok(placed) => (memory, placed),
        Err(strangers) if copying == Copying::Refused => {
            return Err(Error::Conflict(format!(
                "the result overlaps {} tensor(s) already known; declare it with alias_of, or allow copying",
                strangers.len()
            )));
        }
        Err(strangers) => {
            if readers.is_empty() {
                readers = readers_of(core, strangers, by)?;
            }
            let (copy, fence) = copied_after(core, memory, ready)?;
            for reader in readers {
                fence.iter().for_each(|fence| reader.used_until(fence.clone()));
            }
            later = fence;
            let copy = ResultMemory::of(copy, later.as_ref());
            let range = copy.layout.byte_range(copy.data);
            let space = AddressSpace::of(copy.layout.device());
            let Ok(placed) = alias_map::place_result(space, range, own, &target.vars) else {
                return Err(Error::Conflict(
                    "fresh memory overlaps a tensor whose memory was freed elsewhere".into(),
                ));
            };
            (copy, placed)
        }
    };
    let ResultMemory { layout, data, storage, read_only } = memory;
    let (host, storage) = (host_can_use(core, layout.device(), data), storage.take());
    target.define(Definition { layout, data, host, storage, read_only, placed: Some(placed) });
    if trace::is_open() {
        hooks::came_in(target);
    }
    Ok(later)
}

/// A copy of what will be there when `ready` is done, and when it is there itself, if that is not known to be
/// now.
fn copied_after(
    core: &Core,
    memory: ResultMemory,
    ready: Option<&Fence>,
) -> Result<(ImportedMemory, Option<Fence>), Error> {
    let ResultMemory { layout, data, storage: mut original, .. } = memory;
    if let Some(ready) = ready
        && !host_can_use(core, layout.device(), data)
        && let Some((layout, storage, fence)) =
            copy::within_device(core, &mut original, (&layout, data), ready)?
    {
        return Ok((ImportedMemory::of((layout, storage)), Some(fence)));
    }
    Ok((ImportedMemory::of(copied(core, original, (&layout, data), DLDevice::CPU)?), None))
}

/// Releases a result that no tensor was promised for, once `ready` is done.
pub(crate) fn discard(produced: Produced, ready: Option<&Fence>) {
    match produced.0 {
        ProducedSource::Managed { managed, .. } => drop(kept(Storage::foreign(managed), ready)),
        ProducedSource::Memory(memory) => drop(kept(memory.storage, ready)),
        _ => {}
    }
}

/// A read lease of a tensor that an operation returns.
fn lease_of_result(tensor: &Tensor) -> Result<Lease, Error> {
    tensor
        .lease_within(Access::Read, RETURNS_IT)
        .try_now()?
        .ok_or_else(|| Error::invalid("the produced tensor is not ready: wait for it in the body, before it is returned (`t.wait()`, or `await`)"))
}

/// Keeps writers out from now on, but for those that have begun or wait already: an operation that says
/// nothing of its use comes after none of them.
fn reader_of(core: &CoreRef, vars: VarSet) -> Option<Lease> {
    let vars = distinct(vars);
    if vars.is_empty() {
        return None;
    }
    let name = Name::Static(RETURNS_IT);
    // No memory goes with this one.
    let tensor = Tensor::promised(core.clone(), vars, None, name);
    LeaseState::try_read_as_is(&tensor, RETURNS_IT.into()).map(|inner| Lease { inner })
}

/// Each variable once.
fn distinct(mut vars: VarSet) -> VarSet {
    vars.sort_unstable_by_key(|var| var.id().get());
    vars.dedup_by_key(|var| var.id().get());
    vars
}

/// Leases that keep writers out while a result is copied.
type Readers = SmallVec<[Lease; 1]>;

/// A reader of each variable, or something else that keeps its writers out.
///
/// # Errors
/// [`Error::Conflict`] when another operation has a variable and writes it or has a writer behind, or will
/// have the variable next.
fn readers_of(core: &CoreRef, vars: VarSet, by: OpId) -> Result<Readers, Error> {
    if let Some(reader) = reader_of(core, vars.clone()) {
        return Ok(Readers::from_iter([reader]));
    }
    let mut readers = Readers::new();
    for var in distinct(vars) {
        let alone = VarSet::from_iter([var]);
        let mut reader = reader_of(core, alone.clone());
        if reader.is_none() {
            let user = unheld_user(&alone[0], by);
            // The operation that kept the reader out may be over.
            reader = reader_of(core, alone);
            if reader.is_none()
                && let Some(other) = user
            {
                return Err(Error::Conflict(format!(
                    "the result overlaps memory that {} has, and that may be written while the result is copied; let the operation that \
                     returns it read that memory",
                    other.payload().in_words()
                )));
            }
        }
        readers.extend(reader);
    }
    Ok(readers)
}

/// An operation that has `var`, or will be the next to have it. `None` where the variable is granted to `by`,
/// to the operation that the calling code belongs to, or to a lease, which may be the one that keeps the
/// result.
fn unheld_user(var: &OpVar, by: OpId) -> Option<OpHandle> {
    if var.with_ordering_state(|state, _| state.pins().find(|_| Some(())).is_some()) {
        return None;
    }
    let queued = var.queued();
    let own = [Some(by), context::current()];
    let keeps = |op: &OpHandle| own.contains(&Some(op.id())) || op.payload().kind == OpKind::Lease;
    if queued.iter().filter(|op| op.is_granted()).any(keeps) {
        return None;
    }
    let user = queued.iter().rposition(OpHandle::is_granted).unwrap_or(0);
    queued.into_iter().nth(user)
}

/// The owner of leases of results.
const RETURNS_IT: &str = "the operation that returns it";

/// Takes the memory out of a tensor without other handles, with a lease that keeps writers out of it; or
/// copies it when `ready` is done. The operation may read it if it is `held`; else it takes a lease for as
/// long as the copy takes.
fn adopt(
    core: &CoreRef,
    tensor: Tensor,
    held: bool,
    ready: Option<&Fence>,
) -> Result<(ImportedMemory, Option<Lease>), Error> {
    let copy = |tensor: &Tensor| {
        let Definition { layout, data, .. } = tensor.inner.definition()?;
        let source = KeepAlive::after(tensor.clone(), fences(ready));
        copied(core, source, (layout, *data), DLDevice::CPU).map(|copy| (ImportedMemory::of(copy), None))
    };
    if held {
        return copy(&tensor);
    }
    let lease = lease_of_result(&tensor)?;
    // The lease has a handle of its own.
    let shared = Arc::strong_count(&tensor.inner) > 2;
    if shared || tensor.inner.lease.is_some() || !tensor.inner.all_fences().is_empty() {
        return copy(&tensor);
    }
    // If a writer waits already, only the lease keeps it out.
    let Some(reader) = reader_of(core, tensor.inner.vars.clone()) else { return copy(&tensor) };
    drop(lease);
    let inner = match Arc::try_unwrap(tensor.inner) {
        Ok(inner) => inner,
        // Another thread looks at the tensor at this moment, by way of the lease that has just ended.
        Err(inner) => {
            let tensor = Tensor { inner };
            let _lease = lease_of_result(&tensor)?;
            return copy(&tensor);
        }
    };
    let definition =
        inner.take_definition().ok_or_else(|| Error::invalid("the produced tensor is not defined"))?;
    let Definition { layout, data, storage, read_only, placed, .. } = definition;
    drop(placed);
    Ok((ImportedMemory { layout, data, storage, read_only }, Some(reader)))
}

#[cfg(all(test, feature = "links"))]
mod tests {
    use std::sync::{OnceLock, mpsc};

    use estafette_devices::{DeviceType, host};

    use super::*;
    use crate::engine::Engine;
    use crate::exchange::{Abi, ExportFlags, export};

    #[test]
    fn what_is_lent_for_writing_and_not_taken_has_failed_before_it_is_answered() {
        let engine = Engine::builder().workers(1).build().expect("an engine");
        let device = DLDevice { device_type: DeviceType::EXT_DEV, device_id: 77 };
        let layout = Layout::contiguous(DType::I64, device, &[1]).expect("a layout");
        let failure = Arc::new(OnceLock::new());
        let (answer, answered) = mpsc::channel();
        let known = Arc::clone(&failure);
        let end = move || answer.send(known.get().is_some()).expect("awaited");
        let flags = ExportFlags { read_only: false, is_copied: false };
        let data = std::ptr::without_provenance_mut(4096);
        // SAFETY: the device is not there, and nothing uses its memory.
        let managed = unsafe { export(&layout, data, flags, Abi::Versioned, end) };
        let (completer, ready) = host::promise("ready");
        completer.complete();
        let loan = Some(Loan::ForWriting(failure));
        let taken = of_another_process(engine.core(), managed, loan, &ready, 7);
        assert!(matches!(taken, Err(Error::Invalid(_))));
        assert_eq!(answered.recv(), Ok(true));
    }
}
