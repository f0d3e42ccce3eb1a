//! Submission of operations on plain variables.

use estafette::operation::OpBuilder;
use estafette::{Engine, Error, Variable};

use crate::access::Access;
use crate::spin::SpinBody;

/// Submits one operation in the form that a user would write.
///
/// # Errors
/// Fails if the engine refuses it.
#[inline]
pub fn submit(engine: &Engine, variables: &[Variable], access: &Access, body: SpinBody) -> Result<(), Error> {
    let op = describe(engine, variables, access);
    if body.is_empty() {
        op.run_detached(|[], []| Ok(()))
    } else {
        op.run_detached(move |[], []| {
            body.run();
            Ok(())
        })
    }
}

/// Describes an operation that has no body yet.
///
/// Each number of reads has its own line, as in a program that knows its reads. A loop that collects them
/// would cost a good part of what a fast engine takes for the whole operation.
#[inline]
pub(crate) fn describe<'e>(engine: &'e Engine, variables: &'e [Variable], access: &Access) -> OpBuilder<'e> {
    let op = engine.op("bench");
    let of = |index: u16| &variables[usize::from(index)];
    let op = match *access.read_indices() {
        [] => op,
        [a] => op.reads_vars(&[of(a)]),
        [a, b] => op.reads_vars(&[of(a), of(b)]),
        [a, b, c] => op.reads_vars(&[of(a), of(b), of(c)]),
        [a, b, c, ref rest @ ..] => {
            rest.iter().fold(op.reads_vars(&[of(a), of(b), of(c)]), |op, more| op.reads_vars(&[of(*more)]))
        }
    };
    match access.write() {
        Some(write) => op.writes_vars(&[&variables[write]]),
        None => op,
    }
}

/// Submits one operation for each access, in order.
pub(crate) fn submit_all(
    engine: &Engine,
    variables: &[Variable],
    accesses: &[Access],
    body: SpinBody,
) -> Result<(), Error> {
    accesses.iter().try_for_each(|access| submit(engine, variables, access, body))
}
