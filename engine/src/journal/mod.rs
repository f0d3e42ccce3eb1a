//! The journal: what the engine notes about operations while stalls are recorded, to tell afterwards where the time went.
//!
//! One journal at a time is kept for the whole process, since tensors of one engine are used by operations of another.
//! It is off unless a [`Journal`] is open; then an operation costs one relaxed load, at its description, and whatever happens to
//! it later costs a look at a flag of its own.
//!
//! While one is open:
//!
//! 1. Every operation that is described carries a flag. The hooks (`hooks`) write an entry of two words and more (`entry`) for what
//!    happens to such an operation: submitted, ready, begun, ended, observed, resumed.
//! 2. A thread writes to pages of its own (`writer`, `page`), which nobody else writes. It never waits: a page comes from
//!    the journal's budget, and when that is spent, entries are counted instead of kept. Pages are made ready ahead (`stock`).
//! 3. [`Journal::finish`] closes the journal, reads the pages of all threads as far as they were published, and assembles
//!    what they say into a [`Recording`] (`assemble`), whose stalls are then attributed.
//!
//! The time of an entry is a reading of the processor's counter where that is steady (`ticks`), and otherwise the monotonic
//! clock. Readings become nanoseconds at the end, by comparing both clocks over the whole recording.

mod assemble;
mod entry;
pub(crate) mod events;
pub(crate) mod hooks;
mod names;
mod page;
mod stock;
mod ticks;
mod writer;

use std::sync::{Arc, PoisonError};

use estafette_report::Recording;
use estafette_sync::sync::Mutex;
// The switch is outside of every protocol: a plain std atomic, so that it may be a static under model checkers too.
use std::sync::atomic::{AtomicU32, Ordering};

use self::ticks::Ticks;
use self::writer::Session;
use crate::error::Error;

pub use self::events::emit_events;
pub use self::hooks::{
    body_has_lock, body_uses, body_wants_lock, imported_from, on_event_loop, wait_has_lock,
};

/// Memory for entries, unless told otherwise: some two million operations.
const MEMORY_DEFAULT: usize = 256 << 20;

/// The number of the open journal; 0 while there is none. Numbers are not used again, so a thread sees that its pages
/// belong to an older one.
static OPEN: AtomicU32 = AtomicU32::new(0);

/// The bit of [`OPEN`] that says that events are emitted; the others are the number.
const EVENTS: u32 = 1 << 31;

estafette_sync::statics! {
    /// What writers need of the open journal.
    static SESSION: Mutex<Option<Arc<Session>>> = Mutex::new(None);
}

/// Whether somebody is to be told: a journal is kept, or events are emitted. One relaxed load.
#[inline(always)]
pub fn is_open() -> bool {
    OPEN.load(Ordering::Relaxed) != 0
}

/// Whether a journal is kept, beside whoever listens to events.
fn is_kept() -> bool {
    OPEN.load(Ordering::Relaxed) & !EVENTS != 0
}

/// How a journal is kept.
#[derive(Clone, Default)]
pub struct JournalOptions {
    /// Bytes for entries on all threads together; what does not fit is counted. `None` for 256 MiB.
    pub memory_max: Option<usize>,
    /// Name of the program, for the report. `None` for the file name of the running one.
    pub program: Option<String>,
    /// Nanoseconds of another clock than the machine's: a simulated device's, for instance. It must not go backwards.
    pub clock: Option<Arc<dyn Fn() -> u64 + Send + Sync>>,
}

impl std::fmt::Debug for JournalOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("JournalOptions")
            .field("memory_max", &self.memory_max)
            .field("program", &self.program)
            .finish_non_exhaustive()
    }
}

/// An open journal of everything that all engines of the process do. Dropping it throws away what was noted.
///
/// ```
/// use estafette::Engine;
/// use estafette::journal::{Journal, JournalOptions};
///
/// let journal = Journal::open(JournalOptions::default())?;
/// let engine = Engine::builder().workers(1).build()?;
/// let x = engine.var();
/// engine.op("produce").writes_vars(&[&x]).run(|[], []| Ok(()))?;
/// engine.op("consume").reads_vars(&[&x]).run(|[], []| Ok(()))?.wait()?;
/// let recording = journal.finish();
/// assert!(recording.operations.iter().any(|operation| operation.name == "consume"));
/// assert!(recording.losses.is_empty());
/// # Ok::<(), estafette::Error>(())
/// ```
#[derive(Debug)]
#[must_use = "a journal is kept until it is finished or dropped"]
pub struct Journal {
    session: Arc<Session>,
    program: String,
    started_unix_ns: u64,
}

impl Journal {
    /// Opens the journal.
    ///
    /// # Errors
    /// [`Error::Conflict`] when one is open already; [`Error::Invalid`] for a memory limit that holds no entry.
    pub fn open(options: JournalOptions) -> Result<Self, Error> {
        // An id allocator, as `OPEN`.
        static NEXT: AtomicU32 = AtomicU32::new(1);
        let pages = options.memory_max.unwrap_or(MEMORY_DEFAULT) / page::PAGE_BYTES;
        if pages == 0 {
            return Err(Error::invalid(format!(
                "a journal needs at least {} bytes for its entries",
                page::PAGE_BYTES
            )));
        }
        let program = options.program.unwrap_or_else(program_name);
        let mut session = SESSION.lock().unwrap_or_else(PoisonError::into_inner);
        if session.is_some() {
            return Err(Error::Conflict("stalls are being recorded already".into()));
        }
        let number = NEXT.fetch_add(1, Ordering::Relaxed) & !EVENTS;
        let new = Arc::new(Session::new(number, pages, Ticks::start(options.clock)));
        *session = Some(Arc::clone(&new));
        drop(session);
        let started_unix_ns = unix_ns();
        OPEN.fetch_or(number, Ordering::Release);
        Ok(Self { session: new, program, started_unix_ns })
    }

    /// Entries that did not fit so far.
    pub fn lost(&self) -> u64 {
        self.session.lost()
    }

    /// Closes the journal and says what it tells, with every stall attributed.
    pub fn finish(self) -> Recording {
        self.close();
        let scale = self.session.ticks.scale();
        let mut recording = assemble::assemble(&self.session, &scale);
        recording.program.clone_from(&self.program);
        recording.started_unix_ns = self.started_unix_ns;
        estafette_report::attribution::attribute(&mut recording);
        recording
    }

    fn close(&self) {
        let mut session = SESSION.lock().unwrap_or_else(PoisonError::into_inner);
        if session.as_ref().is_some_and(|open| Arc::ptr_eq(open, &self.session)) {
            *session = None;
            OPEN.fetch_and(EVENTS, Ordering::Release);
        }
        self.session.close();
    }
}

impl Drop for Journal {
    fn drop(&mut self) {
        self.close();
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
