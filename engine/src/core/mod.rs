//! State that the handles of one engine share; states of variables and operations; errors; clocks; means to
//! sleep and to wake threads.
//!
//! | part | what it has |
//! |---|---|
//! | `clock` | The cheap answers to "since when" (a clock that takes a few nanoseconds to read and is a few milliseconds coarse) and "by whom", and deadlines |
//! | `coalesced` | Submitting many operations with one wake-up |
//! | `contained` | Values of users whose destructors may do anything |
//! | `context` | Which operation the calling code runs as |
//! | `core_ref` | A counted reference to a core that is copied and dropped without locked instructions, as every operation does twice |
//! | `engine_core` | What all handles of one engine share |
//! | `error` | Errors, sorted by what the caller can do |
//! | `notifier` | An event count: notified whenever something may have changed; waiters check their condition again after each notification |
//! | `one_shot` | A value set once, for any number of waiters: threads that block and tasks that await |
//! | `op_extras` | What only some operations have, behind one pointer that is null for most |
//! | `operation` | State of an operation, and the public handle of an operation |
//! | `own_runtime` | The tokio runtime that an engine makes for its asynchronous bodies |
//! | `per_device` | What is kept for each device |
//! | `unretrieved` | Failures that the program has not retrieved |
//! | `var_state` | State of a variable: the version, its failure, and its pending fences |
//! | `wakers` | Wakers of futures that wait for the same thing |

pub(crate) mod clock;
pub(crate) mod coalesced;
pub(crate) mod contained;
pub(crate) mod context;
pub(crate) mod core_ref;
pub(crate) mod engine_core;
pub(crate) mod error;
pub(crate) mod notifier;
pub(crate) mod one_shot;
pub(crate) mod op_extras;
pub(crate) mod operation;
#[cfg(not(estafette_shuttle))]
pub(crate) mod own_runtime;
pub(crate) mod per_device;
pub(crate) mod unretrieved;
pub(crate) mod var_state;
pub(crate) mod wakers;
