//! What the examples of Estafette share: adapters between array crates and DLPack, and a ledger that measures.
//!
//! | file | its one idea |
//! |---|---|
//! | [`with_ndarray`] | an ndarray array becomes a DLPack tensor and back, at the same address |
//! | [`with_arrow`] | the same for arrow, whose arrays may own foreign memory |
//! | [`ledger`] | counts crossings, and compares addresses at each of them |
//!
//! An adapter for another array crate looks like these: describe the array by a
//! [`Layout`](estafette::Layout), say who owns the memory, and say how to look into it. That is also where all the
//! `unsafe` of the examples is: array crates cannot know what the engine promises.

pub mod ledger;
pub mod with_arrow;
pub mod with_ndarray;

pub use ledger::{Ledger, Trail};

/// The error of everybody: engine, array crates and runtime each have their own.
pub type Result<T = ()> = std::result::Result<T, estafette::BodyError>;
