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
//! | `engine_core` | the state that all handles of one engine share |
//! | `error` | Errors, sorted by what the caller can do |
//! | `notifier` | An event count: notified whenever something may have changed; waiters check their condition again after each notification |
//! | `inputs` | The fences that a replay of a program comes after |
//! | `invalid_tensor` | The error of validation: a field and what is wrong with it |
//! | `lease_info` | access and owner of a lease, and the part of it that a diagnosis reports |
//! | `lost` | Fences for device work that left none |
//! | `one_shot` | A value set once, for any number of waiters: threads that block and tasks that await |
//! | `op_extras` | parts that only some operations have, behind one pointer that is null for most |
//! | `operation` | State of an operation, and the public handle of an operation |
//! | `permit_waiters` | Futures that wait for a permit of the in-flight limit |
//! | `per_device` | values that are kept for each device |
//! | `program_lock` | The lock of an interpreter, which a thread may have where the engine calls a driver |
//! | `runtime` | the executor of an engine's asynchronous bodies |
//! | `unretrieved` | Failures that the program has not retrieved |
//! | `var_state` | State of a variable: the version, its failure, and its pending fences |
//! | `wait_for` | Which running operations are blocked, and on what: the edges of the wait-for graph that no queue knows |
//! | `wakers` | Wakers of futures that wait for the same thing |
//!
//! # Invariants
//!
//! - A process has one graph, for ever (a forked child another one), whatever the number of engines. A tensor
//!   of one engine is ordered in operations of all. Each operation runs in the pool of the engine that it was
//!   submitted to.
//! - The state of a variable changes under its lock. Fences are queried outside of it, since a query may
//!   call a driver, and what is replaced is dropped outside of it, since errors and events are users'.
//! - A failure belongs to a version. A write never looks at the version that it replaces, so it starts a
//!   clean one; an update does, so it is skipped.
//! - A failure is retrieved when the program gets it. A failure that the program never gets is reported
//!   once, where it is dropped (`unretrieved`). A cancellation is no failure.
//! - No lock of the engine is held while user code, a waker, a deleter or Python runs. A user's destructor
//!   that panics unwinds into no thread of the engine (`contained`).
//! - Threads never own an engine. Operations in flight own its core; the end of the last one closes a core
//!   without handles. A thread that used the core keeps its memory a little longer (`core_ref`).
//! - A thread that others rely on ends the process, with a message, when it panics outside of foreign code.
//! - A forked child has its own of every static with a lock. For what it has inherited nothing runs a deleter
//!   or takes a lock: calls are refused, and memory is leaked and counted.

pub(crate) mod clock;
pub(crate) mod coalesced;
pub(crate) mod contained;
pub(crate) mod context;
pub(crate) mod core_ref;
pub(crate) mod engine_core;
pub(crate) mod error;
pub(crate) mod inputs;
pub(crate) mod invalid_tensor;
pub(crate) mod lease_info;
pub(crate) mod lost;
pub(crate) mod notifier;
pub(crate) mod one_shot;
pub(crate) mod op_extras;
pub(crate) mod operation;
pub(crate) mod per_device;
pub(crate) mod permit_waiters;
pub(crate) mod program_lock;
pub(crate) mod runtime;
pub(crate) mod unretrieved;
pub(crate) mod var_state;
pub(crate) mod wait_for;
pub(crate) mod wakers;
