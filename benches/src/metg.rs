//! METG(50%), the minimum effective task granularity of Task Bench (Slaughter et al., SC20): the length of
//! tasks at which the cores spend half of their time in task bodies.
//!
//! A grid has steps and points. Each task reads the marks of certain points of the step before (`pattern`),
//! checks them, computes for a while, and leaves its own mark (`grid`). A bisection finds the length at which
//! the efficiency crosses one half (`bisection`).

mod bisection;
mod grid;
mod pattern;

use std::time::Instant;

use estafette::Engine;
use estafette_sync::thread;

use crate::error::Error;
use crate::measure::{checked, ns_each, rounds};
use crate::record::Quantity;
use crate::spin::{Spin, SpinBody};
use crate::spread::Spread;
use crate::workload::{Measured, Settings, Workload};

use bisection::{Crossing, Point, crossing};
use grid::Grid;
pub use grid::WrongInput;
use pattern::Pattern;

/// Points of a step: the number used in the figures of other engines, and a power of two for the FFT.
const WIDTH: usize = 32;

/// Default number of steps.
const STEPS: usize = 1_000;

/// Each point of the curve is the median of this many runs, since one late worker must not steer the
/// bisection.
const REPEATS: usize = 3;

/// Upper bound of the total length of all bodies of one run. With long bodies, fewer steps are enough.
const BODIES_NS_MAX: f64 = 100e6;

/// Least number of steps of a run, so that its beginning and end do not matter.
const STEPS_LONG: usize = 50;

pub(crate) const TRIVIAL: Workload = metg(
    "metg-trivial",
    "METG(50%) in µs of tasks that read nothing; `n` is rounded down to whole steps",
    1,
    |s| run(s, Pattern::Trivial, 1),
);
pub(crate) const STENCIL: Workload =
    metg("metg-stencil", "the same, reading 3 neighbours", 1, |s| run(s, Pattern::Stencil, 1));
pub(crate) const NEAREST: Workload =
    metg("metg-nearest", "the same, reading the 5 nearest", 1, |s| run(s, Pattern::Nearest, 1));
pub(crate) const SPREAD: Workload =
    metg("metg-spread", "the same, reading 5 far apart, others at each step", 1, |s| {
        run(s, Pattern::Spread, 1)
    });
pub(crate) const FFT: Workload =
    metg("metg-fft", "the same, reading as a fast Fourier transform does", 1, |s| run(s, Pattern::Fft, 1));
pub(crate) const NEAREST_X4: Workload =
    metg("metg-nearest-x4", "four grids of `nearest` at once", 4, |s| run(s, Pattern::Nearest, 4));

const fn metg(
    name: &'static str,
    about: &'static str,
    grids: usize,
    run: fn(&Settings) -> Result<Measured, Error>,
) -> Workload {
    Workload {
        workers: other_cores,
        has_body: false,
        ..Workload::plain(name, about, grids * STEPS * WIDTH, run)
    }
}

/// One worker per core, except for the core of the submitting thread, which helps.
fn other_cores() -> usize {
    cores() - 1
}

/// Number of cores.
fn cores() -> usize {
    thread::available_parallelism().map_or(1, |cores| cores.get())
}

fn run(settings: &Settings, pattern: Pattern, grids: usize) -> Result<Measured, Error> {
    let engine = Engine::builder().workers(settings.workers).build()?;
    let grid = Grid::leak(&engine, pattern, WIDTH, grids);
    let row = WIDTH * grids;
    let steps = (settings.n / row).max(1);
    // The submitting thread counts if it has a core.
    let cores = cores().min(settings.workers + 1);
    let run_ns = |steps: usize, body: SpinBody| {
        let took = checked(grid.variables(), (steps * row) as u64, || {
            let began = Instant::now();
            grid.submit(&engine, steps, body)?;
            engine.wait_all(None)?;
            Ok(began.elapsed())
        })?;
        grid.verify()?;
        Ok(ns_each(took, steps * row))
    };
    let point = |body_ns: f64| -> Result<Point, Error> {
        // Calibrated for each point, since other load on the machine changes the length of a turn.
        let body = Spin::calibrate().lasting(body_ns);
        let enough = (BODIES_NS_MAX / (body_ns * row as f64)) as usize;
        let steps = steps.min(enough.max(STEPS_LONG));
        let runs: Vec<f64> = (0..REPEATS).map(|_| run_ns(steps, body)).collect::<Result<_, Error>>()?;
        let granularity_ns = Spread::of(runs).expect("there are several").median * cores as f64;
        Ok(Point { granularity_ns, efficiency: body_ns / granularity_ns })
    };

    let ns_per_op = rounds(settings, || run_ns(steps, SpinBody::EMPTY))?;
    let crossings: Vec<Crossing> =
        (0..settings.rounds).map(|_| crossing(point)).collect::<Result<_, Error>>()?;
    let found_us: Option<Vec<f64>> = crossings
        .iter()
        .map(|crossing| match crossing {
            Crossing::At(granularity_ns) => Some(granularity_ns / 1e3),
            Crossing::Never => None,
        })
        .collect();
    // One round without a crossing makes the result unreliable.
    let metg = found_us.map_or(Quantity::Missing("efficiency stays below 50 %"), Quantity::of);
    let quantities =
        vec![("metg_us", metg), ("ns_per_op", ns_per_op), ("cores", Quantity::Number(cores as f64))];
    Ok(Measured { n: steps * row, quantities })
}
