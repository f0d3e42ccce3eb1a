//! Submitting operations on plain variables.

use estafette::{Engine, Error, OpBuilder, Variable};

use crate::access::{Access, READS_MAX};
use crate::spin::Body;

/// Submits one operation, as a user would write it.
///
/// # Errors
/// When the engine refuses it.
#[inline]
pub fn submit(engine: &Engine, variables: &[Variable], access: &Access, body: Body) -> Result<(), Error> {
    let op = describe(engine, variables, access);
    let submitted = if body.is_empty() {
        op.run(|[], []| Ok(()))
    } else {
        op.run(move |[], []| {
            body.run();
            Ok(())
        })
    };
    submitted.map(drop)
}

/// Describes an operation that has no body yet.
#[inline]
pub(crate) fn describe<'e>(engine: &'e Engine, variables: &[Variable], access: &Access) -> OpBuilder<'e> {
    let mut reads = [&variables[0]; READS_MAX];
    let read = access.reads().len();
    for (slot, read) in reads.iter_mut().zip(access.reads()) {
        *slot = &variables[read];
    }
    let mut op = engine.op("bench");
    if read > 0 {
        op = op.reads_vars(&reads[..read]);
    }
    if let Some(write) = access.write() {
        op = op.writes_vars(&[&variables[write]]);
    }
    op
}

/// Submits one operation for each access, in order.
pub(crate) fn submit_all(
    engine: &Engine,
    variables: &[Variable],
    accesses: &[Access],
    body: Body,
) -> Result<(), Error> {
    accesses.iter().try_for_each(|access| submit(engine, variables, access, body))
}
