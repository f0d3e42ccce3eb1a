//! Whole engines in one thread of the system, where one seed decides everything: the program, the schedule,
//! the clock, and what goes wrong.
//!
//! The programs are those of the [oracle](crate::oracle), with work that fences mark, with bystanders, and
//! with memory that is imported again and again. Threads are shuttle's, and so are locks and atomics, through
//! `estafette-sync`; its [`Seeded`] scheduler chooses who goes on, and its clock moves when no thread can, or
//! at times of the scheduler's choosing. So an execution is the same each time, and can be run again with
//! parts left out: a failure is [shortened](shorten) to the operations that it needs.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::{Arc, Mutex, Once, PoisonError};
use std::time::Duration;

use estafette::devices::sim::{SimNotify, SimOptions, SimPace};
use estafette_sync::simulated::scheduler::{Seeded, Trace};
use estafette_sync::simulated::thread::refuse_one_after;
use estafette_sync::simulated::{clock, drop_at_the_end};
use shuttle::{Config, FailurePersistence, MaxSteps, Runner};

use crate::dice::{Dice, mix};
use crate::nothing_left::assert_nothing_left;
use crate::oracle::program::{BodyKind, Fate, ImportWait, OpIndex, Plan, Shape};
use crate::oracle::replay::{Counts, replay};
use crate::oracle::world::{World, draw_plans};
use crate::watchdog;

/// Simulated time after which a program hangs. Leases may hold it up for half a minute.
const LIMIT: Duration = Duration::from_secs(600);

/// Choices of the scheduler after which a program does not end. The longest ones need a tenth.
const STEPS_MAX: usize = 3_000_000;

/// Bytes of stack of each thread.
const STACK: usize = 1 << 18;

/// Executions that a failure may be shortened by.
const TRIES_MAX: usize = 300;

/// Result of an execution. Equal if everything in it was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Execution {
    pub trace: Trace,
    /// The values that the bodies have read, as one number.
    pub digest: u64,
    pub counts: Counts,
    /// The simulated time that it took.
    pub took: Duration,
}

/// The reason that an execution failed, and how it is run again.
#[derive(Debug, Clone)]
pub struct Failure {
    /// Source of everything that was drawn.
    pub seed: u64,
    /// The operations that were kept of the program.
    pub kept: Vec<OpIndex>,
    pub message: String,
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let kept: Vec<String> = self.kept.iter().map(OpIndex::to_string).collect();
        let (shape, plans) = program(self.seed);
        writeln!(f, "{}", self.message)?;
        writeln!(f, "{shape:?}")?;
        for op in &self.kept {
            writeln!(f, "{op}: {:?}", plans[*op])?;
        }
        writeln!(f, "run it again:")?;
        write!(
            f,
            "  ESTAFETTE_SEED={} ESTAFETTE_KEEP={} cargo xtask test --suite simulation",
            self.seed,
            kept.join(",")
        )
    }
}

/// The program of `seed`: small, so that little happens beside what matters, with few cells, so that much
/// meets.
pub fn program(seed: u64) -> (Shape, Vec<(usize, Plan)>) {
    let mut dice = Dice::new(mix(seed) ^ 0x0051_0000);
    let workers = dice.pick(&[0, 1, 1, 2, 2, 3]);
    let in_flight_limit = dice.pick(&[2, 4, 64, 64]);
    let mut shape = Shape {
        seed,
        submitters: 1 + dice.roll(3),
        workers,
        engines: if workers == 0 { 1 } else { dice.pick(&[1, 1, 2]) },
        in_flight_limit,
        tensors: 1 + dice.roll(4),
        variables: dice.roll(3),
        operations: 4 + dice.roll(20),
        faults: !dice.once_in(3),
        gated: in_flight_limit == 64 && dice.once_in(3),
        fences: dice.once_in(2),
        bystanders: dice.roll(3),
        accesses: 2 + dice.roll(3),
        device: None,
        breaks: false,
        write_leases: false,
        refused: dice.once_in(4).then(|| dice.roll(4) as u32),
    };
    let breaks = shape.faults && dice.once_in(3);
    if dice.once_in(2) {
        shape.device = Some(SimOptions {
            seed,
            latency_ns: dice.pick(&[0, 1_000, 100_000]),
            jitter_ns: dice.pick(&[0, 50_000]),
            notify: dice.pick(&[SimNotify::Push, SimNotify::Poll]),
            pace: dice.pick(&[SimPace::Immediate, SimPace::RealTime]),
            ..SimOptions::default()
        });
        shape.breaks = breaks;
    }
    shape.write_leases = !shape.faults && dice.once_in(2);
    let [aliases, lates, replays] = [(); 3].map(|()| dice.once_in(2));
    let mut plans = draw_plans(&shape);
    for (_, plan) in &mut plans {
        plan.spins = 0;
        plan.wait = dice.once_in(6);
        let plain = plan.updates.is_empty() && plan.fate == Fate::Well && plan.body != BodyKind::Fenced;
        if plain && shape.device.is_some() && dice.once_in(3) {
            plan.body = BodyKind::Device;
        } else if plain && replays && !shape.faults && dice.once_in(3) {
            plan.body = BodyKind::Replay { device: shape.device.is_some() && dice.once_in(2) };
        }
        plan.alias = aliases && dice.once_in(2);
        if plan.alias && dice.once_in(2) {
            let kinds = [ImportWait::Promise, ImportWait::Promise, ImportWait::Polled, ImportWait::Silent];
            // A fence that breaks its word is queried by a thread, which must be there.
            let kinds = if shape.refused.is_some() { &kinds[..3] } else { &kinds };
            plan.pending = Some(dice.pick(kinds));
        }
        plan.late = lates && dice.once_in(4);
        // Nothing shows when its turn would have come, so its place is known only if one thread submits.
        let cancellable = !matches!(plan.body, BodyKind::Fenced | BodyKind::Device);
        plan.cancel = shape.faults && shape.submitters == 1 && cancellable && dice.once_in(8);
    }
    (shape, plans)
}

/// Runs the operations `kept` of the program of `seed`, or all, and lets `check` look at what came of them.
///
/// # Errors
/// The failure: a panic, a deadlock, a hang, or an observation that no order of the operations explains.
pub fn simulate(
    seed: u64,
    kept: Option<&[OpIndex]>,
    check: impl Fn(&World) + Send + Sync + 'static,
) -> Result<Execution, Failure> {
    silence_planned_panics();
    let (shape, plans) = program(seed);
    let kept = kept.map_or_else(|| (0..plans.len()).collect(), <[OpIndex]>::to_vec);
    let plans: Vec<_> = kept.iter().map(|op| plans[*op].clone()).collect();
    let (scheduler, trace) = Seeded::new(seed);
    let seen = Arc::new(Mutex::new(None));
    let body = {
        let seen = Arc::clone(&seen);
        move || {
            clock::start(LIMIT, watchdog::describe);
            let world = World::with_plans(shape.clone(), plans.clone()).expect("engines start");
            refuse_one_after(shape.refused);
            world.run();
            let counts = replay(&world);
            assert_nothing_left(&world.engines().iter().collect::<Vec<_>>());
            // Memory that a broken device may use, or whose fence no thread could be started to watch, is
            // leaked.
            let leaks = shape.breaks || shape.refused.is_some();
            world.uses.iter().enumerate().for_each(|(op, uses)| uses.check(op, leaks));
            check(&world);
            watchdog::forget();
            let digest = world.digests.iter().fold(0, |digest: u64, one| {
                mix(digest.rotate_left(7) ^ one.get().copied().unwrap_or_default())
            });
            drop(world);
            drop_at_the_end();
            *seen.lock().unwrap_or_else(PoisonError::into_inner) = Some((digest, counts));
        }
    };
    let ran = catch_unwind(AssertUnwindSafe(|| Runner::new(scheduler, config()).run(body)));
    watchdog::leak();
    if let Err(panic) = ran {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
        return Err(Failure {
            seed,
            kept,
            message: text.unwrap_or_else(|| "a panic without a text".to_owned()),
        });
    }
    let seen = seen.lock().unwrap_or_else(PoisonError::into_inner).take();
    let (digest, counts) = seen.expect("an execution that ended well has seen something");
    Ok(Execution { trace: trace.get(), digest, counts, took: clock::elapsed() })
}

/// Runs `body` under so many schedules, in which nothing moves the clock.
pub fn explore(schedules: u64, body: impl Fn() + Send + Sync + 'static) {
    explore_with(schedules, Seeded::without_clock, body);
}

/// Runs `body` under so many schedules, with a clock: for protocols in which a time ends something.
pub fn explore_in_time(schedules: u64, body: impl Fn() + Send + Sync + 'static) {
    explore_with(schedules, Seeded::new, move || {
        clock::start(LIMIT, String::new);
        body();
    });
}

fn explore_with(
    schedules: u64,
    scheduler: fn(u64) -> (Seeded, Rc<Cell<Trace>>),
    body: impl Fn() + Send + Sync + 'static,
) {
    let body = Arc::new(body);
    for seed in 1..=schedules {
        let (own, (scheduler, _)) = (Arc::clone(&body), scheduler(seed));
        let ran = catch_unwind(AssertUnwindSafe(|| Runner::new(scheduler, config()).run(move || own())));
        if let Err(panic) = ran {
            println!("schedule {seed} fails");
            std::panic::resume_unwind(panic);
        }
    }
}

fn config() -> Config {
    let mut config = Config::new();
    config.stack_size = STACK;
    config.failure_persistence = FailurePersistence::None;
    config.max_steps = MaxSteps::FailAfter(STEPS_MAX);
    config.silence_warnings = true;
    config
}

/// Leaves operations out of a failed execution for as long as it fails: halves first, then smaller parts,
/// then single ones.
pub fn shorten(failure: Failure, check: impl Fn(&World) + Send + Sync + Clone + 'static) -> Failure {
    let (mut shortest, mut tries) = (failure, 0);
    let mut part = shortest.kept.len().div_ceil(2);
    while part > 0 && tries < TRIES_MAX {
        let (mut from, mut shorter) = (0, false);
        while from < shortest.kept.len() && tries < TRIES_MAX {
            let mut kept = shortest.kept.clone();
            kept.drain(from..(from + part).min(kept.len()));
            tries += 1;
            match simulate(shortest.seed, Some(&kept), check.clone()) {
                Err(failure) => (shortest, shorter) = (failure, true),
                Ok(_) => from += part,
            }
        }
        if !shorter || part > 1 {
            part /= 2;
        }
    }
    shortest
}

/// Bodies that panic on purpose would fill the log.
fn silence_planned_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            let planned =
                panic.payload().downcast_ref::<String>().is_some_and(|text| text.starts_with("fate of"));
            if !planned {
                before(panic);
            }
        }));
    });
}
