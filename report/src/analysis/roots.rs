//! Behind the direct blocker: what waits for something that waits itself has waited for that one's blocker.

use std::collections::HashMap;

use crate::Trace;
use crate::model::{Blocker, Cause, Hazard, Nanos, OperationId, Stall};

/// Pieces that are followed for one operation; what a longer chain adds stays with its direct blocker.
const PIECES_MAX: usize = 16;

/// A stretch of an operation's waiting, and what was at the root of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Root {
    /// The operation that waited.
    pub waiter: OperationId,
    /// Since when.
    pub from: Nanos,
    /// Until when.
    pub to: Nanos,
    /// Why, at the root.
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
    /// How long it lasted.
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
    let mut of_waiter: HashMap<OperationId, Vec<&Stall>> = HashMap::new();
    for stall in trace.stalls.iter().filter(|stall| stall.critical) {
        of_waiter.entry(stall.waiter).or_default().push(stall);
    }
    // Whatever stands in a queue before another one was submitted before it.
    let mut order: Vec<(Nanos, OperationId)> =
        trace.operations.iter().map(|operation| (operation.submitted, operation.id)).collect();
    order.sort_unstable();
    let mut known: HashMap<OperationId, Vec<Root>> = HashMap::new();
    let mut all = Vec::new();
    for (_, id) in order {
        let Some(stalls) = of_waiter.get(&id) else { continue };
        let mut own = Vec::new();
        for stall in stalls {
            follow(stall, &known, &mut own);
        }
        all.extend(own.iter().copied());
        if own.len() > PIECES_MAX {
            own.sort_unstable_by_key(|root| std::cmp::Reverse(root.duration()));
            own.truncate(PIECES_MAX);
            own.sort_unstable_by_key(|root| root.from);
        }
        known.insert(id, own);
    }
    all
}

/// Divides a stall by what its blocker was waiting for meanwhile.
fn follow(stall: &Stall, known: &HashMap<OperationId, Vec<Root>>, into: &mut Vec<Root>) {
    let own = Root::of(stall);
    let blocker = match (stall.cause, stall.blocker) {
        (Cause::Queued, Blocker::Operation(blocker)) if blocker != stall.waiter => blocker,
        _ => return into.push(own),
    };
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
