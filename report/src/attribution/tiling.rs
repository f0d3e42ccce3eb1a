//! Stretches of time that follow each other without gap or overlap.

use crate::model::{Cause, Culprit, Hazard, Nanos, OperationId, Stall};

/// The stalls of one access, made one after the other.
pub(super) struct Tiling<'a> {
    stalls: &'a mut Vec<Stall>,
    waiter: OperationId,
    access: usize,
    at: Nanos,
    pub(super) decisive: bool,
}

impl<'a> Tiling<'a> {
    pub(super) fn new(stalls: &'a mut Vec<Stall>, waiter: OperationId, access: usize, from: Nanos) -> Self {
        Self { stalls, waiter, access, at: from, decisive: false }
    }

    /// Where the next stretch begins.
    pub(super) fn at(&self) -> Nanos {
        self.at
    }

    /// Attributes the time up to `to`; nothing if that has passed.
    pub(super) fn until(&mut self, to: Nanos, cause: Cause, hazard: Option<Hazard>, culprit: Culprit) {
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
            culprit,
            decisive: self.decisive,
        });
        self.at = to;
    }
}
