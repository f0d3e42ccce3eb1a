//! What Linux has. See `platform`.

pub mod barrier;
pub mod clock;
pub mod fork;
pub mod library;
mod membarrier;
pub mod memory;
pub mod stack;
pub mod thread;
