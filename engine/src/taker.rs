//! Who takes a lease, in words.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

/// Who takes a lease. The text is shared, so whoever takes many leases formats it once.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Taker(Arc<str>);

impl From<&str> for Taker {
    fn from(text: &str) -> Self {
        Self(text.into())
    }
}

impl From<String> for Taker {
    fn from(text: String) -> Self {
        Self(text.into())
    }
}

impl Deref for Taker {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Taker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Taker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}
