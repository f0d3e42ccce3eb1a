//! Access and owner of a lease, and the part of it that a diagnosis reports.

use std::cmp::Reverse;
#[cfg(feature = "nixl")]
use std::collections::BTreeMap;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use estafette_report::shown::shown;
#[cfg(feature = "nixl")]
use estafette_sync::sync::Mutex;
use estafette_sync::sync::OnceLock;
use estafette_sync::thread::ThreadId;

use crate::core::clock::{self, Coarse};
use crate::core::operation::Name;

/// The access that the owner of a lease has to the memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Access {
    /// Read; engine writes wait until the lease ends.
    Read,
    /// Read and write, alone; every other use waits until the lease ends.
    Write,
    /// Untracked: no lease is taken and nothing waits. For code that orders its uses itself.
    Alias,
}

impl std::fmt::Display for Access {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Alias => "alias",
        })
    }
}

/// The owner of a lease: a text and, where known, the library and the line of the program that asked for the
/// lease.
///
/// Clones share the text, so code that takes many leases formats the text once.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct LeaseOwner {
    /// Both fields are one pointer wide: an owner is passed from call to call with every export of a tensor.
    text: Arc<OwnerText>,
    pub(crate) library: Option<&'static &'static str>,
}

#[derive(Clone)]
struct OwnerText {
    /// Made at its first use where the owner is an operation: most views of operations end unseen.
    text: OnceLock<Box<str>>,
    operation: Option<Name>,
    site: Option<CallSite>,
    /// No thread of this process can end the lease.
    is_elsewhere: bool,
    /// Another thread than the one that asks may end the lease.
    is_of_any_thread: bool,
}

impl OwnerText {
    fn of(text: Box<str>) -> Self {
        Self { text: text.into(), operation: None, site: None, is_elsewhere: false, is_of_any_thread: false }
    }

    fn text(&self) -> &str {
        let name = || self.operation.as_ref().map_or("", Name::as_str);
        self.text.get_or_init(|| format!("operation `{}`", shown(name())).into())
    }

    fn parts(&self) -> (&str, Option<&CallSite>, [bool; 2]) {
        (self.text(), self.site.as_ref(), [self.is_elsewhere, self.is_of_any_thread])
    }
}

impl PartialEq for OwnerText {
    fn eq(&self, other: &Self) -> bool {
        self.parts() == other.parts()
    }
}

impl Eq for OwnerText {}

impl Hash for OwnerText {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.parts().hash(state);
    }
}

#[cfg(feature = "nixl")]
estafette_sync::per_process! {
    /// Remarks on processes that have shares in leases, by the owners of the leases and the names of the
    /// processes. Aside from the owners, of which there is one for each lease.
    static REMARKS: Mutex<BTreeMap<(usize, String), String>> = Mutex::new(BTreeMap::new());
}

#[cfg(feature = "links")]
estafette_sync::statics! {
    /// Says in words which processes use what the owner of a lease, a ticket, was given for.
    pub(crate) static USERS: OnceLock<fn(&LeaseOwner) -> String> = OnceLock::new();
}

/// A line of a program.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct CallSite {
    /// Path of the source file.
    pub file: String,
    /// Line in the file, from 1.
    pub line: u32,
    /// The function that contains the line.
    pub function: String,
}

impl CallSite {
    /// As one text of a trace.
    pub(crate) fn to_trace(&self) -> String {
        // A path has no line break if reports of it are to be readable.
        format!("{}\n{}\n{}", self.file, self.line, self.function)
    }
}

impl LeaseOwner {
    /// An operation, for the views that it lends.
    pub(crate) fn of_operation(name: Name) -> Self {
        let text = OwnerText { text: OnceLock::new(), operation: Some(name), ..OwnerText::of("".into()) };
        Self { text: Arc::new(text), library: None }
    }

    /// Says that the lease may go to another thread, such as a consumer behind a channel. Without it, a
    /// blocking wait for the lease fails at once on the thread that asked for the lease: that thread would
    /// wait for itself. With it, the wait goes on, and fails after the lease timeout as one of any other
    /// thread.
    ///
    /// ```
    /// use estafette::{Access, DType, Engine, ExportOptions, lease::LeaseOwner};
    ///
    /// let engine = Engine::builder().workers(1).build()?;
    /// let x = engine.zeros(&[4], DType::F32)?;
    /// let owner = Some(LeaseOwner::from("display").of_any_thread());
    /// let frame = x.export_wait(&ExportOptions { owner, ..Access::Read.into() })?;
    /// let display = std::thread::spawn(move || drop(frame));
    /// engine.op("clear").writes([&x]).run(|[], [mut x]| Ok(x.as_mut_slice::<f32>()?.fill(0.0)))?.wait()?;
    /// display.join().unwrap();
    /// # Ok::<(), estafette::Error>(())
    /// ```
    #[must_use]
    pub fn of_any_thread(mut self) -> Self {
        Arc::make_mut(&mut self.text).is_of_any_thread = true;
        self
    }

    /// Adds the line that asked for the lease.
    #[must_use]
    pub(crate) fn at(mut self, site: CallSite) -> Self {
        Arc::make_mut(&mut self.text).site = Some(site);
        self
    }

    /// The owner is in another process: no thread here waits for itself when it waits for the lease.
    #[cfg(feature = "links")]
    pub(crate) fn elsewhere(mut self) -> Self {
        Arc::make_mut(&mut self.text).is_elsewhere = true;
        self
    }

    /// Sets the remark on process `who`, which has a share in the lease; `None` removes it.
    #[cfg(feature = "nixl")]
    pub(crate) fn remark(&self, who: &str, what: Option<&str>) {
        let key = (Arc::as_ptr(&self.text).addr(), who.to_owned());
        let mut remarks = REMARKS.lock();
        match what {
            Some(what) => drop(remarks.insert(key, what.to_owned())),
            None => drop(remarks.remove(&key)),
        }
    }

    /// Remarks on the owner, each with who it is about.
    #[cfg(feature = "nixl")]
    fn remarks(&self) -> String {
        let owner = Arc::as_ptr(&self.text).addr();
        let remarks = REMARKS.lock();
        let those = remarks.range((owner, String::new())..).take_while(|((of, _), _)| *of == owner);
        those.map(|((_, who), what)| format!("; {who} is {what}")).collect()
    }

    /// True if both are clones of one owner.
    pub(crate) fn same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.text, &other.text) && self.library == other.library
    }

    /// A hash of the owner: the same for all its clones.
    pub(crate) fn slot(&self) -> usize {
        // Allocations are some dozen bytes apart.
        Arc::as_ptr(&self.text).addr() >> 5
    }

    /// The library that the owner belongs to.
    pub(crate) fn library(&self) -> Option<&'static str> {
        self.library.copied()
    }

    /// The line that asked for the lease.
    pub(crate) fn site(&self) -> Option<&CallSite> {
        self.text.site.as_ref()
    }
}

impl From<&str> for LeaseOwner {
    fn from(text: &str) -> Self {
        Self { text: Arc::new(OwnerText::of(text.into())), library: None }
    }
}

impl From<String> for LeaseOwner {
    fn from(text: String) -> Self {
        Self { text: Arc::new(OwnerText::of(text.into())), library: None }
    }
}

impl Deref for LeaseOwner {
    type Target = str;

    fn deref(&self) -> &str {
        self.text.text()
    }
}

impl fmt::Display for LeaseOwner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        shown(self).fmt(f)?;
        #[cfg(feature = "links")]
        if self.text.is_elsewhere
            && let Some(users) = USERS.get()
        {
            f.write_str(&users(self))?;
        }
        #[cfg(feature = "nixl")]
        if self.text.is_elsewhere {
            f.write_str(&self.remarks())?;
        }
        Ok(())
    }
}

impl fmt::Debug for LeaseOwner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&**self, f)
    }
}

/// The engine's record of who asked for a lease, for which access, when, and on which thread.
#[derive(Debug)]
pub(crate) struct LeaseDetails {
    pub(crate) access: Access,
    pub(crate) owner: LeaseOwner,
    /// The kind of object that the owner has made of the memory, once known.
    pub(crate) object: OnceLock<Arc<str>>,
    /// The thread that asked, if the owner is in this process, of one thread, and no operation: any thread
    /// may have run a body, whose views are for others.
    thread: Option<ThreadId>,
    since: Coarse,
}

impl LeaseDetails {
    #[inline(always)]
    pub(crate) fn new(access: Access, owner: LeaseOwner) -> Self {
        let text = &owner.text;
        let is_thread = !text.is_elsewhere && !text.is_of_any_thread && text.operation.is_none();
        let thread = is_thread.then(clock::this_thread);
        Self { access, owner, object: OnceLock::new(), thread, since: Coarse::now() }
    }

    pub(crate) fn since(&self) -> Coarse {
        self.since
    }

    pub(crate) fn info(&self, held: bool) -> LeaseInfo {
        LeaseInfo {
            access: self.access,
            owner: self.owner.clone(),
            object: self.object.get().cloned(),
            age: self.since.elapsed(),
            held,
            own: self.thread == Some(clock::this_thread()),
            thread: self.thread,
        }
    }
}

/// A copy of what the engine knows of a lease. `Display` writes access, owner and age.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct LeaseInfo {
    /// The owner's access.
    pub access: Access,
    /// The owner.
    pub owner: LeaseOwner,
    /// The kind of object that the owner has made of the memory, if noted.
    pub object: Option<Arc<str>>,
    /// Time since the lease was asked for.
    pub age: Duration,
    /// True once the lease is granted and earlier work is done: from then on only its owner keeps others
    /// waiting.
    pub held: bool,
    /// True if the thread that made this copy asked for the lease. False for views that operations lend, and
    /// for an owner of any thread ([`LeaseOwner::of_any_thread`]).
    pub own: bool,
    /// The thread that asked for the lease, if its owner is in this process, of one thread, and no operation.
    pub(crate) thread: Option<ThreadId>,
}

impl LeaseInfo {
    /// All but the age.
    pub(crate) fn without_age(&self) -> String {
        let object = self.object.as_ref().map(|object| format!(" for a {}", shown(object)));
        format!("{} lease taken by {}{}", self.access, self.owner, object.unwrap_or_default())
    }

    pub(crate) fn with_thread(&self) -> String {
        format!("{self}{}", if self.own { " (by this thread)" } else { "" })
    }
}

impl fmt::Display for LeaseInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:.1?} ago", self.without_age(), self.age)
    }
}

/// Clauses that a text lists.
pub(crate) const CLAUSES_MAX: usize = 10;

/// The leases in words, oldest first: those that differ in age alone once, with their number, so that a text
/// of thousands can be read.
pub(crate) fn in_words(leases: &[LeaseInfo]) -> Vec<String> {
    let mut leases: Vec<_> = leases.iter().collect();
    leases.sort_by_key(|lease| Reverse(lease.age));
    let alike = alike(leases, |lease| (lease.without_age(), lease.own));
    let words =
        |(lease, more): &(&LeaseInfo, usize)| format!("{}{}", lease.with_thread(), more_like_it(*more));
    let mut clauses: Vec<_> = alike.iter().take(CLAUSES_MAX).map(words).collect();
    clauses.extend(and_more(&alike));
    clauses
}

/// The first of each kind of item, with the number of further ones of that kind.
pub(crate) fn alike<T, K: Hash + Eq>(
    items: impl IntoIterator<Item = T>,
    kind: impl Fn(&T) -> K,
) -> Vec<(T, usize)> {
    let (mut kinds, mut places) = (Vec::<(T, usize)>::new(), HashMap::<K, usize>::new());
    for item in items {
        match places.entry(kind(&item)) {
            Entry::Occupied(place) => kinds[*place.get()].1 += 1,
            Entry::Vacant(place) => {
                place.insert(kinds.len());
                kinds.push((item, 0));
            }
        }
    }
    kinds
}

pub(crate) fn more_like_it(more: usize) -> String {
    if more == 0 { String::new() } else { format!(" (and {more} more like it)") }
}

/// The number of items whose kinds a text does not list.
pub(crate) fn and_more<T>(alike: &[(T, usize)]) -> Option<String> {
    let rest: usize = alike.iter().skip(CLAUSES_MAX).map(|(_, more)| 1 + more).sum();
    (rest > 0).then(|| format!("and {rest} more"))
}
