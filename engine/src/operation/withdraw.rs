//! Giving up: requests that nothing needs any more leave their queues at once.
//!
//! A dropped or timed-out `ready()`, wait or lease request must keep no other request waiting and leave nothing behind. As long as it
//! waits, it is taken out of its queues; once it is granted, it ends as any other operation does.

use crate::core::operation::OpHandle;
use crate::operation::cancellation;
use crate::operation::run::{self, ReadyList};
use crate::trace::hooks;

/// Takes an operation that waits out of its queues; what waited behind it goes on. False if it is granted or over, which costs
/// one load: then nothing has happened. In a forked child nothing ever happens.
pub(crate) fn withdraw(op: &OpHandle) -> bool {
    let mut ready = ReadyList::new();
    if !cancellation::withdrawing(op, || op.withdraw(|granted| ready.push(granted))) {
        return false;
    }
    withdrawn(op, ready);
    true
}

/// Takes the reads of a cancelled operation out of their queues. True if it only read, so that it is over; else it keeps its place
/// among the writes of its outputs.
pub(crate) fn withdraw_reads(op: &OpHandle) -> bool {
    let mut ready = ReadyList::new();
    let over = op.withdraw_reads(|granted| ready.push(granted));
    if over {
        withdrawn(op, ready);
    } else if !ready.is_empty() {
        run::dispatch(ready);
    }
    over
}

fn withdrawn(op: &OpHandle, ready: ReadyList) {
    let state = op.payload();
    if state.noted {
        hooks::withdrawn(op.id());
    }
    state.done();
    state.count_ended();
    run::dispatch(ready);
    state.core.bell.ring();
}
