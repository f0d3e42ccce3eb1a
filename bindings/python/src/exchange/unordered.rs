//! Exchanges that could not be ordered: each is counted, the last ones are kept, and the first of a kind is
//! logged.
//!
//! On the host every exchange is ordered: a producer has finished when it hands out, and a consumer is made
//! to wait. What is left are those without a way to query or to notify the other side.

use std::collections::VecDeque;

use estafette_sync::sync::Mutex;
use estafette_sync::sync::atomic::{AtomicU64, Ordering};
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::error::{import_module, show_failed};
use crate::interpreter::call_site;
use crate::log::logger;

/// So many of the last ones are kept.
const KEPT: usize = 64;

/// The reason why an exchange is not ordered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// Memory of a kind of device that this version does not know passed: there is nothing to wait for.
    UnknownDevice,
    /// A raw capsule of memory that a device may be writing: its maker did not know the consumer.
    RawCapsule,
    /// Host-readable memory that a device may be writing, from a producer that does not wait for host
    /// readers.
    DeviceMemory,
    /// A consumer on a device demanded that no stream waits, and the end of its work is unknown.
    NoStream,
    /// A consumer of which nothing is known named no stream, which stands for the device's default stream.
    NamelessStream,
    /// A producer that takes a stream and does nothing about it: its default stream was waited for.
    IgnoredStream,
    /// A description of memory that says when it may be used, and not for how long.
    Untracked,
    /// A consumer got a struct that cannot say that it must not write.
    Unmarked,
}

impl Reason {
    fn text(self) -> &'static str {
        match self {
            Self::UnknownDevice => "unknown device",
            Self::RawCapsule => "raw capsule of device memory",
            Self::DeviceMemory => "device memory read by the host",
            Self::NoStream => "no synchronization asked for",
            Self::NamelessStream => "no stream named; ordered before the default stream only",
            Self::IgnoredStream => "producer ignores streams; ordered after its default stream only",
            Self::Untracked => "array interface, whose consumer does not report the end of its use",
            Self::Unmarked => "read lease in a struct without flags",
        }
    }

    /// The logging level. Structs without flags are common, and mostly go to those who only read.
    fn level(self) -> &'static str {
        if self == Self::Unmarked { "info" } else { "warning" }
    }

    fn bit(self) -> u8 {
        1 << self as u8
    }
}

struct UnorderedNote {
    import: bool,
    reason: Reason,
    what: String,
    place: estafette::lease::LeaseOwner,
}

struct Notes {
    last: VecDeque<UnorderedNote>,
    /// Reasons that were logged.
    logged: u8,
}

estafette_sync::per_process! {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    static NOTES: Mutex<Notes> = Mutex::new(Notes { last: VecDeque::new(), logged: 0 });
}

/// The number of them in this process.
pub fn count() -> u64 {
    COUNT.load(Ordering::Relaxed)
}

/// Notes one: `what` names the library or the device.
pub fn note(py: Python<'_>, import: bool, reason: Reason, what: impl Into<String>) {
    COUNT.fetch_add(1, Ordering::Relaxed);
    let (what, place) = (what.into(), call_site::caller(py).place);
    let direction = if import { "import" } else { "export" };
    let text = format!("{direction} in {place} is not ordered: {} ({what})", reason.text());
    let mut notes = NOTES.lock();
    let first = notes.logged & reason.bit() == 0;
    notes.logged |= reason.bit();
    if notes.last.len() == KEPT {
        notes.last.pop_front();
    }
    notes.last.push_back(UnorderedNote { import, reason, what, place });
    drop(notes);
    let said = ("%s; further ones of this kind are only counted", &text);
    if first {
        show_failed(py, logger(py).and_then(|logger| logger.call_method1(reason.level(), said)));
    }
}

/// The last exchanges of this process that could not be ordered, oldest first: `UnorderedExchange` objects,
/// at most 64. How many there were in all is in ``Engine.stats().unordered``.
#[pyfunction]
pub fn unordered_exchanges(py: Python<'_>) -> PyResult<Bound<'_, PyTuple>> {
    let class = import_module(py, "estafette._reports")?.getattr("UnorderedExchange")?;
    let notes = NOTES.lock();
    let fields: Vec<_> = notes
        .last
        .iter()
        .map(|note| {
            let direction = if note.import { "import" } else { "export" };
            (direction, note.reason.text(), note.what.clone(), note.place.to_string())
        })
        .collect();
    drop(notes);
    let made = fields.into_iter().map(|fields| class.call1(fields));
    PyTuple::new(py, made.collect::<PyResult<Vec<_>>>()?)
}
