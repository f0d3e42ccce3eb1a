//! Arrow's C device interface, both ways: an array of it becomes a [`ManagedTensor`], and a managed tensor
//! becomes an array of it. So an Arrow array is imported and exported like any other tensor: validated once,
//! leased, ordered, and released exactly once.
//!
//! A tensor that has a place in Arrow is one-dimensional, without gaps, of a primitive type. An Arrow array
//! that has a place here is of a primitive type and has no nulls; an offset is fine.
//!
//! | file | its one idea |
//! |---|---|
//! | `abi` | the C structs, owned: each is released once, wherever it has been moved |
//! | `format` | element types, as Arrow writes them |
//! | `stream` | the only array of a stream |
//! | `import` | an array becomes a managed tensor |
//! | `export` | a managed tensor becomes an array |

mod abi;
mod export;
mod format;
mod import;
mod stream;

pub use abi::{ArrowDeviceArray, ArrowHostArray, ArrowSchema};
pub use import::Imported;

#[cfg(doc)]
use super::ManagedTensor;
