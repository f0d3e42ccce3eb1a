//! The kept inputs of the fuzz targets.
//!
//! | part | what it has |
//! |---|---|
//! | `c_covers_header` | the fuzzer of the C interface calls each function of the header |
//! | `corpora` | the kept inputs of each target |
#![allow(clippy::unwrap_used, reason = "in a test, an unwrap is an assertion")]

mod c_covers_header;
mod corpora;
