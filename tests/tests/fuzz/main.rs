//! The kept inputs of the fuzz targets.
#![allow(clippy::unwrap_used, reason = "in a test, an unwrap is an assertion")]

mod c_covers_header;
mod corpora;
