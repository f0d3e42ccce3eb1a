//! METG(50%), the minimum effective task granularity of Task Bench (Slaughter et al., SC20): how long tasks must be for
//! the cores to spend half of their time in them.
//!
//! A grid of steps and points; each task reads what certain points of the step before have left (`pattern`), checks that
//! it is exactly that, computes for a while and leaves its own mark (`grid`). The length at which the efficiency crosses one
//! half is found by bisection (`bisection`).

mod bisection;
mod grid;
mod pattern;

use std::time::Instant;

use estafette::Engine;
use estafette_sync::thread;

use crate::error::Error;
use crate::measure::{checked, ns_each, rounds};
use crate::record::Quantity;
use crate::spin::{Body, Spin};
use crate::workload::{Measured, Settings, Workload};

use bisection::{Crossing, Point, crossing};
use grid::Grid;
pub use grid::WrongInput;
use pattern::Pattern;

/// Points of a step, as the figures of other engines are taken with; a power of two, as the FFT needs.
const WIDTH: usize = 32;

/// Steps unless told otherwise.
const STEPS: usize = 1_000;

/// Runs of which each point of the curve is the median: a worker that oversleeps once must not steer the bisection.
const REPEATS: usize = 3;

/// Bodies of one run last no longer than this, taken together: with long ones, fewer steps show as much.
const BODIES_NS_MAX: f64 = 100e6;

/// Steps that a run keeps all the same, so that its beginning and end do not count.
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

/// A worker for each core but the one of the submitting thread, which helps.
fn other_cores() -> usize {
    cores() - 1
}

/// The cores there are.
fn cores() -> usize {
    thread::available_parallelism().map_or(1, |cores| cores.get())
}

fn run(settings: &Settings, pattern: Pattern, grids: usize) -> Result<Measured, Error> {
    let engine = Engine::builder().workers(settings.workers).build()?;
    let grid = Grid::leak(&engine, pattern, WIDTH, grids);
    let row = WIDTH * grids;
    let steps = (settings.n / row).max(1);
    // The submitting thread counts as long as there is a core for it.
    let cores = cores().min(settings.workers + 1);
    let run_ns = |steps: usize, body: Body| {
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
        // Calibrated for each point: what a turn takes changes with what else the machine does.
        let body = Spin::calibrate().lasting(body_ns);
        let enough = (BODIES_NS_MAX / (body_ns * row as f64)) as usize;
        let steps = steps.min(enough.max(STEPS_LONG));
        let mut runs: Vec<f64> = (0..REPEATS).map(|_| run_ns(steps, body)).collect::<Result<_, Error>>()?;
        runs.sort_by(f64::total_cmp);
        let granularity_ns = runs[REPEATS / 2] * cores as f64;
        Ok(Point { granularity_ns, efficiency: body_ns / granularity_ns })
    };

    let ns_per_op = rounds(settings, || run_ns(steps, Body::EMPTY))?;
    let crossings: Vec<Crossing> =
        (0..settings.rounds).map(|_| crossing(point)).collect::<Result<_, Error>>()?;
    let found_us: Option<Vec<f64>> = crossings
        .iter()
        .map(|crossing| match crossing {
            Crossing::At(granularity_ns) => Some(granularity_ns / 1e3),
            Crossing::Never => None,
        })
        .collect();
    // One round without a crossing says that there is none to rely on.
    let metg = found_us.map_or(Quantity::Missing("efficiency stays below 50 %"), Quantity::of);
    let quantities =
        vec![("metg_us", metg), ("ns_per_op", ns_per_op), ("cores", Quantity::Number(cores as f64))];
    Ok(Measured { n: steps * row, quantities })
}
