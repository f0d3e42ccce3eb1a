//! Figures: a thousand operations that cross between two streams over four tensors, and the events of a chain
//! on one.

use std::sync::Arc;
use std::time::Instant;

use cudarc::driver::{CudaContext, LaunchConfig, PushKernelArg};
use cudarc::nvrtc::Ptx;

use crate::driver::KERNELS;
use crate::failure::{Failure, ensure};
use crate::record::{Figure, Percentiles, Record};
use crate::setup::{Setup, factor};

const OPERATIONS: usize = 1_000;
const TENSORS: usize = 4;
const COUNT: usize = 256;
const ROUNDS: usize = 15;

pub fn run(setup: &Setup, record: &mut Record) -> Result<(), Failure> {
    let rounds = if setup.simulated { 3 } else { ROUNDS };
    let ours = Ours::new(setup)?;
    let tracked = Tracked::new(setup)?;
    let by_hand = ByHand::new(setup)?;
    let mut times = [const { Vec::new() }; 5];
    let before = setup.device.counters();
    for round in 0..=rounds {
        let measured = [
            ours.run()?,
            tracked.run()?,
            by_hand.synchronized(setup)?,
            by_hand.barriers(setup)?,
            by_hand.events(setup)?,
        ];
        // The first round warms up.
        if round > 0 {
            times.iter_mut().zip(measured).for_each(|(times, time)| times.push(time));
        }
    }
    let after = setup.device.counters();
    let crossings = ((rounds + 1) * (OPERATIONS - 1)) as f64;
    let waits = (after.waits - before.waits) as f64 / crossings;
    let [ours, tracked, synchronized, barriers, by_hand] = times.map(Percentiles::of);
    let faster = synchronized.median / ours.median;
    let against_hand = ours.median / by_hand.median;
    record.figure(Figure {
        quantity: format!("{OPERATIONS} operations between 2 streams, 4 tensors"),
        ours: format!(
            "{}, {against_hand:.2} × events by hand, {faster:.1} × as fast as a stream synchronized by the host",
            ours.show("ms")
        ),
        baseline: format!(
            "cudarc with event tracking {}; the host synchronizes the stream {}, the whole device {}; events by hand {}",
            tracked.show("ms"),
            synchronized.show("ms"),
            barriers.show("ms"),
            by_hand.show("ms")
        ),
        target: "≤ 1.1 × events by hand, ≥ 1.5 × as fast as a synchronized stream".to_owned(),
        met: against_hand <= 1.1 && faster >= 1.5,
    });
    record.figure(Figure {
        quantity: "waits per crossing".to_owned(),
        ours: format!("{waits:.3}"),
        baseline: "by hand 1".to_owned(),
        target: "≤ 1".to_owned(),
        met: waits <= 1.0,
    });
    chain(setup, record)?;
    record.passed("ping-pong", "results compared after each round");
    setup.expect_no_violation()
}

/// Compares with what the chain of products must have become.
fn compare(setup: &Setup, at: u64) -> Result<(), Failure> {
    let bytes = setup.driver.read(at, 4 * COUNT)?;
    let found = f32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
    let first = f32::from_ne_bytes([0x3f; 4]);
    let expected = (0..OPERATIONS).fold(first, |value, step| factor(step) * value);
    ensure(found == expected, || format!("the last tensor holds {found}, not {expected}"))
}

fn milliseconds(begin: Instant) -> f64 {
    begin.elapsed().as_secs_f64() * 1e3
}

/// Through the engine: nothing says what comes after what but the tensors.
struct Ours<'a> {
    setup: &'a Setup,
    engine: estafette::Engine,
    queues: [Arc<dyn estafette::devices::Queue>; 2],
    tensors: Vec<(estafette::Tensor, u64)>,
}

impl<'a> Ours<'a> {
    fn new(setup: &'a Setup) -> Result<Self, Failure> {
        let engine = setup.engine()?;
        let tensors = (0..TENSORS).map(|_| setup.floats(&engine, COUNT)).collect::<Result<_, _>>()?;
        Ok(Self { setup, engine, queues: [setup.queue()?, setup.queue()?], tensors })
    }

    fn run(&self) -> Result<f64, Failure> {
        let Self { setup, engine, queues, tensors } = self;
        setup.fill(engine, &queues[1], &tensors[0], 4 * COUNT, 0x3f)?;
        let begin = Instant::now();
        for step in 0..OPERATIONS {
            let operands = [&tensors[step % TENSORS], &tensors[(step + 1) % TENSORS]];
            setup.scale(engine, &queues[step % 2], operands, step, COUNT)?;
        }
        let (last, at_last) = &tensors[OPERATIONS % TENSORS];
        last.wait()?;
        let time = milliseconds(begin);
        compare(setup, *at_last)?;
        Ok(time)
    }
}

/// cudarc's safe layer, which follows reads and writes of its slices by events.
struct Tracked<'a> {
    setup: &'a Setup,
    streams: [Arc<cudarc::driver::CudaStream>; 2],
    scale: cudarc::driver::CudaFunction,
}

impl<'a> Tracked<'a> {
    fn new(setup: &'a Setup) -> Result<Self, Failure> {
        let context = CudaContext::new(setup.device.ordinal() as usize)?;
        let streams = [context.new_stream()?, context.new_stream()?];
        let scale = context.load_module(Ptx::from_src(KERNELS))?.load_function("scale_f32")?;
        Ok(Self { setup, streams, scale })
    }

    fn run(&self) -> Result<f64, Failure> {
        use cudarc::driver::DevicePtr;
        let start = f32::from_ne_bytes([0x3f; 4]);
        let values = vec![start; COUNT];
        let mut slices =
            (0..TENSORS).map(|_| self.streams[1].clone_htod(&values)).collect::<Result<Vec<_>, _>>()?;
        self.streams[1].synchronize()?;
        let shape = LaunchConfig::for_num_elems(COUNT as u32);
        let count = COUNT as u64;
        let begin = Instant::now();
        for step in 0..OPERATIONS {
            let (from, to) = (step % TENSORS, (step + 1) % TENSORS);
            let factor = factor(step);
            let [from, to] = slices.get_disjoint_mut([from, to]).expect("two different tensors");
            let mut launch = self.streams[step % 2].launch_builder(&self.scale);
            launch.arg(to).arg(&*from).arg(&factor).arg(&count);
            // SAFETY: these are the kernel's arguments, and the slices are long enough.
            unsafe { launch.launch(shape) }?;
        }
        self.streams[(OPERATIONS - 1) % 2].synchronize()?;
        let time = milliseconds(begin);
        let at = {
            let (at, _record) = slices[OPERATIONS % TENSORS].device_ptr(&self.streams[0]);
            at
        };
        compare(self.setup, at)?;
        Ok(time)
    }
}

/// The driver's functions alone.
struct ByHand {
    streams: [usize; 2],
    memory: Vec<u64>,
    events: Vec<crate::driver::Event>,
}

impl ByHand {
    fn new(setup: &Setup) -> Result<Self, Failure> {
        let driver = &setup.driver;
        Ok(Self {
            streams: [driver.stream()?, driver.stream()?],
            memory: (0..TENSORS).map(|_| driver.memory(4 * COUNT)).collect::<Result<_, _>>()?,
            events: (0..2).map(|_| driver.event()).collect::<Result<_, _>>()?,
        })
    }

    fn start(&self, setup: &Setup) -> Result<Instant, Failure> {
        // SAFETY: the memory stays.
        unsafe { setup.driver.fill(self.streams[1], self.memory[0], 4 * COUNT, 0x3f) }?;
        setup.driver.synchronize(self.streams[1])?;
        Ok(Instant::now())
    }

    fn step(&self, setup: &Setup, step: usize) -> Result<(), Failure> {
        let (from, to) = (self.memory[step % TENSORS], self.memory[(step + 1) % TENSORS]);
        // SAFETY: as above.
        Ok(unsafe { setup.driver.scale(self.streams[step % 2], to, from, factor(step), COUNT) }?)
    }

    fn end(&self, setup: &Setup, begin: Instant) -> Result<f64, Failure> {
        setup.driver.synchronize(self.streams[(OPERATIONS - 1) % 2])?;
        let time = milliseconds(begin);
        compare(setup, self.memory[OPERATIONS % TENSORS])?;
        Ok(time)
    }

    /// The host waits at every crossing.
    fn synchronized(&self, setup: &Setup) -> Result<f64, Failure> {
        let begin = self.start(setup)?;
        for step in 0..OPERATIONS {
            self.step(setup, step)?;
            setup.driver.synchronize(self.streams[step % 2])?;
        }
        self.end(setup, begin)
    }

    /// The host waits for the whole device at every crossing.
    fn barriers(&self, setup: &Setup) -> Result<f64, Failure> {
        let begin = self.start(setup)?;
        for step in 0..OPERATIONS {
            self.step(setup, step)?;
            setup.driver.synchronize_context()?;
        }
        self.end(setup, begin)
    }

    /// An event and a wait at every crossing.
    fn events(&self, setup: &Setup) -> Result<f64, Failure> {
        let begin = self.start(setup)?;
        for step in 0..OPERATIONS {
            let (here, there) = (step % 2, (step + 1) % 2);
            self.step(setup, step)?;
            setup.driver.record(self.events[here], self.streams[here])?;
            setup.driver.wait(self.streams[there], self.events[here])?;
        }
        self.end(setup, begin)
    }
}

/// A chain on one stream needs no event at all.
fn chain(setup: &Setup, record: &mut Record) -> Result<(), Failure> {
    let engine = setup.engine()?;
    let queue = setup.queue()?;
    let tensors = [setup.floats(&engine, COUNT)?, setup.floats(&engine, COUNT)?];
    setup.fill(&engine, &queue, &tensors[0], 4 * COUNT, 0)?;
    let before = setup.device.counters();
    for step in 0..OPERATIONS {
        let operands = [&tensors[step % 2], &tensors[(step + 1) % 2]];
        setup.scale(&engine, &queue, operands, step, COUNT)?;
    }
    tensors[OPERATIONS % 2].0.wait()?;
    let after = setup.device.counters();
    let events = after.events_recorded - before.events_recorded;
    let queries = (after.event_queries - before.event_queries) as f64 / OPERATIONS as f64;
    record.figure(Figure {
        quantity: format!("events recorded in a chain of {OPERATIONS} on one stream"),
        ours: format!("{events}; queries of events per operation {queries:.3}"),
        baseline: format!("one per operation: {OPERATIONS}"),
        target: "0".to_owned(),
        met: events == 0,
    });
    Ok(())
}
