//! Snapshots that are asked for while it is recorded: by a signal, and by the watchdogs of engines where only
//! the end is kept.

use std::path::{Path, PathBuf};
// Outside of every protocol: a plain std atomic.
use std::sync::atomic::{AtomicU32, Ordering};

use estafette_sync::platform::signal;
use estafette_sync::time::Instant;

use super::super::writer::Session;

/// Files of snapshots; then the first one is written anew.
const FILES: u32 = 10;

/// Stalls that watchdogs have reported.
static STALLS: AtomicU32 = AtomicU32::new(0);

/// The watchdog of an engine reports a stall.
pub(crate) fn note_stall() {
    STALLS.fetch_add(1, Ordering::Relaxed);
}

/// The requests so far.
pub(super) struct Requests {
    target: PathBuf,
    signal: Option<i32>,
    signals: u32,
    stalls: u32,
    /// Before it, a stall leads to no other snapshot.
    not_before: Instant,
    written: u32,
}

impl Requests {
    pub(super) fn of(session: &Session, target: &Path, signal: Option<i32>) -> Self {
        debug_assert!(session.last.is_none_or(|last| !last.is_zero()), "a recorder refuses it");
        Self {
            target: target.to_owned(),
            signal,
            signals: signal.map_or(0, signal::times),
            stalls: STALLS.load(Ordering::Relaxed),
            not_before: Instant::now(),
            written: 0,
        }
    }

    /// Writes a snapshot if one was asked for since the last call.
    pub(super) fn serve(&mut self, session: &Session) {
        let signals = self.signal.map_or(0, signal::times);
        let mut asked = std::mem::replace(&mut self.signals, signals) != signals;
        if let Some(last) = session.last
            && self.not_before <= Instant::now()
        {
            let stalls = STALLS.load(Ordering::Relaxed);
            if std::mem::replace(&mut self.stalls, stalls) != stalls {
                asked = true;
                // A limit that no clock reaches is none.
                self.not_before = Instant::now().checked_add(last).unwrap_or_else(Instant::now);
            }
        }
        if !asked {
            return;
        }
        let path = self.path();
        self.written += 1;
        match super::super::snapshot(session, &path) {
            Ok(()) => tracing::info!(path = %path.display(), "a snapshot of what is recorded is written"),
            Err(error) => {
                tracing::warn!(%error, path = %path.display(), "a snapshot of what is recorded cannot be written")
            }
        }
    }

    /// `run.snapshot-1.pftrace` beside `run.pftrace`.
    fn path(&self) -> PathBuf {
        let mut name = self.target.file_stem().unwrap_or_default().to_owned();
        name.push(format!(".snapshot-{}", self.written % FILES + 1));
        if let Some(extension) = self.target.extension() {
            name.push(".");
            name.push(extension);
        }
        self.target.with_file_name(name)
    }
}
