//! What the end waited for: a walk from the end of the recording back to its beginning, at each moment along whatever held up
//! the rest.
//!
//! Unlike the critical path, which knows work alone, this covers the whole time: work, waiting of every cause, and the time
//! that the program itself let pass. Its stretches follow each other without gap, so they sum up to the run time.

use std::collections::HashMap;

use crate::Recording;
use crate::model::{Cause, Culprit, LaneId, Nanos, Operation, OperationId, OperationKind, Stall};

/// A stretch of the walk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Step {
    /// Since when.
    pub from: Nanos,
    /// Until when.
    pub to: Nanos,
    /// What there was.
    pub what: What,
}

/// What a stretch of the walk was spent on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum What {
    /// An operation ran.
    Run(OperationId),
    /// Nothing ran, for this reason.
    Stall(Cause, Culprit),
    /// The program had not submitted it yet.
    Program,
}

/// Walks back; the stretches come in order of time.
pub fn walk(recording: &Recording) -> Vec<Step> {
    let mut walker = Walker::new(recording);
    let last = recording
        .operations
        .iter()
        .filter(|operation| operation.began.is_some() || operation.resumed.is_some())
        .max_by_key(|operation| end(operation, recording.duration));
    if let Some(last) = last {
        walker.at = end(last, recording.duration);
        walker.go(last);
    }
    walker.steps.reverse();
    walker.steps
}

fn end(operation: &Operation, duration: Nanos) -> Nanos {
    let end = match operation.kind {
        OperationKind::Wait | OperationKind::Await | OperationKind::Export => {
            operation.resumed.or(operation.began)
        }
        OperationKind::Operation | OperationKind::Copy | OperationKind::Import => {
            operation.done.or(operation.issued)
        }
    };
    end.unwrap_or(duration)
}

struct Walker<'a> {
    recording: &'a Recording,
    /// The decisive stalls of each operation, in order of time.
    stalls: HashMap<OperationId, Vec<&'a Stall>>,
    /// When each thread came back from a wait, and from which.
    waits: HashMap<LaneId, Vec<(Nanos, OperationId)>>,
    at: Nanos,
    steps: Vec<Step>,
}

impl<'a> Walker<'a> {
    fn new(recording: &'a Recording) -> Self {
        let mut stalls: HashMap<OperationId, Vec<&Stall>> = HashMap::new();
        for stall in recording.stalls.iter().filter(|stall| stall.decisive) {
            stalls.entry(stall.waiter).or_default().push(stall);
        }
        let mut waits: HashMap<LaneId, Vec<(Nanos, OperationId)>> = HashMap::new();
        for operation in &recording.operations {
            if let (Some(lane), Some(resumed)) = (operation.submitter, operation.resumed)
                && resumed > operation.submitted
            {
                waits.entry(lane).or_default().push((resumed, operation.id));
            }
        }
        waits.values_mut().for_each(|waits| waits.sort_unstable());
        Self { recording, stalls, waits, at: 0, steps: Vec::new() }
    }

    fn step(&mut self, from: Nanos, what: What) {
        if from >= self.at {
            return;
        }
        match self.steps.last_mut() {
            Some(last) if last.what == what => last.from = from,
            _ => self.steps.push(Step { from, to: self.at, what }),
        }
        self.at = from;
    }

    fn go(&mut self, from: &'a Operation) {
        let mut current = from;
        // Each turn goes back in time or to an operation that was submitted earlier; the bound is for recordings that lie.
        let mut turns = 2 * self.recording.operations.len() + self.recording.stalls.len() + 16;
        while self.at > 0 && turns > 0 {
            turns -= 1;
            // A stall that covers the time just before.
            let at = self.at;
            let stall = self.stalls.get(&current.id).and_then(|stalls| {
                stalls.iter().rev().find(|stall| stall.from < at && at <= stall.to).copied()
            });
            let Some(stall) = stall else {
                // It ran, or it was not there yet.
                let ran_since = self
                    .stalls
                    .get(&current.id)
                    .and_then(|stalls| stalls.iter().rev().map(|stall| stall.to).find(|to| *to < at));
                let began = ran_since.unwrap_or(0).max(current.submitted);
                if began < at {
                    let waited = matches!(current.kind, OperationKind::Wait | OperationKind::Await);
                    let what =
                        if waited || current.began.is_none() { What::Program } else { What::Run(current.id) };
                    self.step(began, what);
                    continue;
                }
                match self.before(current) {
                    Some(next) => current = next,
                    None => self.step(0, What::Program),
                }
                continue;
            };
            match (stall.cause, stall.culprit) {
                (Cause::Computing | Cause::Queued, Culprit::Operation(id)) if id != current.id => {
                    match self
                        .recording
                        .operation(id)
                        .filter(|earlier| earlier.submitted <= current.submitted)
                    {
                        Some(earlier) => current = earlier,
                        None => self.step(stall.from, What::Stall(stall.cause, stall.culprit)),
                    }
                }
                (cause, culprit) => self.step(stall.from, What::Stall(cause, culprit)),
            }
        }
    }

    /// What its thread did before it submitted `current`: the wait that it had come back from.
    fn before(&mut self, current: &Operation) -> Option<&'a Operation> {
        let waits = self.waits.get(&current.submitter?)?;
        let last = waits.partition_point(|(resumed, _)| *resumed <= current.submitted).checked_sub(1)?;
        let (resumed, id) = waits[last];
        let wait = self.recording.operation(id).filter(|wait| wait.submitted < current.submitted)?;
        self.step(resumed, What::Program);
        Some(wait)
    }
}
