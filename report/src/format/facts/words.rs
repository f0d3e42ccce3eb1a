//! The words that files use for the enumerations of the model, both ways.

use crate::model::source::Source;
use crate::model::{Blocker, Cause, Hazard, Mode, OperationKind, Text, TrackKind};

/// A value and its word.
pub(crate) type Row<T> = (T, &'static str);

const TRACK_KINDS: [Row<TrackKind>; 6] = [
    (TrackKind::Worker, "worker"),
    (TrackKind::Thread, "thread"),
    (TrackKind::EventLoop, "event loop"),
    (TrackKind::Queue, "queue"),
    (TrackKind::Reactor, "reactor"),
    (TrackKind::Reaper, "reaper"),
];

/// Kinds of operations, in the order of their numbers on the page.
pub(crate) const OPERATION_KINDS: [Row<OperationKind>; 6] = [
    (OperationKind::Operation, "operation"),
    (OperationKind::Wait, "wait"),
    (OperationKind::Await, "await"),
    (OperationKind::Copy, "copy"),
    (OperationKind::Export, "export"),
    (OperationKind::Import, "import"),
];

const MODES: [Row<Mode>; 3] = [(Mode::Read, "read"), (Mode::Write, "write"), (Mode::Update, "update")];

const HAZARDS: [Row<Hazard>; 3] = [(Hazard::Raw, "RAW"), (Hazard::War, "WAR"), (Hazard::Waw, "WAW")];

fn word<T: PartialEq>(table: &[Row<T>], value: T) -> &'static str {
    table.iter().find(|(its_value, _)| *its_value == value).map_or("?", |(_, word)| word)
}

fn value<T: Copy>(table: &[Row<T>], what: &str, word: &str) -> Result<T, String> {
    let row = table.iter().find(|(_, its_word)| *its_word == word);
    row.map(|&(value, _)| value).ok_or_else(|| format!("has an unknown {what}, `{word}`"))
}

/// The word for a kind of track.
pub(crate) fn track_kind_word(kind: TrackKind) -> &'static str {
    word(&TRACK_KINDS, kind)
}

pub(super) fn track_kind(text: &str) -> Result<TrackKind, String> {
    value(&TRACK_KINDS, "kind of track", text)
}

pub(crate) fn operation_kind_word(kind: OperationKind) -> &'static str {
    word(&OPERATION_KINDS, kind)
}

pub(super) fn operation_kind(text: &str) -> Result<OperationKind, String> {
    value(&OPERATION_KINDS, "kind of operation", text)
}

pub(super) fn mode_word(mode: Mode) -> &'static str {
    word(&MODES, mode)
}

pub(super) fn mode(text: &str) -> Result<Mode, String> {
    value(&MODES, "access", text)
}

/// The short word for a hazard.
pub(super) fn hazard_word(hazard: Hazard) -> &'static str {
    word(&HAZARDS, hazard)
}

pub(super) fn hazard(text: &str) -> Result<Hazard, String> {
    value(&HAZARDS, "hazard", text)
}

pub(super) fn cause(text: &str) -> Result<Cause, String> {
    let found = Cause::ALL.into_iter().find(|cause| cause.name() == text);
    found.ok_or_else(|| format!("has an unknown cause, `{text}`"))
}

/// The word for a blocker, and which one where there are several.
pub(super) fn blocker_words(blocker: Blocker) -> (&'static str, Option<u64>) {
    match blocker {
        Blocker::None => ("none", None),
        Blocker::Operation(id) => ("operation", Some(id)),
        Blocker::Lease(id) => ("lease", Some(id)),
        Blocker::Pool => ("pool", None),
        Blocker::Queue(track) => ("queue", Some(track as u64)),
        Blocker::Observer => ("observer", None),
        Blocker::Interpreter | Blocker::Holder(_) => ("interpreter", None),
        Blocker::EventLoop => ("event loop", None),
        Blocker::Thread(track) => ("thread", Some(track as u64)),
    }
}

pub(super) fn blocker(text: &str, which: Option<u64>) -> Result<Blocker, String> {
    let id = || which.ok_or_else(|| format!("does not say which {text} is its blocker"));
    let track = || id().and_then(|track| usize::try_from(track).map_err(|_| format!("names track {track}")));
    Ok(match text {
        "none" => Blocker::None,
        "operation" => Blocker::Operation(id()?),
        "lease" => Blocker::Lease(id()?),
        "pool" => Blocker::Pool,
        "queue" => Blocker::Queue(track()?),
        "observer" => Blocker::Observer,
        "interpreter" => Blocker::Interpreter,
        "event loop" => Blocker::EventLoop,
        "thread" => Blocker::Thread(track()?),
        other => return Err(format!("has an unknown blocker, `{other}`")),
    })
}

/// A blocker's name, for people.
pub(crate) fn blocker_name(source: &impl Source, blocker: Blocker) -> Text {
    let track = |track: usize| {
        let tracks = &source.about().tracks;
        tracks.get(track).map_or_else(|| format!("track {track}").into(), |track| track.name.clone())
    };
    let owner = |id| {
        let lease = source.position(id).and_then(|at| source.lease(at, &source.operation(at)));
        // One whose operation was lost is on the list of a trace that was read.
        lease.map(|lease| lease.owner.clone()).or_else(|| Some(source.about().lease(id)?.owner.clone()))
    };
    match blocker {
        Blocker::None => "unknown".into(),
        Blocker::Operation(id) => source
            .position(id)
            .map_or_else(|| format!("operation {id}").into(), |at| source.operation(at).name.clone()),
        Blocker::Lease(id) => {
            owner(id).map_or_else(|| format!("lease {id}"), |owner| format!("lease of {owner}")).into()
        }
        Blocker::Pool => "workers".into(),
        Blocker::Queue(id) | Blocker::Thread(id) => track(id),
        Blocker::Observer => "reactor".into(),
        Blocker::Interpreter | Blocker::Holder(_) => "Python lock".into(),
        Blocker::EventLoop => "event loop".into(),
    }
}
