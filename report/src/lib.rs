//! Where the time went: reads a recording of an engine and says who waited, for how long, why, and for whom.
//!
//! Everything here works on plain data ([`Recording`]) after the fact. The crate knows no engine, starts no thread and looks
//! at no clock; an engine makes a recording and hands it over, or a reader finds it in a file.

pub mod attribution;
pub mod chrome;
mod facts;
pub mod model;
pub mod perfetto;
mod place;

pub use model::Recording;
