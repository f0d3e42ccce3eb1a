//! Variables: what order is kept for.
//!
//! | part | what is in it |
//! |---|---|
//! | [`var`] | handles, the variable itself, and its end |
//! | [`lock`] | the word of a variable: its lock, and the flags that are read without the lock |
//! | [`queue`] | the accesses of a variable, in submission order |
//! | [`pin`] | granted reads that are counted and have no operation |
//! | [`collapse`] | many variables become one |
//! | [`retired`] | variables that ended while a lock was held |

pub(crate) mod collapse;
pub(crate) mod lock;
mod pin;
pub(crate) mod queue;
pub(crate) mod retired;
pub(crate) mod var;
