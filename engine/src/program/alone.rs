//! A run by one thread: the nodes in the order of recording, which respects every dependence.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::node::NodeBody;
use super::pace::SharingCheck;
use super::run::Run;
use crate::core::error::BodyResult;

impl Run {
    /// Runs nodes until none is left, or until `check` finds that they are worth sharing. Gives the number of nodes that
    /// have ended: the first ones.
    pub(super) fn run_alone(&self, mut check: Option<SharingCheck>) -> usize {
        let len = self.plan.len();
        let mut done = 0;
        while done < len {
            let chunk = check.as_ref().map_or(len, SharingCheck::chunk);
            let end = len.min(done + chunk);
            while done < end {
                done = self.run_chunk(done, end);
            }
            if done < len && check.as_mut().is_some_and(SharingCheck::is_worth_sharing) {
                break;
            }
        }
        done
    }

    /// Runs nodes from `begin` until before `end`, or until one fails. Gives where it stopped.
    ///
    /// Panics are caught once per chunk, not once per node.
    fn run_chunk(&self, begin: usize, end: usize) -> usize {
        let bodies = &self.plan.bodies;
        let mut at = begin;
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            if self.failures.is_empty() {
                for body in &bodies[begin..end] {
                    at += 1;
                    call(body)?;
                }
            } else {
                for body in &bodies[begin..end] {
                    at += 1;
                    if !self.skip_if_poisoned(number(at - 1)) {
                        call(body)?;
                    }
                }
            }
            Ok(())
        }));
        // A node that fails is the last one that was called.
        if !matches!(outcome, Ok(Ok(()))) {
            self.returned(number(at - 1), outcome);
        }
        at
    }
}

/// Calls the body of a node that works on the host.
#[inline]
pub(super) fn call(body: &NodeBody) -> BodyResult {
    match body {
        NodeBody::Host(body) => body(),
        NodeBody::Device(_) | NodeBody::External(_) => unreachable!("a program with such nodes is issued"),
    }
}

/// The number of a node in its order.
fn number(place: usize) -> u32 {
    u32::try_from(place).expect("an order has fewer than 2^32 nodes")
}
