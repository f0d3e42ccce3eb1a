//! A trace as a Perfetto trace, and back.
//!
//! The file is an ordinary trace that any tool for Perfetto traces reads: a track per thread and queue, per
//! library and per counter, a slice per body, wait and lease, and a flow along each dependence. What Perfetto
//! has no field for travels as debug annotations of the events, so that the same file holds the whole
//! [`Trace`](crate::Trace).
//!
//! The file is a chain of blocks. Each begins with a synchronization marker, is compressed, and interns its
//! strings anew, so that a reader of a damaged file resumes at the next block.
//!
//! | part | what it has |
//! |---|---|
//! | `blocks` | blocks of packets, compressed |
//! | `damage` | the damage of a file, in words, as far as bounded |
//! | `known` | strings and facts by number, as they are read |
//! | `messages` | Perfetto's messages, with the fields that are used here |
//! | `packets` | a file apart into packets, and the way back after damage |
//! | `read` | reading |
//! | `strings` | strings by number, as they are written |
//! | `sweep` | the events in order of time |
//! | `ties` | stalls and dependences that are attributed as the file is written |
//! | `tracks` | the tracks |
//! | `wire` | protobuf messages where they lie, nothing copied |
//! | `write` | writing |

mod blocks;
mod damage;
mod known;
mod messages;
mod packets;
mod read;
mod strings;
mod sweep;
mod ties;
mod tracks;
mod wire;
mod write;

use std::io;
use std::path::Path;

use super::file;

pub use read::read;
pub use write::{attribute_and_write, write};

/// Refuses a path at which there is a file that is no such trace and not empty, or at which no file can be
/// written.
///
/// # Errors
/// Errors of the system; `AlreadyExists` for a file of another kind.
pub fn check_file(path: &Path) -> io::Result<()> {
    file::check_alike(path, &messages::BLOCK)
}

/// The kinds of events, by their categories.
mod category {
    pub const HEAD: &str = "recording";
    pub const TENSORS: &str = "tensors";
    pub const OPERATION: &str = "operation";
    pub const FREED: &str = "freed";
    pub const LEASE: &str = "lease";
    pub const STALL: &str = "stall";
    pub const EDGES: &str = "edges";
}
