//! Structs of DLPack, and fences of other schedulers.

use estafette_devices::DLDevice;

use crate::exchange::{Abi, DType, ManagedTensor};

pub use crate::exchange::abi::fenced::Fenced;
pub use crate::exchange::abi::table;
pub use crate::exchange::foreign_fence::export::{done, export};
pub use crate::exchange::foreign_fence::import::import;
pub use crate::exchange::foreign_fence::overdue::query_overdue_after;

/// Which struct it is.
pub fn abi(managed: &ManagedTensor) -> Abi {
    managed.abi()
}

/// Where the tensor says it is, before any check.
#[inline]
pub fn device(managed: &ManagedTensor) -> DLDevice {
    managed.device()
}

/// Says of the deleter that it is quick and needs no lock but the Python one, so that it may be called right where the
/// memory falls out of use, in a scope of [`with_inline_deleters`](super::with_inline_deleters), instead of on the reaper's thread. That
/// is knowledge about the producer, which no struct has.
#[must_use]
pub fn with_inline_deleter(managed: ManagedTensor) -> ManagedTensor {
    managed.with_inline_deleter()
}

/// Whether elements do not end on byte boundaries when packed (int4, fp6, fp4).
pub const fn is_sub_byte(dtype: DType) -> bool {
    dtype.is_sub_byte()
}
