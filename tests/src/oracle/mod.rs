//! Random programs and a sequential oracle.
//!
//! A *program* is a list of operations per submitting thread, drawn from a seed: 2 to 19 accesses of 100
//! cells with duplicates, with priorities, failures, panics and cancels, as synchronous, asynchronous and
//! external bodies.
//!
//! 1. [`World::run`](world::World::run) submits it. Each body folds all that it reads, values and versions,
//!    into a digest whose order matters, and derives what it writes from that. Under its accesses it adds
//!    itself to the log of every cell. So does an operation that is skipped, when its body is dropped: it has
//!    its accesses then. A cancelled one does not.
//! 2. [`replay`](replay::replay) makes one sequence out of the logs: the order of each cell and of each
//!    submitter must be free of circles. In that sequence the sequential oracle runs the program, failures
//!    included, and everything that was observed must be what the oracle says.

pub mod alias;
mod bystander;
mod elsewhere;
pub mod program;
pub mod replay;
mod submitter;
pub mod world;
