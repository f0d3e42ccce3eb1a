//! A run by several threads, on counters. The protocol between them is that of
//! [`Countdown`](estafette_graph::replay::Countdown).

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Instant;

use estafette_graph::replay::Countdown;
use estafette_sync::hint;
use estafette_sync::sync::atomic::{AtomicUsize, Ordering};

use super::run::Run;
use crate::builder::OpBuilder;
use crate::completion::Scope;
use crate::core_ref::CoreRef;
use crate::operation::Name;

/// How often a thread that finds nothing to run looks again before it leaves. This takes about as long as it takes to
/// wake a helper up, so leaving too early and staying too long cost the same at worst.
const LOOKS: usize = 256;

/// A run that others may join.
struct Shared {
    run: Run,
    /// `None` only while this is dropped.
    countdown: Option<Countdown>,
    core: CoreRef,
    /// Runs helpers as the operation that they help with.
    scope: Scope,
    /// Helpers that were invited and have not left.
    helpers: AtomicUsize,
    helpers_max: usize,
}

/// How many helpers may join a run that the calling thread owns.
pub(super) fn helpers_max(core: &CoreRef) -> usize {
    let workers = core.pool.workers();
    if workers > 0 && core.pool.is_worker() { workers - 1 } else { workers }
}

/// Goes on with a run whose first `done` nodes have ended, as the thread that owns it.
pub(super) fn go_on(run: Run, done: usize, helpers_max: usize, core: &CoreRef, scope: Scope) {
    let countdown = Some(run.plan.countdown(done));
    let core = core.clone();
    let shared = Arc::new(Shared { run, countdown, core, scope, helpers: AtomicUsize::new(0), helpers_max });
    let began = Instant::now();
    shared.invite();
    let (nodes, ended) = shared.work();
    shared.run.plan.pace.measured(nodes, ended.saturating_duration_since(began));
}

impl Shared {
    fn countdown(&self) -> &Countdown {
        self.countdown.as_ref().expect("present until dropped")
    }

    /// Runs nodes until there are none to take. Gives how many, and when the last one ended.
    fn work(self: &Arc<Self>) -> (usize, Instant) {
        let mut nodes = 0;
        loop {
            let ran = self.run_available();
            nodes += ran;
            let ended = Instant::now();
            if ran > 0 && self.countdown().account(ran) {
                self.run.complete();
                return (nodes, ended);
            }
            if !self.look_again() {
                return (nodes, ended);
            }
        }
    }

    /// Looks for something to take for a while.
    fn look_again(&self) -> bool {
        (0..LOOKS).any(|_| {
            hint::spin_loop();
            self.countdown().has_listed()
        })
    }

    /// Runs what can be taken and what that lets go, one after the other. Gives how many nodes.
    fn run_available(self: &Arc<Self>) -> usize {
        let mut ran = 0;
        while let Some(taken) = self.countdown().take() {
            let mut next = Some(taken);
            while let Some(node) = next {
                self.run_node(node);
                ran += 1;
                let freed = self.countdown().ended(&self.run.plan.order, node);
                if freed.listed > 0 {
                    self.invite();
                }
                next = freed.next;
            }
        }
        ran
    }

    fn run_node(&self, node: u32) {
        let run = &self.run;
        if run.leave_out_doomed(node) {
            return;
        }
        match catch_unwind(AssertUnwindSafe(|| run.plan.bodies[node as usize]())) {
            Ok(Ok(())) => {}
            Ok(Err(error)) => run.node_failed(node, error),
            Err(panic) => run.node_panicked(node, panic),
        }
    }

    /// Invites one more helper, if there is something to run and room for one. That one invites the next.
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
        let shared = Arc::clone(self);
        let helper = OpBuilder::new(&self.core, Name::Static("replay helper")).try_run(move |[], []| {
            shared.help();
            Ok(())
        });
        // A full window, or a shutdown: the run goes on without help.
        if helper.is_err() {
            self.helpers.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// The body of a helper. One that comes too late finds nothing to take.
    fn help(self: &Arc<Self>) {
        self.scope.enter(|| {
            self.invite();
            self.work();
        });
        self.helpers.fetch_sub(1, Ordering::Relaxed);
        // What was listed just now may have found every helper present.
        self.invite();
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // The last thread has left: the next run may have the countdown.
        if let Some(countdown) = self.countdown.take() {
            self.run.plan.recycle(countdown);
        }
    }
}
