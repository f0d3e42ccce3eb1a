//! Times runs, and checks that each run did its work.

use std::time::{Duration, Instant};

use estafette::{Engine, Variable};

use crate::access::Access;
use crate::error::Error;
use crate::record::Quantity;
use crate::spin::SpinBody;
use crate::submit::submit_all;
use crate::workload::{Measured, Settings};

/// Measures a list of operations on `variables` plain variables: nanoseconds per operation, from the first
/// submission until the last operation has ended.
pub(crate) fn by_accesses(
    settings: &Settings,
    variables: usize,
    accesses: &[Access],
) -> Result<Measured, Error> {
    let engine = Engine::builder().workers(settings.workers).build()?;
    let variables = some_variables(&engine, variables);
    let body = SpinBody::lasting(settings.body_ns);
    let ns_per_op = rounds(settings, || {
        let took = checked(&variables, writes(accesses), || {
            let began = Instant::now();
            submit_all(&engine, &variables, accesses, body)?;
            engine.wait_all(None)?;
            Ok(began.elapsed())
        })?;
        Ok(ns_each(took, accesses.len()))
    })?;
    Ok(Measured { n: accesses.len(), quantities: vec![("ns_per_op", ns_per_op)] })
}

/// One run to warm up, then one sample for each round.
pub(crate) fn rounds(
    settings: &Settings,
    mut run: impl FnMut() -> Result<f64, Error>,
) -> Result<Quantity, Error> {
    run()?;
    let samples = (0..settings.rounds).map(|_| run()).collect::<Result<_, _>>()?;
    Ok(Quantity::of(samples))
}

/// Calls `run`, and checks that the variables have seen exactly `writes` more writes.
pub(crate) fn checked<T>(
    variables: &[Variable],
    writes: u64,
    run: impl FnOnce() -> Result<T, Error>,
) -> Result<T, Error> {
    let before = versions(variables);
    let outcome = run()?;
    match versions(variables) - before {
        found if found == writes => Ok(outcome),
        found => Err(Error::Lost { expected: writes, found }),
    }
}

pub(crate) fn some_variables(engine: &Engine, count: usize) -> Vec<Variable> {
    (0..count).map(|_| engine.var()).collect()
}

/// Number of operations that write.
pub(crate) fn writes(accesses: &[Access]) -> u64 {
    accesses.iter().filter(|access| access.write().is_some()).count() as u64
}

/// Nanoseconds per operation of `n`.
pub(crate) fn ns_each(time: Duration, n: usize) -> f64 {
    time.as_nanos() as f64 / n as f64
}

fn versions(variables: &[Variable]) -> u64 {
    variables.iter().map(Variable::version).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_that_loses_a_write_gives_no_time() {
        let engine = Engine::builder().workers(0).build().unwrap();
        let variables = some_variables(&engine, 2);
        let accesses = [Access::new(&[], Some(0)), Access::new(&[0], Some(1)), Access::new(&[1], None)];
        let run = || {
            submit_all(&engine, &variables, &accesses, SpinBody::EMPTY)?;
            Ok(engine.wait_all(None)?)
        };
        assert!(checked(&variables, writes(&accesses), run).is_ok());
        let lost = checked(&variables, 3, run);
        assert!(matches!(lost, Err(Error::Lost { expected: 3, found: 2 })));
    }
}
