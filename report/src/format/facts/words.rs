//! The words that files use for the enumerations of the model, both ways.

use crate::model::source::Source;
use crate::model::{AccessMode, Blocker, Cause, Hazard, OperationKind, Text, TrackKind};

/// An enumeration whose values have words in files.
pub(crate) trait Word: Copy + PartialEq + 'static {
    /// Its name in messages.
    const WHAT: &'static str;
    /// Its values and their words, in the order of their numbers on the page.
    const WORDS: &'static [(Self, &'static str)];

    fn word(self) -> &'static str {
        Self::WORDS.iter().find(|(value, _)| *value == self).map_or("?", |(_, word)| word)
    }

    /// The number that stands for it on the page.
    fn number(self) -> Option<usize> {
        Self::WORDS.iter().position(|(value, _)| *value == self)
    }

    fn of(word: &str) -> Result<Self, String> {
        let row = Self::WORDS.iter().find(|(_, its_word)| *its_word == word);
        row.map(|&(value, _)| value).ok_or_else(|| format!("has an unknown {}, `{word}`", Self::WHAT))
    }
}

impl Word for TrackKind {
    const WHAT: &'static str = "kind of track";
    const WORDS: &'static [(Self, &'static str)] = &[
        (Self::Worker, "worker"),
        (Self::Thread, "thread"),
        (Self::EventLoop, "event loop"),
        (Self::Queue, "queue"),
        (Self::Reactor, "reactor"),
        (Self::Reaper, "reaper"),
    ];
}

impl Word for OperationKind {
    const WHAT: &'static str = "kind of operation";
    const WORDS: &'static [(Self, &'static str)] = &[
        (Self::Operation, "operation"),
        (Self::Wait, "wait"),
        (Self::Await, "await"),
        (Self::Copy, "copy"),
        (Self::Export, "export"),
        (Self::Import, "import"),
    ];
}

impl Word for AccessMode {
    const WHAT: &'static str = "access";
    const WORDS: &'static [(Self, &'static str)] =
        &[(Self::Read, "read"), (Self::Write, "write"), (Self::Update, "update")];
}

impl Word for Hazard {
    const WHAT: &'static str = "hazard";
    const WORDS: &'static [(Self, &'static str)] =
        &[(Self::Raw, "RAW"), (Self::War, "WAR"), (Self::Waw, "WAW")];
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
        Blocker::Interpreter | Blocker::LockOwner(_) => ("interpreter", None),
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
        Blocker::Interpreter | Blocker::LockOwner(_) => "Python lock".into(),
        Blocker::EventLoop => "event loop".into(),
    }
}
