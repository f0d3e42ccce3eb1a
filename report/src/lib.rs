//! Analysis of where the time went: reads a trace of an engine and says which operations waited, for how
//! long, why, and for what.
//!
//! Everything here works on plain data ([`Trace`]) after the fact. The crate knows no engine, starts no
//! thread and looks at no clock; an engine makes a trace and hands it over, or a reader finds it in a file.
//!
//! Without the feature `report`, which is on by default, there is the model and the attribution of stalls,
//! and none of the foreign crates that reports and files need.
//!
//! The folders are layers; each uses those above it in this table:
//!
//! | module | content |
//! |---|---|
//! | [`model`] | the trace of a run, as plain data |
//! | [`analysis`] | computations on a trace, up to the report as data |
//! | [`format`](mod@format) | files that hold a trace |
//! | [`render`] | the report for people: text for a terminal, a page |

#![cfg_attr(not(feature = "report"), allow(dead_code, reason = "what reports and files call"))]

pub mod analysis;
pub mod format;
pub mod model;
#[cfg(feature = "report")]
pub mod render;

pub use analysis::attribution;
#[cfg(feature = "report")]
pub use analysis::merge::merge;
#[cfg(feature = "report")]
pub use analysis::summary::{Report, report, report_about};
#[cfg(feature = "report")]
pub use analysis::{
    barrier, critical_path, diff, exchanges, hand_overs, matrix, roots, sentences, summary, walk, with_graph,
};
pub use format::{budget, file};
#[cfg(feature = "report")]
pub use format::{chrome, perfetto};
pub use model::{Trace, shown, source};
#[cfg(feature = "report")]
pub use render::{csv, html, terminal};
