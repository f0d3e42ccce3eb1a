//! Random steps against an oracle that knows who may run.
//!
//! One thread takes steps that are drawn from a seed: it submits operations, ends them, takes and returns
//! leases, asks and gives up, cancels, adds fences, drops tensors. Nothing else decides when anything
//! happens: a body only hands its [`Completion`](estafette::Completion) over, and the operation is open until
//! a later step ends it.
//!
//! 1. [`model`] is the contract in a few lines: a queue for each variable, whose granted accesses are a
//!    prefix; reads share, writes are alone; fences hold up what comes after them; what was given up is not
//!    there.
//! 2. [`world`] takes each step with the engine and with the model. After each step it waits until everything
//!    that must have begun has begun, and fails when anything has begun, been lent out or been released
//!    that must not be.
//! 3. [`step`] draws steps.
//!
//! Two things may happen sooner or later in the contract, so the model has two answers: what *must* be, and
//! what *may* be. A cancelled operation may give up what it reads at once or when its turn comes; a deleter
//! may wait for the fences of memory that overlaps its own.

pub mod model;
pub mod step;
pub mod world;
