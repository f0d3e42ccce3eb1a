//! Figures of the processor alone, on a machine with more cores than most: workloads of `estafette bench`
//! with more and more workers, and a product of matrices by tiles.

use std::fmt::Write as _;
use std::time::Instant;

use benches::Settings;
use estafette::{DType, Engine, Tensor};

use crate::failure::{Failure, ensure};
use crate::record::{Figure, Record};

/// Workloads, and how many operations a run has.
const WORKLOADS: [(&str, usize); 3] =
    [("independent", 100_000), ("random", 100_000), ("metg-stencil", 16_000)];
const ROUNDS: usize = 3;
/// Tiles of a row, and numbers of a tile's row.
const TILES: usize = 8;
const EDGE: usize = 128;

pub fn run(simulator: bool, record: &mut Record) -> Result<(), Failure> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let workers: Vec<usize> = [1, 2, 4, 8, 16].into_iter().filter(|workers| *workers <= cores).collect();
    for (name, n) in WORKLOADS {
        // A rehearsal shows that it runs.
        let n = if simulator { n / 50 } else { n };
        for workload in benches::named(name) {
            let mut lines = String::new();
            for workers in &workers {
                let settings = Settings { n, workers: *workers, body_ns: 0, rounds: ROUNDS };
                let measured =
                    workload.measure(&settings).map_err(|error| Failure::wrong(error.to_string()))?;
                let _ = write!(lines, "{}; ", measured.json());
            }
            record.passed(&format!("cpu: {name}"), lines.trim_end_matches("; "));
        }
    }
    let edge = if simulator { 16 } else { EDGE };
    let alone = product(None, edge)?;
    let mut times = Vec::new();
    for workers in &workers {
        times.push(product(Some(*workers), edge)?);
    }
    let fastest = times.iter().copied().fold(f64::INFINITY, f64::min);
    let speedup = alone / fastest;
    let show: Vec<String> =
        workers.iter().zip(&times).map(|(workers, time)| format!("{workers}: {time:.1} ms")).collect();
    record.figure(Figure {
        quantity: format!("product of matrices, {TILES} × {TILES} tiles of {edge} × {edge}"),
        ours: format!("by workers {}; {speedup:.1} × one thread", show.join(", ")),
        baseline: format!("a loop on one thread {alone:.1} ms"),
        target: "≥ 0.7 × the workers".to_owned(),
        met: speedup >= 0.7 * workers.last().copied().unwrap_or(1) as f64,
    });
    Ok(())
}

fn multiply(a: &[f32], b: &[f32], c: &mut [f32], edge: usize) {
    for (row, out) in a.chunks_exact(edge).zip(c.chunks_exact_mut(edge)) {
        for (factor, column) in row.iter().zip(b.chunks_exact(edge)) {
            for (sum, value) in out.iter_mut().zip(column) {
                *sum += factor * value;
            }
        }
    }
}

/// Milliseconds for a product of two matrices of ones: the best of three, by that many workers or in a loop.
/// Every element of the result must be the number of terms.
fn product(workers: Option<usize>, edge: usize) -> Result<f64, Failure> {
    let mut best = f64::INFINITY;
    for _ in 0..3 {
        best = best.min(match workers {
            None => looped(edge)?,
            Some(workers) => through(workers, edge)?,
        });
    }
    Ok(best)
}

fn expect(tile: &[f32], edge: usize) -> Result<(), Failure> {
    let expected = (TILES * edge) as f32;
    ensure(tile.iter().all(|value| *value == expected), || {
        format!("a tile holds {}, not {expected}", tile[0])
    })
}

fn looped(edge: usize) -> Result<f64, Failure> {
    let ones = vec![vec![1.0_f32; edge * edge]; TILES * TILES];
    let mut out = vec![vec![0.0_f32; edge * edge]; TILES * TILES];
    let begin = Instant::now();
    for row in 0..TILES {
        for column in 0..TILES {
            for inner in 0..TILES {
                let (a, b) = (&ones[row * TILES + inner], &ones[inner * TILES + column]);
                multiply(a, b, &mut out[row * TILES + column], edge);
            }
        }
    }
    let time = begin.elapsed().as_secs_f64() * 1e3;
    out.iter().try_for_each(|tile| expect(tile, edge))?;
    Ok(time)
}

fn through(workers: usize, edge: usize) -> Result<f64, Failure> {
    let engine = Engine::builder().workers(workers).build()?;
    let shape = [edge as i64, edge as i64];
    let ones = |_| engine.from_vec(vec![1.0_f32; edge * edge], &shape);
    let a: Vec<Tensor> = (0..TILES * TILES).map(ones).collect::<Result<_, _>>()?;
    let b: Vec<Tensor> = (0..TILES * TILES).map(ones).collect::<Result<_, _>>()?;
    let zeros = |_| engine.zeros(&shape, DType::F32);
    let out: Vec<Tensor> = (0..TILES * TILES).map(zeros).collect::<Result<_, _>>()?;
    let begin = Instant::now();
    for inner in 0..TILES {
        for (at, tile) in out.iter().enumerate() {
            let (a, b) = (&a[at / TILES * TILES + inner], &b[inner * TILES + at % TILES]);
            drop(engine.op("tile").reads([a, b]).updates([tile]).run(move |[a, b], [], [mut c]| {
                multiply(a.as_slice()?, b.as_slice()?, c.as_mut_slice()?, edge);
                Ok(())
            })?);
        }
    }
    for tile in &out {
        tile.wait()?;
    }
    let time = begin.elapsed().as_secs_f64() * 1e3;
    for tile in &out {
        expect(&tile.to_vec::<f32>()?, edge)?;
    }
    Ok(time)
}
