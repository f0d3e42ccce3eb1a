//! The host as a device, and its fences: promises that any thread keeps, and Rust futures.

mod device;
mod future;
mod memory;
mod promise;

pub(crate) use self::memory::allocate as allocate_host;
pub use self::{
    device::{HostDevice, HostMemory},
    future::fence_of,
    promise::{Completer, promise},
};
