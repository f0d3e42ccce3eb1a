//! Withdrawal: cancelled operations and requests that are no longer needed leave their queues.
//!
//! A dropped or timed-out `ready()`, wait or lease request must delay no other request and leave nothing
//! behind. A request that still waits leaves its queues; a request that was granted ends as any other
//! operation.

use crate::core::operation::{Op, OpHandle};
use crate::operation::cancellation;
use crate::operation::run::{self, ReadyList};
use crate::trace::hooks;

impl Op {
    /// Cancels the operation if it has not begun. Its outputs then carry a failure of kind *cancelled*;
    /// memory that the operation would have updated is untouched. Returns whether the operation was
    /// cancelled; `false` means that the operation has begun or ended.
    ///
    /// This function drops the body and its operands on the calling thread, before it returns. The operation
    /// leaves the queues of variables that it only reads at once. In the queues of variables that it writes,
    /// the operation keeps its place until its turn. So its outputs fail in order: between the versions that
    /// earlier and later writes make. An operation with [`on_skip`](crate::operation::OpBuilder::on_skip)
    /// keeps its place in any case, until that was called.
    pub fn cancel(&self) -> bool {
        if !self.handle.payload().cancel_and_notify(self.handle.id()) {
            return false;
        }
        if self.handle.payload().has_on_skip() || !withdraw_reads(&self.handle) {
            cancellation::register_cancelled(&self.handle);
        }
        true
    }
}

/// Withdraws a waiting operation from its queues, so that its successors may be granted. Returns false, at
/// the cost of one load and without any effect, if the operation was granted or has ended. Does nothing in a
/// forked child.
pub(crate) fn withdraw(op: &OpHandle) -> bool {
    let mut ready = ReadyList::new();
    if !op.withdraw(|granted| ready.push(granted)) {
        return false;
    }
    withdrawn(op, ready);
    true
}

/// Withdraws the reads of a cancelled operation from their queues. Returns true if the operation only read,
/// and so has ended. Otherwise the operation keeps its position among the writers of its outputs.
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
    run::dispatch(ready);
    state.core.notifier.notify();
}
