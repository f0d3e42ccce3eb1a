//! Owners, consumers and ends of leases.

use std::sync::Arc;

use estafette_devices::{Fence, Queue};

use crate::core::error::Error;
use crate::lease::consumer::{CAPTURED, Consumer};
use crate::lease::{Access, CallSite, Lease, LeaseOwner, LeaseRequest};
use crate::tensor::handle::Tensor;
use crate::trace::hooks;

pub fn for_later_consumers<L>(request: LeaseRequest<L>) -> LeaseRequest<L> {
    request.for_later_consumers()
}

/// Adds the library that the owner belongs to, as the place that holds the name of the library's package.
#[must_use]
pub fn owner_of_library(mut owner: LeaseOwner, library: Option<&'static &'static str>) -> LeaseOwner {
    owner.library = library;
    owner
}

/// Adds the line that asked for the lease.
#[must_use]
pub fn owner_at(owner: LeaseOwner, site: CallSite) -> LeaseOwner {
    owner.at(site)
}

/// The library that the owner belongs to.
pub fn owner_library(owner: &LeaseOwner) -> Option<&'static str> {
    owner.library()
}

/// The line that asked for the lease.
pub fn owner_site(owner: &LeaseOwner) -> Option<&CallSite> {
    owner.site()
}

/// The queue that the consumer uses the memory on, if it has named one.
pub fn consumer_queue(consumer: &Consumer) -> Option<&Arc<dyn Queue>> {
    consumer.queue()
}

/// Ends the leases of this tensor that were handed into captures of graphs. To be called once none of
/// these graphs will be launched again. Returns the number of leases. The memory goes through a
/// quarantine.
pub fn end_captures(tensor: &Tensor) -> usize {
    let ended: Vec<_> = {
        let mut captured = CAPTURED.lock();
        captured.extract_if(.., |lease| lease.tensor.same(tensor)).collect()
    };
    ended.len()
}

pub fn access(lease: &Lease) -> Access {
    lease.access()
}

/// Notes the kind of object that the owner has made of the memory, for diagnoses. Only the first note
/// counts.
pub fn note_object(lease: &Lease, kind: impl Into<Arc<str>>) {
    lease.inner.note_object(kind);
}

/// Notes in an open trace which library the owner has given the memory to.
pub fn note_library(lease: &Lease, library: &'static str) {
    lease.inner.traced_id().into_iter().for_each(|id| hooks::body_uses(id.get(), library));
}

/// Notes that the owner has handed the memory to `consumer`, whose work the end of this lease waits for.
/// Exports of the lease do so themselves. The consumer comes after earlier work by itself.
///
/// # Errors
/// [`Error::Device`] when the consumer's queue has failed.
pub fn hand_to(lease: &Lease, consumer: &Consumer) -> Result<(), Error> {
    lease.note_end(consumer)
}

pub fn end_fence(lease: &Lease) -> Fence {
    lease.end_fence()
}

pub fn is_end_fence(lease: &Lease, fence: &Fence) -> bool {
    lease.is_end_fence(fence)
}

/// The lease that this tensor was imported under: its memory lies inside leased memory.
pub fn imported_under(tensor: &Tensor) -> Option<Lease> {
    tensor.inner.lease.as_ref().map(|lease| Lease { inner: Arc::clone(lease) })
}
