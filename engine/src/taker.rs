//! Who takes a lease.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

/// Who takes a lease: in words, and as far as is known the library and the line of a program. Clones share the text, so
/// whoever takes many leases formats it once.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Taker {
    text: Arc<str>,
    library: Option<&'static str>,
    site: Option<Arc<CallSite>>,
}

/// A line of a program.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct CallSite {
    /// Path of the source file.
    pub file: String,
    /// Line in it, from 1.
    pub line: u32,
    /// The function it is in.
    pub function: String,
}

impl Taker {
    /// Adds the library that the taker belongs to, by the name of its package.
    #[must_use]
    pub fn of_library(mut self, library: Option<&'static str>) -> Self {
        self.library = library;
        self
    }

    /// Adds the line that asked for the lease.
    #[must_use]
    pub fn at(mut self, site: CallSite) -> Self {
        self.site = Some(Arc::new(site));
        self
    }

    /// The library that it belongs to.
    pub fn library(&self) -> Option<&'static str> {
        self.library
    }

    /// The line that asked for the lease.
    pub fn site(&self) -> Option<&CallSite> {
        self.site.as_deref()
    }
}

impl From<&str> for Taker {
    fn from(text: &str) -> Self {
        Self { text: text.into(), library: None, site: None }
    }
}

impl From<String> for Taker {
    fn from(text: String) -> Self {
        Self { text: text.into(), library: None, site: None }
    }
}

impl Deref for Taker {
    type Target = str;

    fn deref(&self) -> &str {
        &self.text
    }
}

impl fmt::Display for Taker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl fmt::Debug for Taker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.text, f)
    }
}
