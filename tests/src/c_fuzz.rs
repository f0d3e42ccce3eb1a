//! Programs of calls of the C interface, read from bytes, and what must hold of them.
//!
//! Any bytes are a program: each call takes what it needs from them and finds zeros at the end. Calls are
//! valid ones and invalid ones (NULL, handles that are over, numbers that mean nothing, structs that are cut
//! short). The model knows what each may return, and counts everything that was given away. At the end
//! everything is released, and must have come back exactly once.

/// A struct of options, or of counters, of the C interface: all bytes zero but the size.
macro_rules! zeroed {
    ($options:ident) => {{
        // SAFETY: numbers and pointers, for which zero is a value.
        let mut zeroed: $options = unsafe { std::mem::zeroed() };
        zeroed.size = size_of::<$options>() as u32;
        zeroed
    }};
}
pub(crate) use zeroed;

mod bytes;
mod foreign_fence;
pub(crate) mod function;
pub(crate) mod managed;
mod program;
pub(crate) mod shared;

pub use bytes::Bytes;
pub use program::{Taken, every_step, run};
