//! A run by several threads, with a counter per node. The protocol is that of
//! [`Countdown`](estafette_graph::program::Countdown).

use std::sync::Arc;

use estafette_graph::program::Countdown;
use estafette_sync::hint;
use estafette_sync::sync::atomic::{AtomicUsize, Ordering};
use estafette_sync::time::Instant;

use super::alone::call;
use super::issue::NodeFences;
use super::plan::Plan;
use super::run::Run;
use crate::core::core_ref::CoreRef;
use crate::core::operation::{Name, ReadyOp, Role, contain_panic};
use crate::operation::bodies::sync_body;
use crate::operation::builder::{Nothing, OpBuilder};
use crate::operation::completion::Scope;
use crate::operation::run;
use crate::trace::hooks;

/// The number of polls of a thread without a node before it leaves. These polls take about as long as the
/// wake-up of a helper, so leaving too early and staying too long cost the same.
const POLLS: usize = 256;

/// A run that helpers may join.
pub(super) struct SharedRun {
    pub(super) run: Run,
    /// `None` only during the drop.
    countdown: Option<Countdown>,
    pub(super) core: CoreRef,
    /// Helpers run on behalf of this scope's operation.
    pub(super) scope: Scope,
    /// Helpers that were invited and have not left.
    helpers: AtomicUsize,
    /// Helpers that were invited and have not begun.
    not_begun: AtomicUsize,
    helpers_max: usize,
    /// Fences that nodes have left, in programs with device nodes.
    pub(super) fences: Option<NodeFences>,
}

/// The first step of a thread that joins the run.
pub(super) enum StartWith {
    /// Any ready node.
    Any,
    /// A parked node whose fences have settled.
    Node(u32),
    /// The successors of a node that has reported its end.
    Ended(u32),
}

/// The number of helpers that may join a run that the calling thread owns. If the owner is a worker, these
/// are the other workers and one thread that waits for the replay. A waiting thread cannot help if bodies
/// need a global lock.
pub(super) fn helpers_max(core: &CoreRef, plan: &Plan) -> usize {
    let workers = core.pool.workers();
    if plan.worker_only && workers > 0 && core.pool.is_worker() { workers - 1 } else { workers }
}

/// Continues a run whose first `done` nodes have ended, as its owner.
pub(super) fn start_shared(run: Run, done: usize, helpers_max: usize, core: &CoreRef, scope: Scope) {
    let countdown = Some(run.plan.countdown(done));
    let core = core.clone();
    let fences = run.plan.issue.is_some().then(|| NodeFences::new(run.plan.len()));
    let (helpers, not_begun) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let shared = Arc::new(SharedRun { run, countdown, core, scope, helpers, not_begun, helpers_max, fences });
    let began = Instant::now();
    shared.invite();
    let (nodes, ended) = shared.work(StartWith::Any);
    shared.run.plan.pace.measured(nodes, ended.saturating_duration_since(began));
}

impl SharedRun {
    fn countdown(&self) -> &Countdown {
        self.countdown.as_ref().expect("present until dropped")
    }

    /// Runs nodes until none is ready. Returns the number of nodes run and the time when the last one ended.
    fn work(self: &Arc<Self>, entry: StartWith) -> (usize, Instant) {
        let mut nodes = 0;
        let mut entry = Some(entry);
        loop {
            let ran = self.run_available(entry.take().unwrap_or(StartWith::Any));
            nodes += ran;
            let ended = Instant::now();
            if ran > 0 && self.countdown().account(ran) {
                let left =
                    self.fences.as_ref().map(|fences| fences.last(&self.run.plan.order, &self.run.earlier));
                self.run.complete(&left.unwrap_or_default());
                self.dismiss_helpers();
                return (nodes, ended);
            }
            if !self.poll_again() {
                return (nodes, ended);
            }
        }
    }

    /// Polls for a ready node.
    fn poll_again(&self) -> bool {
        (0..POLLS).any(|_| {
            hint::spin_loop();
            self.countdown().has_listed()
        })
    }

    /// Runs ready nodes, and successors they release, until none is ready. Returns the number of nodes that
    /// have ended.
    fn run_available(self: &Arc<Self>, entry: StartWith) -> usize {
        let (mut next, mut ran) = match entry {
            StartWith::Any => (self.countdown().take(), 0),
            StartWith::Node(node) => (Some(node), 0),
            StartWith::Ended(node) => (self.release_successors(node), 1),
        };
        while let Some(node) = next {
            if self.run_node(node) {
                ran += 1;
                next = self.release_successors(node);
            } else {
                // The event that ends the node resumes the run.
                next = None;
            }
            next = next.or_else(|| self.countdown().take());
        }
        ran
    }

    /// Lists the ready successors of `node`, except for one, which the caller runs next.
    fn release_successors(self: &Arc<Self>, node: u32) -> Option<u32> {
        let freed = self.countdown().ended(&self.run.plan.order, node);
        if freed.listed > 0 {
            self.invite();
        }
        freed.next
    }

    /// Runs a node. Returns false if the node has not ended: a later event resumes it.
    fn run_node(self: &Arc<Self>, node: u32) -> bool {
        let run = &self.run;
        if let (Some(fences), Some(issue)) = (&self.fences, &run.plan.issue) {
            return self.issue(node, fences, issue);
        }
        if !run.skip_if_poisoned(node) {
            self.call_on_host(node);
        }
        true
    }

    /// Runs a node whose body ends on the host as it returns.
    pub(super) fn call_on_host(&self, node: u32) {
        let run = &self.run;
        run.returned(node, contain_panic(|| call(&run.plan.bodies[node as usize])));
    }

    /// Invites one more helper, if a node is ready and the limit of helpers is not reached. A helper invites
    /// the next one.
    fn invite(self: &Arc<Self>) {
        if self.helpers.load(Ordering::Relaxed) >= self.helpers_max || !self.countdown().has_listed() {
            return;
        }
        let joined = self.helpers.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |helpers| {
            (helpers < self.helpers_max).then_some(helpers + 1)
        });
        if joined.is_err() {
            return;
        }
        self.not_begun.fetch_add(1, Ordering::Relaxed);
        let shared = Arc::clone(self);
        let helper = self.helper().without_waiting().run(move |[], []| {
            shared.help();
            Ok(())
        });
        // At the in-flight limit, or after a shutdown, the run continues without help.
        if helper.is_err() {
            self.not_begun.fetch_sub(1, Ordering::Relaxed);
            self.helpers.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Ends the helpers of a run that is over which no worker has begun: each holds a permit. A worker finds
    /// them in its queue. A waiting thread leaves that to workers, and these may be busy for long with other
    /// operations.
    fn dismiss_helpers(&self) {
        let is_left = |helper: &ReadyOp| helper.0.payload().helped_op() == Some(self.run.op);
        while self.not_begun.load(Ordering::Relaxed) > 0
            && !self.core.pool.is_worker()
            && let Some(helper) = self.core.pool.take_matching(is_left)
        {
            run::execute_one(helper.0);
        }
    }

    fn helper(&self) -> OpBuilder<'_, Nothing, Nothing, ()> {
        let mut helper = OpBuilder::new(&self.core, Name::Static("replay helper"));
        helper.state_mut().set_role(Role::Helper(self.run.op));
        if self.run.plan.worker_only { helper.worker_only() } else { helper }
    }

    /// The body of a helper. A late helper finds no node.
    fn help(self: &Arc<Self>) {
        self.not_begun.fetch_sub(1, Ordering::Relaxed);
        self.scope.make_current(|| {
            self.invite();
            self.work(StartWith::Any);
        });
        self.helpers.fetch_sub(1, Ordering::Relaxed);
        // Nodes may have been listed while all helpers were present.
        self.invite();
    }

    /// Resumes the run on a worker, since the calling thread may be any thread. The replay holds a permit, so
    /// its helper needs none and is never refused.
    pub(super) fn resume(self: &Arc<Self>, entry: StartWith) {
        let shared = Arc::clone(self);
        let mut helper = self.helper().target.pending_op;
        helper.payload_mut().set_body(sync_body(((), (), ()), move |(), (), ()| {
            shared.scope.make_current(|| shared.work(entry));
            Ok(())
        }));
        if helper.payload().noted {
            hooks::submitted(&helper);
        }
        // The helper uses no variable, so it is granted at once.
        helper.submit_unreferenced().into_iter().for_each(run::push);
    }
}

impl Drop for SharedRun {
    fn drop(&mut self) {
        // The last thread has left, so the next run may use the countdown.
        if let Some(countdown) = self.countdown.take() {
            self.run.plan.recycle(countdown);
        }
    }
}
