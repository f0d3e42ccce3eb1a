//! Where the time went: reads a trace of an engine and says who waited, for how long, why, and for whom.
//!
//! Everything here works on plain data ([`Trace`]) after the fact. The crate knows no engine, starts no thread and looks
//! at no clock; an engine makes a trace and hands it over, or a reader finds it in a file.
//!
//! The folders are layers; each uses those above it in this table:
//!
//! | module | content |
//! |---|---|
//! | [`model`] | the trace of a run, as plain data |
//! | [`analysis`] | computations on a trace, up to the report as data |
//! | [`format`](mod@format) | files that hold a trace |
//! | [`render`] | the report for people: text for a terminal, a page |

pub mod analysis;
pub mod format;
pub mod model;
pub mod render;

pub use analysis::summary::{Report, report};
pub use analysis::{attribution, barrier, critical_path, diff, matrix, roots, sentences, summary, walk};
pub use format::{budget, chrome, file, perfetto};
pub use model::{Trace, shown, source};
pub use render::{html, terminal};
