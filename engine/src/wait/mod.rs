//! Readiness, waits that block or are awaited, what they wait for, and deadlocks among them.
//!
//! | part | what it has |
//! |---|---|
//! | `awaits` | Futures of the engine that are pending, and threads that are blocked for long |
//! | `blocking` | Blocking waits: help, then inspect whether the wait can end, then sleep |
//! | `deadlock` | Deadlock detection of waits for room, or for everything to end: can anything still move? |
//! | `diagnose` | Which operation waits for which: a snapshot of everything in flight, in words |
//! | `fence` | Blocking waits for fences: device work, or what another operation settles |
//! | `inspect` | Inspections of the graph: what an operation waits for, and whether any of these blockers can move |
//! | `activity` | The engine while it runs: what is stalled at this moment, and the watchdog that reports long stalls |
//! | `notify` | Notifications without `await`: callbacks, fences for other schedulers, and waits for one of several ends |
//! | `op` | Waits for an operation |
//! | `ready` | Readiness: futures and queries |
//! | `room` | Waits of a whole engine: for room below the in-flight limit, and for the end of everything |
//! | `stand_in` | Threads that run an engine's operations in place of threads that wait and must not run them |
//! | `tensor` | Waits for a tensor |
//! | `watched` | Threads that sleep until something wakes them |
//!
//! # Invariants
//!
//! - Readiness is of the version current at the call: `ready()` is a readiness query in the same queues as
//!   all accesses.
//! - A wait with a timeout, the poll of a future and a callback run no operation. Where there is a worker,
//!   a submission runs none. Code inside `without_helping` runs none at all.
//! - An inspection of what a wait waits for costs in proportion to what it finds, and holds one lock at a
//!   time. A wait inspects at its start, with a limit. Then one thread of the process inspects for all
//!   blocked threads and pending futures, for at most a hundredth of its time for each engine.
//! - Of the threads that wait for room, or for everything to end, one checks for all (`deadlock`).
//! - A wait that can only end in the failure of a cancelled operation ends with it at once.

pub(crate) mod activity;
pub(crate) mod awaits;
pub(crate) mod blocking;
pub(crate) mod deadlock;
pub(crate) mod diagnose;
pub(crate) mod fence;
pub(crate) mod inspect;
pub(crate) mod notify;
mod op;
pub(crate) mod ready;
pub(crate) mod room;
pub(crate) mod stand_in;
mod tensor;
pub(crate) mod watched;

pub use self::activity::{Activity, Stall};
pub use self::diagnose::{Blocker, Diagnosis, OpStatus, Status};
pub use self::ready::{Ready, Writable};
pub use crate::core::context::without_helping;
