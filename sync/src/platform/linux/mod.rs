//! The form for Linux. See `platform`.
//!
//! | part | what it has |
//! |---|---|
//! | `barrier` | fences by the kernel |
//! | `clock` | clocks of the kernel |
//! | `fork` | forks, noted by a handler of `pthread_atfork` |
//! | `library` | the loader of the C library |
//! | `membarrier` | a fence on every processor that runs a thread of this process |
//! | `memory` | memory from the kernel, and settings of glibc's allocator |
//! | `stack` | the limit of stacks |
//! | `thread` | facts about a thread from the kernel |

pub mod barrier;
pub mod clock;
pub mod fork;
pub mod library;
mod membarrier;
pub mod memory;
pub mod stack;
pub mod thread;
