//! A made-up recording of a training pipeline, for tests and pictures: what it says is consistent, as a real one is.
//!
//! Batches go round in four buffers: NumPy decodes and augments, JAX computes features, PyTorch trains on a device's queue,
//! an event loop awaits the loss. PyTorch keeps a lease on every sixteenth batch for too long.

mod order;

use estafette_report::model::*;
use order::Order;

const BUFFERS: u64 = 4;
/// Operations that may be in flight.
const WINDOW: usize = 48;
const WORKERS: usize = 3;

/// Lanes, in the order in which [`recording`] lists them.
const MAIN: LaneId = 0;
const LOOP: LaneId = 1;
const FIRST_WORKER: LaneId = 2;
const QUEUE: LaneId = FIRST_WORKER + WORKERS;

/// Libraries, in the order in which [`recording`] lists them.
const NUMPY: LibraryId = 0;
const JAX: LibraryId = 1;
const TORCH: LibraryId = 2;
const HOST: LibraryId = 3;

/// One kind of work of the pipeline.
struct Stage {
    name: &'static str,
    kind: OperationKind,
    library: LibraryId,
    line: u32,
    /// Shortest and longest body, in nanoseconds.
    takes: (u64, u64),
    uses: fn(u64) -> Vec<Access>,
}

fn access(variable: u64, mode: Mode) -> Access {
    Access { variable, mode }
}

fn batch(buffer: u64) -> u64 {
    1 + buffer
}

fn features(buffer: u64) -> u64 {
    1 + BUFFERS + buffer
}

const WEIGHTS: u64 = 1 + 2 * BUFFERS;
const LOSS: u64 = WEIGHTS + 1;

const STAGES: [Stage; 7] = [
    Stage {
        name: "loader.decode",
        kind: OperationKind::Operation,
        library: NUMPY,
        line: 18,
        takes: (300_000, 620_000),
        uses: |buffer| vec![access(batch(buffer), Mode::Write)],
    },
    Stage {
        name: "augment",
        kind: OperationKind::Operation,
        library: NUMPY,
        line: 22,
        takes: (120_000, 260_000),
        uses: |buffer| vec![access(batch(buffer), Mode::Update)],
    },
    Stage {
        name: "export to jax",
        kind: OperationKind::Export,
        library: JAX,
        line: 30,
        takes: (4_000, 9_000),
        uses: |buffer| vec![access(batch(buffer), Mode::Read)],
    },
    Stage {
        name: "model.features",
        kind: OperationKind::Operation,
        library: JAX,
        line: 31,
        takes: (420_000, 700_000),
        uses: |buffer| vec![access(batch(buffer), Mode::Read), access(features(buffer), Mode::Write)],
    },
    Stage {
        name: "train.step",
        kind: OperationKind::Operation,
        library: TORCH,
        line: 41,
        takes: (380_000, 640_000),
        uses: |buffer| {
            vec![
                access(features(buffer), Mode::Read),
                access(WEIGHTS, Mode::Update),
                access(LOSS, Mode::Write),
            ]
        },
    },
    Stage {
        name: "metrics.log",
        kind: OperationKind::Operation,
        library: HOST,
        line: 47,
        takes: (20_000, 60_000),
        uses: |_| vec![access(LOSS, Mode::Read)],
    },
    Stage {
        name: "await loss",
        kind: OperationKind::Await,
        library: HOST,
        line: 52,
        takes: (0, 0),
        uses: |_| vec![access(LOSS, Mode::Read)],
    },
];

/// Numbers that look random and are the same every time (xorshift64, Marsaglia 2003).
struct Dice(u64);

impl Dice {
    fn between(&mut self, (low, high): (u64, u64)) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        low + self.0 % (high - low + 1)
    }
}

/// A recording with so many operations.
pub fn recording(operations: usize) -> Recording {
    let mut recording = empty();
    let mut order = Order::default();
    let mut dice = Dice(0x9e37_79b9_7f4a_7c15);
    let mut free = [0_u64; QUEUE + 1];
    let mut ends: Vec<u64> = Vec::new();
    let mut now = 20_000;
    let mut id = 100;
    for index in 0..operations {
        let round = (index / STAGES.len()) as u64;
        let stage = &STAGES[index % STAGES.len()];
        let buffer = round % BUFFERS;
        now += dice.between((1_500, 4_000));
        if let Some(&end) = index.checked_sub(WINDOW).and_then(|earlier| ends.get(earlier)) {
            now = now.max(end);
        }
        id += 1;
        let accesses = (stage.uses)(buffer);
        let granted = order.join(&mut recording, id, now, &accesses);
        let takes = dice.between(stage.takes);
        let mut operation = Operation {
            id,
            name: stage.name.to_owned(),
            kind: stage.kind,
            library: Some(stage.library),
            site: Some(Site { file: "pipeline.py".into(), line: stage.line, function: "epoch".into() }),
            submitter: Some(if stage.kind == OperationKind::Await { LOOP } else { MAIN }),
            lane: None,
            submitted: now,
            granted: Some(granted),
            ready: None,
            awake: None,
            began: None,
            issued: None,
            done: None,
            observed: None,
            resumed: None,
            outcome: Outcome::Ok,
            accesses,
            waits_for: None,
        };
        let end = match stage.kind {
            OperationKind::Await => resume(&mut recording, &mut operation, &mut free, &mut dice),
            OperationKind::Export => {
                operation.done = Some(granted + takes);
                granted + takes
            }
            _ => run(&mut recording, &mut operation, takes, &mut free, &mut dice),
        };
        order.ended(id, operation.began.unwrap_or(granted), end);
        ends.push(end);
        if stage.name == "model.features" {
            let held = if round % 16 == 5 { (2_800_000, 4_200_000) } else { (30_000, 90_000) };
            id += 1;
            lease(&mut recording, &mut order, id, batch(buffer), end, end + dice.between(held));
        }
        recording.operations.push(operation);
    }
    recording.duration = ends.iter().copied().max().unwrap_or(0) + 50_000;
    recording.stalls.sort_by_key(|stall| (stall.waiter, stall.from, stall.access));
    count(&mut recording);
    recording
}

fn empty() -> Recording {
    let lane = |name: String, kind| Lane { name, kind };
    let mut lanes = vec![lane("main".into(), LaneKind::Thread), lane("asyncio".into(), LaneKind::EventLoop)];
    lanes.extend((0..WORKERS).map(|worker| lane(format!("worker {worker}"), LaneKind::Worker)));
    lanes.push(lane("sim:0 queue 0".into(), LaneKind::Queue));
    let variable =
        |id, name: String, bytes, library| Variable { id, name, bytes: Some(bytes), library: Some(library) };
    let mut variables: Vec<Variable> = (0..BUFFERS)
        .map(|buffer| variable(batch(buffer), format!("batch[{buffer}]"), 3 << 20, NUMPY))
        .collect();
    variables.extend(
        (0..BUFFERS).map(|buffer| variable(features(buffer), format!("features[{buffer}]"), 1 << 20, JAX)),
    );
    variables.push(variable(WEIGHTS, "weights".into(), 40 << 20, TORCH));
    variables.push(variable(LOSS, "loss".into(), 4, TORCH));
    Recording {
        started_unix_ns: 1_795_305_600_000_000_000,
        program: "pipeline.py".into(),
        lanes,
        libraries: ["numpy", "jax", "torch", "host"].map(String::from).to_vec(),
        variables,
        ..Recording::default()
    }
}

/// Runs the body on the worker that is free first, or on the device's queue; gives the end.
fn run(
    recording: &mut Recording,
    operation: &mut Operation,
    takes: u64,
    free: &mut [u64],
    dice: &mut Dice,
) -> u64 {
    let granted = operation.granted.unwrap_or(operation.submitted);
    let on_queue = operation.library == Some(TORCH);
    let workers = FIRST_WORKER..FIRST_WORKER + WORKERS;
    let lane =
        if on_queue { QUEUE } else { workers.min_by_key(|&worker| free[worker]).unwrap_or(FIRST_WORKER) };
    let began = granted.max(free[lane]) + dice.between((400, 2_000));
    let done = began + takes;
    free[lane] = done;
    let busy = if on_queue { Culprit::Queue(QUEUE) } else { Culprit::Pool };
    stall(recording, operation.id, (granted, began), Cause::NoWorker, busy);
    operation.lane = Some(lane);
    operation.ready = Some(granted);
    operation.began = Some(began);
    operation.issued = Some(if on_queue { began + 6_000 } else { done });
    operation.done = Some(done);
    operation.observed = Some(done + if on_queue { dice.between((3_000, 40_000)) } else { 0 });
    done
}

/// Lets the event loop resume who awaits; gives the moment.
fn resume(recording: &mut Recording, operation: &mut Operation, free: &mut [u64], dice: &mut Dice) -> u64 {
    let done = operation.granted.unwrap_or(operation.submitted);
    let observed = done + dice.between((2_000, 25_000));
    let resumed = observed.max(free[LOOP]) + dice.between((8_000, 140_000));
    free[LOOP] = resumed;
    stall(recording, operation.id, (done, observed), Cause::NotObserved, Culprit::Observer);
    stall(recording, operation.id, (observed, resumed), Cause::NotResumed, Culprit::EventLoop);
    operation.done = Some(done);
    operation.observed = Some(observed);
    operation.ready = Some(observed);
    operation.resumed = Some(resumed);
    resumed
}

fn stall(recording: &mut Recording, waiter: u64, (from, to): (u64, u64), cause: Cause, culprit: Culprit) {
    if from < to {
        recording.stalls.push(Stall {
            waiter,
            access: 0,
            from,
            to,
            cause,
            hazard: None,
            culprit,
            decisive: true,
        });
    }
}

fn lease(recording: &mut Recording, order: &mut Order, id: u64, variable: u64, opened: u64, closed: u64) {
    order.lease(id, variable, opened, closed);
    recording.leases.push(Lease {
        id,
        variable,
        access: Mode::Read,
        library: Some(TORCH),
        taker: "torch.from_dlpack".into(),
        site: Some(Site { file: "pipeline.py".into(), line: 38, function: "preview".into() }),
        opened,
        closed: Some(closed),
    });
}

/// Quantities over time, from when things began and ended.
fn count(recording: &mut Recording) {
    let in_flight = recording.operations.iter().map(|it| (it.submitted, it.resumed.or(it.done), 1));
    let leased = recording.leases.iter().map(|it| {
        let bytes = recording.variable(it.variable).and_then(|variable| variable.bytes).unwrap_or(0);
        (it.opened, it.closed, bytes as i64)
    });
    let pending = recording.operations.iter().filter(|it| it.lane == Some(QUEUE));
    let pending = pending.filter_map(|it| Some((it.issued?, it.done, 1)));
    recording.counters = vec![
        counter("operations in flight", "operations", in_flight.collect()),
        counter("bytes leased", "bytes", leased.collect()),
        counter("fences pending", "fences", pending.collect()),
    ];
}

fn counter(name: &str, unit: &str, stretches: Vec<(u64, Option<u64>, i64)>) -> Counter {
    let mut changes: Vec<(u64, i64)> = Vec::new();
    for (from, to, amount) in stretches {
        changes.push((from, amount));
        changes.extend(to.map(|to| (to, -amount)));
    }
    changes.sort_unstable();
    let mut value = 0;
    let mut samples: Vec<(u64, i64)> = Vec::new();
    for (time, change) in changes {
        value += change;
        match samples.last_mut() {
            Some(last) if last.0 == time => last.1 = value,
            _ => samples.push((time, value)),
        }
    }
    Counter { name: name.into(), unit: unit.into(), samples }
}
