//! Operations that may run and wait for fences on the host: what their inputs' device work, imports or
//! promises are.
//!
//! The reactor alone knows of them otherwise. An operation is in the table from its parking until the reactor
//! restarts it.

use std::collections::HashMap;

use estafette_devices::FenceSet;
use estafette_graph::OpId;
use estafette_sync::sync::Mutex;

/// Fences that a diagnosis names for each operation.
const NAMED_MAX: usize = 3;

estafette_sync::per_process! {
    /// Held for as long as it takes to add, remove or copy an entry.
    static PARKED: Mutex<Option<HashMap<OpId, FenceSet>>> = Mutex::new(None);
}

/// `op` waits for `fences`.
pub(crate) fn note(op: OpId, fences: &FenceSet) {
    let fences = fences.clone();
    let replaced = PARKED.lock().get_or_insert_default().insert(op, fences);
    drop(replaced);
}

/// `op` is restarted.
pub(crate) fn forget(op: OpId) {
    let removed = PARKED.lock().as_mut().and_then(|parked| parked.remove(&op));
    drop(removed);
}

/// The pending fences that `op` waits for, in words; `None` if there is none.
pub(crate) fn fences_of(op: OpId) -> Option<String> {
    let fences = PARKED.lock().as_ref()?.get(&op)?.clone();
    pending_in_words(&fences)
}

/// Those of `fences` that are pending, in words; `None` if there is none. A driver may be asked, so the caller
/// holds no lock.
pub(crate) fn pending_in_words(fences: &FenceSet) -> Option<String> {
    let pending: Vec<_> = fences.iter().filter(|fence| fence.state().is_pending()).collect();
    if pending.is_empty() {
        return None;
    }
    let named = pending.iter().take(NAMED_MAX).map(|fence| format!("{fence:?} on {}", fence.device()));
    let more = pending.len().saturating_sub(NAMED_MAX);
    let more = (more > 0).then(|| format!("{more} more"));
    Some(named.chain(more).collect::<Vec<_>>().join(", "))
}
