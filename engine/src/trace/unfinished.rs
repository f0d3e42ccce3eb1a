//! The file of a trace that is being made: what threads have noted so far, written beside the trace's own
//! file several times a second by a thread of its own. It is removed when the trace is saved, so one that is
//! there is of a process that ended before, in whatever way.
//!
//! ```text
//! magic, then parts: kind (u32), length of the content in bytes (u32), content; numbers are little-endian
//! head      started, in nanoseconds since 1970 (u64); name of the program
//! process   its key, its number, the start on the machine's clock (u64 each); name of that clock
//! names     per name of a variable: variable (u64), length (u64), text
//! thread    number (u32), kind of track (u32), name; again when the kind has changed
//! text      number of the thread (u32), text; a thread's texts come in the order of their numbers
//! words     number of the thread (u32), 0 (u32), whole events of its buffers
//! running   number of the thread (u32), 0 (u32), operation whose body runs there or 0 (u64), ticks (u64)
//! lost      number of the thread (u32), 0 (u32), events lost so far (u64)
//! clock     ticks (u64), nanoseconds per tick (f64): what ticks mean, and how long it has lasted so far
//! cut       ticks (u64), operations and leases (u64 each): what was noted before is not whole, and these were in flight then
//! ```
//!
//! Texts stand before the words that refer to them, so the file may end anywhere. Where only the end of a
//! trace is kept, the file is written anew now and then.
//!
//! The same thread writes snapshots that a signal or a watchdog asks for.
//!
//! | part | what it has |
//! |---|---|
//! | `read` | reads such a file |
//! | `requests` | snapshots that signals and watchdogs ask for |

mod read;
mod requests;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, TryLockError};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use estafette_report::file;
use estafette_report::model::{Process, TrackKind};
use estafette_sync::platform::signal as signals;
use estafette_sync::process::Generation;
use estafette_sync::sync::Mutex;
use estafette_sync::sync::atomic::{AtomicBool, Ordering};
use estafette_sync::thread::{self, JoinHandle};

use super::assemble::{BEFORE, InFlight};
use super::buffer::TraceBuffer;
use super::chain::ChainLink;
use super::names;
use super::writer::{Session, ThreadLog};

use self::requests::Requests;

pub(super) use self::read::{is_unfinished, read};
pub(crate) use self::requests::note_stall;

/// The first bytes of every unfinished trace. A finished one begins with byte 10.
pub(super) const MAGIC: [u8; 8] = *b"ESTFREC1";

/// Time between two looks at what was noted: what a killed process loses.
const PERIOD: Duration = Duration::from_millis(200);

/// Bytes that the file may have beside twice what is kept, where only the end is.
const ANEW_MIN: usize = 4 << 20;

/// The number of bytes that are written to the file at once, about.
const PART_MAX: usize = 1 << 20;

/// The kind of a part of the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub(super) enum Part {
    Head = 1,
    Names,
    Thread,
    Text,
    Words,
    Running,
    Lost,
    Clock,
    Cut,
    Process,
}

impl Part {
    pub(super) const ALL: [Self; 10] = [
        Self::Head,
        Self::Names,
        Self::Thread,
        Self::Text,
        Self::Words,
        Self::Running,
        Self::Lost,
        Self::Clock,
        Self::Cut,
        Self::Process,
    ];
}

/// Kinds of tracks, by their number in the file.
pub(super) const TRACK_KINDS: [TrackKind; 6] = [
    TrackKind::Worker,
    TrackKind::Thread,
    TrackKind::EventLoop,
    TrackKind::Queue,
    TrackKind::Reactor,
    TrackKind::Reaper,
];

/// The file, and the thread that writes it.
#[derive(Debug)]
pub(super) struct Unfinished {
    path: PathBuf,
    /// Until it is dropped, no other recorder of the process has the same target.
    _claim: Claim,
    shared: Arc<WriterState>,
    /// `None` once it has ended.
    thread: Option<JoinHandle<()>>,
    /// In a forked child the file is the parent's, and the thread does not exist.
    generation: Generation,
}

#[derive(Debug)]
struct WriterState {
    closed: AtomicBool,
    /// The reason why nothing more is written, if so.
    failed: Mutex<Option<io::Error>>,
}

impl Unfinished {
    /// Begins to write what is noted in `session` to a file beside `target`.
    ///
    /// # Errors
    /// Errors of the system, for the file or the thread.
    pub(super) fn begin(session: &Arc<Session>, target: &Path, signal: Option<i32>) -> io::Result<Self> {
        file::check_target(target)?;
        let claim = Claim::of(target)?;
        signal.map_or(Ok(()), signals::count)?;
        let (mut file, path) = create(target)?;
        let shared = Arc::new(WriterState { closed: AtomicBool::new(false), failed: Mutex::new(None) });
        let mut unfinished = Self {
            path,
            _claim: claim,
            shared: Arc::clone(&shared),
            thread: None,
            generation: Generation::current(),
        };
        let head = head(session);
        // The head at once: what cannot be written is an error here.
        let begun = file.write_all(&head).and_then(|()| {
            let writing = Writing {
                requests: Requests::of(session, target, signal),
                session: Arc::clone(session),
                target: target.to_owned(),
                path: unfinished.path.clone(),
                file,
                names: names::Watch::begin(),
                cursors: BTreeMap::new(),
                threads: 0,
                out: Vec::new(),
                written: head.len(),
                anew_from: ANEW_MIN,
            };
            let builder = thread::Builder::new().name("estafette-trace".into());
            let thread = builder.spawn(move || writing.run(&shared));
            thread.map_err(|error| {
                io::Error::new(error.kind(), format!("the thread that writes it does not start: {error}"))
            })
        });
        match begun {
            Ok(thread) => {
                unfinished.thread = Some(thread);
                Ok(unfinished)
            }
            Err(error) => {
                unfinished.remove();
                Err(error)
            }
        }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Writes what is left, and ends the writing. Returns what went wrong, now or before.
    pub(super) fn end(&mut self) -> Option<io::Error> {
        if !self.generation.is_current() {
            // Of a thread that does not exist here nothing can be waited for.
            std::mem::forget(self.thread.take());
            return None;
        }
        let thread = self.thread.take()?;
        self.shared.closed.store(true, Ordering::Release);
        thread.thread().unpark();
        // It contains no foreign code, so it does not panic; if it did, the file ends there.
        let _ = thread.join();
        self.shared.failed.lock().take()
    }

    /// Ends the writing and removes the file.
    pub(super) fn remove(&mut self) {
        if self.generation.is_current() {
            let _ = self.end();
            let _ = fs::remove_file(&self.path);
        }
    }
}

estafette_sync::per_process! {
    /// The targets of the recorders of this process.
    static TARGETS: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());
}

/// A target that a recorder of this process has alone: of two, the last one to be saved would replace what
/// the other one has saved.
#[derive(Debug)]
struct Claim(PathBuf);

impl Claim {
    fn of(target: &Path) -> io::Result<Self> {
        // A symbolic link at the target is replaced itself, so the folder alone is looked up.
        let folder = fs::canonicalize(folder_of(target).unwrap_or(Path::new(".")))?;
        let target = folder.join(target.file_name().unwrap_or_default());
        if TARGETS.lock().insert(target.clone()) {
            return Ok(Self(target));
        }
        let why = "another trace of this process records to it already";
        Err(io::Error::new(io::ErrorKind::AlreadyExists, why))
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        TARGETS.lock().remove(&self.0);
    }
}

/// The folder of a file; `None` for a path without a name.
fn folder_of(target: &Path) -> Option<&Path> {
    target.parent().map(|folder| if folder.as_os_str().is_empty() { Path::new(".") } else { folder })
}

/// Creates the file. While it is locked, another process sees that it is being written.
fn create(target: &Path) -> io::Result<(File, PathBuf)> {
    let (file, path) = file::create_beside(target, "unfinished")?;
    // On a file system without locks, processes with the same target do not see each other.
    let _ = file.lock();
    Ok((file, path))
}

/// True if another process than the one with the unfinished file `own` records to the file `target`.
pub(super) fn is_recorded_by_another(target: &Path, own: &Path) -> bool {
    let (Some(folder), Some(name)) = (folder_of(target), target.file_name()) else { return false };
    let Ok(entries) = fs::read_dir(folder) else { return false };
    let name = name.to_string_lossy();
    entries.flatten().any(|entry| {
        let entry_name = entry.file_name();
        let process = entry_name.to_str().and_then(|entry| {
            let number = entry.strip_prefix(&*name)?.strip_prefix('.')?.strip_suffix(".unfinished")?;
            number.split('-').next()?.parse().ok()
        });
        // The lock outlives a process in what it has forked. A process of another container may have any
        // number, but its file is written several times a second.
        let is_fresh = || {
            let written = entry.metadata().and_then(|file| file.modified()).ok();
            written.and_then(|at| at.elapsed().ok()).is_some_and(|ago| ago < 10 * PERIOD)
        };
        let of_another = |process: u32| {
            Some(entry_name.as_os_str()) != own.file_name() && (signals::reaches(process) || is_fresh())
        };
        process.is_some_and(of_another)
            && File::open(entry.path())
                .is_ok_and(|file| matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock)))
    })
}

fn head(session: &Session) -> Vec<u8> {
    let mut head = MAGIC.to_vec();
    part(&mut head, Part::Head, &[&session.started_unix_ns.to_le_bytes(), session.program.as_bytes()]);
    let Process { number, key, started_ns, clock } = &session.process;
    let numbers = [*key, u64::from(*number), *started_ns].map(u64::to_le_bytes);
    part(&mut head, Part::Process, &[numbers.as_flattened(), clock.as_bytes()]);
    head
}

/// The state of the thread.
struct Writing {
    session: Arc<Session>,
    requests: Requests,
    target: PathBuf,
    path: PathBuf,
    file: File,
    names: names::Watch,
    /// By the address of the thread's log.
    cursors: BTreeMap<usize, Cursor>,
    /// Threads that the file has.
    threads: u32,
    /// The bytes that go to the file next.
    out: Vec<u8>,
    /// Bytes of the file, and how many it may have until it is written anew.
    written: usize,
    anew_from: usize,
}

impl Writing {
    fn run(mut self, shared: &WriterState) {
        let mut continues = true;
        loop {
            let last = shared.closed.load(Ordering::Acquire);
            if continues && let Err(error) = self.flush_or_write_anew() {
                tracing::warn!(%error, "what is recorded is not written to its unfinished file any more");
                *shared.failed.lock() = Some(error);
                continues = false;
                // They keep all that is recorded from there on.
                self.cursors.clear();
            }
            self.requests.serve(&self.session);
            if last {
                return;
            }
            thread::park_timeout(PERIOD);
        }
    }

    fn flush_or_write_anew(&mut self) -> io::Result<()> {
        if self.session.last.is_some() && self.written > self.anew_from {
            return self.write_anew();
        }
        let known: Vec<usize> = self.cursors.keys().copied().collect();
        self.flush()?;
        // Operations that a new thread with a cut log had submitted before may be in flight still.
        let is_cut = |cursor: &Cursor| cursor.log.is_cut.load(Ordering::Acquire);
        let has_missed = self.cursors.iter().any(|(key, cursor)| !known.contains(key) && is_cut(cursor));
        if has_missed { self.write_anew() } else { Ok(()) }
    }

    /// Writes a file of what is kept still, and puts it in the place of the one that has what is not as well.
    fn write_anew(&mut self) -> io::Result<()> {
        let (file, beside) = create(&self.target)?;
        let head = head(&self.session);
        (self.file, self.names, self.written) = (file, names::Watch::begin(), head.len());
        self.cursors.clear();
        self.out.clear();
        self.threads = 0;
        let first = self.session.scale().first();
        if first > 0 {
            self.before(first);
        }
        let begun = self.file.write_all(&head);
        let written = begun.and_then(|()| self.flush()).and_then(|()| fs::rename(&beside, &self.path));
        if written.is_err() {
            let _ = fs::remove_file(&beside);
        }
        self.anew_from = 2 * self.written + ANEW_MIN;
        written
    }

    /// Adds what is in flight and may have been submitted before `first`, as if by the first thread.
    fn before(&mut self, first: u64) {
        let InFlight { ids, texts, words, .. } = InFlight::now(first);
        let bytes = |words: Vec<u64>| words.into_iter().flat_map(u64::to_le_bytes).collect::<Vec<u8>>();
        part(&mut self.out, Part::Cut, &[&first.to_le_bytes(), &bytes(ids.into_iter().collect())]);
        self.threads = 1;
        let thread = [0; 4];
        part(&mut self.out, Part::Thread, &[&thread, &1_u32.to_le_bytes(), BEFORE.as_bytes()]);
        texts.iter().for_each(|text| part(&mut self.out, Part::Text, &[&thread, text.as_bytes()]));
        words.into_iter().for_each(|words| part(&mut self.out, Part::Words, &[&[0; 8], &bytes(words)]));
    }

    /// Writes the new names, and then what was collected, which may refer to them.
    fn write(&mut self) -> io::Result<()> {
        let mut named = Vec::new();
        for (variable, name) in self.names.fresh() {
            let length = (name.len() as u64).to_le_bytes();
            part(&mut named, Part::Names, &[&variable.to_le_bytes(), &length, name.as_bytes()]);
        }
        self.file.write_all(&named)?;
        self.file.write_all(&self.out)?;
        self.written += named.len() + self.out.len();
        self.out.clear();
        Ok(())
    }

    /// Writes all that was noted since the last time.
    fn flush(&mut self) -> io::Result<()> {
        let threads = self.session.threads.lock().clone();
        for log in threads {
            let key = Arc::as_ptr(&log).addr();
            self.cursors.entry(key).or_insert_with(|| {
                self.threads += 1;
                Cursor::of(log, self.threads - 1)
            });
            while self.cursors.get_mut(&key).is_some_and(|cursor| cursor.write(&mut self.out)) {
                if self.out.len() > PART_MAX {
                    self.write()?;
                }
            }
        }
        let (ticks, per_tick) = self.session.ticks.scale().parts();
        part(&mut self.out, Part::Clock, &[&ticks.to_le_bytes(), &per_tick.to_le_bytes()]);
        self.write()
    }
}

/// The place up to which a thread's log was written.
struct Cursor {
    log: Arc<ThreadLog>,
    number: u32,
    kind: Option<TrackKind>,
    /// The last text that was written.
    text: Option<Arc<ChainLink<Arc<str>>>>,
    buffer: Option<Arc<ChainLink<TraceBuffer>>>,
    /// Words of that buffer that were written.
    words: usize,
    running: Option<(u64, u64)>,
    lost: u64,
}

impl Cursor {
    fn of(log: Arc<ThreadLog>, number: u32) -> Self {
        Self { log, number, kind: None, text: None, buffer: None, words: 0, running: None, lost: 0 }
    }

    /// Writes what is new, at most a buffer of it; returns whether there may be more.
    fn write(&mut self, out: &mut Vec<u8>) -> bool {
        let number = self.number.to_le_bytes();
        let wide = u64::from(self.number).to_le_bytes();
        let kind = self.log.kind();
        if self.kind.replace(kind) != Some(kind) {
            let of_file = TRACK_KINDS.iter().position(|known| *known == kind).unwrap_or(1) as u32;
            part(out, Part::Thread, &[&number, &of_file.to_le_bytes(), self.log.name.as_bytes()]);
        }
        // First how far the words go, then the texts that they refer to, then the words.
        let running = self.log.running.get();
        let (words, is_last) = self.new_words();
        while let Some(next) = match &self.text {
            Some(last) => last.next(),
            None => self.log.texts.first(),
        } {
            part(out, Part::Text, &[&number, next.value.as_bytes()]);
            self.text = Some(next);
        }
        if !words.is_empty() {
            part(out, Part::Words, &[&wide, &words]);
        }
        if !is_last {
            return true;
        }
        if running != self.running {
            self.running = running;
            let (id, ticks) = running.unwrap_or_default();
            part(out, Part::Running, &[&wide, &id.to_le_bytes(), &ticks.to_le_bytes()]);
        }
        let lost = self.log.lost.load(Ordering::Relaxed);
        if lost != self.lost {
            self.lost = lost;
            part(out, Part::Lost, &[&wide, &lost.to_le_bytes()]);
        }
        false
    }

    /// The new words of one buffer, and whether no other buffer follows it.
    fn new_words(&mut self) -> (Vec<u8>, bool) {
        if self.buffer.is_none() {
            self.buffer = self.log.buffers.first();
        }
        let Some(buffer) = self.buffer.clone() else { return (Vec::new(), true) };
        // A buffer that another one follows is written no more; so this is looked at first.
        let next = buffer.next();
        let published = buffer.value.published();
        let words = buffer.value.read(self.words..published).flat_map(u64::to_le_bytes).collect();
        self.words = published;
        let is_last = next.is_none();
        if !is_last {
            (self.buffer, self.words) = (next, 0);
        }
        (words, is_last)
    }
}

/// Adds a part to `out`.
fn part(out: &mut Vec<u8>, part: Part, content: &[&[u8]]) {
    let length: usize = content.iter().map(|piece| piece.len()).sum();
    out.extend((part as u32).to_le_bytes());
    out.extend(u32::try_from(length).unwrap_or(u32::MAX).to_le_bytes());
    content.iter().for_each(|piece| out.extend(*piece));
}
