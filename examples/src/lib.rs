//! Code that the examples of Estafette share: a ledger that counts crossings between array crates, and
//! compares addresses at each of them.

#![forbid(unsafe_code)]

pub mod ledger;

pub use ledger::{Ledger, Trail};

/// One error type for the engine, the array crates and the runtime.
pub type Result<T = ()> = std::result::Result<T, estafette::BodyError>;
