//! Intervals of time that follow each other without gap or overlap.

use crate::model::{Blocker, Cause, Hazard, Nanos, OperationId, Stall};

/// The stalls of one access, made one after the other.
pub(super) struct Tiling<'a> {
    stalls: &'a mut Vec<Stall>,
    waiter: OperationId,
    access: usize,
    at: Nanos,
    pub(super) critical: bool,
}

impl<'a> Tiling<'a> {
    pub(super) fn new(stalls: &'a mut Vec<Stall>, waiter: OperationId, access: usize, from: Nanos) -> Self {
        Self { stalls, waiter, access, at: from, critical: false }
    }

    /// The beginning of the next interval.
    pub(super) fn at(&self) -> Nanos {
        self.at
    }

    /// Attributes the time up to `to`; nothing if that has passed.
    pub(super) fn until(&mut self, to: Nanos, cause: Cause, hazard: Option<Hazard>, blocker: Blocker) {
        if to <= self.at {
            return;
        }
        self.stalls.push(Stall {
            waiter: self.waiter,
            access: self.access,
            from: self.at,
            to,
            cause,
            hazard,
            blocker,
            critical: self.critical,
        });
        self.at = to;
    }
}
