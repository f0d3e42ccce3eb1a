//! Operations: their memory, and their way from submission to completion.
//!
//! | part | what is in it |
//! |---|---|
//! | [`block`] | the memory of one operation, with its two counters |
//! | [`access`] | one access to one variable; all accesses of one operation |
//! | [`targets`] | variables and modes, sorted and merged before submission |
//! | [`slab`], [`magazine`] | free blocks: of the graph, and of each thread |
//! | [`pending`] | an operation that is described and not submitted |
//! | [`submit`] | an operation joins the queues of all its variables |
//! | [`op_ref`] | counted references |
//! | [`granted`] | the right to proceed, and its end |
//! | [`completed`] | the work that is left after completion |
//! | [`withdraw`], [`split`] | an operation leaves its queues; a part of its accesses becomes a second operation |

pub(crate) mod access;
pub(crate) mod block;
pub(crate) mod completed;
pub(crate) mod granted;
mod magazine;
pub(crate) mod op_ref;
pub(crate) mod pending;
pub(crate) mod slab;
mod split;
pub(crate) mod submit;
pub(crate) mod targets;
mod withdraw;
