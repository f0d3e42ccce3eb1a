//! Names of operations and variables.

use std::fmt;

macro_rules! numbers {
    ($($(#[$doc:meta])* $name:ident, shown as $shown:literal;)+) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(u64);

        impl $name {
            /// An identifier from its number, for example one read from a file.
            pub const fn new(number: u64) -> Self {
                Self(number)
            }

            /// The number, counted from 1.
            pub const fn get(self) -> u64 {
                self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($shown, " {}"), self.0)
            }
        }
    )+};
}

numbers! {
    /// Names an operation within its graph. Unique; ascending for operations submitted by one thread, in
    /// batches across threads (so that submitting costs no shared counter).
    OpId, shown as "op";
    /// Names a variable within its graph. Unique and ascending in order of creation.
    VarId, shown as "var";
}
