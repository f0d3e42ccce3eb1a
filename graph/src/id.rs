//! Names of operations and variables.

use std::fmt;

/// Names an operation within its graph. Unique; ascending for operations submitted by one thread, in batches
/// across threads (so that submitting costs no shared counter).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OpId(u64);

/// Names a variable within its graph. Unique and ascending in order of creation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct VarId(u64);

impl OpId {
    /// An identifier from its number, for example one read from a file.
    pub const fn new(number: u64) -> Self {
        Self(number)
    }

    /// The number, counted from 1.
    pub const fn get(self) -> u64 {
        self.0
    }
}

impl VarId {
    /// An identifier from its number, for example one read from a file.
    pub const fn new(number: u64) -> Self {
        Self(number)
    }

    /// The number, counted from 1.
    pub const fn get(self) -> u64 {
        self.0
    }
}

impl fmt::Display for OpId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "op {}", self.0)
    }
}

impl fmt::Display for VarId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "var {}", self.0)
    }
}
