//! Notes of observe mode (`estafette/_observe/notes.py`), as the file of an ordinary trace.

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;

use estafette::bindings::this_process;
use estafette_report::attribution::attribute;
use estafette_report::model::{
    Access, AccessMode, Disorder, LibraryId, Operation, OperationKind, Outcome, Site, Text, Track, TrackKind,
    Variable,
};
use estafette_report::{Trace, file, perfetto};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use super::trace::of_file;
use crate::interpreter::guard;

/// A line of a program: file, line, function.
type SourceLine = (String, u32, String);

/// The thing that was handed over: name, bytes, library.
type ObservedMemory = (String, Option<u64>, Option<String>);

/// The fields of `StepFields`, in their order; times are those of the clock.
type StepFields = (
    u64,
    String,
    String,
    Option<String>,
    Option<SourceLine>,
    Option<usize>,
    Option<usize>,
    u64,
    (Option<u64>, Option<u64>, Option<u64>),
    Option<u64>,
    Option<ObservedMemory>,
    Option<String>,
);

/// A hand-over that nothing ordered, or that may not have been: identity, `none` or `unknown`, the line
/// behind which it was made, the reason.
type Unordered = (u64, String, Option<SourceLine>, String);

/// Writes what was noted to a file. `times`: when that began, in nanoseconds since 1970 and by the clock, and
/// when it ended, by the clock. Raises `OSError` when the file cannot be written; `ValueError` for a kind of
/// step or track that there is not.
#[pyfunction(name = "_write_observation", signature = (path, program, times, tracks, noted, missing, /))]
pub fn write_observation(
    py: Python<'_>,
    path: PathBuf,
    program: String,
    times: (u64, u64, u64),
    tracks: Vec<(String, String)>,
    noted: (Vec<StepFields>, Vec<Unordered>),
    missing: Vec<String>,
) -> PyResult<()> {
    let (started_unix_ns, began, ended) = times;
    let (steps, disorders) = noted;
    guard::detach(py, || {
        let mut made = Made { began, ended, ..Made::default() };
        let tracks = tracks.into_iter().map(|(name, kind)| {
            let kind = match kind.as_str() {
                "thread" => TrackKind::Thread,
                "event loop" => TrackKind::EventLoop,
                _ => return Err(unknown("kind of track", &kind)),
            };
            Ok(Track { name: name.into(), kind })
        });
        let tracks = tracks.collect::<PyResult<Vec<_>>>()?;
        let operations = steps.into_iter().map(|step| made.operation(step));
        let mut operations = operations.collect::<PyResult<Vec<_>>>()?;
        operations.sort_unstable_by_key(|operation| operation.id);
        for (id, known, after, why) in disorders {
            let is_known = match known.as_str() {
                "none" => true,
                "unknown" => false,
                _ => return Err(unknown("order", &known)),
            };
            // An operation that did not fit among the steps is missing.
            if let Ok(at) = operations.binary_search_by_key(&id, |operation| operation.id) {
                let after = after.map(|place| made.site(place));
                operations[at].disorder = Some(Box::new(Disorder { is_known, after, why: made.text(why) }));
            }
        }
        let mut trace = Trace {
            started_unix_ns,
            duration: ended.saturating_sub(began),
            program: program.into(),
            // Python reads the clock that processes share.
            processes: vec![this_process(Some(began))],
            tracks,
            libraries: made.libraries,
            variables: made.variables,
            operations,
            ..Trace::default()
        };
        trace.losses.damage = missing;
        attribute(&mut trace);
        file::replace(&path, |out| perfetto::write(&trace, out)).map_err(|error| of_file(&path, error))
    })
}

fn unknown(what: &str, word: &str) -> PyErr {
    PyValueError::new_err(format!("`{word}` is no {what}"))
}

/// The trace of the steps so far.
#[derive(Default)]
struct Made {
    began: u64,
    ended: u64,
    libraries: Vec<Text>,
    variables: Vec<Variable>,
    by_thing: HashMap<ObservedMemory, u64>,
    texts: BTreeMap<String, Text>,
}

impl Made {
    fn time(&self, at: u64) -> u64 {
        at.clamp(self.began, self.ended) - self.began
    }

    /// Texts of which there are few, each once.
    fn text(&mut self, text: String) -> Text {
        self.texts.entry(text).or_insert_with_key(|text| text.as_str().into()).clone()
    }

    fn library(&mut self, name: &str) -> LibraryId {
        let known = self.libraries.iter().position(|library| *library == *name);
        known.unwrap_or_else(|| {
            self.libraries.push(name.into());
            self.libraries.len() - 1
        })
    }

    fn variable(&mut self, thing: ObservedMemory) -> u64 {
        if let Some(id) = self.by_thing.get(&thing) {
            return *id;
        }
        let id = self.variables.len() as u64 + 1;
        let (name, bytes, library) = thing.clone();
        let library = library.map(|library| self.library(&library));
        self.variables.push(Variable { id, name: name.into(), bytes, library });
        self.by_thing.insert(thing, id);
        id
    }

    fn site(&mut self, (file, line, function): SourceLine) -> Site {
        Site { file: self.text(file), line, function: self.text(function) }
    }

    fn operation(&mut self, step: StepFields) -> PyResult<Operation> {
        let (id, kind, name, library, site, submitter, track, submitted, times, waits_for, thing, failed) =
            step;
        let kind = match kind.as_str() {
            "operation" => OperationKind::Operation,
            "wait" => OperationKind::Wait,
            "await" => OperationKind::Await,
            "copy" => OperationKind::Copy,
            "export" => OperationKind::Export,
            _ => return Err(unknown("kind of step", &kind)),
        };
        let submitted = self.time(submitted);
        let (began, done, resumed) = times;
        let [began, done, resumed] =
            [began, done, resumed].map(|time| time.map(|time| self.time(time).max(submitted)));
        let runs = matches!(kind, OperationKind::Operation | OperationKind::Copy);
        let access = thing.map(|thing| Access { variable: self.variable(thing), mode: AccessMode::Read });
        Ok(Operation {
            id,
            name: self.text(name),
            kind,
            library: library.map(|library| self.library(&library)),
            site: site.map(|place| self.site(place)),
            submitter,
            track,
            submitted,
            granted: runs.then_some(submitted),
            ready: runs.then_some(began.unwrap_or(submitted)),
            began,
            issued: done,
            done,
            observed: done,
            resumed,
            outcome: failed.map_or(Outcome::Ok, |why| Outcome::Failed(why.into())),
            accesses: access.into_iter().collect(),
            waits_for,
            ..Operation::default()
        })
    }
}
