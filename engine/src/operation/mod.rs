//! Operations: from the description over submission and body to completion.
//!
//! | part | contents |
//! |---|---|
//! | `builder` | a description of work: operands, variables and options of an operation or of a program's node |
//! | `operands` | the tensors of an operation, in a form whose number the compiler checks |
//! | `disjoint` | the check that no memory which a body writes reaches the body twice |
//! | `own_leases` | the check that no operation waits for the lease that one of its own operands keeps |
//! | `permits` | the permits of the in-flight limit |
//! | `submit` | submission of operations |
//! | `produce` | submission of operations whose result becomes a tensor |
//! | `body` | storage for a body, inside the operation where the body is small |
//! | `bodies` | the bodies: closures that own the operands, run the user's code, and complete the operation |
//! | `run` | running of granted operations: wait for fences, run the body, complete, dispatch successors |
//! | `parked` | operations that may run and wait for fences on the host, for diagnoses |
//! | `guards` | owned access for asynchronous bodies: `'static`, sendable, and the access lasts as long as the guard |
//! | `query` | readiness queries that are granted |
//! | `caller_runs` | threads that wait or submit, and run ready operations meanwhile |
//! | `import` | tensors in memory from outside and from Rust, and results of operations |
//! | `completion` | operations that end elsewhere: the completion, and the scope that lends operands |
//! | `active` | the active task behind a scope: an operation, or a node of a replay |
//! | `cancellation` | propagation of a cancellation to waiters, before the operation leaves its queues |
//! | `withdraw` | requests that end before they are granted, and leave their queues at once |
//!
//! # Invariants
//!
//! - In steady state an operation allocates nothing on the heap. Beside the graph it costs at most two
//!   locked instructions: its handle's, and one to leave the deque that it waited in.
//! - The end of an operation takes out only fences that it replaces: a fence that is added while a body
//!   runs stays for later operations and for the deleter.
//! - Only the engine makes grants, and views are made only with a grant.
//! - An operation that waits for the lease of its own operand is refused (`own_leases`).
//! - An operation that is given up before its grant leaves its queues at once. A cancelled one drops its
//!   body at once and keeps its places among the writes of its outputs.
//! - Whatever may cancel an operation has a reference from before its grant. An operation without
//!   references begins with a plain store.

pub(crate) mod active;
pub(crate) mod bodies;
pub(crate) mod body;
pub(crate) mod builder;
pub(crate) mod caller_runs;
pub(crate) mod cancellation;
pub(crate) mod completion;
pub(crate) mod disjoint;
pub(crate) mod guards;
pub(crate) mod import;
pub(crate) mod operands;
pub(crate) mod own_leases;
pub(crate) mod parked;
pub(crate) mod permits;
pub(crate) mod produce;
pub(crate) mod query;
pub(crate) mod run;
pub(crate) mod submit;
pub(crate) mod withdraw;

pub use self::builder::{Description, OpBuilder, ResultOptions};
pub use self::guards::{ReadGuard, WriteGuard};
pub use self::import::Copying;
pub use self::operands::{IntoOperands, Operands, Tensors};
pub use crate::core::error::OperationError;
pub use crate::core::unretrieved::{Unretrieved, on_unretrieved};
