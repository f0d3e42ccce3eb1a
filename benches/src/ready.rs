//! Readiness queries of a finished tensor.

use std::hint::black_box;
use std::time::Instant;

use estafette::{DType, Engine, Tensor};

use crate::error::Error;
use crate::measure::{ns_each, rounds};
use crate::wake::runtime;
use crate::workload::{Measured, Settings, Workload};

/// Default number of calls of one run.
const CALLS: usize = 1_000_000;

pub(crate) const IS_READY: Workload = Workload {
    has_body: false,
    ..Workload::plain("ready-is", "`is_ready()` of a finished tensor", CALLS, |settings| {
        let tensor = finished(settings)?;
        let ns_per_op = rounds(settings, || {
            let began = Instant::now();
            for _ in 0..settings.n {
                if !black_box(&tensor).is_ready() {
                    return Err(Error::NotReady);
                }
            }
            Ok(ns_each(began.elapsed(), settings.n))
        })?;
        Ok(Measured { n: settings.n, quantities: vec![("ns_per_op", ns_per_op)] })
    })
};

pub(crate) const AWAIT: Workload = Workload {
    has_body: false,
    ..Workload::plain("ready-await", "`.ready().await` of a finished tensor", CALLS, |settings| {
        let tensor = finished(settings)?;
        let runtime = runtime()?;
        let ns_per_op = rounds(settings, || {
            runtime.block_on(async {
                let began = Instant::now();
                for _ in 0..settings.n {
                    black_box(&tensor).ready().await?;
                }
                Ok(ns_each(began.elapsed(), settings.n))
            })
        })?;
        Ok(Measured { n: settings.n, quantities: vec![("ns_per_op", ns_per_op)] })
    })
};

/// A tensor that an operation has written.
fn finished(settings: &Settings) -> Result<Tensor, Error> {
    let engine = Engine::builder().workers(settings.workers).build()?;
    let tensor = engine.zeros(&[16], DType::F32)?;
    engine
        .op("fill")
        .writes([&tensor])
        .run(|[], [mut tensor]| {
            tensor.as_mut_slice::<f32>()?.fill(1.0);
            Ok(())
        })?
        .wait()?;
    Ok(tensor)
}
