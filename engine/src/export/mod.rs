//! Handing tensors to other libraries, and what goes both ways.
//!
//! | part | idea |
//! |---|---|
//! | this file | DLPack exports: memory that a consumer returns |
//! | `arrow` | Arrow arrays, with `sync_event` as a fence |
//! | `stream` | streams of consumers and producers by their native handles |
//!
//! # Invariants
//!
//! - An export holds a lease from its grant until its deleter has run.
//! - What a consumer may write is under a write lease, or is its own copy.
//! - Work of the owner that is pending at an export is ordered before the consumer by its stream, by a fence
//!   that it is given, or by a wait of the host.

mod arrow;
pub(crate) mod stream;

use std::sync::Arc;
use std::time::Duration;

use estafette_devices::{DLDevice, Fence};
use estafette_graph::AccessMode;
use estafette_sync::time::Instant;

use crate::copy::KeepAlive;
use crate::copy::blocking::copied;
use crate::core::error::Error;
use crate::core::lease_info::LeaseOwner;
use crate::core::operation::Name;
use crate::engine::copy;
use crate::exchange::{Abi, ExportFlags, ManagedTensor, export};
use crate::lease::consumer::{Consumer, after_of, may_release_before_completion, release_storage};
use crate::lease::{Access, Lease, LeaseState, check_writable};
use crate::operation::completion::Scope;
use crate::tensor::handle::{Definition, Tensor, TensorInner};
use crate::trace::hooks;

/// Options of an export.
#[derive(Debug, Clone)]
pub struct ExportOptions {
    /// The consumer's access. A copy is the consumer's own, so it waits as a reader, whatever this says.
    pub access: Access,
    /// The struct that the consumer gets. A legacy struct cannot say that memory is read-only.
    pub abi: Abi,
    /// The owner of the lease, for diagnoses.
    pub owner: Option<LeaseOwner>,
    /// The time that a blocking export waits; `None` waits as long as it takes.
    pub timeout: Option<Duration>,
    /// True if the consumer gets a copy of its own, flagged as a copy, instead of a lease. A copy from or to
    /// a device is an operation ([`Engine::copy`](crate::Engine::copy)). The exporting thread itself makes a
    /// copy within the host, and copies from a lease, a scope, or an engine that has shut down.
    pub copy: bool,
    /// The device of the copy, which is row-major.
    pub copy_to: DLDevice,
    /// The consumer, for the order of its work. A foreign queue must stay valid until the export has
    /// returned.
    pub consumer: Consumer,
}

impl ExportOptions {
    /// The lease that the export needs.
    pub(crate) fn lease_access(&self) -> Access {
        if self.copy { Access::Read } else { self.access }
    }

    /// The consumer that waits for earlier work. For a copy: the host, which makes the copy.
    pub(crate) fn settled_by(&self) -> &Consumer {
        if self.copy { &Consumer::Host } else { &self.consumer }
    }

    pub(crate) fn owner_text(&self) -> LeaseOwner {
        match &self.owner {
            Some(owner) => owner.clone(),
            None => format!("thread `{}`", std::thread::current().name().unwrap_or("unnamed")).into(),
        }
    }
}

/// The versioned struct, for an access.
impl From<Access> for ExportOptions {
    fn from(access: Access) -> Self {
        Self {
            access,
            abi: Abi::Versioned,
            owner: None,
            timeout: None,
            copy: false,
            copy_to: DLDevice::CPU,
            consumer: Consumer::Host,
        }
    }
}

impl Tensor {
    /// Hands the tensor to another library once the tensor is defined, ready, and free for the access. The
    /// lease ends when the consumer calls the deleter. The options are an [`Access`], or all of
    /// [`ExportOptions`].
    ///
    /// # Errors
    /// The root cause of a failed version; [`Error::Conflict`] for a write lease of memory that may not be
    /// written; [`Error::LeaseHeld`] when only leases hold it up; [`Error::NotDefined`] for a tensor that its
    /// operation has not made, and whose failure was cleared; [`Error::Device`] when the consumer's queue
    /// refuses to wait, or a device refuses a copy.
    pub async fn export(&self, options: impl Into<ExportOptions>) -> Result<ManagedTensor, Error> {
        let options = options.into();
        if self.is_copied_by_a_device(&options) {
            match copy::copy_async(&self.inner.core, self, Some(options.copy_to)).await {
                // The copy below needs no operation.
                Err(Error::Shutdown) => {}
                copy => return copy?.export_as_copy_async(&options).await,
            }
        }
        let lease = self
            .lease(options.lease_access(), options.owner_text())
            .for_consumer(options.settled_by())
            .await?;
        export_held(lease.inner, &options)
    }

    /// True if a device has part in the copy that `options` ask for: an operation makes it.
    fn is_copied_by_a_device(&self, options: &ExportOptions) -> bool {
        let on_host = || self.inner.definition().is_ok_and(|definition| definition.host);
        options.copy && !(options.copy_to == DLDevice::CPU && on_host())
    }

    /// Hands a tensor that was made for this consumer to the consumer. The struct is flagged as a copy: the
    /// memory is the consumer's alone, and no lease is left. Blocks until the tensor is ready. Where the
    /// consumer has a queue, the queue waits for the content, and the thread waits only until the tensor is
    /// defined.
    ///
    /// # Errors
    /// As [`export_wait`](Self::export_wait).
    pub(crate) fn export_as_copy(&self, options: &ExportOptions) -> Result<ManagedTensor, Error> {
        let (timeout, owner) = (options.timeout, options.owner_text());
        let lease = self.lease(Access::Read, owner).for_consumer(&options.consumer).wait(timeout)?;
        self.export_after(lease, options)
    }

    /// As [`export_as_copy`](Self::export_as_copy), without blocking.
    pub(crate) async fn export_as_copy_async(&self, options: &ExportOptions) -> Result<ManagedTensor, Error> {
        let lease = self.lease(Access::Read, options.owner_text()).for_consumer(&options.consumer).await?;
        self.export_after(lease, options)
    }

    /// Exports a copy that `lease` has shown to be ready, or has ordered before the consumer.
    fn export_after(&self, lease: Lease, options: &ExportOptions) -> Result<ManagedTensor, Error> {
        let definition = self.inner.definition()?;
        let keeper = LeaseState::alias(self, options.owner_text());
        if let Some(after) = lease.inner.take_after() {
            keeper.ends_after(after);
        }
        Lease::keep_if_captured(&keeper);
        drop(lease);
        Ok(export_alias(keeper, definition, ExportFlags::COPY, options))
    }

    /// As [`export`](Self::export), blocking.
    ///
    /// # Errors
    /// As [`export`](Self::export), and those of [`Tensor::wait`].
    pub fn export_wait(&self, options: &ExportOptions) -> Result<ManagedTensor, Error> {
        if self.is_copied_by_a_device(options) {
            let (begun, timeout) = (Instant::now(), options.timeout);
            match copy::copy(&self.inner.core, self, Some(options.copy_to), timeout) {
                // As in `export`.
                Err(Error::Shutdown) => {}
                copy => {
                    let left = timeout.map(|timeout| timeout.saturating_sub(begun.elapsed()));
                    let options = ExportOptions { timeout: left, ..options.clone() };
                    return copy?.export_as_copy(&options).map_err(|error| match (error, timeout) {
                        (Error::Timeout(_), Some(timeout)) => Error::Timeout(timeout),
                        (error, _) => error,
                    });
                }
            }
        }
        let (timeout, owner) = (options.timeout, options.owner_text());
        let lease =
            self.lease(options.lease_access(), owner).for_consumer(options.settled_by()).wait(timeout)?;
        export_held(lease.inner, options)
    }
}

impl Lease {
    /// Hands the leased tensor to another library. The lease then lasts until the consumer has called the
    /// deleter and all clones of the lease are gone. Access and owner are the lease's, whatever `options`
    /// say. A copy from an alias, which orders nothing, is one from the tensor.
    ///
    /// # Errors
    /// [`Error::Invalid`] when the struct cannot describe the tensor; for a copy, as [`Tensor::export`].
    pub fn export(&self, options: &ExportOptions) -> Result<ManagedTensor, Error> {
        if options.copy && self.access() == Access::Alias {
            return self.tensor().export_wait(options);
        }
        if !options.copy && options.consumer.is_stream_ordered() {
            self.note_end(&options.consumer)?;
        }
        export_held(Arc::clone(&self.inner), options)
    }
}

impl Scope {
    /// Lends an operand in the mode it was declared with. Waits for nothing.
    ///
    /// # Errors
    /// [`Error::Invalid`] when `tensor` is not an operand or the operation has ended; [`Error::Conflict`]
    /// when the operand is to be written and is read-only; [`Error::Forked`].
    pub fn export(&self, tensor: &Tensor, options: &ExportOptions) -> Result<ManagedTensor, Error> {
        let mut inner = self.lock()?;
        let running = inner.running.as_ref().map(|running| running.current().op);
        let Some((running, mode)) = running.zip(inner.mode_of(tensor)) else {
            return Err(Error::invalid("this tensor is not an operand of the running operation"));
        };
        let access = if mode == AccessMode::Read { Access::Read } else { Access::Write };
        if access == Access::Write {
            check_writable(tensor)?;
        }
        let queue = inner.running.as_ref().and_then(|running| running.queue().cloned());
        if queue.is_none()
            && !options.copy
            && (options.consumer.is_stream_ordered() || may_release_before_completion(&tensor.inner))
        {
            // Others than the memory's own use pinned and managed memory too.
            let used_on = options.consumer.queue().map(|queue| queue.device());
            inner.lent_on = used_on.or_else(|| tensor.device().ok());
        }
        let owner = options.owner.clone().unwrap_or_else(|| {
            let name = inner.running.as_ref().map(|running| running.tag().name);
            LeaseOwner::of_operation(name.unwrap_or(Name::Static("")))
        });
        owner.library().into_iter().for_each(|library| hooks::body_uses(self.id(), library));
        let lease = LeaseState::view_of(running, tensor, access, owner);
        inner.note_view(&lease, mode);
        drop(inner);
        // Only the operation's own queue is ordered after the operation's inputs.
        let mut work = None;
        if let Some(own) = queue {
            if options.copy {
                work = Some(own.record()?);
            } else if let Some(other) =
                options.consumer.queue().filter(|other| other.handle() != own.handle())
            {
                other.order_after(&own.record()?)?;
            }
        }
        export_held_after(lease, options, work)
    }
}

/// Makes the struct of an untracked view, which keeps the memory and nothing else.
pub(crate) fn export_alias(
    keeper: Arc<LeaseState>,
    definition: &Definition,
    flags: ExportFlags,
    options: &ExportOptions,
) -> ManagedTensor {
    // SAFETY: the keeper holds the memory that the layout describes at `data` until the consumer calls the
    // deleter; what happens to its content meanwhile is documented to be the caller's responsibility.
    unsafe { export(&definition.layout, definition.data, flags, options.abi, move || drop(keeper)) }
}

/// Makes the struct for a consumer; `lease` lives until its deleter is called.
pub(crate) fn export_held(lease: Arc<LeaseState>, options: &ExportOptions) -> Result<ManagedTensor, Error> {
    export_held_after(lease, options, None)
}

/// As [`export_held`]. A copy is made when the tensor's writers are done, and what `work` marks.
fn export_held_after(
    lease: Arc<LeaseState>,
    options: &ExportOptions,
    work: Option<Fence>,
) -> Result<ManagedTensor, Error> {
    let tensor: &TensorInner = &lease.tensor.inner;
    let definition = tensor.definition()?;
    if options.copy {
        let mut after = tensor.writers();
        after.extend(work);
        let source = KeepAlive::after(lease.tensor.clone(), after);
        let what = (&definition.layout, definition.data.cast_const());
        let (layout, storage) = copied(&tensor.core, source, what, options.copy_to)?;
        let data = storage.data();
        let (core, device) = (tensor.core.clone(), layout.device());
        let after = (device != DLDevice::CPU).then(|| after_of(&options.consumer, tensor)).flatten();
        let back = move || release_storage(storage, &core, device, after);
        // SAFETY: the storage is as long as the layout says, it has no other owner, and it lives until the
        // deleter is called.
        return Ok(unsafe { export(&layout, data, ExportFlags::COPY, options.abi, back) });
    }
    Lease::keep_if_captured(&lease);
    let definition: *const Definition = definition;
    // SAFETY: a definition stays in place as long as its tensor, which the lease keeps.
    Ok(export_lease(lease, unsafe { &*definition }, options.abi))
}

/// As [`export_held`], without a copy; `definition` is that of the leased tensor.
#[inline]
pub(crate) fn export_lease(lease: Arc<LeaseState>, definition: &Definition, abi: Abi) -> ManagedTensor {
    // Pins are found among the holders of their variable.
    if lease.access() != Access::Alias
        && !lease.is_pin()
        && let Some(placed) = &definition.placed
    {
        placed.region.add_lease(&lease);
    }
    let flags =
        ExportFlags { read_only: lease.access() == Access::Read || definition.read_only, is_copied: false };
    // SAFETY: the owner holds the lease, that the tensor, and with it both the layout and the memory that
    // this describes at `data`, until the consumer calls the deleter; a read lease is flagged read-only, a
    // write lease has the memory to itself, and an alias is documented to be the caller's responsibility.
    unsafe { export(&definition.layout, definition.data, flags, abi, move || drop(lease)) }
}
