//! A scheduler whose every choice follows from one seed, and which knows the thread that moves the clock.

use std::cell::Cell;
use std::rc::Rc;

use shuttle::scheduler::{Schedule, Scheduler, Task, TaskId};

use super::clock;

/// The thread that moves the clock is the second one of an execution.
const CLOCK: usize = 1;

/// The rate at which time passes while threads can go on: once in so many choices.
const TIME_PASSES: u64 = 512;

/// The rate at which parked threads may wake without a cause beside others: once in so many choices.
const WAKES: u64 = 64;

/// The rate at which a slow thread is chosen beside others: once in so many choices.
const SLOW: u64 = 64;

/// The trace of an execution: equal for two executions if all choices were.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Trace {
    /// Choices made.
    pub steps: u64,
    /// A hash of which thread was chosen at each of them.
    pub hash: u64,
}

/// One execution whose choices follow from a seed. Some seeds let a thread run long before they switch, some
/// make one thread slow: what goes wrong only if a thread stands still in one place for long is not found by
/// choosing evenly.
#[derive(Debug)]
pub struct Seeded {
    dice: u64,
    data: u64,
    switch_once_in: u64,
    slow: Option<usize>,
    clock: Option<TaskId>,
    begun: bool,
    trace: Rc<Cell<Trace>>,
}

impl Seeded {
    /// The execution of `seed`, and where its trace is found afterwards.
    pub fn new(seed: u64) -> (Self, Rc<Cell<Trace>>) {
        let mut dice = seed ^ 0x5eed;
        let switch_once_in = [1, 2, 4, 16, 64][(next(&mut dice) % 5) as usize];
        let slow = next(&mut dice).is_multiple_of(2).then(|| 2 + (next(&mut dice) % 8) as usize);
        let trace = Rc::<Cell<Trace>>::default();
        let clock = Some(TaskId::from(CLOCK));
        (Self { dice, data: !seed, switch_once_in, slow, clock, begun: false, trace: trace.clone() }, trace)
    }

    /// As [`new`](Self::new), for an execution without a thread that moves the clock.
    pub fn without_clock(seed: u64) -> (Self, Rc<Cell<Trace>>) {
        let (scheduler, trace) = Self::new(seed);
        (Self { clock: None, ..scheduler }, trace)
    }

    fn roll(&mut self, sides: u64) -> u64 {
        next(&mut self.dice) % sides
    }

    fn choose(&mut self, runnable: &[&Task], current: Option<TaskId>, yielding: bool) -> TaskId {
        let clock = self.clock;
        // Shuttle offers parked threads as well, since a park may end without a cause. They do not keep the
        // clock from moving.
        let wakes = self.roll(WAKES) == 0;
        let others: Vec<TaskId> = runnable
            .iter()
            .filter(|task| task.runnable() || wakes || clock.is_none())
            .map(|task| task.id())
            .filter(|id| Some(*id) != clock)
            .collect();
        let can_go_on = current.filter(|current| others.contains(current));
        // Other threads would be said to panic as well.
        if let Some(current) = can_go_on.filter(|_| std::thread::panicking()) {
            return current;
        }
        clock::set_idle(others.is_empty());
        let clock = clock.filter(|clock| runnable.iter().any(|task| task.id() == *clock));
        if let Some(clock) = clock
            && (others.is_empty() || self.roll(TIME_PASSES) == 0)
        {
            return clock;
        }
        if let Some(current) = can_go_on.filter(|_| !yielding)
            && self.roll(self.switch_once_in) != 0
        {
            return current;
        }
        let slow = self.slow.map(TaskId::from).filter(|_| self.roll(SLOW) != 0);
        let mut left: Vec<TaskId> = others
            .iter()
            .copied()
            .filter(|id| Some(*id) != slow && !(yielding && Some(*id) == current))
            .collect();
        if left.is_empty() {
            left = others;
        }
        left[self.roll(left.len() as u64) as usize]
    }
}

impl Scheduler for Seeded {
    fn new_execution(&mut self) -> Option<Schedule> {
        if std::mem::replace(&mut self.begun, true) {
            return None;
        }
        clock::reset();
        super::thread::refuse_one_after(None);
        super::TASKS.take();
        Some(Schedule::new(self.data))
    }

    fn next_task(&mut self, runnable: &[&Task], current: Option<TaskId>, yielding: bool) -> Option<TaskId> {
        let chosen = self.choose(runnable, current, yielding);
        let mut trace = self.trace.get();
        trace.steps += 1;
        trace.hash = mix(trace.hash.rotate_left(5) ^ usize::from(chosen) as u64);
        self.trace.set(trace);
        Some(chosen)
    }

    fn next_u64(&mut self) -> u64 {
        next(&mut self.data)
    }
}

/// SplitMix64.
fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    mix(*state)
}

fn mix(value: u64) -> u64 {
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}
