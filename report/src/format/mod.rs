//! Files: a trace is written to a file and read back.
//!
//! | module | content |
//! |---|---|
//! | `budget` | limit of the memory that reading a file takes |
//! | `chrome` | Chrome JSON, written only |
//! | `facts` | parts of a trace as named values, independent of a file format |
//! | `file` | atomic replacement of files |
//! | `perfetto` | Perfetto traces, written and read back |

pub mod budget;
#[cfg(feature = "report")]
pub mod chrome;
#[cfg(feature = "report")]
pub(crate) mod facts;
pub mod file;
#[cfg(feature = "report")]
pub mod perfetto;
