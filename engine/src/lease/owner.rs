//! Who takes a lease.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use estafette_report::shown::shown;

/// Who takes a lease: in words, and as far as is known the library and the line of a program. Clones share the text, so
/// whoever takes many leases formats it once.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct LeaseOwner {
    /// One pointer each: an owner is handed on from call to call whenever a tensor is.
    place: Arc<Place>,
    library: Option<&'static &'static str>,
}

#[derive(Clone, PartialEq, Eq, Hash)]
struct Place {
    text: Box<str>,
    site: Option<CallSite>,
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

impl LeaseOwner {
    /// Adds the library that the owner belongs to: where the name of its package is.
    #[must_use]
    pub fn of_library(mut self, library: Option<&'static &'static str>) -> Self {
        self.library = library;
        self
    }

    /// Adds the line that asked for the lease.
    #[must_use]
    pub fn at(mut self, site: CallSite) -> Self {
        Arc::make_mut(&mut self.place).site = Some(site);
        self
    }

    /// Whether both are clones of one owner.
    pub(crate) fn same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.place, &other.place) && self.library == other.library
    }

    /// The same number for all clones, and for few others.
    pub(crate) fn slot(&self) -> usize {
        // Allocations are some dozen bytes apart.
        Arc::as_ptr(&self.place).addr() >> 5
    }

    /// The library that it belongs to.
    pub fn library(&self) -> Option<&'static str> {
        self.library.copied()
    }

    /// The line that asked for the lease.
    pub fn site(&self) -> Option<&CallSite> {
        self.place.site.as_ref()
    }
}

impl From<&str> for LeaseOwner {
    fn from(text: &str) -> Self {
        Self { place: Arc::new(Place { text: text.into(), site: None }), library: None }
    }
}

impl From<String> for LeaseOwner {
    fn from(text: String) -> Self {
        Self { place: Arc::new(Place { text: text.into(), site: None }), library: None }
    }
}

impl Deref for LeaseOwner {
    type Target = str;

    fn deref(&self) -> &str {
        &self.place.text
    }
}

impl fmt::Display for LeaseOwner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        shown(self).fmt(f)
    }
}

impl fmt::Debug for LeaseOwner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&**self, f)
    }
}
