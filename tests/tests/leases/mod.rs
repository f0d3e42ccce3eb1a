//! Memory that is lent to consumers.
//!
//! | part | what it has |
//! |---|---|
//! | `detached` | operations without a handle |
//! | `guards` | owned guards, and slices of operands |
//! | `held` | leases that are held |
//! | `own_leases` | operations that would wait for a lease of their own operand |
//! | `reports` | what diagnoses and errors say of leases |

mod detached;
mod guards;
mod held;
mod own_leases;
mod reports;
