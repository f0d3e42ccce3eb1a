//! A relay: frames pass through operations written with two array crates, ndarray and arrow, without a copy.
//!
//! ```text
//!  camera ──channel──► desk ──channel──► archive            three tokio tasks
//!  makes frames        submits operations,                  awaits the results
//!  with ndarray        waits for none                       and borrows them for arrow
//!
//!  learn   (ndarray)   baseline += (mean row of the frame - baseline) / 8     in ndarray's memory
//!  centre  (ndarray)   frame -= baseline                                      in ndarray's memory
//!  square  (arrow)     energy = frame * frame                                 a new arrow array
//!  sum     (ndarray)   result = energy summed along each row                  a new ndarray array
//! ```
//!
//! All frames share one baseline, so the order matters: frame 7 must not be centred with what was learned
//! from frame 8. No lock or channel below enforces that order. The operations declare what they read and
//! write, and the results equal those of the plain loop ([`plain_loop`]) bit by bit.
//!
//! Run it with `cargo run --release --example relay`. At the end it prints where the time went, and writes
//! the timeline to `relay.html`.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::time::{Duration, Instant};

use arrow_arith::numeric;
use arrow_array::Float32Array;
use arrow_array::cast::AsArray;
use arrow_array::types::Float32Type;
use estafette::report::{self, Trace, terminal};
use estafette::trace::{Recorder, TraceOptions};
use estafette::{Element, Engine, Produced, Tensor, View, ViewMut};
use examples::{Ledger, Result, Trail};
use indicatif::{ProgressBar, ProgressStyle};
use ndarray::{
    Array, Array1, Array2, ArrayView, ArrayView1, ArrayView2, ArrayViewMut, ArrayViewMut1, ArrayViewMut2,
    Axis, Dimension, Ix1, Ix2,
};
use tokio::sync::mpsc;

const FRAMES: usize = 2_000;
const ROWS: usize = 64;
const COLUMNS: usize = 256;

/// Frames between two stages: enough to keep every stage busy, few enough that memory stays small.
const DEPTH: usize = 8;

/// File of the timeline.
const PAGE: &str = "relay.html";

/// Time limit for all memory to be released at the end.
const PATIENCE: Duration = Duration::from_secs(10);

// ---- The numerical work, without Estafette. The plain loop and the relay both call it. ----

/// The frame that the camera takes at time `index`.
fn photograph(index: usize) -> Array2<f32> {
    Array2::from_shape_fn((ROWS, COLUMNS), |(row, column)| {
        ((index * 31 + row * 7 + column * 13) % 257) as f32 / 257.0
    })
}

fn learn(mut baseline: ArrayViewMut1<f32>, frame: ArrayView2<f32>) {
    for (baseline, column) in baseline.iter_mut().zip(frame.columns()) {
        *baseline += (column.sum() / ROWS as f32 - *baseline) / 8.0;
    }
}

fn centre(mut frame: ArrayViewMut2<f32>, baseline: ArrayView1<f32>) {
    frame -= &baseline;
}

fn square(frame: &Float32Array) -> Result<Float32Array> {
    Ok(numeric::mul(frame, frame)?.as_primitive::<Float32Type>().clone())
}

fn sum(energy: ArrayView2<f32>) -> Array1<f32> {
    energy.sum_axis(Axis(1))
}

/// The same work without an engine, one step after the other. Each crossing is a copy here.
fn plain_loop() -> Result<Vec<Vec<f32>>> {
    let mut baseline = Array1::zeros(COLUMNS);
    let mut results = Vec::with_capacity(FRAMES);
    for index in 0..FRAMES {
        let mut frame = photograph(index);
        learn(baseline.view_mut(), frame.view());
        centre(frame.view_mut(), baseline.view());
        let energy = square(&Float32Array::from_iter_values(frame))?;
        let result = sum(ArrayView2::from_shape((ROWS, COLUMNS), energy.values())?);
        results.push(result.to_vec());
    }
    Ok(results)
}

// ---- The relay. ----

/// A tensor with its trail, which checks every crossing.
#[derive(Clone)]
struct Baton {
    tensor: Tensor,
    trail: Trail,
}

impl Baton {
    /// Hands an ndarray array over to the engine.
    fn import<D: Dimension + 'static>(stage: &Stage, array: Array<f32, D>) -> Result<Self> {
        let trail = stage.ledger.trail();
        trail.starts(array.as_ptr());
        let len = array.len();
        let tensor = stage.engine.from_ndarray(array)?;
        trail.crosses(tensor.data_ptr()?.cast::<f32>(), len);
        Ok(Self { tensor, trail })
    }
}

/// An operand as an ndarray view, which crosses to ndarray.
fn view<'a, T: Element, D: Dimension>(operand: &View<'a>, trail: &Trail) -> Result<ArrayView<'a, T, D>> {
    let view = operand.as_ndarray::<T, D>()?;
    trail.crosses(view.as_ptr(), view.len());
    Ok(view)
}

fn view_mut<'a, T: Element, D: Dimension>(
    operand: &'a mut ViewMut<'_>,
    trail: &Trail,
) -> Result<ArrayViewMut<'a, T, D>> {
    let view = operand.as_ndarray_mut::<T, D>()?;
    trail.crosses(view.as_ptr(), view.len());
    Ok(view)
}

/// The engine and the ledger, which every stage needs.
#[derive(Clone)]
struct Stage {
    engine: Engine,
    ledger: Ledger,
}

/// First stage: ndarray makes a frame and hands it over.
async fn camera(stage: Stage, frames: mpsc::Sender<Baton>) -> Result {
    for index in 0..FRAMES {
        if frames.send(Baton::import(&stage, photograph(index))?).await.is_err() {
            break; // The next stage has ended, and reports why.
        }
    }
    Ok(())
}

/// Second stage: submits the operations. It waits for no result, so it runs ahead of the work.
async fn desk(stage: Stage, mut frames: mpsc::Receiver<Baton>, results: mpsc::Sender<Baton>) -> Result {
    let baseline = Baton::import(&stage, Array1::zeros(COLUMNS))?;
    while let Some(frame) = frames.recv().await {
        submit_learn(&stage, &frame, &baseline).await?;
        submit_centre(&stage, &frame, &baseline).await?;
        let energy = submit_square(&stage, &frame).await?;
        if results.send(submit_sum(&stage, &energy).await?).await.is_err() {
            break;
        }
        // The handles of frame and energy end here; the operations keep what they need.
    }
    Ok(())
}

async fn submit_learn(stage: &Stage, frame: &Baton, baseline: &Baton) -> Result {
    let (frame_trail, baseline_trail) = (frame.trail.clone(), baseline.trail.clone());
    stage.ledger.submitted();
    let op = stage.engine.op("learn").reads([&frame.tensor]).updates([&baseline.tensor]);
    op.permit().await?.run(move |[frame], [], [mut baseline]| {
        learn(view_mut::<_, Ix1>(&mut baseline, &baseline_trail)?, view::<_, Ix2>(&frame, &frame_trail)?);
        Ok(())
    })?;
    Ok(())
}

async fn submit_centre(stage: &Stage, frame: &Baton, baseline: &Baton) -> Result {
    let (frame_trail, baseline_trail) = (frame.trail.clone(), baseline.trail.clone());
    stage.ledger.submitted();
    let op = stage.engine.op("centre").reads([&baseline.tensor]).updates([&frame.tensor]);
    op.permit().await?.run(move |[baseline], [], [mut frame]| {
        centre(view_mut::<_, Ix2>(&mut frame, &frame_trail)?, view::<_, Ix1>(&baseline, &baseline_trail)?);
        Ok(())
    })?;
    Ok(())
}

/// arrow must own the memory that it reads, so this body takes no view: its operand becomes an array that
/// holds a lease.
async fn submit_square(stage: &Stage, frame: &Baton) -> Result<Baton> {
    let (frame, trail) = (frame.clone(), stage.ledger.trail());
    let energy_trail = trail.clone();
    stage.ledger.submitted();
    let op = stage.engine.op("square").reads([&frame.tensor]);
    let tensor = op.permit().await?.produce_external(move |completion| {
        let energy = || {
            let array = completion.scope().arrow::<Float32Type>(&frame.tensor)?;
            frame.trail.crosses(array.values().as_ptr(), array.len());
            let energy = square(&array)?;
            energy_trail.starts(energy.values().as_ptr());
            Ok(Produced::try_from((energy, &[ROWS as i64, COLUMNS as i64][..]))?)
        };
        let energy = energy();
        completion.produce(energy);
    })?;
    Ok(Baton { tensor, trail })
}

async fn submit_sum(stage: &Stage, energy: &Baton) -> Result<Baton> {
    let (energy_trail, trail) = (energy.trail.clone(), stage.ledger.trail());
    let result_trail = trail.clone();
    stage.ledger.submitted();
    let op = stage.engine.op("sum").reads([&energy.tensor]);
    let tensor = op.permit().await?.produce(move |[energy]| {
        let result = sum(view::<_, Ix2>(&energy, &energy_trail)?);
        result_trail.starts(result.as_ptr());
        Ok(Produced::try_from(result)?)
    })?;
    Ok(Baton { tensor, trail })
}

/// Measurements of the last stage.
#[derive(Default)]
struct Archive {
    waited: Duration,
    in_flight_max: usize,
}

/// Last stage: awaits each result and compares it with that of the plain loop.
async fn archive(
    stage: Stage,
    mut results: mpsc::Receiver<Baton>,
    expected: Vec<Vec<f32>>,
) -> Result<Archive> {
    // Nothing is drawn when the output is not a terminal.
    let progress = ProgressBar::new(FRAMES as u64)
        .with_style(ProgressStyle::with_template("{bar:40} {pos}/{len} frames  {per_sec}")?);
    let mut archive = Archive::default();
    for (index, expected) in expected.iter().enumerate() {
        let Baton { tensor, trail } = results.recv().await.ok_or("the relay ended early")?;
        archive.in_flight_max = archive.in_flight_max.max(stage.engine.stats().in_flight);
        let since = Instant::now();
        tensor.ready().await?;
        archive.waited += since.elapsed();
        let result = tensor.lease_arrow::<Float32Type>().await?;
        trail.crosses(result.values().as_ptr(), result.len());
        if result.values() != expected.as_slice() {
            return Err(format!("frame {index} differs from the plain loop").into());
        }
        progress.inc(1);
    }
    progress.finish_and_clear();
    Ok(archive)
}

#[tokio::main]
async fn main() -> Result {
    let since = Instant::now();
    let expected = plain_loop()?;
    let plain = since.elapsed();

    // `--no-report` leaves out the trace: to compare.
    let quiet = std::env::args().any(|argument| argument == "--no-report");
    let recorder = if quiet { None } else { Some(Recorder::open(TraceOptions::default())?) };
    let engine = Engine::builder().build()?;
    let ledger = Ledger::default();
    let stage = Stage { engine: engine.clone(), ledger: ledger.clone() };
    let since = Instant::now();
    let (frames_in, frames_out) = mpsc::channel(DEPTH);
    let (results_in, results_out) = mpsc::channel(DEPTH);
    let camera = tokio::spawn(camera(stage.clone(), frames_in));
    let desk = tokio::spawn(desk(stage.clone(), frames_out, results_in));
    let archive = archive(stage, results_out, expected).await;
    // A stage that fails closes its channels, so the other stages end as well. Earlier stages report their
    // errors first.
    camera.await??;
    desk.await??;
    let archive = archive?;
    let relay = since.elapsed();

    engine.shutdown().await;
    // The last operands are dropped a moment after their operations have ended, and deleters run on another
    // thread.
    let since = Instant::now();
    while !all_is_back(&engine, &ledger) && since.elapsed() < PATIENCE {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    show(&engine, &ledger, &archive, plain, relay)?;
    recorder.map_or(Ok(()), |recorder| where_the_time_went(&recorder.finish()))
}

/// Prints the short report, and writes the HTML page to the working directory.
fn where_the_time_went(trace: &Trace) -> Result {
    let report = report::report(trace);
    println!();
    print!("{}", terminal::text(&report, terminal::Style { short: true, ..terminal::Style::default() }));
    let mut page = BufWriter::new(File::create(PAGE)?);
    report::html::write(trace, &report, &mut page)?;
    page.flush()?;
    println!("\nthe timeline: {PAGE}");
    Ok(())
}

fn all_is_back(engine: &Engine, ledger: &Ledger) -> bool {
    engine.stats().released == ledger.totals().handed_over
}

fn show(engine: &Engine, ledger: &Ledger, archive: &Archive, plain: Duration, relay: Duration) -> Result {
    let totals = ledger.totals();
    let mut out = std::io::stdout().lock();
    let mut row = |what: &str, value: String| writeln!(out, "  {what:<34}{value:>14}");
    row("tensors imported", totals.handed_over.to_string())?;
    row("deleters run", engine.stats().released.to_string())?;
    row("crossings between libraries", totals.crossings.to_string())?;
    row("bytes handed over", format!("{:.1} MB", totals.bytes as f64 / 1e6))?;
    row("copies (address changed)", totals.copies.to_string())?;
    row("operations", totals.operations.to_string())?;
    row("most operations seen in flight", archive.in_flight_max.to_string())?;
    row("time waited for results", format!("{:.1} ms", archive.waited.as_secs_f64() * 1e3))?;
    row("time of the relay", format!("{:.1} ms", relay.as_secs_f64() * 1e3))?;
    row("time of the plain loop", format!("{:.1} ms", plain.as_secs_f64() * 1e3))?;
    row("results equal to the plain loop", format!("{FRAMES} of {FRAMES}"))?;
    if totals.copies > 0 {
        return Err("a tensor was copied on its way".into());
    }
    if !all_is_back(engine, ledger) {
        return Err("not all memory came back".into());
    }
    Ok(())
}
