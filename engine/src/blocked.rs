//! Which running operations are blocked, and on what: the edges of the wait-for graph that no queue knows.
//!
//! An operation whose body waits is running as far as its variables are concerned. Without these edges two operations
//! that wait for each other's results would wait for ever, and a window full of them would look busy.

use std::collections::{HashMap, HashSet};
use std::sync::PoisonError;

use estafette_graph::{OpId, Snapshot};
use estafette_sync::sync::{Mutex, MutexGuard};

use crate::context::{self, Current};

/// What a blocked operation waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum On {
    /// The end (or, for probes and leases, the grant) of this operation.
    Op(OpId),
    /// That any operation of an engine ends.
    AnyOther,
}

estafette_sync::statics! {
    /// At most one entry per thread that blocks inside an operation.
    static BLOCKED: Mutex<Vec<(Current, On)>> = Mutex::new(Vec::new());
}

fn lock() -> MutexGuard<'static, Vec<(Current, On)>> {
    BLOCKED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Notes, until dropped, that the operation that the calling code runs as is blocked. Outside of operations there is
/// nothing to note: nobody can wait for a thread.
pub(crate) fn enter(on: On) -> Option<Entered> {
    let op = context::current_with_core()?;
    lock().push((op, on));
    Some(Entered { op, on })
}

/// See [`enter`].
pub(crate) struct Entered {
    op: Current,
    on: On,
}

impl Drop for Entered {
    fn drop(&mut self) {
        let mut blocked = lock();
        if let Some(at) = blocked.iter().position(|&entry| entry == (self.op, self.on)) {
            blocked.swap_remove(at);
        }
    }
}

/// Who is blocked now. An operation may block on several threads at once.
pub(crate) fn now() -> HashMap<OpId, Vec<On>> {
    let mut found: HashMap<OpId, Vec<On>> = HashMap::new();
    for &(op, on) in lock().iter() {
        found.entry(op.op).or_default().push(on);
    }
    found
}

/// The blocked operations of an engine.
pub(crate) fn of_core(core: u64) -> HashSet<OpId> {
    lock().iter().filter(|(op, _)| op.core == core).map(|(op, _)| op.op).collect()
}

/// Whether the end of `waiting` needs the end of `op`, by way of queues and of blocked operations.
pub(crate) fn leads_to<D>(snapshot: &Snapshot<D>, waiting: OpId, op: OpId) -> bool {
    let blocked = now();
    let mut needed = HashSet::from([waiting]);
    needed.extend(snapshot.ancestors(waiting));
    loop {
        let targets: Vec<OpId> = blocked
            .iter()
            .filter(|(blocked, _)| needed.contains(blocked))
            .flat_map(|(_, on)| on)
            .filter_map(|on| match on {
                On::Op(target) if !needed.contains(target) => Some(*target),
                On::Op(_) | On::AnyOther => None,
            })
            .collect();
        if targets.is_empty() {
            return needed.contains(&op);
        }
        for target in targets {
            needed.insert(target);
            needed.extend(snapshot.ancestors(target));
        }
    }
}
