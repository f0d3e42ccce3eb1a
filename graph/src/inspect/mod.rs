//! Questions about a live graph: who waits for whom, and why.
//!
//! | part | what is in it |
//! |---|---|
//! | [`dependents`] | one step along the queues, from an operation to its neighbours |
//! | [`walk`] | everything that some operations wait for, one queue at a time |
//! | [`snapshot`] | a picture of one moment, as plain data |
//! | [`take_snapshot`] | which locks to hold for that picture |

pub(crate) mod dependents;
pub(crate) mod snapshot;
mod take_snapshot;
pub(crate) mod walk;
