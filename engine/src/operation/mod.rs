//! Operations: from their description over submission and body to completion.
//!
//! | part | what it has |
//! |---|---|
//! | `active` | What is under way behind a scope: an operation, or a node of a replay |
//! | `bodies` | The bodies of operations: closures that own the operands, run the user's code, and complete |
//! | `body` | The body of an operation, kept inside the operation itself where it is small |
//! | `builder` | Describing operations |
//! | `cancellation` | Telling waiters at once that what they wait for will never come |
//! | `completion` | Operations that end elsewhere: the token that says how, and the views it lends out meanwhile |
//! | `disjoint` | Refusing an operation whose body would see memory twice that it writes: in Rust, views are slices |
//! | `operands` | The tensors of an operation, in a form whose number the compiler checks |
//! | `own_leases` | Refusing an operation that would wait for the lease that one of its own operands keeps |
//! | `permits` | Permits |
//! | `produce` | Submitting operations whose result becomes a tensor |
//! | `run` | Running granted operations: settle what their variables still carry, run the body, complete, hand on |
//! | `submit` | Submitting operations |
//! | `submit_permit` | Submission in two steps, for callers that give something away after the last error |
//! | `withdraw` | Giving up: requests that nothing needs any more leave their queues at once |

pub(crate) mod active;
pub(crate) mod bodies;
pub(crate) mod body;
pub(crate) mod builder;
pub(crate) mod cancellation;
pub(crate) mod completion;
pub(crate) mod disjoint;
pub(crate) mod operands;
pub(crate) mod own_leases;
pub(crate) mod permits;
pub(crate) mod produce;
pub(crate) mod run;
pub(crate) mod submit;
pub(crate) mod submit_permit;
pub(crate) mod withdraw;
