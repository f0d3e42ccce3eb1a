//! Structs of DLPack, and fences of other schedulers.

use estafette_devices::DLDevice;

use crate::exchange::{Abi, DType, ManagedTensor};

pub use crate::exchange::abi::fenced::Fenced;
pub use crate::exchange::abi::table;
pub use crate::exchange::foreign_fence::export::{done, export};
pub use crate::exchange::foreign_fence::import::import;
pub use crate::exchange::foreign_fence::overdue::query_overdue_after;

pub fn abi(managed: &ManagedTensor) -> Abi {
    managed.abi()
}

#[inline]
pub fn device(managed: &ManagedTensor) -> DLDevice {
    managed.device()
}

#[must_use]
pub fn with_inline_deleter(managed: ManagedTensor) -> ManagedTensor {
    managed.with_inline_deleter()
}

pub const fn is_sub_byte(dtype: DType) -> bool {
    dtype.is_sub_byte()
}
