//! What x86-64 has. See `platform`.

pub mod prefetch;
pub mod ticks;
pub mod valgrind;
