//! Traces in Python: keeps the recorder while Python says so, writes its file, and reads files.

use std::collections::BTreeMap;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use estafette::bindings;
use estafette::trace::{self, Recorder, TraceOptions};
use estafette_report::shown::shown;
use estafette_report::terminal::{self, Style};
use estafette_report::{chrome, file, html, merge, perfetto, report, summary};
use estafette_sync::sync::Mutex;
use estafette_sync::sync::atomic::{AtomicU64, Ordering};
use pyo3::exceptions::{PyFileExistsError, PyOSError, PyRuntimeError, PyValueError};
use pyo3::prelude::*;

use crate::arguments::seconds;
use crate::error::OrRaise;
use crate::interpreter::guard;

/// A recorder; `None` once it was closed. A snapshot takes its time, and the end waits for it.
type SharedRecorder = Arc<Mutex<Option<Recorder>>>;

estafette_sync::per_process! {
    /// The recorders that were opened here, by their numbers.
    static OPEN: Mutex<BTreeMap<u64, SharedRecorder>> = Mutex::new(BTreeMap::new());
}

/// Opens a recorder, to be written to `path`. Returns its number.
#[pyfunction(name = "_begin_trace", signature = (path, memory_max, last, signal, /))]
pub fn begin_trace(
    py: Python<'_>,
    path: PathBuf,
    memory_max: Option<usize>,
    last: Option<f64>,
    signal: Option<i32>,
) -> PyResult<u64> {
    // An id allocator.
    static NEXT: AtomicU64 = AtomicU64::new(1);
    let last = seconds("last", last)?;
    let options = TraceOptions { memory_max, last, signal, ..TraceOptions::default() };
    let recorder = guard::detach(py, || Recorder::open(options)).or_raise(py)?;
    let recorder = recorder.to_file(&path).map_err(|error| of_file(&path, error))?;
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    OPEN.lock().insert(number, Arc::new(Mutex::new(Some(recorder))));
    Ok(number)
}

/// Writes what the recorder of this number has noted so far to the file `path`.
#[pyfunction(name = "_snapshot_trace", signature = (number, path, /))]
pub fn snapshot_trace(py: Python<'_>, number: u64, path: PathBuf) -> PyResult<()> {
    let shared = OPEN.lock().get(&number).cloned().ok_or_else(not_being_made)?;
    let written = guard::detach(py, || shared.lock().as_ref().map(|recorder| recorder.snapshot(&path)));
    written.ok_or_else(not_being_made)?.map_err(|error| of_file(&path, error))
}

/// Sets the name that this program has in traces.
#[pyfunction(name = "_set_program_name", signature = (name, /))]
pub fn set_program_name(name: String) {
    bindings::set_program_name(name);
}

fn not_being_made() -> PyErr {
    PyRuntimeError::new_err("this trace is not being recorded")
}

/// Closes the recorder of this number, and writes the trace to its file.
#[pyfunction(name = "_end_trace", signature = (number, /))]
pub fn end_trace(py: Python<'_>, number: u64) -> PyResult<()> {
    let shared = OPEN.lock().remove(&number).ok_or_else(not_being_made)?;
    // Attribution and writing take a while, and need nothing of Python's.
    let saved = guard::detach(py, || shared.lock().take().map(Recorder::save));
    saved.ok_or_else(not_being_made)?.map_err(|unsaved| {
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
#[pyfunction(name = "_shown", signature = (name, /))]
pub fn name_shown(name: &str) -> String {
    shown(name).to_string()
}

/// The report of files of one process each, as text and as JSON; also as a page, if `page` names a file for
/// it. Raises `OSError` when a file cannot be read or written; `ValueError` when it is no trace, or they
/// cannot be put together.
#[pyfunction(name = "_read_report", signature = (paths, width, short, page, /))]
pub fn read_report(
    py: Python<'_>,
    paths: Vec<PathBuf>,
    width: usize,
    short: bool,
    page: Option<PathBuf>,
) -> PyResult<(String, String)> {
    guard::detach(py, || {
        let read = |path: &PathBuf| {
            trace::read(path).map_err(|error| match error.kind() {
                ErrorKind::InvalidData => PyValueError::new_err(format!("{} {error}", path.display())),
                _ => of_file(path, error),
            })
        };
        let trace = merge(paths.iter().map(read).collect::<PyResult<_>>()?).map_err(PyValueError::new_err)?;
        let report = report(&trace);
        if let Some(page) = page {
            html::write_file(&trace, &report, &page).map_err(|error| of_file(&page, error))?;
        }
        let json =
            serde_json::to_string(&report).map_err(|error| PyRuntimeError::new_err(error.to_string()))?;
        Ok((terminal::text(&report, Style { width, colour: false, short }), json))
    })
}

/// The trace of a file, as Chrome's JSON, and what it lacks, in words.
/// Raises `ValueError` when it is no trace.
#[pyfunction(name = "_read_chrome", signature = (path, /))]
pub fn read_chrome(py: Python<'_>, path: PathBuf) -> PyResult<(Vec<u8>, Vec<String>)> {
    guard::detach(py, || {
        let wrong = |error| PyValueError::new_err(format!("{} {error}", path.display()));
        let trace = trace::read(&path).map_err(wrong)?;
        let mut json = Vec::new();
        chrome::write(&trace, &mut json).map_err(wrong)?;
        Ok((json, summary::missing(&trace)))
    })
}

/// Refuses a file that is no page of a report, or else no trace, and not empty.
#[pyfunction(name = "_check_output", signature = (path, is_page, /))]
pub fn check_output(path: PathBuf, is_page: bool) -> PyResult<()> {
    let checked = if is_page { html::check_file(&path) } else { perfetto::check_file(&path) };
    checked.map_err(|error| of_file(&path, error))
}

/// Replaces the file `path` by one with this content, when that is whole and on disk.
#[pyfunction(name = "_replace_file", signature = (path, content, /))]
pub fn replace_file(py: Python<'_>, path: PathBuf, content: &[u8]) -> PyResult<()> {
    guard::detach(py, || file::replace(&path, |out| out.write_all(content)))
        .map_err(|error| of_file(&path, error))
}

/// As Python's own: the class that its number has, and the file.
pub fn of_file(path: &Path, error: std::io::Error) -> PyErr {
    match error.raw_os_error() {
        Some(number) => {
            // Python says the number itself.
            let text = error.to_string().replace(&format!(" (os error {number})"), "");
            PyOSError::new_err((number, text, path.as_os_str().to_owned()))
        }
        None => {
            let text = format!("{}: {error}", path.display());
            match error.kind() {
                ErrorKind::AlreadyExists => PyFileExistsError::new_err(text),
                _ => PyOSError::new_err(text),
            }
        }
    }
}
