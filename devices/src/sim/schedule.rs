//! The deterministic core of the simulated device: what is enqueued, what waits for what, and what happens
//! next. No thread, no lock, no clock but the virtual one; foreign code and subscribers are handed out to be
//! called elsewhere.
//!
//! # Commands
//! Everything enqueued is a *command*: a task, a wait, or a mark. A command knows how many others it still
//! waits for (`missing`) and which others wait for it (`dependents`).
//!
//! | command | waits for |
//! |---|---|
//! | anything on an in-order queue | the command before it |
//! | a wait | also the command of the fence, on another queue |
//! | a task on an out-of-order queue | the unfinished waits enqueued before it |
//! | a mark (out-of-order queues only) | the mark before it and everything enqueued since |
//!
//! Waits and marks end when they can start. A task goes into a heap of completions, ordered by time and then
//! by a number drawn from the seed, unless the script holds it.

use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap};
use std::sync::Arc;

use crate::fence::waiting::Ready;
use crate::{Clock, DeviceError, Fence, QueueClock, QueueId};

use super::command::{Command, CommandId, CommandKind, QueueKind, QueueState, Work};
use super::device::SimOptions;
use super::mark::SimMark;
use super::script::Script;
use super::timeline::SimTimeline;
use super::timing::SimTiming;
use super::trace::{Trace, TraceEvent, TraceKind};

/// A task that completes now: the caller runs its work under no lock and then calls [`Schedule::finish`].
pub(super) struct Completing {
    pub(super) command: CommandId,
    /// The effect, or the fault that the script has for this task.
    pub(super) work: Result<Work, DeviceError>,
}

/// Calls that follow a change, under no lock.
#[derive(Default)]
pub(super) struct Effects {
    pub(super) ready: Vec<Ready>,
    /// Work that will never run, to be dropped.
    pub(super) dropped: Vec<Work>,
}

/// Everything that one device has to do.
pub(super) struct Schedule {
    pub(super) now_ns: u64,
    pub(super) script: Script,
    pub(super) trace: Trace,
    latency_ns: u64,
    jitter_ns: u64,
    queues: HashMap<QueueId, QueueState>,
    commands: HashMap<CommandId, Command>,
    next_entry: u64,
    /// (time, number drawn from the seed, command).
    completions: BinaryHeap<Reverse<(u64, u64, CommandId)>>,
    /// Tasks that have run their time and are held by the script.
    held: Vec<CommandId>,
}

impl Schedule {
    pub(super) fn new(options: &SimOptions) -> Self {
        Self {
            now_ns: 0,
            script: Script::new(options.seed),
            trace: Trace::default(),
            latency_ns: options.latency_ns,
            jitter_ns: options.jitter_ns,
            queues: HashMap::new(),
            commands: HashMap::new(),
            next_entry: 0,
            completions: BinaryHeap::new(),
            held: Vec::new(),
        }
    }

    /// Adds a queue: in-order with a timeline, out-of-order without.
    pub(super) fn add_queue(&mut self, id: QueueId, timeline: Option<Arc<SimTimeline>>) {
        let clock = QueueClock::new(id, timeline.is_some());
        let kind = match timeline {
            Some(timeline) => QueueKind::InOrder(timeline),
            None => QueueKind::OutOfOrder { waits: Vec::new(), last_mark: None, marks: 0 },
        };
        let pending = BTreeMap::new();
        let timings = Vec::new();
        let state = QueueState { clock, failure: None, pending, enqueued: 0, timings, closed: false, kind };
        self.queues.insert(id, state);
    }

    /// The last handle of a queue is gone. What is enqueued goes on.
    pub(super) fn close_queue(&mut self, id: QueueId) {
        if let Some(state) = self.queues.get_mut(&id) {
            state.closed = true;
        }
        self.remove_if_finished(id);
    }

    /// True if a queue belongs to this schedule and has something unfinished, or may get it.
    pub(super) fn has_queue(&self, id: QueueId) -> bool {
        self.queues.contains_key(&id)
    }

    pub(super) fn check(&self, queue: QueueId) -> Result<(), DeviceError> {
        self.queue_state(queue).failure.clone().map_or(Ok(()), Err)
    }

    pub(super) fn clock_covers(&self, queue: QueueId, fence: &Fence) -> bool {
        self.queue_state(queue).clock.covers(fence)
    }

    /// Enqueues a task on a queue that has not failed.
    pub(super) fn launch(
        &mut self,
        queue: QueueId,
        name: Cow<'static, str>,
        duration_ns: u64,
        work: Work,
        effects: &mut Effects,
    ) {
        self.trace.push(TraceEvent { at_ns: self.now_ns, queue, kind: TraceKind::Launched(name.clone()) });
        let waits = match &self.queue_state(queue).kind {
            QueueKind::InOrder(_) => Vec::new(),
            QueueKind::OutOfOrder { waits, .. } => waits.clone(),
        };
        let kind = CommandKind::Task { name, duration_ns, work: Some(work) };
        let command = self.add(queue, kind, &waits);
        let timings = self.queue_state(queue).timings.clone();
        timings.iter().for_each(|timing| timing.enqueued());
        if let Some(command) = self.commands.get_mut(&command) {
            command.timings = timings;
        }
        self.start_if_ready(command, effects);
    }

    /// Measures what is enqueued on a queue until its next record.
    pub(super) fn time(&mut self, queue: QueueId) -> Arc<SimTiming> {
        let timing = Arc::<SimTiming>::default();
        self.queue_state_mut(queue).timings.push(Arc::clone(&timing));
        timing
    }

    /// A queue is recorded: measurements begun so far do not cover commands enqueued from here on.
    pub(super) fn end_timing(&mut self, queue: QueueId) {
        self.queue_state_mut(queue).timings.clear();
    }

    /// Makes what comes later on a queue wait for `fence`, whose command is `target` (`None` when it has
    /// finished and the host does not know yet).
    pub(super) fn wait(
        &mut self,
        queue: QueueId,
        target: Option<CommandId>,
        fence: &Fence,
        effects: &mut Effects,
    ) {
        let command = self.add(queue, CommandKind::Wait, target.as_slice());
        let state = self.queue_state_mut(queue);
        if let QueueKind::OutOfOrder { waits, .. } = &mut state.kind {
            waits.push(command);
        }
        state.clock.note_wait(fence);
        if let (Some(on), Some(sequence)) = (fence.queue(), fence.sequence()) {
            let kind = TraceKind::Waited { on, sequence };
            self.trace.push(TraceEvent { at_ns: self.now_ns, queue, kind });
        }
        self.start_if_ready(command, effects);
    }

    /// Makes what comes later on a queue wait for everything that is enqueued on any queue.
    pub(super) fn wait_for_all(&mut self, queue: QueueId, effects: &mut Effects) {
        let others = self.queues.iter().filter(|&(&id, _)| id != queue);
        let mut targets: Vec<_> = others.flat_map(|(_, state)| state.pending.values().copied()).collect();
        targets.sort_unstable();
        let command = self.add(queue, CommandKind::Wait, &targets);
        self.start_if_ready(command, effects);
    }

    /// The fence of an in-order queue: its timeline, the number of the newest command, and its clock.
    pub(super) fn point(&self, queue: QueueId) -> Option<(Arc<SimTimeline>, u64, Clock)> {
        let state = self.queue_state(queue);
        match &state.kind {
            QueueKind::InOrder(timeline) => Some((timeline.clone(), state.enqueued, state.clock.snapshot())),
            QueueKind::OutOfOrder { .. } => None,
        }
    }

    /// Enqueues a mark: on an out-of-order queue, or for a fence without a number. Returns the mark, its
    /// number among the marks, and the clock.
    pub(super) fn mark(
        &mut self,
        queue: QueueId,
        mark: impl FnOnce(CommandId) -> SimMark,
        effects: &mut Effects,
    ) -> (Arc<SimMark>, u64, Clock) {
        let mark = Arc::new(mark(CommandId(self.next_entry)));
        let state = self.queue_state(queue);
        let previous = match &state.kind {
            QueueKind::OutOfOrder { last_mark, .. } => *last_mark,
            QueueKind::InOrder(_) => None,
        };
        let since = previous.map_or(0, |(_, number)| number);
        let targets: Vec<_> = state.pending.range(since..).map(|(_, &command)| command).collect();
        let command = self.add(queue, CommandKind::Mark(mark.clone()), &targets);
        let state = self.queue_state_mut(queue);
        let number = state.enqueued;
        let mut sequence = 0;
        if let QueueKind::OutOfOrder { last_mark, marks, .. } = &mut state.kind {
            *last_mark = Some((command, number));
            *marks += 1;
            sequence = *marks;
        }
        let clock = state.clock.snapshot();
        self.start_if_ready(command, effects);
        (mark, sequence, clock)
    }

    pub(super) fn unfinished(&self, queue: QueueId, number: u64) -> Option<CommandId> {
        self.queues.get(&queue)?.pending.get(&number).copied()
    }

    /// The time at which the next task completes; `None` when none will without a call from outside.
    pub(super) fn next_due_ns(&self) -> Option<u64> {
        self.completions.peek().map(|&Reverse((due_ns, ..))| due_ns)
    }

    pub(super) fn unfinished_tasks(&self) -> usize {
        self.commands.values().filter(|command| matches!(command.kind, CommandKind::Task { .. })).count()
    }

    /// The next task that completes at `until_ns` or before; virtual time moves there.
    pub(super) fn pop_due(&mut self, until_ns: u64) -> Option<Completing> {
        while self.next_due_ns().is_some_and(|due_ns| due_ns <= until_ns) {
            let Some(Reverse((due_ns, _, id))) = self.completions.pop() else { break };
            self.now_ns = self.now_ns.max(due_ns);
            // Entries of failed queues are gone.
            let Some(command) = self.commands.get_mut(&id) else { continue };
            let CommandKind::Task { name, work, .. } = &mut command.kind else { continue };
            if self.script.held.contains(&**name) {
                self.held.push(id);
                continue;
            }
            let work = match self.script.fault_of(name) {
                Some(error) => Err(error),
                None => Ok(work.take().expect("a task completes once")),
            };
            return Some(Completing { command: id, work });
        }
        None
    }

    /// The work of a task has run, and everything that waited for it goes on; or it has failed, and its queue
    /// with it.
    pub(super) fn finish(
        &mut self,
        command: CommandId,
        outcome: Result<(), DeviceError>,
        effects: &mut Effects,
    ) {
        let Some(queue) = self.commands.get(&command).map(|command| command.queue) else { return };
        match outcome {
            Ok(()) => self.complete(command, effects),
            Err(error) => self.fail(queue, &error.with_queue(queue), effects),
        }
    }

    pub(super) fn release(&mut self, name: &str) -> bool {
        let released = self.script.held.remove(name);
        let held = std::mem::take(&mut self.held);
        for id in held {
            match self.commands.get(&id).map(|command| &command.kind) {
                Some(CommandKind::Task { name: task, .. }) if task == name => {
                    let tie = self.script.draw();
                    self.completions.push(Reverse((self.now_ns, tie, id)));
                }
                Some(_) => self.held.push(id),
                None => {}
            }
        }
        released
    }

    /// Fails every queue, as when a device is lost.
    pub(super) fn fail_everything(&mut self, error: &DeviceError, effects: &mut Effects) {
        let mut queues: Vec<_> = self.queues.keys().copied().collect();
        queues.sort_unstable();
        queues.into_iter().for_each(|queue| self.fail(queue, error, effects));
    }

    /// Fails a queue and everything that waits for its commands: a failed queue completes nothing more.
    pub(super) fn fail(&mut self, queue: QueueId, error: &DeviceError, effects: &mut Effects) {
        let mut poisoned = vec![queue];
        while let Some(queue) = poisoned.pop() {
            let Some(state) = self.queues.get_mut(&queue).filter(|state| state.failure.is_none()) else {
                continue;
            };
            state.failure = Some(error.clone());
            let pending = std::mem::take(&mut state.pending);
            if let QueueKind::InOrder(timeline) = &state.kind {
                timeline.fail(error, &mut effects.ready);
            }
            let kind = TraceKind::Failed(error.message().to_owned());
            self.trace.push(TraceEvent { at_ns: self.now_ns, queue, kind });
            for id in pending.into_values() {
                let Some(command) = self.commands.remove(&id) else { continue };
                poisoned
                    .extend(command.dependents.iter().filter_map(|id| Some(self.commands.get(id)?.queue)));
                match command.kind {
                    CommandKind::Task { work, .. } => effects.dropped.extend(work),
                    CommandKind::Mark(mark) => settle_mark(&mark, &Err(error.clone()), effects),
                    CommandKind::Wait => {}
                }
            }
            self.remove_if_finished(queue);
        }
    }

    /// Adds a command that waits for `targets` (those that are unfinished) and for what its queue demands.
    fn add(&mut self, queue: QueueId, kind: CommandKind, targets: &[CommandId]) -> CommandId {
        let id = CommandId(self.next_entry);
        self.next_entry += 1;
        let state = self.queue_state_mut(queue);
        state.enqueued += 1;
        let number = state.enqueued;
        let before = match state.kind {
            QueueKind::InOrder(_) => state.pending.last_key_value().map(|(_, &command)| command),
            QueueKind::OutOfOrder { .. } => None,
        };
        state.pending.insert(number, id);
        let mut missing = 0;
        for target in targets.iter().chain(&before) {
            if let Some(command) = self.commands.get_mut(target) {
                command.dependents.push(id);
                missing += 1;
            }
        }
        let (dependents, timings) = (Vec::new(), Vec::new());
        self.commands.insert(id, Command { queue, number, kind, missing, dependents, timings });
        id
    }

    fn start_if_ready(&mut self, command: CommandId, effects: &mut Effects) {
        if self.commands.get(&command).is_some_and(|command| command.missing == 0) {
            self.start(command, effects);
        }
    }

    /// Starts a command; waits and marks complete at once, and with them what waited for them.
    fn start(&mut self, id: CommandId, effects: &mut Effects) {
        let Some(command) = self.commands.get(&id) else { return };
        let CommandKind::Task { name, duration_ns, .. } = &command.kind else {
            return self.complete(id, effects);
        };
        let (name, duration_ns, queue) = (name.clone(), *duration_ns, command.queue);
        command.timings.iter().for_each(|timing| timing.began(self.now_ns));
        self.trace.push(TraceEvent { at_ns: self.now_ns, queue, kind: TraceKind::Started(name) });
        let jitter_ns = match self.jitter_ns {
            0 => 0,
            most => self.script.draw() % most.saturating_add(1),
        };
        let takes_ns = duration_ns.saturating_add(self.latency_ns).saturating_add(jitter_ns);
        let tie = self.script.draw();
        self.completions.push(Reverse((self.now_ns.saturating_add(takes_ns), tie, id)));
    }

    /// Completes a command, and every wait and mark that becomes possible by it. Iterative: chains may be
    /// long.
    fn complete(&mut self, first: CommandId, effects: &mut Effects) {
        let mut completed = vec![first];
        while let Some(id) = completed.pop() {
            let Some(command) = self.commands.remove(&id) else { continue };
            let (queue, number, at_ns) = (command.queue, command.number, self.now_ns);
            let state = self.queue_state_mut(queue);
            state.pending.remove(&number);
            command.timings.iter().for_each(|timing| timing.ended(at_ns));
            match &mut state.kind {
                QueueKind::InOrder(timeline) => timeline.reach(number, &mut effects.ready),
                QueueKind::OutOfOrder { waits, .. } => waits.retain(|&wait| wait != id),
            }
            match command.kind {
                CommandKind::Task { name, .. } => {
                    self.trace.push(TraceEvent { at_ns, queue, kind: TraceKind::Completed(name) });
                }
                CommandKind::Mark(mark) => settle_mark(&mark, &Ok(()), effects),
                CommandKind::Wait => {}
            }
            for dependent in command.dependents {
                let Some(command) = self.commands.get_mut(&dependent) else { continue };
                command.missing -= 1;
                if command.missing > 0 {
                    continue;
                }
                match command.kind {
                    CommandKind::Task { .. } => self.start(dependent, effects),
                    CommandKind::Wait | CommandKind::Mark(_) => completed.push(dependent),
                }
            }
            self.remove_if_finished(queue);
        }
    }

    fn remove_if_finished(&mut self, queue: QueueId) {
        if self.queues.get(&queue).is_some_and(|state| state.closed && state.pending.is_empty()) {
            self.queues.remove(&queue);
        }
    }

    fn queue_state(&self, queue: QueueId) -> &QueueState {
        self.queues.get(&queue).expect("a queue stays in the schedule while it has handles or commands")
    }

    fn queue_state_mut(&mut self, queue: QueueId) -> &mut QueueState {
        self.queues.get_mut(&queue).expect("a queue stays in the schedule while it has handles or commands")
    }
}

fn settle_mark(mark: &SimMark, outcome: &Result<(), DeviceError>, effects: &mut Effects) {
    effects.ready.extend(mark.host_event.settle(outcome));
}
