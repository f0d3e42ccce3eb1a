//! Behind the direct blocker: what waits for something that waits itself has waited for that one's blocker.

use std::collections::HashMap;

use crate::Trace;
use crate::model::{Blocker, Cause, Hazard, Nanos, OperationId, Stall};

/// Pieces that are followed for one operation; what a longer chain adds stays with its direct blocker.
const PIECES_MAX: usize = 16;

/// An interval of an operation's waiting, and what was at the root of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Root {
    /// The operation that waited.
    pub waiter: OperationId,
    /// Since when.
    pub from: Nanos,
    /// Until when.
    pub to: Nanos,
    /// The cause at the root.
    pub cause: Cause,
    /// Because of whom, at the root.
    pub blocker: Blocker,
    /// The conflict at the root.
    pub hazard: Option<Hazard>,
    /// The operation that it waited for directly, if that is not the blocker.
    pub via: Option<OperationId>,
    /// The access that waited.
    pub access: usize,
    /// The conflict with what it waited for directly.
    pub direct: Option<Hazard>,
}

impl Root {
    /// Its duration.
    pub fn duration(&self) -> Nanos {
        self.to.saturating_sub(self.from)
    }

    fn of(stall: &Stall) -> Self {
        Self {
            waiter: stall.waiter,
            from: stall.from,
            to: stall.to,
            cause: stall.cause,
            blocker: stall.blocker,
            hazard: stall.hazard,
            via: None,
            access: stall.access,
            direct: stall.hazard,
        }
    }
}

/// The roots of all critical stalls. They tile what the stalls do.
pub fn roots(trace: &Trace) -> Vec<Root> {
    let mut all = Vec::new();
    each_wait(trace, |roots| all.extend_from_slice(roots));
    all
}

/// Calls `of` with the roots of each operation that waited, in the order in which the operations were
/// submitted. All of them at once would be dozens for each operation.
pub(crate) fn each_wait(trace: &Trace, mut of: impl FnMut(&[Root])) {
    // Whatever stands in a queue before another one was submitted before it.
    let submitted = |stall: &Stall| Some((trace.operation(stall.waiter)?.submitted, stall.waiter));
    let critical = trace.stalls.iter().filter(|stall| stall.critical);
    let mut stalls: Vec<_> = critical.filter_map(|stall| Some((submitted(stall)?, stall))).collect();
    stalls.sort_by_key(|(submitted, _)| *submitted);
    let mut followed: HashMap<OperationId, usize> = HashMap::new();
    for blocker in stalls.iter().filter_map(|(_, stall)| followed_by(stall)) {
        *followed.entry(blocker).or_default() += 1;
    }
    let mut known: HashMap<OperationId, Vec<Root>> = HashMap::new();
    for wait in stalls.chunk_by(|(one, _), (other, _)| one == other) {
        let mut own = Vec::new();
        for (_, stall) in wait {
            follow(stall, &known, &mut own);
            // Roots that no later stall follows are forgotten.
            if let Some(blocker) = followed_by(stall)
                && let Some(left) = followed.get_mut(&blocker)
            {
                *left -= 1;
                if *left == 0 {
                    known.remove(&blocker);
                }
            }
        }
        of(&own);
        let ((_, waiter), _) = wait[0];
        if followed.get(&waiter).is_none_or(|left| *left == 0) {
            continue;
        }
        if own.len() > PIECES_MAX {
            own.sort_unstable_by_key(|root| std::cmp::Reverse(root.duration()));
            own.truncate(PIECES_MAX);
            own.sort_unstable_by_key(|root| root.from);
        }
        known.insert(waiter, own);
    }
}

/// The operation whose own waiting is at the root of this stall.
fn followed_by(stall: &Stall) -> Option<OperationId> {
    match (stall.cause, stall.blocker) {
        (Cause::Queued, Blocker::Operation(blocker)) if blocker != stall.waiter => Some(blocker),
        _ => None,
    }
}

/// Divides a stall by what its blocker was waiting for meanwhile.
fn follow(stall: &Stall, known: &HashMap<OperationId, Vec<Root>>, into: &mut Vec<Root>) {
    let own = Root::of(stall);
    let Some(blocker) = followed_by(stall) else { return into.push(own) };
    let mut at = stall.from;
    for piece in known.get(&blocker).map(Vec::as_slice).unwrap_or_default() {
        let (from, to) = (piece.from.max(at), piece.to.min(stall.to));
        if from >= to {
            continue;
        }
        if from > at {
            into.push(Root { from: at, to: from, ..own });
        }
        let via = Some(blocker);
        into.push(Root {
            from,
            to,
            cause: piece.cause,
            blocker: piece.blocker,
            hazard: piece.hazard,
            via,
            ..own
        });
        at = to;
    }
    if at < stall.to {
        into.push(Root { from: at, ..own });
    }
}
