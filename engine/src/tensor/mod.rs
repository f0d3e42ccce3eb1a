//! Tensors and variables, and what bodies see of them.
//!
//! | part | what it has |
//! |---|---|
//! | `alias_map` | Which variables order the uses of a piece of memory |
//! | `guards` | Owned access for asynchronous bodies: `'static`, sendable, and the access lasts as long as the guard |
//! | `handle` | Tensors: promise nodes that other libraries can use |
//! | `variable` | Plain variables: order without memory |
//! | `views` | What the body of an operation sees of its operands: borrowed views, typed on use |

pub(crate) mod alias_map;
pub(crate) mod guards;
pub(crate) mod handle;
pub(crate) mod variable;
pub(crate) mod views;

pub use self::guards::{ReadGuard, WriteGuard};
pub use self::handle::TensorState;
