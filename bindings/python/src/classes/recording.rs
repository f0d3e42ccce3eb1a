//! Where the time went: keeps the recorder while Python says so, writes its file, and reads files.

use std::path::{Path, PathBuf};

use estafette::trace::{self, Recorder, TraceOptions};
use estafette_report::shown::shown;
use estafette_report::terminal::{self, Style};
use estafette_report::{file, report};
use estafette_sync::sync::{Mutex, MutexGuard};
use pyo3::exceptions::{PyOSError, PyRuntimeError, PyValueError};
use pyo3::prelude::*;

use crate::error::OrRaise;
use crate::interpreter::guard;

/// The open recorder, if it was opened here.
static OPEN: Mutex<Option<Recorder>> = Mutex::new(None);

fn open() -> MutexGuard<'static, Option<Recorder>> {
    OPEN.lock()
}

/// Opens the recorder, to be written to `path`; `memory_max` bytes for it.
#[pyfunction(name = "_begin_recording")]
#[pyo3(signature = (path, program, memory_max, /))]
pub fn begin_recording(
    py: Python<'_>,
    path: PathBuf,
    program: String,
    memory_max: Option<usize>,
) -> PyResult<()> {
    let options = TraceOptions { memory_max, program: Some(program), ..TraceOptions::default() };
    let recorder = Recorder::open(options).or_raise(py)?;
    *open() = Some(recorder.to_file(&path).map_err(|error| of_file(&path, error))?);
    Ok(())
}

/// Closes the recorder, and writes the trace to its file.
#[pyfunction(name = "_end_recording")]
pub fn end_recording(py: Python<'_>) -> PyResult<()> {
    let Some(recorder) = open().take() else {
        return Err(PyRuntimeError::new_err("nothing is being recorded"));
    };
    // Attribution and writing take a while, and need nothing of Python's.
    guard::detach(py, || recorder.save()).map_err(|unsaved| {
        let error = of_file(&unsaved.path, unsaved.error);
        if let Some(kept) = unsaved.kept {
            let note = format!("what was recorded is kept in {}", shown(&kept.display().to_string()));
            // An error without its note is an error all the same.
            let _ = error.value(py).call_method1("add_note", (note,));
        }
        error
    })
}

/// A name as texts show it, with an escape for each character that a terminal would obey.
#[pyfunction(name = "_shown")]
#[pyo3(signature = (name, /))]
pub fn name_shown(name: &str) -> String {
    shown(name).to_string()
}

/// The report of a file, as text and as JSON; also as a page, if `html` names a file for it.
///
/// # Errors
/// `OSError` when a file cannot be read or written; `ValueError` when it is no recording.
#[pyfunction(name = "_read_report")]
#[pyo3(signature = (path, width, short, html, /))]
pub fn read_report(
    py: Python<'_>,
    path: PathBuf,
    width: usize,
    short: bool,
    html: Option<PathBuf>,
) -> PyResult<(String, String)> {
    guard::detach(py, || {
        let recording = trace::read(&path).map_err(|error| match error.kind() {
            std::io::ErrorKind::InvalidData => PyValueError::new_err(format!("{} {error}", path.display())),
            _ => of_file(&path, error),
        })?;
        if let Some(html) = html {
            file::replace(&html, |out| estafette_report::html::write(&recording, out))
                .map_err(|error| of_file(&html, error))?;
        }
        let report = report(&recording);
        let json =
            serde_json::to_string(&report).map_err(|error| PyRuntimeError::new_err(error.to_string()))?;
        Ok((terminal::text(&report, Style { width, colour: false, short }), json))
    })
}

/// As Python's own: the class that its number has, and the file.
pub fn of_file(path: &Path, error: std::io::Error) -> PyErr {
    match error.raw_os_error() {
        Some(number) => PyOSError::new_err((number, error.to_string(), path.to_path_buf())),
        None => PyOSError::new_err(format!("{}: {error}", path.display())),
    }
}
