//! Where the time went: reads a recording of an engine and says who waited, for how long, why, and for whom.
//!
//! Everything here works on plain data ([`Trace`]) after the fact. The crate knows no engine, starts no thread and looks
//! at no clock; an engine makes a recording and hands it over, or a reader finds it in a file.
//!
//! | module | its one idea |
//! |---|---|
//! | [`model`] | what was recorded, as plain data |
//! | [`source`] | what was recorded, made one operation at a time |
//! | [`attribution`] | every waited nanosecond gets one cause and one blocker |
//! | [`roots`] | what the blocker was waiting for itself |
//! | [`critical_path`], [`walk`] | the longest chain of work; what the end waited for |
//! | [`barrier`] | what global barriers would have cost |
//! | `what_if`, `advice` | what the run would have taken otherwise; what would help |
//! | [`summary`], [`diff`] | the report as data (and as JSON); two of them compared |
//! | [`terminal`], [`sentences`] | the report for people |
//! | [`budget`] | memory that reading a file may take |
//! | [`shown`] | names in texts for people: shown, never obeyed |
//! | [`html`] | the report as a page to look at |
//! | [`perfetto`], [`chrome`] | files: one that is read back, one for other viewers |
//! | [`file`](mod@file) | files on disk: replaced only by whole ones |

mod advice;
pub mod attribution;
pub mod barrier;
pub mod budget;
pub mod chrome;
pub mod critical_path;
pub mod diff;
mod facts;
pub mod file;
pub mod html;
mod idle;
pub mod matrix;
pub mod model;
pub mod perfetto;
mod place;
pub mod roots;
mod sane;
pub mod sentences;
pub mod shown;
pub mod source;
pub mod summary;
pub mod terminal;
mod text;
pub mod walk;
mod what_if;

pub use model::Trace;
pub use summary::{Report, report};
