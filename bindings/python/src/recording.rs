//! Where the time went: keeps the journal while Python says so, writes its file, and reads files.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use estafette::journal::{Journal, JournalOptions};
use estafette_report::terminal::{self, Style};
use estafette_report::{perfetto, report};
use estafette_sync::sync::{Mutex, MutexGuard};
use pyo3::exceptions::{PyOSError, PyRuntimeError, PyValueError};
use pyo3::prelude::*;

use crate::error::OrRaise;
use crate::gate;

/// The open journal, if it was opened here.
static OPEN: Mutex<Option<Journal>> = Mutex::new(None);

fn open() -> MutexGuard<'static, Option<Journal>> {
    OPEN.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// Opens the journal; `memory_max` bytes for its entries.
#[pyfunction(name = "_begin_recording")]
#[pyo3(signature = (program, memory_max, /))]
pub fn begin_recording(py: Python<'_>, program: String, memory_max: Option<usize>) -> PyResult<()> {
    let options = JournalOptions { memory_max, program: Some(program), ..JournalOptions::default() };
    let journal = Journal::open(options).or_raise(py)?;
    *open() = Some(journal);
    Ok(())
}

/// Closes the journal, and writes what it tells to `path`; to None throws it away.
#[pyfunction(name = "_end_recording")]
#[pyo3(signature = (path, /))]
pub fn end_recording(py: Python<'_>, path: Option<PathBuf>) -> PyResult<()> {
    let Some(journal) = open().take() else {
        return Err(PyRuntimeError::new_err("nothing is being recorded"));
    };
    let Some(path) = path else { return Ok(()) };
    // Attribution and writing take a while, and need nothing of Python's.
    gate::detach(py, || {
        let recording = journal.finish();
        write(&path, |out| perfetto::write(&recording, out))
    })
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
    gate::detach(py, || {
        let bytes = std::fs::read(&path).map_err(|error| of_file(&path, error))?;
        let recording = perfetto::read(&bytes);
        if recording.operations.is_empty() && !recording.losses.damage.is_empty() {
            let damage = recording.losses.damage.join("; ");
            let message = format!("{} is no recording, or nothing of it is left: {damage}", path.display());
            return Err(PyValueError::new_err(message));
        }
        if let Some(html) = html {
            write(&html, |out| estafette_report::html::write(&recording, out))?;
        }
        let report = report(&recording);
        let json =
            serde_json::to_string(&report).map_err(|error| PyRuntimeError::new_err(error.to_string()))?;
        Ok((terminal::text(&report, Style { width, colour: false, short }), json))
    })
}

fn write(path: &Path, content: impl FnOnce(&mut BufWriter<File>) -> std::io::Result<()>) -> PyResult<()> {
    let written = File::create(path).and_then(|file| {
        let mut out = BufWriter::new(file);
        content(&mut out)?;
        out.flush()
    });
    written.map_err(|error| of_file(path, error))
}

/// As Python's own: the class that its number has, and the file.
fn of_file(path: &Path, error: std::io::Error) -> PyErr {
    match error.raw_os_error() {
        Some(number) => PyOSError::new_err((number, error.to_string(), path.to_path_buf())),
        None => PyOSError::new_err(format!("{}: {error}", path.display())),
    }
}
