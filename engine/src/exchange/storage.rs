//! The owner that keeps a tensor's memory alive: a foreign tensor, device memory, or something of Rust's.
//!
//! A storage is never dropped where it happens to fall: it goes to the reaper, which drops
//! it after the last use on a device, with no lock held.

use std::any::Any;
use std::fmt;
use std::mem::ManuallyDrop;
use std::ptr::NonNull;
#[cfg(feature = "links")]
use std::sync::Arc;

use estafette_devices::{Allocation, DeviceType, Fence, FenceSet};
#[cfg(feature = "links")]
use estafette_links::Segment;

use super::abi::ManagedTensor;
use super::dtype::Element;
#[cfg(feature = "links")]
use super::loan::Loan;
use super::release_stream::ReleaseStream;
use crate::core::var_state::has;

/// The owner of a tensor's memory. Dropping it releases the memory.
pub(crate) struct Storage {
    owner: StorageOwner,
}

enum StorageOwner {
    Foreign(ManagedTensor),
    /// Memory of another process, and how that process is asked to show it to a third one. Its deleter is
    /// this crate's, and says to that process that the use is over.
    #[cfg(feature = "links")]
    Elsewhere(Box<(ManagedTensor, Option<Loan>)>),
    /// Memory that other processes can be lent for writing.
    #[cfg(feature = "links")]
    Segment(Arc<Segment>),
    /// A foreign tensor that is ready when the fences of its producer are done.
    Fenced(Box<(ManagedTensor, FenceSet)>),
    /// A foreign tensor whose allocator works in stream order.
    StreamOrdered(Box<(ManagedTensor, ReleaseStream)>),
    Device(Allocation),
    Vec(RawVec),
    /// Memory without a struct: of another library, whose owner is [quick to drop](Storage::host), or of a
    /// value of Rust.
    Any {
        data: *mut u8,
        is_inline: bool,
        _owner: Box<dyn Any + Send>,
    },
}

// SAFETY: the only part that is not `Send` by itself is the data pointer beside an owner; it is an address
// that this type hands out and never follows.
unsafe impl Send for Storage {}
// SAFETY: shared access copies the data pointer and asks what kind of owner there is; it never reaches the
// boxed owner, which need not be `Sync`.
unsafe impl Sync for Storage {}

impl Storage {
    /// Memory of another library, released by its deleter.
    pub(crate) fn foreign(tensor: ManagedTensor) -> Self {
        Self::new(StorageOwner::Foreign(tensor))
    }

    /// Memory that another process has shown to this one, and is waiting for: released at once, on whatever
    /// thread.
    #[cfg(feature = "links")]
    pub(crate) fn elsewhere(tensor: ManagedTensor, loan: Option<Loan>) -> Self {
        Self::new(StorageOwner::Elsewhere(Box::new((tensor, loan))))
    }

    /// The loan, for memory of another process.
    #[cfg(feature = "links")]
    pub(crate) fn loan(&self) -> Option<&Loan> {
        match &self.owner {
            StorageOwner::Elsewhere(elsewhere) => elsewhere.1.as_ref(),
            _ => None,
        }
    }

    /// A segment of its own, which other processes can be lent for writing.
    #[cfg(feature = "links")]
    pub(crate) fn segment(segment: Arc<Segment>) -> Self {
        Self::new(StorageOwner::Segment(segment))
    }

    /// The segment, if the memory is a segment of its own.
    #[cfg(feature = "links")]
    pub(crate) fn as_segment(&self) -> Option<&Arc<Segment>> {
        match &self.owner {
            StorageOwner::Segment(segment) => Some(segment),
            _ => None,
        }
    }

    /// Memory of another library that is ready once `ready` is done.
    pub(crate) fn fenced(tensor: ManagedTensor, ready: FenceSet) -> Self {
        if ready.is_empty() {
            Self::foreign(tensor)
        } else {
            Self::new(StorageOwner::Fenced(Box::new((tensor, ready))))
        }
    }

    /// True if `fence` is the producer's, which knows what its failure says of the memory.
    pub(super) fn is_of_producer(&self, fence: &Fence) -> bool {
        matches!(&self.owner, StorageOwner::Fenced(fenced) if has(&fenced.1, fence))
    }

    /// Memory of another library, of an allocator that works in the order of the stream `release_stream`.
    pub(crate) fn stream_ordered(tensor: ManagedTensor, release_stream: ReleaseStream) -> Self {
        Self::new(StorageOwner::StreamOrdered(Box::new((tensor, release_stream))))
    }

    /// Memory allocated from a device.
    pub(crate) fn device(allocation: Allocation) -> Self {
        Self::new(StorageOwner::Device(allocation))
    }

    /// The elements of a vector, used in place.
    pub(crate) fn vec<T: Element>(elements: Vec<T>) -> Self {
        Self::new(StorageOwner::Vec(RawVec::new(elements)))
    }

    /// Memory at `data` that `owner` keeps valid, for example an `Arc` of an array from another crate.
    pub(crate) fn owned(owner: Box<dyn Any + Send>, data: *mut u8) -> Self {
        Self::new(StorageOwner::Any { data, is_inline: false, _owner: owner })
    }

    /// Host memory of another library at `data`, without a struct. Dropping `owner` releases the memory, and
    /// is as quick as a deleter [known to be quick](ManagedTensor::with_inline_deleter).
    pub(crate) fn host(owner: Box<dyn Any + Send>, data: *mut u8) -> Self {
        Self::new(StorageOwner::Any { data, is_inline: true, _owner: owner })
    }

    /// The first element's address, or the handle of the memory on devices without addresses. May be NULL
    /// or dangling when there are no bytes.
    pub(crate) fn data(&self) -> *mut u8 {
        match &self.owner {
            StorageOwner::Foreign(tensor) => tensor.data(),
            #[cfg(feature = "links")]
            StorageOwner::Elsewhere(elsewhere) => elsewhere.0.data(),
            #[cfg(feature = "links")]
            StorageOwner::Segment(segment) => segment.start().as_ptr(),
            StorageOwner::Fenced(fenced) => fenced.0.data(),
            StorageOwner::StreamOrdered(stream_ordered) => stream_ordered.0.data(),
            StorageOwner::Device(allocation) => allocation.ptr().as_ptr(),
            StorageOwner::Vec(vec) => vec.data.as_ptr(),
            StorageOwner::Any { data, .. } => *data,
        }
    }

    /// The foreign tensor, where that is what it is.
    pub(crate) fn as_foreign(&self) -> Option<&ManagedTensor> {
        match &self.owner {
            StorageOwner::Foreign(tensor) => Some(tensor),
            #[cfg(feature = "links")]
            StorageOwner::Elsewhere(elsewhere) => Some(&elsewhere.0),
            StorageOwner::Fenced(fenced) => Some(&fenced.0),
            StorageOwner::StreamOrdered(stream_ordered) => Some(&stream_ordered.0),
            _ => None,
        }
    }

    /// The stream in whose order the allocator reuses it.
    pub(super) fn release_stream(&self) -> Option<&ReleaseStream> {
        match &self.owner {
            StorageOwner::StreamOrdered(stream_ordered) => Some(&stream_ordered.1),
            _ => None,
        }
    }

    /// True if dropping it may run code that we do not know (a deleter, the `Drop` of a user's type) or
    /// call a driver. Such a storage is only ever dropped by the reaper; plain host memory of our own may
    /// be freed anywhere.
    pub(crate) fn runs_foreign_code(&self) -> bool {
        match &self.owner {
            StorageOwner::Foreign(_)
            | StorageOwner::Fenced(_)
            | StorageOwner::StreamOrdered(_)
            | StorageOwner::Any { .. } => true,
            StorageOwner::Device(allocation) => allocation.device().device_type != DeviceType::CPU,
            StorageOwner::Vec(_) => false,
            #[cfg(feature = "links")]
            StorageOwner::Elsewhere(_) | StorageOwner::Segment(_) => false,
        }
    }

    /// True if the code that we do not know is known after all to be quick, and to need no lock but the
    /// Python one.
    pub(crate) fn has_inline_deleter(&self) -> bool {
        match &self.owner {
            StorageOwner::Any { is_inline, .. } => *is_inline,
            _ => self.as_foreign().is_some_and(ManagedTensor::has_inline_deleter),
        }
    }

    /// True if it is memory of another library.
    pub(super) fn is_foreign(&self) -> bool {
        matches!(self.owner, StorageOwner::Any { is_inline: true, .. }) || self.as_foreign().is_some()
    }

    fn new(owner: StorageOwner) -> Self {
        Self { owner }
    }
}

impl fmt::Debug for Storage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.owner {
            StorageOwner::Foreign(tensor) => f.debug_tuple("Foreign").field(tensor).finish(),
            StorageOwner::Fenced(fenced) => {
                f.debug_tuple("Fenced").field(&fenced.0).field(&fenced.1).finish()
            }
            #[cfg(feature = "links")]
            StorageOwner::Elsewhere(elsewhere) => f.debug_tuple("Elsewhere").field(&elsewhere.0).finish(),
            #[cfg(feature = "links")]
            StorageOwner::Segment(segment) => f.debug_tuple("Segment").field(segment).finish(),
            StorageOwner::StreamOrdered(stream_ordered) => {
                f.debug_tuple("StreamOrdered").field(&stream_ordered.0).field(&stream_ordered.1).finish()
            }
            StorageOwner::Device(allocation) => f.debug_tuple("Device").field(allocation).finish(),
            StorageOwner::Vec(vec) => write!(f, "Vec({:p})", vec.data),
            StorageOwner::Any { data, is_inline: true, .. } => write!(f, "Host({data:p})"),
            StorageOwner::Any { data, .. } => write!(f, "Owned({data:p})"),
        }
    }
}

/// A `Vec<T>` that forgot its `T`: cheaper than boxing the vector, since it needs no second allocation.
struct RawVec {
    data: NonNull<u8>,
    len: usize,
    capacity: usize,
    free: unsafe fn(NonNull<u8>, usize, usize),
}

impl RawVec {
    fn new<T: Element>(elements: Vec<T>) -> Self {
        /// # Safety
        /// The arguments are the parts of a `Vec<T>` that has no other owner.
        unsafe fn free<T>(data: NonNull<u8>, len: usize, capacity: usize) {
            // SAFETY: as this function's own contract says.
            drop(unsafe { Vec::from_raw_parts(data.cast::<T>().as_ptr(), len, capacity) });
        }
        let mut elements = ManuallyDrop::new(elements);
        let data = NonNull::new(elements.as_mut_ptr()).expect("a vector's pointer is never null").cast();
        Self { data, len: elements.len(), capacity: elements.capacity(), free: free::<T> }
    }
}

impl Drop for RawVec {
    fn drop(&mut self) {
        // SAFETY: the parts are those of the vector given to `new`, whose type `free` was made for; this is
        // the only place that gives them up, and it runs once.
        unsafe { (self.free)(self.data, self.len, self.capacity) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vector_is_used_in_place_and_freed() {
        let elements = vec![1.0_f64, 2.0];
        let address = elements.as_ptr();
        let storage = Storage::vec(elements);
        assert_eq!(storage.data().cast_const().cast(), address);
        assert!(!storage.runs_foreign_code());
        // SAFETY: the storage owns two f64 there.
        assert_eq!(unsafe { *storage.data().cast::<f64>().add(1) }, 2.0);
        drop(Storage::vec(Vec::<u8>::new()));
    }

    #[test]
    fn an_owner_is_dropped_with_its_storage() {
        let owner = std::sync::Arc::new([1_u8, 2, 3]);
        let data = owner.as_ptr().cast_mut();
        let storage = Storage::owned(Box::new(owner.clone()), data);
        assert_eq!((storage.data(), storage.runs_foreign_code()), (data, true));
        drop(storage);
        assert_eq!(std::sync::Arc::strong_count(&owner), 1);
    }
}
