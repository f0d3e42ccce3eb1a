//! The memory that this process shows of a tensor, and the copies that it makes for that.
//!
//! | the memory of the tensor | what is shown |
//! |---|---|
//! | shared memory of this process, of the host or a device | the memory, under a read lease |
//! | other memory of this process | a copy in shared memory of its device, or else of the host, made under a read lease that ends with it |
//! | memory of another process | nothing: that process is asked, and shows the memory itself; once it has ended, a copy as above |
//!
//! The read lease takes its place in the order at once. If the tensor has no memory yet, or an operation
//! allocates the memory of a large copy for a ticket, the memory is known when the lease is granted.

use std::sync::{Arc, OnceLock, Weak};

use estafette_devices::host::{self, HostDevice};
use estafette_devices::{DLDevice, Device, Fence, FenceState, SharedSegment};
use estafette_links::{Arena, Link, LinkError, Segment, pass_step};
use estafette_report::shown::shown;
use estafette_sync::sync::Mutex;

use super::done;
use crate::copy;
use crate::core::core_ref::CoreRef;
use crate::core::error::Error;
use crate::core::operation::Name;
use crate::engine::copy::drive;
use crate::exchange::loan::{Loan, RemoteOrigin};
use crate::exchange::{Layout, Storage};
use crate::lease::{Access, Lease, LeaseOwner};
use crate::operation::builder::OpBuilder;
#[cfg(feature = "nixl")]
use crate::operation::import;
use crate::tensor::handle::{Definition, Tensor};
use crate::tensor::memory::{ALIGN, host_can_use, retried};
use crate::trace;
use crate::wait::notify::{device_error, notify};

/// A version of a tensor that other processes may use, under one lease for as long as this export lives.
pub(super) struct Export {
    /// Set from the beginning, or when `known` settles well.
    pub(super) shown: OnceLock<ShownMemory>,
    /// Settles when `shown` is known: no later than `ready` is done. `ready` may fail earlier.
    pub(super) known: Fence,
    /// Done when other processes may read.
    pub(super) ready: Fence,
    /// The number of the lease in traces of other processes.
    pub(super) key: u64,
    /// The owner of the lease.
    pub(super) owner: LeaseOwner,
    /// The lease, once granted. `None` where a copy is shown.
    lease: Mutex<Option<Lease>>,
}

pub(super) enum ShownMemory {
    Here(SegmentRange),
    /// Memory of another process. The tensor keeps this process's use of that memory.
    RemoteMemory(RemoteOrigin, Tensor),
}

/// A segment of this process.
pub(super) enum ExportMemory {
    Host(Arc<Segment>),
    Device(Arc<SharedSegment>),
}

impl ExportMemory {
    /// As [`Link::show`].
    pub(super) fn show(&self, link: &Link) -> Result<u32, LinkError> {
        match self {
            Self::Host(segment) => link.show(segment),
            Self::Device(segment) => link.show_device(segment),
        }
    }
}

/// Shared memory of this process.
pub(super) struct SegmentRange {
    pub(super) segment: ExportMemory,
    /// The offset of the first element in the segment.
    pub(super) first: usize,
    pub(super) layout: Layout,
    copied: Option<Copied>,
}

/// Memory of a copy, and the engine that has made it.
type Copied = (Arc<Storage>, CoreRef);

impl Export {
    /// Requests the lease: it takes its place in the order now. `copy` as in
    /// [`ShareOptions`](super::ShareOptions::copy). With `returns_at_once` much memory for a copy is taken by
    /// an operation.
    pub(super) fn new(
        tensor: &Tensor,
        owner: LeaseOwner,
        copy: Option<bool>,
        returns_at_once: bool,
    ) -> Result<Arc<Self>, Error> {
        tensor.inner.core.generation.check()?;
        let Ok(definition) = tensor.inner.definition() else {
            return Self::requested(tensor, Access::Read, owner, None, false, copy);
        };
        let is_much = returns_at_once && definition.layout.byte_len() > TAKEN_AT_ONCE;
        let shown = match show(tensor, definition, copy)? {
            None if !is_much => Some(stage(tensor, definition, copy)?),
            shown => shown,
        };
        if let Some(shown @ ShownMemory::RemoteMemory(..)) = shown {
            let (shown, lease) = (OnceLock::from(shown), Mutex::default());
            return Ok(Arc::new(Self { shown, known: done(), ready: done(), key: 0, owner, lease }));
        }
        let is_staged = shown.is_none();
        Self::requested(tensor, Access::Read, owner, shown, is_staged, copy)
    }

    /// Requests a lease for the one process that is to write.
    pub(super) fn for_writing(tensor: &Tensor, owner: LeaseOwner) -> Result<Arc<Self>, Error> {
        tensor.inner.core.generation.check()?;
        let definition = tensor.inner.definition()?;
        let place = find_in_segment(definition).ok_or(Error::NotShared(NOT_WRITABLE.into()))?;
        Self::requested(tensor, Access::Write, owner, Some(ShownMemory::Here(place)), false, Some(false))
    }

    /// Ends a lease for writing. The next version has the written content, or fails as `answer` has failed.
    pub(super) fn written(&self, answer: Fence) {
        let lease = self.lease.lock().take();
        if let (Some(lease), FenceState::Failed(_)) = (lease, answer.state()) {
            lease.release_after(answer);
        }
    }

    /// The shown memory, as a tensor of this process: the leased one, or its copy. `None` before it is ready.
    #[cfg(feature = "nixl")]
    pub(super) fn tensor(&self, place: &SegmentRange) -> Option<Tensor> {
        match &place.copied {
            Some((storage, core)) => {
                let data = storage.data();
                let storage = Storage::owned(Box::new(Arc::clone(storage)), data);
                Some(import::own(core, place.layout.clone(), storage))
            }
            None => self.lease.lock().as_ref().map(|lease| lease.tensor().clone()),
        }
    }

    /// `is_staged`: memory for a copy is to be taken.
    fn requested(
        tensor: &Tensor,
        access: Access,
        owner: LeaseOwner,
        shown: Option<ShownMemory>,
        is_staged: bool,
        copy: Option<bool>,
    ) -> Result<Arc<Self>, Error> {
        let (completer, ready) = host::promise("a lease for another process");
        let (knows, known) = is_staged.then(|| host::promise("memory for another process")).unzip();
        let known = known.unwrap_or_else(|| ready.clone());
        let owner = owner.elsewhere();
        let (request, lease) = tensor.lease_within(access, owner.clone()).submitted()?;
        let key = trace::process_key().wrapping_add(lease);
        let shown = shown.map_or_else(OnceLock::new, OnceLock::from);
        let export = Arc::new(Self { shown, known, ready, key, owner, lease: Mutex::default() });
        if let Some(knows) = knows {
            let staged = Self::staged(Arc::downgrade(&export), tensor.clone(), copy);
            notify(staged, move |outcome| knows.settle(outcome.map_err(device_error)));
        }
        let granted = Arc::downgrade(&export);
        let staged = is_staged.then(|| export.known.clone());
        let granted = async move {
            let lease = request.await?;
            if let Some(staged) = staged {
                staged.settled().await?;
            }
            match granted.upgrade() {
                Some(export) => Self::granted(&export, lease, copy).await,
                None => Ok(()),
            }
        };
        notify(granted, move |outcome| completer.settle(outcome.map_err(device_error)));
        Ok(export)
    }

    /// Takes the memory for a copy, unless the export is gone by then.
    async fn staged(export: Weak<Self>, tensor: Tensor, copy: Option<bool>) -> Result<(), Error> {
        let core = tensor.inner.core.clone();
        let staging = async move {
            let Some(export) = export.upgrade() else { return Ok(()) };
            let shown = stage(&tensor, tensor.inner.definition()?, copy)?;
            export.shown.get_or_init(|| shown);
            Ok(())
        };
        by_an_operation(core, "memory for another process", staging).await
    }

    /// Keeps the lease for as long as the memory is shown, or for as long as it takes to copy it.
    async fn granted(export: &Arc<Self>, lease: Lease, copy: Option<bool>) -> Result<(), Error> {
        pass_step("granted");
        if export.shown.get().is_none() {
            let (tensor, definition) = (lease.tensor(), lease.tensor().inner.definition()?);
            let shown = match show(tensor, definition, copy)? {
                // This may be the thread of links, or of a driver.
                None if definition.layout.byte_len() > TAKEN_AT_ONCE => {
                    Self::staged(Arc::downgrade(export), tensor.clone(), copy).await?;
                    None
                }
                None => Some(stage(tensor, definition, copy)?),
                shown => shown,
            };
            if let Some(shown) = shown {
                export.shown.get_or_init(|| shown);
            }
        }
        match export.shown.get() {
            Some(ShownMemory::Here(SegmentRange { copied: Some((target, core)), .. })) => {
                pass_step("staged");
                let copying = copy::for_processes(core.clone(), lease.tensor().clone(), Arc::clone(target));
                by_an_operation(core.clone(), "copy for another process", copying).await?;
                pass_step("copied");
                drop(lease);
            }
            Some(ShownMemory::Here(_)) => {
                let before = export.lease.lock().replace(lease);
                debug_assert!(before.is_none(), "granted once");
            }
            Some(ShownMemory::RemoteMemory(..)) | None => {}
        }
        Ok(())
    }
}

/// True if the tensor is known to be in memory of another process or a device.
pub(super) fn is_elsewhere(tensor: &Tensor) -> bool {
    tensor.inner.definition().is_ok_and(|definition| {
        let is_on_device = definition.layout.device() != DLDevice::CPU;
        is_on_device || matches!(definition.storage.loan(), Some(Loan::ForReading(_)))
    })
}

/// DLPack's code of the type. Bindings define a promise by such elements whose function has returned no
/// single array.
const OPAQUE_HANDLE: u8 = 3;

/// Memory for a copy that is taken at once by a ticket, or where a lease is granted. More takes the system
/// long.
const TAKEN_AT_ONCE: usize = 1 << 20;

/// The form in which a tensor is shown; `None` where a copy of it is shown.
fn show(tensor: &Tensor, definition: &Definition, copy: Option<bool>) -> Result<Option<ShownMemory>, Error> {
    let Definition { layout, data, .. } = definition;
    if layout.dtype().code == OPAQUE_HANDLE {
        const WHY: &str = "opaque handles mean nothing in another process";
        return Err(Error::NotShared(match &tensor.inner.producer {
            Some(producer) => format!(
                "operation `{}` has returned no single array, and {WHY}: unpack the promise and send what is in it, or declare the \
                 outputs of that operation",
                shown(producer.as_str())
            )
            .into(),
            None => WHY.into(),
        }));
    }
    if copy != Some(true) {
        // A process that has ended shows nothing more. Memory that it had shown is copied.
        if let Some(Loan::ForReading(origin)) = definition.storage.loan()
            && !origin.peer.has_ended()
        {
            return Ok(Some(ShownMemory::RemoteMemory(origin.clone(), tensor.clone())));
        }
        let shared = || match layout.device() {
            DLDevice::CPU => find(layout, *data, None),
            _ => find_on_device(tensor, layout, *data, None),
        };
        if let Some(place) = find_in_segment(definition).or_else(shared) {
            return Ok(Some(ShownMemory::Here(place)));
        }
        if copy == Some(false) {
            return Err(Error::NotShared(NOT_SHARED.into()));
        }
    }
    Ok(None)
}

/// Memory for a copy.
fn stage(tensor: &Tensor, definition: &Definition, copy: Option<bool>) -> Result<ShownMemory, Error> {
    let Definition { layout, data, .. } = definition;
    // One copy on the device, but of memory with gaps, which the host packs.
    let core = &tensor.inner.core;
    let stays = layout.is_contiguous() && !host_can_use(core, layout.device(), *data);
    let device = core.device(layout.device()).filter(|_| stays);
    let shared = device.as_deref().and_then(Device::shared_memory).filter(|_| copy.is_none());
    let to = shared.map_or(DLDevice::CPU, |_| layout.device());
    let layout = copy::row_major(layout, to)?;
    let bytes = layout.byte_len().max(1);
    let memory = match shared {
        Some(shared) => retried(core, || Ok(shared.allocate(bytes, ALIGN)?))?,
        None => HostDevice::with_memory(Arc::new(Arena)).allocate(bytes, ALIGN)?,
    };
    let storage = Arc::new(Storage::device(memory));
    let (data, kept) = (storage.data(), Some((storage, core.clone())));
    let place = match shared {
        Some(_) => find_on_device(tensor, &layout, data, kept),
        None => find(&layout, data, kept),
    };
    Ok(ShownMemory::Here(place.expect("it is shared memory")))
}

/// The reason why a copy that is refused would be needed.
const NOT_SHARED: &str = "the memory of the tensor is not memory that this process can show to others, and a copy was refused: make the \
                          tensor in an engine with shared memory, and have operations write to it";

fn find(layout: &Layout, data: *mut u8, copied: Option<Copied>) -> Option<SegmentRange> {
    let range = layout.byte_range(data);
    let (segment, offset) = Arena.find(std::ptr::without_provenance::<u8>(range.start), range.len())?;
    let first = offset + (data.addr() - range.start);
    Some(SegmentRange { segment: ExportMemory::Host(segment), first, layout: layout.clone(), copied })
}

/// Memory of a device that other processes can be shown.
fn find_on_device(
    tensor: &Tensor,
    layout: &Layout,
    data: *mut u8,
    copied: Option<Copied>,
) -> Option<SegmentRange> {
    let device = tensor.inner.core.device(layout.device())?;
    let range = layout.byte_range(data);
    let (segment, offset) =
        device.shared_memory()?.find(std::ptr::without_provenance::<u8>(range.start), range.len())?;
    let first = offset + (data.addr() - range.start);
    Some(SegmentRange { segment: ExportMemory::Device(segment), first, layout: layout.clone(), copied })
}

/// The reason why a tensor is not lent for writing.
const NOT_WRITABLE: &str = "no other process can write the memory of the tensor: make the tensor with memory that is shared for writing";

/// Memory that other processes can be lent for writing.
fn find_in_segment(definition: &Definition) -> Option<SegmentRange> {
    let segment = Arc::clone(definition.storage.as_segment()?);
    let first = definition.data.addr() - segment.start().as_ptr().addr();
    Some(SegmentRange {
        segment: ExportMemory::Host(segment),
        first,
        layout: definition.layout.clone(),
        copied: None,
    })
}

/// Does `work` as an operation of its own; an engine that has shut down takes none.
async fn by_an_operation(
    core: CoreRef,
    name: &'static str,
    work: impl Future<Output = Result<(), Error>> + Send + 'static,
) -> Result<(), Error> {
    match OpBuilder::new(&core, Name::Static(name)).beyond_limit() {
        Ok(builder) => {
            let done = builder.run_external(move |end| {
                let Some(core) = end.scope().core() else { return };
                drive(&core, work, |outcome| end.complete(outcome.map_err(Into::into)));
            })?;
            done.await
        }
        Err(Error::Shutdown) => work.await,
        Err(error) => Err(error),
    }
}
