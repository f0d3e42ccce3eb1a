//! The trace of a run: plain data that every reader makes and every report is made from.
//!
//! | module | content |
//! |---|---|
//! | `sane` | bounds on the times of a trace that is damaged |
//! | `shown` | escapes for names in texts for people |
//! | `source` | reading of a trace one operation at a time |
//! | `text` | shared strings of a trace |
//! | `trace` | the recorded data, as plain structures |

pub(crate) mod sane;
pub mod shown;
pub mod source;
pub(crate) mod text;
mod trace;

pub use trace::*;
