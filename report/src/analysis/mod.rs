//! Computations on a trace: who waited, for how long, why, and for whom.
//!
//! | module | content |
//! |---|---|
//! | `advice` | changes that would save most time |
//! | `attribution` | one cause and one blocker for every waited nanosecond |
//! | `barrier` | cost of global barriers instead of dependences |
//! | `critical_path` | the longest chain of work, and the slack of all other work |
//! | `diff` | comparison of two reports |
//! | `idle` | times without an active operation |
//! | `matrix` | waiting time per pair of libraries |
//! | `place` | row and time at which each span is drawn |
//! | `roots` | the blocker behind a direct blocker |
//! | `sentences` | stalls as sentences |
//! | `summary` | the report as data |
//! | `walk` | chain of causes from the end of a run back to its start |
//! | `what_if` | duration of a run under changed conditions |

pub(crate) mod advice;
pub mod attribution;
pub mod barrier;
pub mod critical_path;
pub mod diff;
pub(crate) mod idle;
pub mod matrix;
pub(crate) mod place;
pub mod roots;
pub mod sentences;
pub mod summary;
pub mod walk;
pub(crate) mod what_if;
