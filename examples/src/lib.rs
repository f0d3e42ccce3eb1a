//! Code that the examples of Estafette share: adapters between array crates and DLPack, and a ledger that
//! measures.
//!
//! | part | contents |
//! |---|---|
//! | [`with_ndarray`] | an ndarray array becomes a DLPack tensor and back, at the same address |
//! | [`with_arrow`] | the same for arrow, whose arrays may own foreign memory |
//! | [`ledger`] | counts crossings, and compares addresses at each of them |
//!
//! An adapter for another array crate has the same three parts: describe the array by a
//! [`Layout`](estafette::Layout), name the owner of the memory, and make a view of it. All `unsafe` code of
//! the examples is in the adapters, because array crates cannot know what the engine guarantees.

pub mod ledger;
pub mod with_arrow;
pub mod with_ndarray;

pub use ledger::{Ledger, Trail};

/// One error type for the engine, the array crates and the runtime.
pub type Result<T = ()> = std::result::Result<T, estafette::BodyError>;
