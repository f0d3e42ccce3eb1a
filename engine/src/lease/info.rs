//! What a diagnosis tells of a lease.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use estafette_report::shown::shown;
use estafette_sync::thread::ThreadId;

use crate::core::clock;
use crate::lease::owner::LeaseOwner;
use crate::lease::{Access, LeaseOp};

/// A lease, as it was when somebody looked. In words by `Display`: access, owner and age.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct LeaseInfo {
    /// What the holder may do.
    pub access: Access,
    /// Who took it.
    pub owner: LeaseOwner,
    /// What kind of object the holder has made of the memory, where somebody has [noted](crate::Lease::note_object) it.
    pub object: Option<Arc<str>>,
    /// Time since it was asked for.
    pub age: Duration,
    /// Whether only its holder keeps others waiting. Before that it waits itself, for earlier uses.
    pub held: bool,
    /// Whether the thread that looked has taken it.
    pub own: bool,
    /// The thread that has taken it.
    pub(crate) thread: ThreadId,
}

impl LeaseInfo {
    pub(crate) fn of(label: &LeaseOp) -> Self {
        Self {
            access: label.access,
            owner: label.owner.clone(),
            object: label.object.get().cloned(),
            age: label.since.elapsed(),
            held: label.is_held(),
            own: label.thread == clock::this_thread(),
            thread: label.thread,
        }
    }
}

impl fmt::Display for LeaseInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} lease taken by {}", self.access, self.owner)?;
        if let Some(object) = &self.object {
            write!(f, " for a {}", shown(object))?;
        }
        write!(f, " {:.1?} ago", self.age)
    }
}
