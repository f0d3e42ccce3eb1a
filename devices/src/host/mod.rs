//! The host as a device, and its fences: promises that any thread keeps, and Rust futures.
//!
//! | part | what it has |
//! |---|---|
//! | `device` | the host as a device, whose work has run when it is enqueued |
//! | `future` | a fence of a Rust future |
//! | `memory` | memory of the host |
//! | `promise` | a fence that the host settles |

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
