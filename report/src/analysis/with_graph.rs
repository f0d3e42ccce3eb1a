//! The changes by Estafette in a program that was only observed: the worst waits for other libraries, copies
//! and functions, each with what the run would save if the program went on where it waited.
//!
//! The trace is played again (`what_if`) without the wait. What the program did with the result is not known:
//! the gain is what there is if it needs the result nowhere but where its library hands it over next, or at
//! the end.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::Trace;
use crate::analysis::advice::{WORTH, walked};
use crate::analysis::exchanges::pair;
use crate::analysis::matrix::HOST;
use crate::analysis::sentences::{self, duration};
use crate::analysis::walk::Step;
use crate::analysis::what_if::{Change, TaskGraph, is_observed};
use crate::model::{Nanos, Operation, OperationId, OperationKind};

/// Lines that are tried: the trace is played again for each.
const TRIED: usize = 6;

/// The part of the run that a call has to have waited, to be listed.
const LEAST: Nanos = 1_000;

/// The changes by Estafette; empty for a trace of its own engines.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WithGraph {
    /// By the calls that waited, those that waited longest first.
    pub changes: Vec<GraphChange>,
    /// The saving with all of them.
    pub saves_ns: Nanos,
}

/// The change at one line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GraphChange {
    /// The call that waited, and its line.
    pub call: String,
    /// The target of its wait.
    pub waited_for: String,
    /// The library whose memory or work it waited for; `host` is no known library.
    pub producer: String,
    /// The library for which it waited; `host` is the program itself.
    pub consumer: String,
    /// `no wait`: the program goes on, and the work or the copy runs beside it. `no copy`: both libraries use
    /// the same memory.
    pub change: String,
    /// The number of waits.
    pub count: usize,
    /// Their total time.
    pub waited_ns: Nanos,
    /// The saving.
    pub saves_ns: Nanos,
}

impl GraphChange {
    /// In words.
    pub fn sentence(&self) -> String {
        let times = if self.count == 1 { "once".to_owned() } else { format!("{} times", self.count) };
        let waited = format!("{times}, {}", duration(self.waited_ns));
        let (call, what) = (&self.call, &self.waited_for);
        if self.change == "no copy" {
            return format!(
                "{call} would make no copy ({waited}), as both libraries would use the same memory"
            );
        }
        format!("{call} would not have waited for {what} ({waited})")
    }
}

struct ObservedCall {
    is_copy: bool,
    producer: String,
    consumer: String,
    waited_for: String,
    waits: Vec<OperationId>,
    copies: Vec<OperationId>,
    time: Nanos,
}

impl ObservedCall {
    fn add_to(&self, change: &mut Change) {
        if self.is_copy {
            change.shared.extend(&self.copies);
        } else {
            change.unwaited.extend(&self.waits);
        }
    }

    /// The change at the call of this name, without its saving.
    fn change(&self, name: &str) -> GraphChange {
        GraphChange {
            call: name.to_owned(),
            change: if self.is_copy { "no copy" } else { "no wait" }.to_owned(),
            count: self.waits.len(),
            waited_ns: self.time,
            saves_ns: 0,
            waited_for: self.waited_for.clone(),
            producer: self.producer.clone(),
            consumer: self.consumer.clone(),
        }
    }
}

/// The changes by Estafette in a trace of observe mode, of the changes whose sentences are to be kept.
pub(crate) fn with_graph(trace: &Trace, steps: &[Step], keep: &dyn Fn(&str) -> bool) -> WithGraph {
    if !is_observed(trace) {
        return WithGraph::default();
    }
    let mut calls: Vec<(String, ObservedCall)> = calls(trace).into_iter().collect();
    calls.retain(|(name, call)| keep(&call.change(name).sentence()));
    calls.sort_by(|(a, one), (b, other)| other.time.cmp(&one.time).then_with(|| a.cmp(b)));
    calls.truncate(TRIED);
    calls.retain(|(_, call)| call.time > walked(steps) / LEAST);
    let graph = TaskGraph::of(trace);
    let Some(as_it_was) = graph.as_it_was(walked(steps)).filter(|_| !calls.is_empty()) else {
        return WithGraph::default();
    };
    let saves = |change: &Change| graph.play(change).map_or(0, |played| as_it_was.saturating_sub(played));
    let mut all = Change::default();
    let changes = calls.into_iter().map(|(name, call)| {
        let mut change = Change::default();
        call.add_to(&mut change);
        call.add_to(&mut all);
        GraphChange { saves_ns: saves(&change), ..call.change(&name) }
    });
    let changes = changes.collect();
    WithGraph { changes, saves_ns: saves(&all) }
}

fn calls(trace: &Trace) -> BTreeMap<String, ObservedCall> {
    let library = |operation: &Operation| trace.library(operation.library).unwrap_or(HOST).to_owned();
    let mut calls: BTreeMap<String, ObservedCall> = BTreeMap::new();
    for wait in trace.operations.iter().filter(|operation| operation.kind == OperationKind::Wait) {
        let (Some(resumed), Some(work)) = (wait.resumed, wait.waits_for.and_then(|id| trace.operation(id)))
        else {
            continue;
        };
        // A call that takes from a queue needs what it gets, and a thread that is joined has to end in any
        // order.
        if ["Queue.get", "Thread.join"].contains(&wait.name.as_str()) {
            continue;
        }
        let exchange = pair(trace, work).map(|(from, to)| (from.to_owned(), to.to_owned()));
        let (producer, consumer) = exchange.unwrap_or_else(|| (library(work), library(wait)));
        // So observe mode calls a copy that waited for no work. What goes to the program itself has to be
        // copied.
        let is_copy =
            work.kind == OperationKind::Copy && consumer != HOST && work.name.starts_with("copy from ");
        let call = calls.entry(sentences::name(trace, wait.id)).or_insert_with(|| ObservedCall {
            is_copy,
            producer,
            consumer,
            waited_for: sentences::name(trace, work.id),
            waits: Vec::new(),
            copies: Vec::new(),
            time: 0,
        });
        call.is_copy &= is_copy;
        call.waits.push(wait.id);
        call.copies.push(work.id);
        call.time += resumed.saturating_sub(wait.submitted);
    }
    calls
}

impl WithGraph {
    /// Changes that are worth being listed as advice, and what each saves.
    pub(crate) fn worth(&self, walked: Nanos) -> Vec<(String, Nanos)> {
        let worth = self.changes.iter().filter(|change| change.saves_ns > walked / 100 * WORTH);
        worth
            .map(|change| {
                let how = if change.change == "no copy" {
                    "hand over without a copy"
                } else {
                    "continue without waiting"
                };
                (format!("{how}: {}", change.call), change.saves_ns)
            })
            .collect()
    }
}
