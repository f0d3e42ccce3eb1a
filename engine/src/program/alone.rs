//! A run by one thread: the nodes in the order of recording, which respects every dependence.

use super::node::NodeBody;
use super::pace::SharingCheck;
use super::run::Run;
use crate::core::error::BodyResult;
use crate::core::operation::contain_panic;

impl Run {
    /// Runs nodes until none is left, or until `check` finds that they are worth sharing. Returns the number
    /// of nodes that have ended; these are the first nodes.
    pub(super) fn run_alone(&self, mut check: Option<SharingCheck>) -> usize {
        let len = self.plan.len();
        let mut done = 0;
        while done < len {
            let chunk = check.as_ref().map_or(len, SharingCheck::chunk);
            let end = len.min(done + chunk);
            while done < end {
                done = self.run_chunk(done, end);
            }
            if done < len
                && let Some(check) = check.as_mut()
                && check.is_worth_sharing()
            {
                // Helpers may run all the others, and then nothing else measures this run.
                self.plan.pace.measured(done, check.elapsed());
                break;
            }
        }
        done
    }

    /// Runs nodes from `begin` up to `end`, or until a node fails. Returns the number of the first node that
    /// has not run.
    ///
    /// Panics are caught once per chunk, not once per node.
    fn run_chunk(&self, begin: usize, end: usize) -> usize {
        let bodies = &self.plan.bodies;
        let mut at = begin;
        let outcome = contain_panic(|| {
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
        });
        // The node that failed is the last that was called.
        if !matches!(outcome, Ok(Ok(()))) {
            self.returned(number(at - 1), outcome);
        }
        at
    }
}

/// Calls the body of a host node.
#[inline]
pub(super) fn call(body: &NodeBody) -> BodyResult {
    match body {
        NodeBody::Host(body) => body(),
        NodeBody::Device(_) | NodeBody::External(_) => unreachable!("a program with such nodes is issued"),
    }
}

/// Converts an index to the number of a node.
fn number(place: usize) -> u32 {
    u32::try_from(place).expect("an order has fewer than 2^32 nodes")
}
