//! Tensors and variables, and what bodies see of them.
//!
//! | part | what it has |
//! |---|---|
//! | `alias_map` | Which variables order the uses of a piece of memory |
//! | `handle` | Tensors: promise nodes that other libraries can use |
//! | `memory` | Fresh memory of a device, and whether the host can use memory |
//! | `variable` | Plain variables: order without memory |
//! | `views` | views of operands in the body of an operation: borrowed, typed on use |
//!
//! # Invariants
//!
//! - Tensors with overlapping memory share a variable, or are in one group of variables, whichever handle an
//!   operation uses.
//! - Layout and memory of a tensor are set once: at its creation, or by the operation that produces it.
//! - The host reaches memory of a tensor by views alone. A view is made in the scope of a granted operation,
//!   or under a lease.

pub(crate) mod alias_map;
pub(crate) mod handle;
pub(crate) mod memory;
pub(crate) mod variable;
pub(crate) mod views;

pub use self::handle::TensorState;
