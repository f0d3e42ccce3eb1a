//! Computations on a trace: who waited, for how long, why, and for whom.
//!
//! | module | content |
//! |---|---|
//! | `advice` | changes that would save most time |
//! | `attribution` | one cause and one blocker for every waited nanosecond |
//! | `barrier` | cost of global barriers instead of dependences |
//! | `critical_path` | the longest chain of work, and the slack of all other work |
//! | `diff` | comparison of two reports |
//! | `exchanges` | hand-overs from library to library |
//! | `hand_overs` | hand-overs of device memory that nothing ordered |
//! | `idle` | times without an active operation |
//! | `lock` | owners of the Python lock |
//! | `matrix` | waiting time per pair of libraries |
//! | `merge` | traces of several processes as one |
//! | `place` | row and time at which each span is drawn |
//! | `roots` | the blocker behind a direct blocker |
//! | `sentences` | stalls as sentences |
//! | `summary` | the report as data |
//! | `walk` | chain of causes from the end of a run back to its start |
//! | `what_if` | duration of a run under changed conditions |
//! | `with_graph` | the changes by Estafette in an observed program |

#[cfg(feature = "report")]
pub(crate) mod advice;
pub mod attribution;
#[cfg(feature = "report")]
pub mod barrier;
#[cfg(feature = "report")]
pub mod critical_path;
#[cfg(feature = "report")]
pub mod diff;
#[cfg(feature = "report")]
pub mod exchanges;
#[cfg(feature = "report")]
pub mod hand_overs;
#[cfg(feature = "report")]
pub(crate) mod idle;
#[cfg(feature = "report")]
pub(crate) mod lock;
#[cfg(feature = "report")]
pub mod matrix;
#[cfg(feature = "report")]
pub(crate) mod merge;
#[cfg(feature = "report")]
pub(crate) mod place;
#[cfg(feature = "report")]
pub mod roots;
#[cfg(feature = "report")]
pub mod sentences;
#[cfg(feature = "report")]
pub mod summary;
#[cfg(feature = "report")]
pub mod walk;
#[cfg(feature = "report")]
pub(crate) mod what_if;
#[cfg(feature = "report")]
pub mod with_graph;
