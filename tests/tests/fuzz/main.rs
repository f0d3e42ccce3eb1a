//! Suites that measure or run at random: their kept inputs, and how they judge. The allocator overwrites
//! freed memory, and panics of any thread count, so the tests have a binary of their own.
//!
//! | part | what it has |
//! |---|---|
//! | `c_covers_header` | the fuzzer of the C interface calls each function of the header |
//! | `corpora` | the kept inputs of each fuzz target |
//! | `scale` | how the program of the suite `scale` judges what callgrind has counted |
#![allow(clippy::unwrap_used, reason = "in a test, an unwrap is an assertion")]

mod c_covers_header;
mod corpora;
mod scale;
