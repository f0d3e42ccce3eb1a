//! The program whose replays are measured.

use std::time::Instant;

use estafette::{Engine, Error, Program, Variable};

use crate::measure::{ns_each, rounds};
use crate::spin::SpinBody;
use crate::workload::{Measured, Settings, Workload};

/// Steps of the measured stencil.
pub const STEPS: usize = 1_000;

/// Width of the stencil that `estafette bench replay` measures.
const WIDTH: usize = 32;

pub(crate) const REPLAY: Workload = Workload::plain(
    "replay",
    "stencil-32, recorded once and replayed; record_ns is what recording one operation takes",
    STEPS * WIDTH,
    run,
);

fn run(settings: &Settings) -> Result<Measured, crate::Error> {
    let engine = Engine::builder().workers(settings.workers).build()?;
    let body = SpinBody::lasting(settings.body_ns);
    let steps = (settings.n / WIDTH).max(1);
    let nodes = steps * WIDTH;
    let began = Instant::now();
    let program = stencil(&engine, WIDTH, steps, move || body.run())?;
    let record_ns = ns_each(began.elapsed(), nodes);
    let ns_per_op = rounds(settings, || {
        let began = Instant::now();
        replay(&program)?;
        Ok(ns_each(began.elapsed(), nodes))
    })?;
    let record_ns = crate::Quantity::of(vec![record_ns]);
    Ok(Measured { n: nodes, quantities: vec![("ns_per_op", ns_per_op), ("record_ns", record_ns)] })
}

/// Widths of the measured stencil.
pub const WIDTHS: [usize; 3] = [8, 32, 64];

/// The stencil as a program: `steps` × `width` nodes, each of which reads up to three neighbours of the step
/// before and writes its own point. Two rows of variables alternate. Every node calls `body`.
///
/// # Errors
/// The errors of recording. Plain variables cause none in a running engine.
pub fn stencil(
    engine: &Engine,
    width: usize,
    steps: usize,
    body: impl Fn() + Clone + Send + Sync + 'static,
) -> Result<Program, Error> {
    let rows: [Vec<Variable>; 2] = std::array::from_fn(|_| (0..width).map(|_| engine.var()).collect());
    let mut builder = engine.program("stencil");
    for step in 0..steps {
        let (written, read) = (&rows[step % 2], &rows[(step + 1) % 2]);
        for place in 0..width {
            let neighbours: Vec<&Variable> =
                read[place.saturating_sub(1)..width.min(place + 2)].iter().collect();
            let body = body.clone();
            builder.op("point").reads_vars(&neighbours).writes_vars(&[&written[place]]).run(
                move |[], []| {
                    body();
                    Ok(())
                },
            )?;
        }
    }
    builder.finish()
}

/// Replays `program` once and waits for its end.
///
/// # Errors
/// The errors of submission, of the wait, and of nodes.
pub fn replay(program: &Program) -> Result<(), Error> {
    program.replay()?.wait()
}
