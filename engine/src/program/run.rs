//! One run of a program, from grant to completion.

use std::sync::Arc;

use estafette_devices::Fence;
use estafette_graph::OpId;
use estafette_sync::sync::Mutex;

use super::failures::Failures;
use super::pace::SharingCheck;
use super::plan::Plan;
use super::{graph, shared};
use crate::core::core_ref::CoreRef;
use crate::core::error::{BodyResult, OperationError};
use crate::core::inputs::{Earlier, Inputs};
use crate::core::operation::OpTag;
use crate::operation::completion::Completion;

/// State that the threads of one run share.
pub(super) struct Run {
    pub(super) plan: Arc<Plan>,
    pub(super) failures: Failures,
    pub(super) op: OpId,
    /// False if the engine reports no failures: that of one node is the replay's, and those of others are
    /// dropped.
    reports: bool,
    /// Fences that root nodes (no predecessors) wait for, in programs whose nodes wait for fences themselves.
    pub(super) earlier: Earlier,
    /// Taken by the thread that accounts for the last node.
    completion: Mutex<Option<Completion>>,
}

/// Runs `plan` as the operation of `completion`. The body of a replay.
pub(super) fn start(plan: Arc<Plan>, core: &CoreRef, inputs: Option<&Inputs>, completion: Completion) {
    if let Some(graph) = &plan.graph {
        return graph::start(&plan, graph, core, completion);
    }
    let scope = completion.scope().clone();
    let op = OpId::new(completion.scope().id());
    let earlier = inputs.map(Inputs::take).unwrap_or_default();
    let completion = Mutex::new(Some(completion));
    let reports = core.failures.reports;
    let run = Run { plan, failures: Failures::default(), op, reports, earlier, completion };
    let plan = &run.plan;
    let helpers = shared::helpers_max(core, plan);
    if let Some(issue) = &plan.issue
        && plan.len() > 0
    {
        let helps = issue.shares && !plan.chain && !plan.pace.is_short();
        return shared::start_shared(run, 0, if helps { helpers } else { 0 }, core, scope);
    }
    let done = if helpers == 0 || plan.chain {
        run.run_alone(None)
    } else if plan.pace.is_short() {
        run.run_alone(Some(SharingCheck::start()))
    } else {
        0
    };
    if done == plan.len() {
        run.complete(&[]);
    } else {
        shared::start_shared(run, done, helpers, core, scope);
    }
}

impl Run {
    /// Returns true, and passes the failure on, if `node` is skipped because an input has failed.
    pub(super) fn skip_if_poisoned(&self, node: u32) -> bool {
        let poisoned = self.failures.is_poisoned(node);
        if poisoned {
            self.failures.poison_readers(&self.plan.order, node);
        }
        poisoned
    }

    /// Notes how the body of `node` returned.
    pub(super) fn returned(&self, node: u32, outcome: Result<BodyResult, String>) {
        match outcome {
            Ok(Ok(())) => {}
            Ok(Err(error)) => self.failed(node, self.tag(node).body_failure(error)),
            Err(panic) => self.failed(node, self.tag(node).panic_failure(panic)),
        }
    }

    pub(super) fn failed(&self, node: u32, failure: OperationError) {
        if !self.reports {
            failure.fate().retrieve();
        }
        self.failures.note(&self.plan.order, node, failure);
    }

    /// Ends the operation. `left` marks the device work of the nodes. Called once, after the last node.
    pub(super) fn complete(&self, left: &[Fence]) {
        let completion = self.completion.lock().take();
        let completion = completion.expect("one thread accounts for the last node");
        completion.conclude_after(left, self.failures.outcome());
    }

    /// A node has its own name and the id of its replay, since the graph knows no nodes.
    pub(super) fn tag(&self, node: u32) -> OpTag {
        OpTag { name: self.plan.names[node as usize].clone(), id: self.op }
    }
}
