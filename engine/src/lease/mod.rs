//! Leases: external uses of a tensor, from export until the deleter has run and the last device work is done.
//!
//! A lease is ordered like an operation: it waits for earlier conflicting operations, and later ones wait for
//! it. Once granted it lasts until its last clone is dropped, on any thread.
//!
//! | part | what it has |
//! |---|---|
//! | `request` | `LeaseRequest`: one lease or a set; blocking, without waiting, or as a future |
//! | `operation` | a lease as an operation without a body |
//! | `pins` | a read lease as a pin: a count at the tensor's variable |
//! | `state` | the state that the clones of a lease share, and the end of the lease |
//! | `consumer` | consumers of memory, and what the end of a lease waits for |
//!
//! # Invariants
//!
//! - A diagnosis sees pins and lease operations alike.
//! - A view that outlives its operation becomes a lease in place, without a gap.
//! - A lease for a queue is granted while earlier work is pending. The thread that asks orders that work on
//!   the queue within its call. Such a lease leaves a fence, so a write lease never forgets what was
//!   pending before it.

pub(crate) mod consumer;
mod operation;
pub(crate) mod pins;
mod request;
mod state;

use std::sync::Arc;

use estafette_devices::host;
use estafette_devices::{Fence, Queue, Reactor};

use crate::core::error::Error;
use crate::core::var_state::same;
use crate::tensor::handle::Tensor;

pub use self::consumer::{Consumer, Keeper};
pub(crate) use self::operation::{LeaseOp, lease_granted};
pub use self::request::LeaseRequest;
pub(crate) use self::state::LeaseState;
pub use crate::core::error::LeaseHeld;
pub use crate::core::lease_info::{Access, CallSite, LeaseInfo, LeaseOwner};

/// Fences of [`Lease::used_on`] that a lease keeps. So many become one, which the host settles.
const USED_MAX: usize = 64;

/// A use of a tensor outside any operation, which lasts until it is dropped.
///
/// Conflicting operations of the engine wait. Clones share the lease; it ends with the last clone.
#[derive(Clone)]
pub struct Lease {
    pub(crate) inner: Arc<LeaseState>,
}

impl Lease {
    /// The leased tensor.
    pub fn tensor(&self) -> &Tensor {
        &self.inner.tensor
    }

    /// The owner's access.
    pub(crate) fn access(&self) -> Access {
        self.inner.access()
    }

    /// Makes the end of this lease wait for `fence`, the owner's last device work. Each clone may name work
    /// of its own.
    pub fn release_after(self, fence: Fence) {
        self.add_use(fence, true);
    }

    /// Makes the end of this lease wait for what is enqueued on `queue` by now, besides all that it waits for
    /// otherwise: for an owner that uses the memory on other queues than the one that it was handed to. To be
    /// called when the last work with the memory is enqueued there.
    ///
    /// # Errors
    /// [`Error::Invalid`] while a graph is captured on the queue, which would use the memory at each launch;
    /// [`Error::Device`] when the queue has failed.
    pub fn used_on(&self, queue: &Arc<dyn Queue>) -> Result<(), Error> {
        if queue.is_capturing()? {
            return Err(Error::invalid(
                "a graph is being captured on the queue: hand the memory to the queue, so that the lease lasts as long as the graph",
            ));
        }
        self.used_until(consumer::last_work(queue)?);
        Ok(())
    }

    /// Makes the end of this lease wait for `fence` too: for each piece of the owner's work that may outlive
    /// the lease.
    pub fn used_until(&self, fence: Fence) {
        self.add_use(fence, false);
    }

    /// As [`used_until`](Self::used_until). `is_last` says that the owner names its last work by that.
    fn add_use(&self, fence: Fence, is_last: bool) {
        let (mut many, mut replaced) = (None, None);
        self.inner.at_end(|at_end| {
            at_end.is_named |= is_last;
            replaced = Some(at_end.used.insert_replacing(fence));
            if at_end.used.len() >= USED_MAX {
                many = Some(std::mem::take(&mut at_end.used));
            }
        });
        // Fences may be foreign code's, and are dropped without the lock.
        drop(replaced);
        if let Some(many) = many {
            let (completer, all) = host::promise("uses of a lease on queues of its owner");
            Reactor::global().when_settled(&many, move |outcome| completer.settle(outcome));
            self.inner.at_end(|at_end| at_end.used.insert(all));
        }
    }

    /// The end of this lease as a fence: done when the last clone is dropped and the owner's device work is
    /// done.
    pub(crate) fn end_fence(&self) -> Fence {
        let (completer, fence) = host::promise("a lease");
        self.inner.at_end(|at_end| at_end.notified.push((completer, fence.clone())));
        fence
    }

    /// True if `fence` is one of this lease's [end](Self::end_fence), which cannot wait for itself.
    pub(crate) fn is_end_fence(&self, fence: &Fence) -> bool {
        let mut is_own = false;
        self.inner.at_end(|at_end| is_own = at_end.notified.iter().any(|(_, end)| same(end, fence)));
        is_own
    }
}

impl std::fmt::Debug for Lease {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Lease({})", self.inner.info())
    }
}

/// Fails for memory that may not be written.
pub(crate) fn check_writable(tensor: &Tensor) -> Result<(), Error> {
    if let Some(lease) = &tensor.inner.lease
        && lease.access() == Access::Read
    {
        return Err(Error::Conflict(format!(
            "this tensor was imported from memory under a {}; write through the original tensor once it is returned",
            lease.info()
        )));
    }
    if tensor.inner.definition().is_ok_and(|definition| definition.read_only) {
        return Err(Error::Conflict(if tensor.is_write_unsaid() {
            "this tensor is read-only: a DLPack struct before version 1.0, as its memory came in, cannot say whether it may be \
             written; import it as a copy, or with `writable=True` (in Rust with `read_only` false) if its owner allows that"
                .into()
        } else {
            "the owner of this tensor's memory declares it read-only".into()
        }));
    }
    Ok(())
}
