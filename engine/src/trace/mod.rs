//! The recorder: events of operations, from which a report says afterwards where the time went.
//!
//! A [`Recorder`] is for all engines of a process, since operations of one engine use tensors of another.
//! While no recorder is open, an operation costs one relaxed load at its description, and each later step
//! tests a flag of the operation.
//!
//! While one is open:
//!
//! 1. Every operation that is described carries a flag. The hooks (`hooks`) write an event of two words and
//!    more (`encoding`) for what happens to such an operation: submitted, ready, begun, ended, observed,
//!    resumed.
//! 2. A thread writes to buffers of its own (`writer`, `buffer`), one for each recorder, which no other
//!    thread writes. The thread never waits: a buffer comes from the recorder's budget, and when that is
//!    spent, events are counted instead of kept. Buffers are made ready ahead (`free_list`). Where only the
//!    end is kept, the oldest buffers are given up.
//! 3. [`Recorder::save`] closes the recorder, sorts the places of all events that were published by their
//!    operations (`assemble`), and writes the file as it makes operations from their events and attributes
//!    their stalls. [`Recorder::finish`] makes all of them, as a [`Trace`].
//!
//! The time of an event is a reading of the processor's counter where that is steady (`ticks`), and otherwise
//! the monotonic clock. Readings become nanoseconds at the end, by comparing both clocks over the whole
//! trace.
//!
//! | part | what it has |
//! |---|---|
//! | `assemble` | from events to operations |
//! | `buffer` | buffers that one thread writes and, at the end, another one reads |
//! | `chain` | a list that one thread appends to while others read it |
//! | `encoding` | one event: two words and more |
//! | `environment` | the trace that `ESTAFETTE_TRACE` asks for |
//! | `events` | events and spans of the crate `tracing` |
//! | `free_list` | buffers whose memory was touched ahead |
//! | `hooks` | one function for each event that is noted |
//! | `names` | names of tensors for the report |
//! | `nvtx` | bodies as ranges of NVTX |
//! | `process` | facts that put traces of several processes on one time axis |
//! | `receiver` | events of `tracing` as text, for bindings |
//! | `ticks` | the clock: a counter of the processor where it is steady |
//! | `unfinished` | the file that is written while a trace is recorded |
//! | `writer` | a thread's side: its buffers and its list of texts |
//!
//! # Invariants
//!
//! - While tracing is off, an operation costs one relaxed load more, and tests of a flag of its own.
//! - A thread that notes an event never waits: an event that does not fit is counted.
//! - A lease without an operation has an operation id too, so that traces can name it.

#![cfg_attr(not(feature = "report"), allow(dead_code, reason = "what files of traces need"))]

mod assemble;
mod buffer;
mod chain;
mod encoding;
#[cfg(feature = "report")]
mod environment;
pub(crate) mod events;
mod free_list;
pub(crate) mod hooks;
pub(crate) mod names;
#[cfg(feature = "nvtx")]
mod nvtx;
pub(crate) mod process;
pub(crate) mod receiver;
mod ticks;
#[cfg(feature = "report")]
mod unfinished;
mod writer;

#[cfg(feature = "report")]
use std::fmt;
#[cfg(feature = "report")]
use std::io;
#[cfg(feature = "report")]
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use estafette_report::Trace;
use estafette_sync::sync::{Mutex, MutexGuard};
// The switch is outside of every protocol: a plain std atomic, so that it may be a static under model
// checkers too. So is the name.
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use self::assemble::{BLOCKS_MAX, EventIndex};
#[cfg(feature = "report")]
use self::unfinished::Unfinished;
use self::writer::Session;
use crate::core::error::Error;

#[cfg(feature = "report")]
use estafette_report::{file, perfetto, shown::shown};

#[cfg(feature = "report")]
pub(crate) use self::environment::engine_is_over;
#[cfg(feature = "report")]
pub(crate) use self::unfinished::note_stall;

/// Ranges are a feature.
#[cfg(not(feature = "nvtx"))]
mod nvtx {
    pub(crate) struct Range;
    pub(super) fn begin_from_environment() {}
    pub(super) fn body(_granted: &crate::core::operation::OpGranted) -> Option<Range> {
        None
    }
}

/// Files of traces are a feature.
#[cfg(not(feature = "report"))]
mod without_files {
    pub(crate) fn engine_is_over() {}
    pub(crate) fn note_stall() {}
}
#[cfg(not(feature = "report"))]
pub(crate) use self::without_files::*;

pub use self::events::emit_events;
#[cfg(feature = "links")]
pub(crate) use self::process::process_key;

/// Memory for a trace, unless an option says otherwise: some three million operations.
const MEMORY_DEFAULT: usize = 256 << 20;

/// The memory of a buffer of events until it is saved: itself, and as much again for the index that saving
/// makes of it.
const MEMORY_PER_BUFFER: usize = 2 * buffer::BUFFER_BYTES;

/// The number of the set of open recorders; 0 for the empty one. Each change gives another number, so a
/// thread sees that its buffers belong to an older set.
static OPEN: AtomicU32 = AtomicU32::new(0);

/// The bits of [`OPEN`] that say that events are emitted, and that bodies are ranges of NVTX; the others are
/// the number.
const EVENTS: u32 = 1 << 31;
const RANGES: u32 = 1 << 30;

estafette_sync::per_process! {
    /// The open recorders, as far as writers need them.
    static SESSIONS: Mutex<Vec<Arc<Session>>> = Mutex::new(Vec::new());
}

/// The number of the set of open recorders.
#[inline]
fn session_set() -> u32 {
    OPEN.load(Ordering::Acquire) & !(EVENTS | RANGES)
}

/// The sessions of open recorders, locked.
struct Opened(MutexGuard<'static, Vec<Arc<Session>>>);

impl Opened {
    fn lock() -> Self {
        Self(SESSIONS.lock())
    }

    fn iter(&self) -> impl Iterator<Item = &Arc<Session>> {
        self.0.iter()
    }

    fn contains(&self, session: &Arc<Session>) -> bool {
        self.iter().any(|open| Arc::ptr_eq(open, session))
    }

    /// Gives the set another number: threads make their writers anew.
    fn renew(&self) {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        // 0 is the empty set.
        let number =
            if self.0.is_empty() { 0 } else { NEXT.fetch_add(1, Ordering::Relaxed) % (RANGES - 1) + 1 };
        let update = |open| Some(open & (EVENTS | RANGES) | number);
        // The update never refuses.
        let _ = OPEN.fetch_update(Ordering::AcqRel, Ordering::Relaxed, update);
    }
}

/// True if events are noted: a recorder is open, `tracing` events are emitted, or a profiler takes ranges.
/// One relaxed load.
#[inline(always)]
pub(crate) fn is_open() -> bool {
    OPEN.load(Ordering::Relaxed) != 0
}

/// For a forked child: the recorders are the parent's.
pub(crate) fn forget() {
    OPEN.fetch_and(EVENTS, Ordering::Relaxed);
    writer::forget();
}

/// True if a recorder is open.
fn is_kept() -> bool {
    session_set() != 0
}

/// Begins what the environment asks for. Called for each engine.
pub(crate) fn begin_from_environment() {
    events::begin_from_environment();
    nvtx::begin_from_environment();
    #[cfg(feature = "report")]
    environment::begin();
}

/// Options of a recorder.
#[derive(Clone, Default)]
pub struct TraceOptions {
    /// Bytes for the trace, from its beginning until [`Recorder::save`] has written it: half of them for what
    /// is noted on all threads together, the other half for what saving takes beside it. What does not fit is
    /// counted. Each thread that something is noted on takes 64 KiB at least, also once it has ended: 2,048
    /// threads take all of what is usual. `None` for 256 MiB. At most 64 GiB are used. Some 8 to 32 MiB more
    /// are taken whatever the size is, and more again where very much waits at the same time (some 50 bytes
    /// for each wait that has begun and not ended).
    pub memory_max: Option<usize>,
    /// Name of the program, for the report. `None` for the file name of the running one.
    pub program: Option<String>,
    /// Keeps only what has happened in so much time before the end, or before a
    /// [`snapshot`](Recorder::snapshot): for programs that run for long. Where
    /// [`memory_max`](Self::memory_max) has no room for it, it is less. Operations and leases from before are
    /// in the trace if they are in flight at the end; they begin with it. Where the recorder has a
    /// [file](Recorder::to_file), a snapshot beside it is written when the watchdog of an engine reports a
    /// stall, at most one in that time (see [`signal`](Self::signal) for its name). `None` for everything.
    pub last: Option<Duration>,
    /// A signal that asks for a snapshot, by its number: while the recorder has a [file](Recorder::to_file),
    /// it is written to `run.snapshot-1.pftrace` beside `run.pftrace`, the next one to
    /// `run.snapshot-2.pftrace`, and after ten of them to the first again. The signal's handler only counts;
    /// a thread of the recorder looks at the count several times a second. It stays when the recorder is
    /// closed. `None` for no signal.
    pub signal: Option<i32>,
    /// Nanoseconds of another clock than the machine's: a simulated device's, for instance. It must not go
    /// backwards.
    pub clock: Option<Arc<dyn Fn() -> u64 + Send + Sync>>,
}

impl std::fmt::Debug for TraceOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TraceOptions")
            .field("memory_max", &self.memory_max)
            .field("program", &self.program)
            .field("last", &self.last)
            .field("signal", &self.signal)
            .finish_non_exhaustive()
    }
}

/// An open recorder of everything that all engines of the process do. Several may be open at once; each costs
/// what one costs. Dropping it throws away what was noted.
///
/// ```
/// use estafette::Engine;
/// use estafette::trace::{Recorder, TraceOptions};
///
/// let recorder = Recorder::open(TraceOptions::default())?;
/// let engine = Engine::builder().workers(1).build()?;
/// let x = engine.var();
/// engine.op("produce").writes_vars(&[&x]).run(|[], []| Ok(()))?;
/// engine.op("consume").reads_vars(&[&x]).run(|[], []| Ok(()))?.wait()?;
/// let trace = recorder.finish();
/// assert!(trace.operations.iter().any(|operation| operation.name == "consume"));
/// assert!(trace.losses.is_empty());
/// # Ok::<(), estafette::Error>(())
/// ```
#[derive(Debug)]
#[must_use = "a recorder is kept until it is finished or dropped"]
pub struct Recorder {
    session: Arc<Session>,
    #[cfg(feature = "report")]
    signal: Option<i32>,
    /// The file to save it in, and what is written there meanwhile.
    #[cfg(feature = "report")]
    file: Option<(PathBuf, Unfinished)>,
}

/// A trace that could not be saved. Its file has the content that it had before.
#[cfg(feature = "report")]
#[derive(Debug)]
pub struct Unsaved {
    /// The file that it should have been in.
    pub path: PathBuf,
    /// The error.
    pub error: io::Error,
    /// The unfinished file, which [`read`] takes: what was recorded, as far as it could be written. `None` if
    /// there is none.
    pub kept: Option<PathBuf>,
}

#[cfg(feature = "report")]
impl fmt::Display for Unsaved {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.path.display().to_string().as_str() {
            "" => write!(f, "the trace cannot be saved: {}", self.error)?,
            path => write!(f, "the trace cannot be saved to {}: {}", shown(path), self.error)?,
        }
        match &self.kept {
            Some(kept) => write!(f, "; what was recorded is kept in {}", shown(&kept.display().to_string())),
            None => Ok(()),
        }
    }
}

#[cfg(feature = "report")]
impl std::error::Error for Unsaved {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.error)
    }
}

/// Reads the file of a trace: one that was saved, or the unfinished one of a process that ended before.
///
/// From a damaged file, what can be read is returned; [`Trace::losses`] says what is missing. Memory is taken
/// in proportion to the file's size (see [`perfetto::read`]).
///
/// # Errors
/// Errors of the system; `InvalidInput` for what is no regular file; `InvalidData`, with a text that begins
/// with "is", for a file that is no trace or of which nothing is left.
#[cfg(feature = "report")]
pub fn read(path: &Path) -> io::Result<Trace> {
    let bytes = file::read(path)?;
    if bytes.is_empty() {
        let text = "is empty: its process ended before it wrote a trace, or the file is another one";
        return Err(io::Error::new(io::ErrorKind::InvalidData, text));
    }
    let trace =
        if unfinished::is_unfinished(&bytes) { unfinished::read(&bytes) } else { perfetto::read(&bytes) };
    if trace.operations.is_empty() && !trace.losses.damage.is_empty() {
        let damage = trace.losses.damage.join("; ");
        let text = format!("is no trace, or nothing of it is left: {}", shown(&damage));
        return Err(io::Error::new(io::ErrorKind::InvalidData, text));
    }
    Ok(trace)
}

impl Recorder {
    /// Opens the recorder.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a memory limit that holds no event, and for no time to keep.
    pub fn open(options: TraceOptions) -> Result<Self, Error> {
        if options.last == Some(Duration::ZERO) {
            return Err(Error::invalid("a recorder of the last 0 seconds keeps nothing"));
        }
        let buffers = options.memory_max.unwrap_or(MEMORY_DEFAULT) / MEMORY_PER_BUFFER;
        if buffers == 0 {
            return Err(Error::invalid(format!("a recorder needs at least {MEMORY_PER_BUFFER} bytes")));
        }
        let buffers = buffers.min(BLOCKS_MAX);
        #[cfg(feature = "report")]
        let signal = options.signal;
        let session = Arc::new(Session::new(buffers, options));
        let mut opened = Opened::lock();
        opened.0.push(Arc::clone(&session));
        opened.renew();
        drop(opened);
        Ok(Self {
            session,
            #[cfg(feature = "report")]
            signal,
            #[cfg(feature = "report")]
            file: None,
        })
    }

    /// Says which file [`save`](Self::save) writes. From now on what is noted is also written beside it,
    /// several times a second, to `PATH.PROCESS.unfinished`: if the process ends before the trace is saved,
    /// that file stays, and [`read`] takes it. It takes as much disk as the recorder takes memory; where only
    /// the end is kept, twice as much as that has, and 4 MiB.
    ///
    /// ```
    /// use estafette::Engine;
    /// use estafette::trace::{self, Recorder, TraceOptions};
    ///
    /// # let folder = std::env::temp_dir().join(format!("estafette-doc-{}", std::process::id()));
    /// # std::fs::create_dir_all(&folder)?;
    /// let path = folder.join("run.pftrace");
    /// let recorder = Recorder::open(TraceOptions::default())?.to_file(&path)?;
    /// let engine = Engine::builder().workers(1).build()?;
    /// engine.op("step").run(|[], []| Ok(()))?.wait()?;
    /// recorder.save()?;
    /// assert_eq!(trace::read(&path)?.operations[0].name.to_string(), "step");
    /// # std::fs::remove_dir_all(&folder)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Errors of the system for the unfinished file and the thread that writes it; `InvalidInput` where
    /// `path` is not a regular file, or the signal may not be used; `AlreadyExists` where the program handles
    /// that signal, or another recorder, of this process or of another one, has the same file. The recorder
    /// is closed then.
    #[cfg(feature = "report")]
    pub fn to_file(self, path: impl AsRef<Path>) -> io::Result<Self> {
        let recorder = self.with_file(path.as_ref())?;
        if recorder.is_alone() {
            return Ok(recorder);
        }
        let why = "another process records to it already";
        Err(io::Error::new(io::ErrorKind::AlreadyExists, why))
    }

    /// As [`to_file`](Self::to_file), also where another process has the same file.
    #[cfg(feature = "report")]
    fn with_file(mut self, path: &Path) -> io::Result<Self> {
        let unfinished = Unfinished::begin(&self.session, path, self.signal)?;
        self.file = Some((path.to_owned(), unfinished));
        Ok(self)
    }

    /// True if no other process records to the file. Looked at behind the lock of the recorder's own file: of
    /// two processes that begin at once, one at least sees the other.
    #[cfg(feature = "report")]
    fn is_alone(&self) -> bool {
        let file = self.file.as_ref();
        file.is_none_or(|(path, unfinished)| !unfinished::is_recorded_by_another(path, unfinished.path()))
    }

    /// Closes the recorder and writes the trace to the file of [`to_file`](Self::to_file), which is replaced
    /// when the new one is whole and on disk. The unfinished file is removed then.
    ///
    /// # Errors
    /// Errors of the system; the file is as it was before, and the unfinished one stays. `InvalidInput`
    /// without [`to_file`](Self::to_file).
    #[cfg(feature = "report")]
    pub fn save(mut self) -> Result<(), Unsaved> {
        self.close();
        let Some((path, mut unfinished)) = self.file.take() else {
            let error = io::Error::new(io::ErrorKind::InvalidInput, "it was given no file");
            return Err(Unsaved { path: PathBuf::new(), error, kept: None });
        };
        // Its failure costs nothing if the trace can be saved.
        let _ = unfinished.end();
        match snapshot(&self.session, &path) {
            Ok(()) => {
                unfinished.remove();
                Ok(())
            }
            Err(error) => Err(Unsaved { path, error, kept: Some(unfinished.path().to_owned()) }),
        }
    }

    /// Writes what was noted so far to the file `path`, as [`save`](Self::save) does, and goes on. It takes
    /// as much memory beside what was noted as [`save`](Self::save) does.
    ///
    /// # Errors
    /// Errors of the system; the file is as it was before.
    #[cfg(feature = "report")]
    pub fn snapshot(&self, path: impl AsRef<Path>) -> io::Result<()> {
        snapshot(&self.session, path.as_ref())
    }

    /// Events that did not fit so far.
    pub(crate) fn lost(&self) -> u64 {
        self.session.lost()
    }

    /// Closes the recorder and returns the trace, with every stall attributed. The whole trace is in memory
    /// then: some 900 bytes for an operation with one access, which [`TraceOptions::memory_max`] does not
    /// count. [`save`](Self::save) needs none of that.
    pub fn finish(self) -> Trace {
        self.close();
        EventIndex::of(&self.session).trace(None).0
    }

    fn close(&self) {
        let mut opened = Opened::lock();
        if opened.contains(&self.session) {
            opened.0.retain(|open| !Arc::ptr_eq(open, &self.session));
            opened.renew();
        }
        drop(opened);
        self.session.close();
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        self.close();
        #[cfg(feature = "report")]
        if let Some((_, unfinished)) = &mut self.file {
            unfinished.remove();
        }
    }
}

/// Writes what was noted in a session so far.
#[cfg(feature = "report")]
fn snapshot(session: &Session, path: &Path) -> io::Result<()> {
    let events = EventIndex::of(session);
    file::replace(path, |out| perfetto::attribute_and_write(&events, out))
}

/// The name that a program's traces have, unless options say otherwise.
static PROGRAM: OnceLock<String> = OnceLock::new();

/// Sets the name that the program has in traces, unless [`TraceOptions::program`] says otherwise: for
/// bindings to languages whose programs are run by an interpreter. Only the first call counts.
pub(crate) fn set_program_name(name: String) {
    let _ = PROGRAM.set(name);
}

fn program_name() -> String {
    let of_file = || {
        let path = std::env::current_exe().ok();
        let name = path.as_ref().and_then(|path| path.file_name());
        name.map(|name| name.to_string_lossy().into_owned()).unwrap_or_else(|| "program".into())
    };
    PROGRAM.get().cloned().unwrap_or_else(of_file)
}
