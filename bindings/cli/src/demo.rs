//! `estafette demo`: two stages over a ring of buffers, so that reads and writes of different rounds overlap
//! and are still in order.

use std::io::Write;
use std::time::{Duration, Instant};

use estafette::{DType, Engine, Tensor};

/// Stream tensors through a small graph, and check the result.
#[derive(clap::Args)]
pub(crate) struct DemoArguments {
    /// Tensors to stream.
    #[arg(long, value_name = "N", default_value_t = 1_000)]
    tensors: usize,
}

/// Buffers in the ring: rounds that may be under way at once.
const RING: usize = 4;

/// Elements of each tensor.
const LEN: i64 = 4_096;

pub(crate) fn run(arguments: &DemoArguments, out: &mut impl Write) -> Result<(), Box<dyn std::error::Error>> {
    let tensors = arguments.tensors;
    let engine = Engine::builder().build()?;
    let ring: Vec<Tensor> = (0..RING).map(|_| engine.zeros(&[LEN], DType::F32)).collect::<Result<_, _>>()?;
    let sums = engine.zeros(&[1], DType::F64)?;
    let began = Instant::now();
    for round in 0..tensors {
        let slot = &ring[round % RING];
        engine.op("fill").writes([slot]).run(move |[], [mut out]| {
            out.as_mut_slice::<f32>()?.fill(round as f32);
            Ok(())
        })?;
        engine.op("sum").reads([slot]).updates([&sums]).run(|[input], [], [mut sums]| {
            let sum: f64 = input.as_slice::<f32>()?.iter().map(|value| f64::from(*value)).sum();
            sums.as_mut_slice::<f64>()?[0] += sum;
            Ok(())
        })?;
    }
    let submitted = began.elapsed();
    sums.wait()?;
    let total = began.elapsed();
    let found = sums.to_vec::<f64>()?[0];
    let expected: f64 = (0..tensors).map(|round| round as f64 * LEN as f64).sum();
    if found != expected {
        return Err(format!("the sum is {found}, but one after the other gives {expected}").into());
    }
    writeln!(out, "tensors     {tensors}")?;
    writeln!(out, "operations  {}", 2 * tensors)?;
    writeln!(out, "submitted   {:.1} ms", milliseconds(submitted))?;
    writeln!(out, "finished    {:.1} ms", milliseconds(total))?;
    writeln!(out, "result      {found}, as one after the other gives")?;
    Ok(())
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}
