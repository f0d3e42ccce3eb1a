//! Leases: external uses of a tensor, from export until the deleter ran and the last device work is done.
//!
//! A lease is an operation without a body. It is appended like any other, so it waits for earlier conflicting
//! operations and later ones wait for it; once granted and settled it is held until its last holder lets go, on
//! whatever thread that happens. A read lease that need not wait is only counted at the tensor's variable ([`inner`]).

mod acquire;
pub(crate) mod all;
pub(crate) mod blocking;
pub(crate) mod consumer;
pub(crate) mod for_consumer;
pub(crate) mod info;
mod inner;
mod label;
pub(crate) mod owner;
pub(crate) mod pins;

use std::sync::Arc;

use estafette_devices::Fence;
use estafette_devices::host;

use crate::core::error::Error;
use crate::tensor::handle::Tensor;
use crate::trace::{self, hooks};

pub(crate) use self::acquire::{give_up, lease_granted};
pub(crate) use self::inner::{LeaseState, end};
pub(crate) use self::label::LeaseOp;

/// What a holder of exported memory may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Access {
    /// Read; engine writes wait until the lease is returned.
    Read,
    /// Read and write, alone; every other use waits until the lease is returned.
    Write,
    /// Untracked: no lease is taken and nothing waits. For people who order things themselves.
    Alias,
}

impl std::fmt::Display for Access {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Alias => "alias",
        })
    }
}

/// A use of a tensor outside any operation, held until dropped.
///
/// Engine operations that conflict with it wait. Cloning shares the lease; it ends with the last clone.
#[derive(Clone)]
pub struct Lease {
    pub(crate) inner: Arc<LeaseState>,
}

impl Lease {
    /// The leased tensor.
    pub fn tensor(&self) -> &Tensor {
        &self.inner.tensor
    }

    /// What the holder may do.
    pub fn access(&self) -> Access {
        self.inner.access
    }

    /// Notes what kind of object the holder has made of the memory, for diagnoses. Only the first note counts.
    pub fn note_object(&self, kind: impl Into<Arc<str>>) {
        self.inner.note_object(kind);
    }

    /// Tells a recording which library the holder has given the memory to; does nothing while none is made.
    pub fn note_library(&self, library: &'static str) {
        if trace::is_open()
            && let Some(id) = self.inner.known_as()
        {
            hooks::lends(id.get(), library);
        }
    }

    /// Makes the end of this lease wait for `fence`, the holder's last device work.
    pub fn release_after(self, fence: Fence) {
        self.inner.at_end(|last| last.done = Some(fence));
    }

    /// The end of this lease as a fence: done when the last holder has let go and the device work that it left is done.
    pub fn end_fence(&self) -> Fence {
        let (completer, fence) = host::promise("a lease");
        self.inner.at_end(|last| last.told.push(completer));
        fence
    }
}

impl Tensor {
    /// The lease that this tensor was imported under: its memory lies inside memory that was leased.
    pub fn imported_under(&self) -> Option<Lease> {
        self.inner.lease.as_ref().map(|lease| Lease { inner: Arc::clone(lease) })
    }
}

impl std::fmt::Debug for Lease {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Lease({})", self.inner.label())
    }
}

/// Refuses a write to memory that may not be written.
pub(crate) fn check_writable(tensor: &Tensor) -> Result<(), Error> {
    if let Some(lease) = &tensor.inner.lease
        && lease.access == Access::Read
    {
        return Err(Error::Conflict(format!(
            "this tensor was imported from memory under a {}; write through the original tensor once it is returned",
            lease.label()
        )));
    }
    if tensor.inner.definition().is_ok_and(|definition| definition.read_only) {
        return Err(Error::Conflict(if tensor.is_write_unsaid() {
            "this tensor is read-only: a DLPack struct before version 1.0, as its memory came in, cannot say whether it may be \
             written; import it with `writable=True` (in Rust with `read_only` false) if its owner allows that"
                .into()
        } else {
            "the owner of this tensor's memory declares it read-only".into()
        }));
    }
    Ok(())
}
