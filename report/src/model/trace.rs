//! A trace as plain data: what every reader makes, and every report is made from.
//!
//! All times are nanoseconds since the start of the trace. What was not seen (because it had not happened yet
//! when the trace ended, or because its record was lost) is `None`, never a made-up time.

pub use crate::model::text::Text;

/// Nanoseconds since the start of the trace.
pub type Nanos = u64;

/// Identity of an operation or a lease: they share one number space, since a lease is an operation without a
/// body.
pub type OperationId = u64;

/// Index into [`Trace::tracks`].
pub type TrackId = usize;

/// Index into [`Trace::libraries`].
pub type LibraryId = usize;

/// The name of the wait of a submission for room below the in-flight limit: of engines, and for the sentences
/// of reports.
#[doc(hidden)]
pub const IN_FLIGHT_LIMIT: &str = "in-flight limit";

/// The names of waits for what another process does.
pub(crate) const LINK_WAITS: [&str; 4] = ["connect", "accept", "send", "receive"];

/// Everything that was recorded, and what attribution made of it.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Trace {
    /// The time at which it began, in nanoseconds since 1970.
    pub started_unix_ns: u64,
    /// Its duration.
    pub duration: Nanos,
    /// The program that was recorded: its file name.
    pub program: Text,
    /// The processes that it is of: one, or those that were [merged](crate::merge). None in a file of before
    /// they were noted.
    pub processes: Vec<Process>,
    /// The tracks on which things happened.
    pub tracks: Vec<Track>,
    /// Package names: `numpy`, `torch`, ..., and `host` for what is no known library.
    pub libraries: Vec<Text>,
    /// The variables that order was kept for, sorted by `id`.
    pub variables: Vec<Variable>,
    /// Sorted by `id`.
    pub operations: Vec<Operation>,
    /// Sorted by `id`.
    pub leases: Vec<Lease>,
    /// The result of attribution, sorted by `waiter`, `from` and `access`.
    pub stalls: Vec<Stall>,
    /// The dependences of operations in a queue; direct dependences only. Sorted by `to`.
    pub edges: Vec<Edge>,
    /// Quantities over time.
    pub counters: Vec<Counter>,
    /// Of traces of several machines that were [merged](crate::merge): how their clocks differ, in words.
    pub clocks: Vec<String>,
    /// Of traces of several processes that were [merged](crate::merge): when that of each process ended. No
    /// file has them.
    pub ends: Vec<Nanos>,
    /// The losses.
    pub losses: Losses,
    /// True if bodies ran when it began, which are not in it. Only attribution needs it: no file has it.
    #[doc(hidden)]
    pub began_amid_bodies: bool,
    /// Workers of each engine. Empty in a file of a version that did not note them, and in a merged trace.
    #[doc(hidden)]
    pub workers: Vec<Workers>,
}

/// The workers of an engine.
#[doc(hidden)]
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Workers {
    /// The engine's number in its process; 0 if that is not known. No file has it.
    pub engine: u64,
    /// The number of workers.
    pub count: u32,
    /// The greatest number of them that run at once, as long as none of them waits, and the time from which
    /// that holds. Fewer than `count` where bodies share a lock. A file has the least.
    pub at_once: Vec<(Nanos, u32)>,
    /// The tracks of its threads; sorted. No file has them.
    pub tracks: Vec<TrackId>,
}

impl Workers {
    /// The fewest that ran at once while there was no room for more.
    pub fn least(&self) -> u32 {
        self.at_once.iter().map(|(_, at_once)| *at_once).min().unwrap_or(self.count)
    }
}

/// A process that was recorded.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Process {
    /// Its number in the system, as it saw it itself.
    pub number: u32,
    /// Drawn at random, since numbers are used again. What a process hands to others has this, plus the
    /// number of its lease, as key.
    pub key: u64,
    /// The time at which the trace began, in nanoseconds of `clock`.
    pub started_ns: u64,
    /// The name of the clock: that of this boot of this machine. Empty for a clock that no other process has.
    pub clock: Text,
}

/// A place where things happen one after another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Track {
    /// Its name, unique among tracks of a kind or not.
    pub name: Text,
    /// Its kind.
    pub kind: TrackKind,
}

/// The kind of a track.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum TrackKind {
    /// A thread of an engine's pool. More than its workers, where some stand in for those that wait.
    Worker,
    /// A thread of the program.
    Thread,
    /// An event loop's thread.
    EventLoop,
    /// A queue of a device.
    Queue,
    /// The thread that observes fences, or another one of an engine that is no worker, such as that of
    /// asynchronous bodies.
    Reactor,
    /// The thread that runs foreign deleters.
    Reaper,
}

/// A variable, for which order is kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Variable {
    /// Identity, as in diagnoses.
    pub id: u64,
    /// Its given name, or a description: `batch`, `float32[1024] #12`.
    pub name: Text,
    /// Size of its memory.
    pub bytes: Option<u64>,
    /// The library that the memory is from.
    pub library: Option<LibraryId>,
}

/// One operation, one wait, or one crossing into a library.
///
/// An export and the lease that begins with it have the same identity. The default has no time and no access,
/// and has not ended.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Operation {
    /// Identity, as in errors and diagnoses.
    pub id: OperationId,
    /// Name given at submission.
    pub name: Text,
    /// Its kind.
    pub kind: OperationKind,
    /// On whose behalf it ran.
    pub library: Option<LibraryId>,
    /// The line that submitted it.
    pub site: Option<Site>,
    /// The track on which it was submitted, or waited.
    pub submitter: Option<TrackId>,
    /// The track on which the body ran, or the device work was queued.
    pub track: Option<TrackId>,
    /// Appended to the queues of its variables.
    pub submitted: Nanos,
    /// All accesses may proceed.
    pub granted: Option<Nanos>,
    /// Handed to those who run it: all that it waits for has ended, on whatever device, and was observed. Not
    /// earlier than `granted`.
    pub ready: Option<Nanos>,
    /// The thread that goes on with it was running, and asked for the interpreter's lock. Not later than
    /// `began`, of a wait not later than `resumed`.
    pub awake: Option<Nanos>,
    /// The body began. Of an export: the library has it.
    pub began: Option<Nanos>,
    /// The body ended; device work was handed to its queue.
    pub issued: Option<Nanos>,
    /// The times from and to which its device work ran, as the device reports; `None` where it reports none.
    /// Not earlier than `began`, not later than `observed`. A device may have begun before the body had
    /// ended.
    pub ran: Option<(Nanos, Nanos)>,
    /// The work ended, on whatever device it was. Not earlier than `issued`.
    pub done: Option<Nanos>,
    /// The engine saw that it is done.
    pub observed: Option<Nanos>,
    /// The time at which the waiter ran again.
    pub resumed: Option<Nanos>,
    /// Its outcome.
    pub outcome: Outcome,
    /// Its accesses.
    pub accesses: Vec<Access>,
    /// The operation whose end it waits for by name, if it has no accesses of its own.
    pub waits_for: Option<OperationId>,
    /// Of a hand-over of device memory whose order was not seen to. Rare, and so apart.
    pub disorder: Option<Box<Disorder>>,
    /// Of an import: the process that has the memory, and orders its uses.
    pub origin: Option<Box<ImportOrigin>>,
    /// The [engine](Workers::engine) that it was submitted to; 0 if that is not known. Only attribution needs
    /// it: no file has it.
    #[doc(hidden)]
    pub engine: u64,
}

impl Operation {
    /// The name without the process that merging has put behind it.
    pub(crate) fn own_name(&self) -> &str {
        self.name.split_once(" @").map_or(&self.name, |(name, _)| name)
    }

    /// The times of what happened to it after its submission.
    pub(crate) fn later(&self) -> impl Iterator<Item = Nanos> + use<> {
        let Self { granted, ready, awake, began, issued, ran, done, observed, resumed, .. } = *self;
        let (ran_from, ran_to) = ran.unzip();
        [granted, ready, awake, began, issued, ran_from, ran_to, done, observed, resumed]
            .into_iter()
            .flatten()
    }
}

/// A value of another process.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ImportOrigin {
    /// Its number, as the process sees it that has the value from there.
    pub process: u32,
    /// [`Process::key`], plus the number of the lease there under which the value was shown.
    pub key: u64,
    /// Of another machine, from which a copy came: its clock.
    pub clock: Option<ClockOffset>,
}

/// The clock of another machine less the own clock, when something had come from there.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ClockOffset {
    /// [`Process::clock`] of the processes there.
    pub clock: Text,
    /// In nanoseconds.
    pub ahead_ns: i64,
    /// It is off by at most so much.
    pub uncertainty_ns: u64,
}

/// A hand-over of device memory that nothing ordered after the work which made it, or that may not have been
/// ordered.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Disorder {
    /// True if it is certain that nothing did.
    pub is_known: bool,
    /// The line behind which the memory was made.
    pub after: Option<Site>,
    /// The reason, in words.
    pub why: Text,
}

/// The kind of an operation.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum OperationKind {
    /// Has a body.
    #[default]
    Operation,
    /// A thread that waits.
    Wait,
    /// A task that awaits.
    Await,
    /// A copy of data that the engine made itself.
    Copy,
    /// A tensor that was handed to a library: from the request until the library has it.
    Export,
    /// A tensor that was taken from a library.
    Import,
}

/// The outcome of an operation.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Outcome {
    /// Well.
    Ok,
    /// Its body or its device work failed; why.
    Failed(Text),
    /// Cancelled before it began.
    Cancelled,
    /// Not run because an input was bad; why.
    Skipped(Text),
    /// Not at all, as long as the trace lasted.
    #[default]
    Unfinished,
}

/// One use of a variable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Access {
    /// [`Variable::id`].
    pub variable: u64,
    /// The mode of its use.
    pub mode: AccessMode,
}

/// The mode in which a variable is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum AccessMode {
    /// Together with other readers.
    Read,
    /// Alone, whatever was there before.
    Write,
    /// Alone, beginning with what is there.
    Update,
}

/// A line of a program.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Site {
    /// Path of the source file.
    pub file: Text,
    /// Line in it, from 1.
    pub line: u32,
    /// The function it is in; may be empty.
    pub function: Text,
}

/// An external use of a variable, from export until it was released.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lease {
    /// Identity; shares its numbers with operations.
    pub id: OperationId,
    /// [`Variable::id`].
    pub variable: u64,
    /// Read leases are shared, others exclusive.
    pub access: AccessMode,
    /// The library that has it.
    pub library: Option<LibraryId>,
    /// The owner, in words.
    pub owner: Text,
    /// The line that took it.
    pub site: Option<Site>,
    /// The time from which it was held.
    pub opened: Nanos,
    /// The time at which its holder released it; `None` while it is held.
    pub closed: Option<Nanos>,
}

/// An interval of time in which one access of one operation waited, for one reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Stall {
    /// The operation that waited.
    pub waiter: OperationId,
    /// Index into its `accesses`; 0 if it has none, because it waits for an operation by name.
    pub access: usize,
    /// Since when.
    pub from: Nanos,
    /// Until when; later than `from`.
    pub to: Nanos,
    /// Its cause.
    pub cause: Cause,
    /// The kind of conflict, where another operation or a lease was in the way.
    pub hazard: Option<Hazard>,
    /// Because of whom.
    pub blocker: Blocker,
    /// True if this access is the one that the operation waited for longest. The critical stalls of an
    /// operation do not overlap, and together are the time that it waited; those of its other accesses are
    /// hidden behind them.
    pub critical: bool,
}

impl Stall {
    /// Its duration.
    pub fn duration(&self) -> Nanos {
        self.to.saturating_sub(self.from)
    }
}

/// The reason why an access waited; the six causes that there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Cause {
    /// The data that it waited for was being computed.
    Computing,
    /// The operation that it waited for stood in a queue itself.
    Queued,
    /// It could have run, but no worker or queue was free.
    NoWorker,
    /// The work that it waited for was done, and that had not been observed.
    NotObserved,
    /// The engine knew that it could go on, but the waiter did not run: a wake-up, the Python lock, an event
    /// loop.
    NotResumed,
    /// A lease was still open.
    Leased,
}

impl Cause {
    /// All of them, in their usual order.
    pub const ALL: [Self; 6] =
        [Self::Computing, Self::Queued, Self::NoWorker, Self::NotObserved, Self::NotResumed, Self::Leased];

    /// The name used in files and tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Computing => "computing",
            Self::Queued => "queued",
            Self::NoWorker => "no worker",
            Self::NotObserved => "not observed",
            Self::NotResumed => "not resumed",
            Self::Leased => "leased",
        }
    }
}

/// The blocker of a stall.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Blocker {
    /// No particular blocker, or the record of it is lost.
    None,
    /// An operation.
    Operation(OperationId),
    /// A lease.
    Lease(OperationId),
    /// All workers were busy, or there are none.
    Pool,
    /// A device's queue was busy.
    Queue(TrackId),
    /// The thread that looks at fences was late.
    Observer,
    /// The Python lock was taken.
    Interpreter,
    /// An event loop was busy.
    EventLoop,
    /// A thread that had been woken was not running yet.
    Thread(TrackId),
    /// A thread of the program, which alone ran while the Python lock was taken. Only reports have it: files
    /// have `Interpreter`.
    LockOwner(TrackId),
}

/// The kind of conflict between two accesses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Hazard {
    /// Read after write.
    Raw,
    /// Write after read.
    War,
    /// Write after write.
    Waw,
}

impl Hazard {
    /// In words: `read after write`.
    pub fn words(self) -> &'static str {
        match self {
            Self::Raw => "read after write",
            Self::War => "write after read",
            Self::Waw => "write after write",
        }
    }
}

/// A dependence: `to` could not go before `from` had ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Edge {
    /// The earlier operation or lease.
    pub from: OperationId,
    /// The later one.
    pub to: OperationId,
    /// [`Variable::id`] of what both use; 0 if `to` waits for `from` by name.
    pub variable: u64,
    /// The reason why it is a conflict.
    pub hazard: Hazard,
}

/// A quantity over time. It keeps its value from one sample to the next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Counter {
    /// The counted quantity: `operations in flight`, `bytes leased`, `fences pending`.
    pub name: Text,
    /// `operations`, `bytes`, `fences`.
    pub unit: Text,
    /// In order of time.
    pub samples: Vec<(Nanos, i64)>,
}

/// The losses of a trace. Its other fields are right, but not complete, when any of these is set.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Losses {
    /// Records that did not fit, per track that lost any.
    pub records: Vec<LostRecords>,
    /// The damage of the file, in words, each naming the place: `truncated at byte 1234 of packet 17`. Of
    /// much damage the first hundred, and how much more there is.
    pub damage: Vec<String>,
}

/// Records that one track has lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LostRecords {
    /// The track.
    pub track: TrackId,
    /// Their number.
    pub count: u64,
}

impl Losses {
    /// True if nothing is missing.
    pub fn is_empty(&self) -> bool {
        self.records.is_empty() && self.damage.is_empty()
    }

    /// Records lost on all tracks together.
    pub fn records_lost(&self) -> u64 {
        self.records.iter().map(|lost| lost.count).sum()
    }
}

impl Trace {
    /// Sorts operations, leases and variables by their ids, and keeps one of each. Unstable, as a stable sort
    /// would take half as much memory again.
    pub(crate) fn sort_by_id(&mut self) {
        self.operations.sort_unstable_by_key(|operation| operation.id);
        self.operations.dedup_by_key(|operation| operation.id);
        self.leases.sort_unstable_by_key(|lease| lease.id);
        self.leases.dedup_by_key(|lease| lease.id);
        self.variables.sort_unstable_by_key(|variable| variable.id);
        self.variables.dedup_by_key(|variable| variable.id);
    }

    pub(crate) fn access(&self, waiter: OperationId, index: usize) -> Option<&Access> {
        self.operation(waiter)?.accesses.get(index)
    }

    /// The name of a track, or `unknown` if there is no such track.
    pub(crate) fn track_name<'a>(&'a self, track: TrackId, unknown: &'a str) -> &'a str {
        self.tracks.get(track).map_or(unknown, |track| &track.name)
    }

    /// The operation with this id.
    pub fn operation(&self, id: OperationId) -> Option<&Operation> {
        self.position(id).map(|at| &self.operations[at])
    }

    pub(crate) fn position(&self, id: OperationId) -> Option<usize> {
        self.operations.binary_search_by_key(&id, |operation| operation.id).ok()
    }

    /// The lease with this id.
    pub fn lease(&self, id: OperationId) -> Option<&Lease> {
        self.leases.binary_search_by_key(&id, |lease| lease.id).ok().map(|at| &self.leases[at])
    }

    /// The variable with this id.
    pub fn variable(&self, id: u64) -> Option<&Variable> {
        self.variables.binary_search_by_key(&id, |variable| variable.id).ok().map(|at| &self.variables[at])
    }

    /// The name of a library.
    pub fn library(&self, id: Option<LibraryId>) -> Option<&str> {
        self.libraries.get(id?).map(Text::as_str)
    }
}
