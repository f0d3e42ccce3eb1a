//! The command `estafette` of the package.

use std::ffi::OsString;

use pyo3::prelude::*;

use crate::interpreter::guard;

/// Runs the command with its arguments, of which the first is its name, and returns the exit code.
#[pyfunction(name = "_command", signature = (arguments, /))]
pub fn command(py: Python<'_>, arguments: Vec<OsString>) -> u8 {
    guard::detach(py, || estafette_cli::run(arguments))
}
