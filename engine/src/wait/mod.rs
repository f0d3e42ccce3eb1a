//! Readiness, waits that block or are awaited, what they wait for, and deadlocks among them.
//!
//! | part | what it has |
//! |---|---|
//! | `awaits` | Futures of the engine that are pending, and threads that are blocked for long |
//! | `blocking` | Blocking waits: help, then look whether the wait can end, then sleep |
//! | `deadlock` | Can anything still move? What a wait checks before it goes on waiting for room, or for everything to end |
//! | `diagnose` | Who waits for whom: a picture of everything in flight, in words |
//! | `inspect` | Looks at the graph: what an operation waits for, and whether any of that can move |
//! | `activity` | The engine while it runs: what is stalled at this moment, and who is told when that lasts |
//! | `notify` | Telling those who cannot await: callbacks, and fences for other schedulers |
//! | `ready` | Readiness: futures and queries |
//! | `stand_in` | Threads that run an engine's operations in place of threads that wait and must not run them |
//! | `wait_for` | Which running operations are blocked, and on what: the edges of the wait-for graph that no queue knows |
//! | `watched` | Threads that sleep until something wakes them |

pub(crate) mod activity;
pub(crate) mod awaits;
pub(crate) mod blocking;
pub(crate) mod deadlock;
pub(crate) mod diagnose;
pub(crate) mod inspect;
pub(crate) mod notify;
pub(crate) mod ready;
pub(crate) mod stand_in;
pub(crate) mod wait_for;
pub(crate) mod watched;
