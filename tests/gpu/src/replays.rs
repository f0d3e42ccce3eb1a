//! Figures: a loop of a hundred operations, replayed as one graph and node by node, submitted again and
//! again, and enqueued by hand; and a graph of two branches that must be right.

use std::sync::Arc;
use std::time::Instant;

use estafette::devices::Queue;
use estafette::{Engine, Program, Tensor};

use crate::failure::{Failure, ensure};
use crate::record::{Figure, Percentiles, Record};
use crate::setup::{Setup, factor};

/// Kernels of one turn of the loop.
const NODES: usize = 100;
/// Turns that are measured together: more than the host is ahead of the device by.
const TURNS: usize = 200;
const COUNT: usize = 256;
const ROUNDS: usize = 15;

pub fn run(setup: &Setup, record: &mut Record) -> Result<(), Failure> {
    branches(setup)?;
    record.passed("replays", "a graph of two branches, compared after each launch");
    let (rounds, turns) = if setup.simulated { (2, 5) } else { (ROUNDS, TURNS) };
    let ours = Loop::new(setup)?;
    let (graph, issued) = (ours.program(true)?, ours.program(false)?);
    let mut times = [const { Vec::new() }; 4];
    for round in 0..=rounds {
        let measured = [
            ours.time(turns, || graph.replay().map(drop).map_err(Failure::from))?,
            ours.time(turns, || issued.replay().map(drop).map_err(Failure::from))?,
            ours.time(turns, || ours.submit())?,
            ours.by_hand(turns)?,
        ];
        // The first round warms up.
        if round > 0 {
            times.iter_mut().zip(measured).for_each(|(times, time)| times.push(time));
        }
    }
    let [graph, issued, submitted, by_hand] = times.map(Percentiles::of);
    let against_hand = graph.median / by_hand.median;
    record.figure(Figure {
        quantity: format!("a loop of {NODES} kernels, per kernel"),
        ours: format!("one graph {}, {against_hand:.2} × the loop by hand", graph.show("µs")),
        baseline: format!(
            "by hand on a stream {}; replayed node by node {}; submitted {}",
            by_hand.show("µs"),
            issued.show("µs"),
            submitted.show("µs")
        ),
        target: "≤ the loop by hand".to_owned(),
        met: against_hand <= 1.0,
    });
    setup.expect_no_violation()
}

/// Kernels that hand one value back and forth between two tensors.
struct Loop<'a> {
    setup: &'a Setup,
    engine: Engine,
    queue: Arc<dyn Queue>,
    tensors: [(Tensor, u64); 2],
    stream: usize,
}

impl<'a> Loop<'a> {
    fn new(setup: &'a Setup) -> Result<Self, Failure> {
        let engine = setup.engine()?;
        let tensors = [setup.floats(&engine, COUNT)?, setup.floats(&engine, COUNT)?];
        let (queue, stream) = (setup.queue()?, setup.driver.stream()?);
        setup.fill(&engine, &queue, &tensors[0], 4 * COUNT, 0x3f)?;
        Ok(Self { setup, engine, queue, tensors, stream })
    }

    fn node(&self, node: usize) -> (&(Tensor, u64), &(Tensor, u64)) {
        (&self.tensors[node % 2], &self.tensors[(node + 1) % 2])
    }

    fn program(&self, graph: bool) -> Result<Program, Failure> {
        let driver = self.setup.driver;
        let mut builder = self.engine.program("loop");
        for node in 0..NODES {
            let ((from, at_from), (to, at_to)) = self.node(node);
            let (at_from, at_to) = (*at_from, *at_to);
            builder.op("step").reads([from]).writes([to]).on(&self.queue).run_on(
                move |queue, [_from], [_to]| {
                    // SAFETY: the program keeps the memory.
                    Ok(unsafe { driver.scale(queue.native(), at_to, at_from, factor(node), COUNT) }?)
                },
            )?;
        }
        Ok(if graph { builder.finish_as_graph() } else { builder.finish() }?)
    }

    fn submit(&self) -> Result<(), Failure> {
        (0..NODES).try_for_each(|node| {
            self.setup.scale(&self.engine, &self.queue, self.node(node).into(), node, COUNT)
        })
    }

    /// Microseconds per kernel, from the first turn until the device is done.
    fn time(&self, turns: usize, turn: impl Fn() -> Result<(), Failure>) -> Result<f64, Failure> {
        let begin = Instant::now();
        for _ in 0..turns {
            turn()?;
        }
        self.tensors[0].0.wait()?;
        let time = begin.elapsed();
        self.compare()?;
        Ok(time.as_secs_f64() * 1e6 / (turns * NODES) as f64)
    }

    fn by_hand(&self, turns: usize) -> Result<f64, Failure> {
        let driver = self.setup.driver;
        let begin = Instant::now();
        for node in 0..turns * NODES {
            let ((_, from), (_, to)) = self.node(node);
            // SAFETY: the memory is there, and nothing else uses it now.
            unsafe { driver.scale(self.stream, *to, *from, factor(node), COUNT) }?;
        }
        driver.synchronize(self.stream)?;
        let time = begin.elapsed();
        self.compare()?;
        Ok(time.as_secs_f64() * 1e6 / (turns * NODES) as f64)
    }

    /// After whole turns the value is what it was.
    fn compare(&self) -> Result<(), Failure> {
        let bytes = self.setup.driver.read(self.tensors[0].1, 4 * COUNT)?;
        ensure(bytes.iter().all(|byte| *byte == 0x3f), || "the loop has lost its value".to_owned())
    }
}

/// ```text
/// one queue:      delay, fill x ──────────► z = x + y
/// another one:    delay, fill y ─────────────┘
/// ```
/// The sum is wrong unless both branches are waited for, at every launch.
fn branches(setup: &Setup) -> Result<(), Failure> {
    let engine = setup.engine()?;
    let driver = setup.driver;
    let [x, y, z] =
        [setup.floats(&engine, COUNT)?, setup.floats(&engine, COUNT)?, setup.floats(&engine, COUNT)?];
    let queues = [setup.queue()?, setup.queue()?];
    let mut builder = engine.program("branches");
    for ((tensor, at), queue) in [&x, &y].into_iter().zip(&queues) {
        let at = *at;
        builder.op("fill").writes([tensor]).on(queue).run_on(move |queue, [], [_out]| {
            driver.delay(queue.native(), 2_000_000)?;
            // SAFETY: the program keeps the memory.
            Ok(unsafe { driver.fill(queue.native(), at, 4 * COUNT, 0x3f) }?)
        })?;
    }
    let [at_x, at_y, at_z] = [x.1, y.1, z.1];
    builder.op("sum").reads([&x.0, &y.0]).writes([&z.0]).on(&queues[0]).run_on(
        move |queue, [_x, _y], [_z]| {
            // SAFETY: as above.
            Ok(unsafe { driver.add(queue.native(), at_z, at_x, at_y, COUNT) }?)
        },
    )?;
    let program = builder.finish_as_graph()?;
    let launches = setup.device.counters().graph_launches;
    let expected = (2.0 * f32::from_ne_bytes([0x3f; 4])).to_ne_bytes();
    for round in 0..5_u64 {
        for (tensor, at) in [&x, &y, &z] {
            let at = *at;
            engine.op("clear").writes([tensor]).on(&queues[1]).run_on(move |queue, [], [_out]| {
                // SAFETY: the operation keeps the memory.
                Ok(unsafe { driver.fill(queue.native(), at, 4 * COUNT, 0) }?)
            })?;
        }
        program.replay()?;
        z.0.wait()?;
        let bytes = driver.read(at_z, 4 * COUNT)?;
        ensure(bytes.chunks_exact(4).all(|value| value == expected), || {
            format!("launch {round}: the sum holds {:?}", &bytes[..4])
        })?;
    }
    let launched = setup.device.counters().graph_launches - launches;
    ensure(launched == 5, || format!("{launched} launches for 5 replays"))
}
