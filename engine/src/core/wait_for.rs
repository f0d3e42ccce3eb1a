//! Running operations that are blocked, and what they wait for: the edges of the wait-for graph that no queue
//! knows.
//!
//! An operation whose body waits is running as far as its variables are concerned. Without these edges two
//! operations that wait for each other's results would wait for ever, and an engine full of them would look
//! busy.

use std::collections::{HashMap, HashSet};

use estafette_graph::OpId;
use estafette_sync::sync::Mutex;
use estafette_sync::sync::atomic::{AtomicUsize, Ordering};

use crate::core::context::{self, Current};
use crate::core::engine_core::graph;
use crate::core::error::Error;
use crate::core::operation::OpHandle;

/// The number of operations that may wait inside each other, each for the next one. All of them keep their
/// stacks, and a body that waits for itself without end would take every thread that the engine can start.
/// The bound is that of Python for calls inside each other.
const NESTED_MAX: usize = 1000;

/// Accesses that an inspection at the start of a wait goes through. Most waits find what they need in so many
/// accesses, and the cost is little beside falling asleep.
pub(crate) const NEAR: usize = 256;

/// The target of a blocked operation's wait.
#[derive(Debug, Clone)]
pub(crate) enum On {
    /// The end (or, for queries and leases, the grant) of this operation.
    Op(OpHandle),
    /// The end of any operation of an engine.
    AnyOther,
}

estafette_sync::per_process! {
    /// At most one entry per thread that blocks inside an operation, each with its number.
    static BLOCKED: Mutex<Entries> = Mutex::new(Entries { last: 0, entries: Vec::new() });
    /// Number of entries.
    static COUNT: AtomicUsize = AtomicUsize::new(0);
}

struct Entries {
    last: u64,
    entries: Vec<(u64, Current, On)>,
}

/// Notes, until dropped, that the operation that the calling code runs as is blocked. Outside of operations
/// there is nothing to note: no operation can wait for a thread.
pub(crate) fn register(on: impl FnOnce() -> On) -> Option<Registration> {
    let op = context::current_with_core()?;
    let on = on();
    let mut blocked = BLOCKED.lock();
    blocked.last += 1;
    let number = blocked.last;
    blocked.entries.push((number, op, on));
    COUNT.store(blocked.entries.len(), Ordering::Relaxed);
    Some(Registration(number))
}

/// See [`register`].
pub(crate) struct Registration(u64);

impl Drop for Registration {
    fn drop(&mut self) {
        let mut blocked = BLOCKED.lock();
        let at = blocked.entries.iter().position(|(number, _, _)| *number == self.0);
        let left = at.map(|at| blocked.entries.swap_remove(at));
        COUNT.store(blocked.entries.len(), Ordering::Relaxed);
        drop(blocked);
        // The entry refers to an operation, which is dropped under no lock.
        drop(left);
    }
}

/// The blocked operations, and what each waits for. An operation may block on several threads at once.
pub(crate) fn now() -> HashMap<OpId, Vec<On>> {
    let mut found: HashMap<OpId, Vec<On>> = HashMap::new();
    for (_, op, on) in &BLOCKED.lock().entries {
        found.entry(op.op).or_default().push(on.clone());
    }
    found
}

/// Called before `op` submits another operation.
///
/// # Errors
/// [`Error::WouldDeadlock`] where [`NESTED_MAX`] operations wait inside each other, the last one of them for
/// `op`. The submission is refused, and not the wait for it, since what a refused wait leaves behind would
/// run, and go on.
pub(crate) fn check_nesting(op: OpId) -> Result<(), Error> {
    if COUNT.load(Ordering::Relaxed) < NESTED_MAX {
        return Ok(());
    }
    let mut waiters = HashMap::new();
    for (waiter, on) in now().into_iter().flat_map(|(waiter, on)| on.into_iter().map(move |on| (waiter, on)))
    {
        if let On::Op(target) = on {
            let mut walk = graph().walk::<()>();
            walk.add(&target);
            walk.run(NEAR, |_, _| ());
            waiters.extend(walk.steps().map(|step| (step.id, waiter)));
        }
    }
    if std::iter::successors(Some(op), |op| waiters.remove(op)).nth(NESTED_MAX).is_none() {
        return Ok(());
    }
    Err(Error::WouldDeadlock(format!(
        "{NESTED_MAX} operations wait inside each other, and operation {}, which the last one waits for, submits another; a function that \
         waits for itself needs an end",
        op.get()
    )))
}

/// The blocked operations of an engine.
pub(crate) fn of_core(core: u64) -> HashSet<OpId> {
    BLOCKED.lock().entries.iter().filter(|(_, op, _)| op.core == core).map(|(_, op, _)| op.op).collect()
}
