//! A made-up trace of a training pipeline, for tests and pictures: what it says is consistent, as a real one
//! is.
//!
//! Batches go round in four buffers: NumPy decodes and augments, JAX computes features, PyTorch trains on a
//! device's queue, an event loop awaits the loss. PyTorch keeps a lease on every sixteenth batch for too
//! long.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use estafette_report::attribution::attribute;
use estafette_report::model::*;

const BUFFERS: u64 = 4;
/// Operations that may be in flight.
const WINDOW: usize = 40;
const WORKERS: usize = 3;

/// Tracks, in the order in which [`trace`] lists them.
const MAIN: TrackId = 0;
const LOOP: TrackId = 1;
const FIRST_WORKER: TrackId = 2;
const QUEUE: TrackId = FIRST_WORKER + WORKERS;

/// Libraries, in the order in which [`trace`] lists them.
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

fn access(variable: u64, mode: AccessMode) -> Access {
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
        uses: |buffer| vec![access(batch(buffer), AccessMode::Write)],
    },
    Stage {
        name: "augment",
        kind: OperationKind::Operation,
        library: NUMPY,
        line: 22,
        takes: (120_000, 260_000),
        uses: |buffer| vec![access(batch(buffer), AccessMode::Update)],
    },
    Stage {
        name: "preview",
        kind: OperationKind::Export,
        library: TORCH,
        line: 38,
        takes: (30_000, 90_000),
        uses: |buffer| vec![access(batch(buffer), AccessMode::Read)],
    },
    Stage {
        name: "model.features",
        kind: OperationKind::Operation,
        library: JAX,
        line: 31,
        takes: (420_000, 700_000),
        uses: |buffer| {
            vec![access(batch(buffer), AccessMode::Read), access(features(buffer), AccessMode::Write)]
        },
    },
    Stage {
        name: "train.step",
        kind: OperationKind::Operation,
        library: TORCH,
        line: 41,
        takes: (380_000, 640_000),
        uses: |buffer| {
            vec![
                access(features(buffer), AccessMode::Read),
                access(WEIGHTS, AccessMode::Update),
                access(LOSS, AccessMode::Write),
            ]
        },
    },
    Stage {
        name: "metrics.log",
        kind: OperationKind::Operation,
        library: HOST,
        line: 47,
        takes: (20_000, 60_000),
        uses: |_| vec![access(LOSS, AccessMode::Read)],
    },
    Stage {
        name: "await loss",
        kind: OperationKind::Await,
        library: HOST,
        line: 52,
        takes: (0, 0),
        uses: |_| vec![access(LOSS, AccessMode::Read)],
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

/// A trace with so many operations.
pub fn trace(operations: usize) -> Trace {
    let mut trace = empty();
    let mut dice = Dice(0x9e37_79b9_7f4a_7c15);
    let mut run = Run::default();
    let plan = Plan::of(operations);
    let mut waiting = BinaryHeap::new();
    let mut submitted = 0;
    while run.ended < operations {
        // The program goes on when a permit becomes free.
        while submitted < operations && submitted.checked_sub(WINDOW).is_none_or(|at| run.end[at].is_some()) {
            let place = submitted.checked_sub(WINDOW).and_then(|at| run.end[at]).unwrap_or(0);
            run.now = (run.now + dice.between((1_500, 4_000))).max(place);
            run.submitted.push(run.now);
            run.end.push(None);
            if let Some(granted) = run.granted(&plan, submitted) {
                waiting.push(Reverse((granted, submitted)));
            }
            submitted += 1;
        }
        let Reverse((granted, at)) = waiting.pop().expect("something can always go on");
        let (operation, end) = run.simulate(&mut trace, plan.stage(at), at, granted, &mut dice);
        trace.operations.push(operation);
        run.end[at] = Some(end);
        run.ended += 1;
        for &later in &plan.after[at] {
            if let Some(granted) = run.granted(&plan, later) {
                waiting.push(Reverse((granted, later)));
            }
        }
    }
    trace.operations.sort_by_key(|operation| operation.id);
    trace.leases.sort_by_key(|lease| lease.id);
    trace.duration = run.end.iter().flatten().copied().max().unwrap_or(0) + 50_000;
    attribute(&mut trace);
    trace
}

/// The order in which operations have to end.
struct Plan {
    before: Vec<Vec<usize>>,
    after: Vec<Vec<usize>>,
}

impl Plan {
    fn of(operations: usize) -> Self {
        let mut plan = Self { before: vec![Vec::new(); operations], after: vec![Vec::new(); operations] };
        // Of each tensor, the last write and the reads since.
        let mut lines: HashMap<u64, (Option<usize>, Vec<usize>)> = HashMap::new();
        for at in 0..operations {
            let stage = plan.stage(at);
            for used in (stage.uses)(buffer_of(at)) {
                let (writer, readers) = lines.entry(used.variable).or_default();
                if used.mode == AccessMode::Read || readers.is_empty() {
                    plan.before[at].extend(*writer);
                } else {
                    plan.before[at].extend(readers.iter().copied());
                }
                match (stage.kind, used.mode) {
                    // Readers do not hold each other up.
                    (OperationKind::Await, _) => {}
                    (_, AccessMode::Read) => readers.push(at),
                    _ => (*writer, *readers) = (Some(at), Vec::new()),
                }
            }
            for &before in &plan.before[at] {
                plan.after[before].push(at);
            }
        }
        plan
    }

    fn stage(&self, at: usize) -> &'static Stage {
        &STAGES[at % STAGES.len()]
    }
}

fn buffer_of(at: usize) -> u64 {
    (at / STAGES.len()) as u64 % BUFFERS
}

/// The progress of the simulation.
#[derive(Default)]
struct Run {
    now: u64,
    ended: usize,
    submitted: Vec<u64>,
    end: Vec<Option<u64>>,
    free: [u64; QUEUE + 1],
}

impl Run {
    /// When an operation may go; `None` while that is not known.
    fn granted(&self, plan: &Plan, at: usize) -> Option<u64> {
        let submitted = *self.submitted.get(at)?;
        plan.before[at].iter().try_fold(submitted, |granted, &before| Some(granted.max(self.end[before]?)))
    }

    /// Runs one operation; gives its end as others see it, too.
    fn simulate(
        &mut self,
        trace: &mut Trace,
        stage: &Stage,
        at: usize,
        granted: u64,
        dice: &mut Dice,
    ) -> (Operation, u64) {
        let awaits = stage.kind == OperationKind::Await;
        let mut operation = Operation {
            id: 100 + at as u64,
            name: stage.name.into(),
            kind: stage.kind,
            library: Some(stage.library),
            site: Some(Site { file: "pipeline.py".into(), line: stage.line, function: "epoch".into() }),
            submitter: Some(if awaits { LOOP } else { MAIN }),
            submitted: self.submitted[at],
            granted: Some(granted),
            ready: Some(granted),
            outcome: Outcome::Ok,
            accesses: (stage.uses)(buffer_of(at)),
            ..Operation::default()
        };
        let takes = dice.between(stage.takes);
        let end = match stage.kind {
            OperationKind::Await => {
                let ready = granted + dice.between((2_000, 25_000));
                let resumed = ready.max(self.free[LOOP]) + dice.between((8_000, 140_000));
                self.free[LOOP] = resumed;
                (operation.observed, operation.awake, operation.resumed) =
                    (Some(ready), Some(resumed), Some(resumed));
                granted
            }
            OperationKind::Export => {
                let late = (at / STAGES.len()) % 16 == 5;
                let closed = granted + takes + if late { dice.between((2_800_000, 4_200_000)) } else { 0 };
                operation.began = Some(granted + 3_000);
                (operation.issued, operation.done) = (Some(closed), Some(closed));
                trace.leases.push(lease(&operation, granted, closed));
                closed
            }
            _ => self.body(&mut operation, granted, takes, dice),
        };
        (operation, end)
    }

    /// Runs a body on the worker that is free first; that of PyTorch hands it on to its queue.
    fn body(&mut self, operation: &mut Operation, granted: u64, takes: u64, dice: &mut Dice) -> u64 {
        let on_queue = operation.library == Some(TORCH);
        let mut workers = FIRST_WORKER..FIRST_WORKER + WORKERS;
        let idle = workers.clone().find(|&worker| self.free[worker] <= granted);
        let first = workers.by_ref().min_by_key(|&worker| self.free[worker]).unwrap_or(FIRST_WORKER);
        let worker = idle.unwrap_or(first);
        let began = granted.max(self.free[worker]) + dice.between((400, 2_000));
        let issued = began + if on_queue { 6_000 } else { takes };
        self.free[worker] = issued;
        let done = if on_queue { issued.max(self.free[QUEUE]) + takes } else { issued };
        operation.track = Some(if on_queue { QUEUE } else { worker });
        (operation.began, operation.issued, operation.done) = (Some(began), Some(issued), Some(done));
        operation.observed = Some(done + if on_queue { dice.between((3_000, 40_000)) } else { 0 });
        if on_queue {
            self.free[QUEUE] = done;
        }
        operation.observed.unwrap_or(done)
    }
}

fn lease(export: &Operation, opened: u64, closed: u64) -> Lease {
    Lease {
        id: export.id,
        variable: export.accesses[0].variable,
        access: AccessMode::Read,
        library: Some(TORCH),
        owner: "torch.from_dlpack".into(),
        site: Some(Site { file: "pipeline.py".into(), line: 38, function: "preview".into() }),
        opened,
        closed: Some(closed),
    }
}

fn empty() -> Trace {
    let track = |name: String, kind| Track { name: name.into(), kind };
    let mut tracks =
        vec![track("main".into(), TrackKind::Thread), track("asyncio".into(), TrackKind::EventLoop)];
    tracks.extend((0..WORKERS).map(|worker| track(format!("worker {worker}"), TrackKind::Worker)));
    tracks.push(track("sim:0 queue 0".into(), TrackKind::Queue));
    let variable = |id, name: String, bytes, library| Variable {
        id,
        name: name.into(),
        bytes: Some(bytes),
        library: Some(library),
    };
    let mut variables: Vec<Variable> = (0..BUFFERS)
        .map(|buffer| variable(batch(buffer), format!("batch[{buffer}]"), 3 << 20, NUMPY))
        .collect();
    variables.extend(
        (0..BUFFERS).map(|buffer| variable(features(buffer), format!("features[{buffer}]"), 1 << 20, JAX)),
    );
    variables.push(variable(WEIGHTS, "weights".into(), 40 << 20, TORCH));
    variables.push(variable(LOSS, "loss".into(), 4, TORCH));
    Trace {
        started_unix_ns: 1_795_305_600_000_000_000,
        program: "pipeline.py".into(),
        processes: vec![Process {
            number: 4711,
            key: 0x1234_5678_9abc_def0,
            started_ns: 60_000_000_000_000,
            clock: "this boot".into(),
        }],
        tracks,
        libraries: ["numpy", "jax", "torch", "host"].map(Text::from).to_vec(),
        variables,
        ..Trace::default()
    }
}
