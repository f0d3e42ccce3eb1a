//! Programs and their nodes.

use crate::core::error::Error;
use crate::core::operation::Op;
use crate::engine::Engine;
use crate::operation::operands::Operands;
use crate::program::{NodeBuilder, Program, ProgramBuilder};

pub use crate::program::node_builder::CheckedNode;

pub fn checked_external<'r, R: Operands, W: Operands, U: Operands>(
    node: NodeBuilder<'r, R, W, U>,
) -> Result<CheckedNode<'r, R, W, U>, Error> {
    node.checked_external()
}

pub fn is_graph(program: &Program) -> bool {
    program.is_graph()
}

pub fn is_in_use(program: &Program) -> bool {
    program.is_in_use()
}

/// As [`replay`](Program::replay), but fails with [`Error::InFlightLimit`] where no permit is free.
///
/// # Errors
/// As [`run_external`](crate::operation::OpBuilder::run_external), and [`Error::InFlightLimit`].
pub fn try_replay(program: &Program) -> Result<Op, Error> {
    let (described, body) = program.describe();
    described.without_waiting().run_external(body)
}

/// The engine that the program will run in.
pub fn engine(builder: &ProgramBuilder) -> &Engine {
    &builder.engine
}
