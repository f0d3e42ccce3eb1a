//! The form for x86-64. See `platform`.
//!
//! | part | what it has |
//! |---|---|
//! | `prefetch` | cache prefetches |
//! | `ticks` | the time stamp counter |
//! | `valgrind` | client requests of valgrind |

pub mod prefetch;
pub mod ticks;
pub mod valgrind;
