//! The recorder: events of operations, from which a report says afterwards where the time went.
//!
//! At most one [`Recorder`] is open in a process, since operations of one engine use tensors of another. While no recorder
//! is open, an operation costs one relaxed load at its description, and each later step tests a flag of the operation.
//!
//! While one is open:
//!
//! 1. Every operation that is described carries a flag. The hooks (`hooks`) write an event of two words and more (`encoding`) for what
//!    happens to such an operation: submitted, ready, begun, ended, observed, resumed.
//! 2. A thread writes to buffers of its own (`writer`, `buffer`), which no other thread writes. The thread never waits: a buffer comes from
//!    the recorder's budget, and when that is spent, events are counted instead of kept. Buffers are made ready ahead (`free_list`).
//! 3. [`Recorder::save`] closes the recorder, sorts the places of all events that were published by their operations (`assemble`), and
//!    writes the file as it makes operations from their events and attributes their stalls. [`Recorder::finish`] makes all of them, as
//!    a [`Trace`].
//!
//! The time of an event is a reading of the processor's counter where that is steady (`ticks`), and otherwise the monotonic
//! clock. Readings become nanoseconds at the end, by comparing both clocks over the whole trace.
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
mod events;
mod free_list;
pub(crate) mod hooks;
mod names;
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

use estafette_report::Trace;
use estafette_sync::sync::Mutex;
// The switch is outside of every protocol: a plain std atomic, so that it may be a static under model checkers too.
use std::sync::atomic::{AtomicU32, Ordering};

use self::assemble::{BLOCKS_MAX, EventIndex};
use self::ticks::Ticks;
#[cfg(feature = "report")]
use self::unfinished::Unfinished;
use self::writer::Session;
use crate::core::error::Error;

#[cfg(feature = "report")]
use estafette_report::{file, perfetto, shown::shown};

pub use self::events::emit_events;
pub use self::hooks::{
    body_has_lock, body_uses, body_wants_lock, imported_from, on_event_loop, wait_has_lock,
};

/// Memory for a trace, unless an option says otherwise: some three million operations.
const MEMORY_DEFAULT: usize = 256 << 20;

/// What a buffer of events takes until it is saved: itself, and as much again for the index that saving makes of it.
const MEMORY_PER_BUFFER: usize = 2 * buffer::BUFFER_BYTES;

/// The number of the open recorder; 0 while there is none. Numbers are not used again, so a thread sees that its buffers
/// belong to an older one.
static OPEN: AtomicU32 = AtomicU32::new(0);

/// The bit of [`OPEN`] that says that events are emitted; the others are the number.
const EVENTS: u32 = 1 << 31;

estafette_sync::statics! {
    /// What writers need of the open recorder.
    static SESSION: Mutex<Option<Arc<Session>>> = Mutex::new(None);
}

/// Whether events are noted: a recorder is open, or `tracing` events are emitted. One relaxed load.
#[inline(always)]
pub fn is_open() -> bool {
    OPEN.load(Ordering::Relaxed) != 0
}

/// Whether a recorder is open.
fn is_kept() -> bool {
    OPEN.load(Ordering::Relaxed) & !EVENTS != 0
}

/// Options of a recorder.
#[derive(Clone, Default)]
pub struct TraceOptions {
    /// Bytes for the trace, from its beginning until [`Recorder::save`] has written it: half of them for what is noted on all threads
    /// together, the other half for what saving takes beside it. What does not fit is counted. `None` for 256 MiB. At most 64 GiB are
    /// used. Some 8 to 32 MiB more are taken whatever the size is, and more again where very much waits at the same time (some 50 bytes for
    /// each wait that has begun and not ended).
    pub memory_max: Option<usize>,
    /// Name of the program, for the report. `None` for the file name of the running one.
    pub program: Option<String>,
    /// Nanoseconds of another clock than the machine's: a simulated device's, for instance. It must not go backwards.
    pub clock: Option<Arc<dyn Fn() -> u64 + Send + Sync>>,
}

impl std::fmt::Debug for TraceOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TraceOptions")
            .field("memory_max", &self.memory_max)
            .field("program", &self.program)
            .finish_non_exhaustive()
    }
}

/// An open recorder of everything that all engines of the process do. Dropping it throws away what was noted.
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
    program: String,
    started_unix_ns: u64,
    /// Where it is to be saved, and what is written there meanwhile.
    #[cfg(feature = "report")]
    file: Option<(PathBuf, Unfinished)>,
}

/// A trace that could not be saved. Its file has the content that it had before.
#[cfg(feature = "report")]
#[derive(Debug)]
pub struct Unsaved {
    /// Where it should have been.
    pub path: PathBuf,
    /// What went wrong.
    pub error: io::Error,
    /// The unfinished file, which [`read`] takes: what was recorded, as far as it could be written. `None` if there is none.
    pub kept: Option<PathBuf>,
}

#[cfg(feature = "report")]
impl fmt::Display for Unsaved {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.path.display().to_string();
        write!(f, "the trace cannot be saved to {}: {}", shown(&path), self.error)?;
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
/// From a damaged file, what can be read is returned; [`Trace::losses`] says what is missing. Memory is taken in proportion to the
/// file's size (see [`perfetto::read`]).
///
/// # Errors
/// Those of the system; `InvalidInput` for what is no regular file; `InvalidData`, with a text that begins with "is", for a file that
/// is no trace or of which nothing is left.
#[cfg(feature = "report")]
pub fn read(path: &Path) -> io::Result<Trace> {
    let bytes = file::read(path)?;
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
    /// [`Error::Conflict`] when one is open already; [`Error::Invalid`] for a memory limit that holds no event.
    pub fn open(options: TraceOptions) -> Result<Self, Error> {
        // An id allocator, as `OPEN`.
        static NEXT: AtomicU32 = AtomicU32::new(1);
        let buffers = options.memory_max.unwrap_or(MEMORY_DEFAULT) / MEMORY_PER_BUFFER;
        if buffers == 0 {
            return Err(Error::invalid(format!("a recorder needs at least {MEMORY_PER_BUFFER} bytes")));
        }
        let buffers = buffers.min(BLOCKS_MAX);
        let program = options.program.unwrap_or_else(program_name);
        let mut session = SESSION.lock();
        if session.is_some() {
            return Err(Error::Conflict("stalls are being recorded already".into()));
        }
        let number = NEXT.fetch_add(1, Ordering::Relaxed) & !EVENTS;
        let new = Arc::new(Session::new(number, buffers, Ticks::start(options.clock)));
        *session = Some(Arc::clone(&new));
        drop(session);
        let started_unix_ns = unix_ns();
        OPEN.fetch_or(number, Ordering::Release);
        Ok(Self {
            session: new,
            program,
            started_unix_ns,
            #[cfg(feature = "report")]
            file: None,
        })
    }

    /// Says which file [`save`](Self::save) writes. From now on what is noted is also written beside it, several times a second, to
    /// `PATH.PROCESS.unfinished`: if the process ends before the trace is saved, that file stays, and [`read`] takes it. It takes as
    /// much disk as the recorder takes memory.
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
    /// Those of the system for the unfinished file and the thread that writes it; `InvalidInput` where `path` is something else than a
    /// regular file. The recorder is closed then.
    #[cfg(feature = "report")]
    pub fn to_file(mut self, path: &Path) -> io::Result<Self> {
        let unfinished = Unfinished::begin(&self.session, path, self.started_unix_ns, &self.program)?;
        self.file = Some((path.to_owned(), unfinished));
        Ok(self)
    }

    /// Closes the recorder and writes the trace to the file of [`to_file`](Self::to_file), which is replaced when the new one is
    /// whole and on disk. The unfinished file is removed then.
    ///
    /// # Errors
    /// Those of the system; the file is as it was before, and the unfinished one stays. `InvalidInput` without [`to_file`](Self::to_file).
    #[cfg(feature = "report")]
    pub fn save(mut self) -> Result<(), Unsaved> {
        self.close();
        let Some((path, mut unfinished)) = self.file.take() else {
            let error = io::Error::new(io::ErrorKind::InvalidInput, "it was given no file");
            return Err(Unsaved { path: PathBuf::new(), error, kept: None });
        };
        // Its failure costs nothing if the trace can be saved.
        let _ = unfinished.end();
        let events = self.events();
        match file::replace(&path, |out| perfetto::attribute_and_write(&events, out)) {
            Ok(()) => {
                unfinished.remove();
                Ok(())
            }
            Err(error) => Err(Unsaved { path, error, kept: Some(unfinished.path().to_owned()) }),
        }
    }

    /// Events that did not fit so far.
    pub fn lost(&self) -> u64 {
        self.session.lost()
    }

    /// Closes the recorder and returns the trace, with every stall attributed. The whole trace is in memory then: some 900 bytes for an
    /// operation with one access, which [`TraceOptions::memory_max`] does not count. [`save`](Self::save) needs none of that.
    pub fn finish(self) -> Trace {
        self.close();
        self.events().trace(None).0
    }

    fn events(&self) -> EventIndex<'static> {
        let program = self.program.as_str().into();
        let about = Trace { program, started_unix_ns: self.started_unix_ns, ..Trace::default() };
        EventIndex::of(&self.session, about)
    }

    fn close(&self) {
        let mut session = SESSION.lock();
        if session.as_ref().is_some_and(|open| Arc::ptr_eq(open, &self.session)) {
            *session = None;
            OPEN.fetch_and(EVENTS, Ordering::Release);
        }
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

fn program_name() -> String {
    let path = std::env::current_exe().ok();
    let name =
        path.as_ref().and_then(|path| path.file_name()).map(|name| name.to_string_lossy().into_owned());
    name.unwrap_or_else(|| "program".into())
}

fn unix_ns() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |since| since.as_nanos().try_into().unwrap_or(u64::MAX))
}
