//! A thread's side of the recorder: its buffers, and its list of texts.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use estafette_report::model::{Process, TrackKind};
use estafette_sync::platform;
use estafette_sync::sync::Mutex;
use estafette_sync::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use estafette_sync::thread_local;

use super::assemble::is_any_running;
use super::buffer::{TraceBuffer, WORDS};
use super::chain::{Chain, ChainLink};
use super::encoding::{EventKind, NONE, WORDS_MAX, engine, head, narrow, pair};
use super::free_list::FreeListHandle;
use super::names;
use super::process::this_process;
use super::ticks::{Scale, Ticks};
use super::{Opened, TraceOptions, program_name, session_set};
use crate::core::engine_core::Core;
use crate::core::lease_info::LeaseOwner;

/// Texts that one thread keeps; what comes later has no name in the report, and is counted.
const TEXTS_MAX: usize = 1 << 16;

/// Static texts that a thread finds again without hashing.
const RECENT: usize = 64;

/// Ticks after which a buffer takes no more events: a day.
const BUFFER_TICKS: u64 = 1 << 48;

/// The number of searches for what is too old, while as much is noted as is kept.
const TRIMS: u64 = 8;

/// Variables that a thread remembers having described.
const DESCRIBED: usize = 256;

/// Lease owners that a thread finds again without formatting them.
const OWNERS: usize = 32;

/// One recorder, from opening to finishing.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) program: String,
    pub(super) started_unix_ns: u64,
    pub(super) process: Process,
    /// True if bodies ran when it began.
    pub(super) began_amid_bodies: bool,
    pub(super) ticks: Ticks,
    /// The length of the end that is kept, if not everything is.
    pub(super) last: Option<Duration>,
    /// Buffers that may still be taken.
    budget: AtomicUsize,
    free_list: FreeListHandle,
    /// The time of the last search for buffers that are too old, if only the end is kept.
    trimmed: AtomicU64,
    /// The time until which notes may have been given up, if only the end is kept.
    gone: AtomicU64,
    pub(super) threads: Mutex<Vec<Arc<ThreadLog>>>,
}

impl Session {
    pub(super) fn new(buffers: usize, options: TraceOptions) -> Self {
        let TraceOptions { program, last, clock, .. } = options;
        let program = program.unwrap_or_else(program_name);
        let ticks = Ticks::start(clock);
        let process = this_process(ticks.started_ns());
        // Buffers that are given up have touched memory, so none has to be made ready.
        let free_list = FreeListHandle::of(if last.is_some() { 0 } else { buffers });
        let budget = AtomicUsize::new(buffers);
        let [trimmed, gone] = [(); 2].map(|()| AtomicU64::new(0));
        let threads = Mutex::new(Vec::new());
        let started_unix_ns = ticks.began_unix_ns;
        Self {
            program,
            started_unix_ns,
            process,
            began_amid_bodies: is_any_running(),
            ticks,
            last,
            budget,
            free_list,
            trimmed,
            gone,
            threads,
        }
    }

    /// Nothing more is expected to be written.
    pub(super) fn close(&self) {
        self.free_list.close();
    }

    /// Words that were noted and are still there.
    pub(super) fn words(&self) -> usize {
        let threads = self.threads.lock().clone();
        let words = |thread: &Arc<ThreadLog>| {
            thread.buffers.links().map(|link| link.value.published()).sum::<usize>()
        };
        threads.iter().map(words).sum()
    }

    pub(super) fn lost(&self) -> u64 {
        let threads = self.threads.lock();
        threads.iter().map(|thread| thread.lost.load(Ordering::Relaxed)).sum()
    }

    /// A buffer for events from `now` on.
    fn buffer(&self, now: u64) -> Option<TraceBuffer> {
        self.trim(now, false);
        // Another thread may take what this one has given up.
        while !self.take() {
            self.trim(now, true).then_some(())?;
        }
        let mut buffer = self.free_list.take().unwrap_or_else(TraceBuffer::fresh);
        buffer.began = now;
        Some(buffer)
    }

    fn take(&self) -> bool {
        self.budget.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_ok()
    }

    /// Gives up the buffers that are older than the end that is kept; the oldest one of all if there is none
    /// and one is `wanted`. Gives up nothing if everything is kept. Returns true if there was a buffer to
    /// give up.
    fn trim(&self, now: u64, wanted: bool) -> bool {
        let Some(kept) = self.kept() else { return false };
        let since = now.saturating_sub(self.trimmed.load(Ordering::Relaxed));
        if since < kept / TRIMS && !wanted {
            return false;
        }
        self.trimmed.store(now, Ordering::Relaxed);
        let (mut given_up, mut gone) = (Vec::new(), 0);
        let mut threads = self.threads.lock();
        for thread in &*threads {
            given_up.extend(std::iter::from_fn(|| thread.give_up(|until| now.saturating_sub(until) > kept)));
        }
        if wanted && given_up.is_empty() {
            let oldest = threads
                .iter()
                .filter_map(|thread| Some((thread.full_until()?, thread)))
                .min_by_key(|(until, _)| *until);
            given_up.extend(oldest.and_then(|(until, thread)| {
                gone = until;
                thread.give_up(|_| true)
            }));
        }
        self.gone.fetch_max(gone, Ordering::Relaxed);
        threads.retain(|thread| {
            thread.over.load(Ordering::Acquire) == NEVER || thread.buffers.first().is_some()
        });
        drop(threads);
        self.budget.fetch_add(given_up.len(), Ordering::Relaxed);
        !given_up.is_empty()
    }

    /// The scale of the ticks, and the time from which on all notes are there.
    pub(super) fn scale(&self) -> Scale {
        let scale = self.ticks.scale();
        let kept = self.kept().unwrap_or(u64::MAX);
        let first = scale.parts().0.saturating_sub(kept).max(self.gone.load(Ordering::Relaxed));
        scale.from(first)
    }

    /// The ticks that are kept, if not all are.
    fn kept(&self) -> Option<u64> {
        let last = self.last?;
        let (_, per_tick) = self.ticks.scale().parts();
        Some((last.as_nanos() as f64 / per_tick) as u64)
    }
}

/// The notes of one thread.
#[derive(Debug)]
pub(super) struct ThreadLog {
    pub(super) name: String,
    kind: TrackKind,
    /// An event loop has been seen running here.
    pub(super) event_loop: AtomicBool,
    pub(super) buffers: Chain<TraceBuffer>,
    /// Buffers were given up.
    pub(super) is_cut: AtomicBool,
    pub(super) texts: Chain<Arc<str>>,
    pub(super) lost: AtomicU64,
    pub(super) running: RunningBody,
    /// The time at which the thread noted something for the last time, once it notes no more; else [`NEVER`].
    over: AtomicU64,
}

/// No time.
const NEVER: u64 = u64::MAX;

/// The body that runs on a thread and that no event notes yet: its operation, or 0, and when it began.
///
/// Only the thread itself writes it. A reader at the end may see the value change: then an event notes the
/// body, too.
#[derive(Debug, Default)]
pub(super) struct RunningBody {
    id: AtomicU64,
    ticks: AtomicU64,
}

impl RunningBody {
    /// The operation and when it began.
    #[inline(always)]
    pub(super) fn get(&self) -> Option<(u64, u64)> {
        let id = self.id.load(Ordering::Acquire);
        let ticks = self.ticks.load(Ordering::Relaxed);
        (id != 0).then_some((id, ticks))
    }

    #[inline(always)]
    fn set(&self, id: u64, ticks: u64) {
        self.ticks.store(ticks, Ordering::Relaxed);
        self.id.store(id, Ordering::Release);
    }

    #[inline(always)]
    fn clear(&self) {
        self.id.store(0, Ordering::Release);
    }
}

impl ThreadLog {
    fn of_this_thread() -> Self {
        let current = std::thread::current();
        let kind = match current.name().and_then(|name| name.strip_prefix("estafette-")) {
            None => TrackKind::Thread,
            Some("reaper") => TrackKind::Reaper,
            // Workers are numbered.
            Some(rest) if rest.parse::<usize>().is_ok() => TrackKind::Worker,
            Some(_) => TrackKind::Reactor,
        };
        let name = current.name().map(str::to_owned).or_else(names::of_this_thread).unwrap_or_else(unnamed);
        Self {
            name,
            kind,
            event_loop: AtomicBool::new(false),
            buffers: Chain::default(),
            is_cut: AtomicBool::new(false),
            texts: Chain::default(),
            lost: AtomicU64::new(0),
            running: RunningBody::default(),
            over: AtomicU64::new(NEVER),
        }
    }

    /// The time at which the newest event of this link, which is the first, was noted, if nothing more comes
    /// into its buffer.
    fn until(&self, first: &ChainLink<TraceBuffer>) -> Option<u64> {
        let until = first.next().map_or_else(|| self.over.load(Ordering::Acquire), |next| next.value.began);
        (until != NEVER).then_some(until)
    }

    /// As [`until`](Self::until), of the first link.
    fn full_until(&self) -> Option<u64> {
        self.until(&*self.buffers.first()?)
    }

    /// Gives up the first buffer if nothing more comes into it and `is_old` returns true for the time of its
    /// newest event.
    fn give_up(&self, is_old: impl FnOnce(u64) -> bool) -> Option<Arc<ChainLink<TraceBuffer>>> {
        let given_up = self.buffers.pop(|first| self.until(first).is_some_and(is_old));
        if given_up.is_some() {
            self.is_cut.store(true, Ordering::Release);
        }
        given_up
    }

    pub(super) fn kind(&self) -> TrackKind {
        if self.event_loop.load(Ordering::Relaxed) { TrackKind::EventLoop } else { self.kind }
    }

    fn lose(&self, events: u64) {
        self.lost.store(self.lost.load(Ordering::Relaxed) + events, Ordering::Relaxed);
    }
}

/// The name of a thread that Rust has not started: `main`, or its number in the system.
fn unnamed() -> String {
    match platform::thread::number() {
        Some(number) if number == std::process::id() => "main".into(),
        Some(number) => format!("thread {number}"),
        None => format!("{:?}", std::thread::current().id()),
    }
}

/// A thread that writes.
pub(super) struct Writer {
    session: Arc<Session>,
    log: Arc<ThreadLog>,
    buffer: Option<Arc<ChainLink<TraceBuffer>>>,
    last_text: Option<Arc<ChainLink<Arc<str>>>>,
    /// Words of the buffer that are written.
    at: usize,
    /// From when on events go to another buffer, whose beginning says what the upper bits of their ticks are.
    until: u64,
    /// The reading of the newest event.
    pub(super) last: u64,
    /// The newest wait that this thread came back from.
    pub(super) woken_from: u64,
    /// The engine that was noted last, and how many of its workers ran at once.
    engine: (u64, usize),
    numbers: HashMap<Arc<str>, u32>,
    recent: [(usize, usize, u32); RECENT],
    owners: [Option<(LeaseOwner, [u64; 2])>; OWNERS],
    described: Box<[u64; DESCRIBED]>,
}

/// A thread's writers, one for each open recorder.
struct Writers {
    /// The set of recorders that they are for.
    set: u32,
    open: Vec<Writer>,
}

thread_local! {
    static WRITERS: RefCell<Writers> = const { RefCell::new(Writers { set: 0, open: Vec::new() }) };
}

/// Lends the calling thread's writers, one after the other, if tracing is on. Nothing foreign may be called
/// meanwhile.
#[inline]
pub(super) fn with(f: impl FnMut(&mut Writer)) {
    let set = session_set();
    if set == 0 {
        return;
    }
    // A thread that is ending has no writers any more.
    let _ = WRITERS.try_with(|writers| {
        let Ok(mut writers) = writers.try_borrow_mut() else { return };
        if writers.set != set {
            writers.renew();
        }
        writers.open.iter_mut().for_each(f);
    });
}

/// For a forked child: the locks of the calling thread's writers may be held for ever.
pub(super) fn forget() {
    let forget = |writers: &RefCell<Writers>| {
        writers.try_borrow_mut().map(|mut writers| std::mem::forget(std::mem::take(&mut writers.open)))
    };
    let _ = WRITERS.try_with(forget);
}

impl Writers {
    /// Keeps the writers of recorders that are open still, and makes those that are missing.
    #[cold]
    fn renew(&mut self) {
        let sessions = Opened::lock();
        self.open.retain(|writer| !writer.is_full_of_texts() && sessions.contains(&writer.session));
        for session in sessions.iter() {
            if !self.open.iter().any(|writer| Arc::ptr_eq(&writer.session, session)) {
                self.open.push(Writer::register(Arc::clone(session)));
            }
        }
        self.set = session_set();
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.flush_running();
        self.log.over.store(self.last, Ordering::Release);
    }
}

impl Writer {
    fn register(session: Arc<Session>) -> Self {
        let log = Arc::new(ThreadLog::of_this_thread());
        session.threads.lock().push(Arc::clone(&log));
        Self {
            last: session.ticks.now(),
            session,
            log,
            buffer: None,
            last_text: None,
            at: WORDS,
            until: 0,
            woken_from: 0,
            engine: (0, 0),
            numbers: HashMap::new(),
            recent: [(0, 0, NONE); RECENT],
            owners: [const { None }; OWNERS],
            described: Box::new([0; DESCRIBED]),
        }
    }

    /// True if the thread has to begin anew with its texts: where only the end is kept, what has gone may
    /// have named most of them.
    fn is_full_of_texts(&self) -> bool {
        self.session.last.is_some() && self.numbers.len() >= TEXTS_MAX
    }

    /// The time, kept for events that belong to the same moment.
    #[inline]
    pub(super) fn now(&mut self) -> u64 {
        self.last = self.session.ticks.now();
        if self.last > self.until {
            self.at = WORDS;
        }
        self.last
    }

    /// Nanoseconds since the start, of a time that a device reported.
    pub(super) fn since_start(&self, at_ns: u64) -> u64 {
        self.session.ticks.since_start(at_ns)
    }

    /// Writes an event, or counts it as lost. `words` are as many as fit into one.
    #[inline(always)]
    pub(super) fn write(
        &mut self,
        kind: EventKind,
        ticks: u64,
        id: u64,
        words: impl IntoIterator<IntoIter: ExactSizeIterator<Item = u64>>,
    ) {
        let words = words.into_iter();
        let len = 2 + words.len();
        debug_assert!(len <= WORDS_MAX, "the number of words has seven bits");
        if let Some((buffer, at)) = self.room(len) {
            self.at = buffer.write(at, [head(kind, len, ticks), id], words);
        }
    }

    /// A body begins on this thread.
    #[inline]
    pub(super) fn begins(&mut self, ticks: u64, id: u64) {
        self.flush_running();
        self.log.running.set(id, ticks);
    }

    /// The body of `id` ends well at the time of the newest reading.
    #[inline]
    pub(super) fn ends_well(&mut self, id: u64) {
        let ended = self.last;
        let Some((_, began)) = self.log.running.get().filter(|(running, _)| *running == id) else {
            return self.write(EventKind::Ended, ended, id, []);
        };
        match narrow(id, ended.wrapping_sub(began)) {
            Some(word) => self.write(EventKind::RanNarrow, ended, word, []),
            None => {
                self.write(EventKind::Began, began, id, []);
                self.write(EventKind::Ended, ended, id, []);
            }
        }
        self.log.running.clear();
    }

    /// Writes down which body runs here, since it will not be the next one to end.
    #[inline]
    pub(super) fn flush_running(&mut self) {
        if let Some((id, began)) = self.log.running.get() {
            self.write(EventKind::Began, began, id, []);
            self.log.running.clear();
        }
    }

    /// The place for an event of `len` words; without one, the event is counted.
    #[inline(always)]
    fn room(&mut self, len: usize) -> Option<(&TraceBuffer, usize)> {
        if self.at + len > WORDS && !self.next_buffer() {
            self.log.lose(1);
            return None;
        }
        Some((&self.buffer.as_deref()?.value, self.at))
    }

    #[cold]
    fn next_buffer(&mut self) -> bool {
        let Some(buffer) = self.session.buffer(self.last) else { return false };
        self.until = self.last.saturating_add(BUFFER_TICKS);
        self.buffer = Some(self.log.buffers.append(self.buffer.as_deref(), buffer));
        self.at = 0;
        if self.session.last.is_some() {
            // Descriptions of variables and engines go with the buffer that they are in.
            self.described.fill(0);
            self.engine = (0, 0);
        }
        true
    }

    /// Notes that what comes next is of this engine.
    #[inline]
    pub(super) fn is_of(&mut self, core: &Core) {
        let now = (core.id, core.pool.at_once());
        if self.engine != now {
            self.note_engine(core, now);
        }
    }

    #[cold]
    fn note_engine(&mut self, core: &Core, now: (u64, usize)) {
        let about = engine(core.id, core.pool.is_worker());
        let threads = pair(core.pool.workers() as u32, now.1 as u32);
        self.write(EventKind::Engine, self.last, 0, [about, threads]);
        self.engine = now;
    }

    /// The number of a text that lives for ever.
    #[inline]
    pub(super) fn fixed_text(&mut self, text: &'static str) -> u32 {
        let (address, len) = (text.as_ptr() as usize, text.len());
        let slot = (address ^ (address >> 6) ^ len) % RECENT;
        let (known, known_len, number) = self.recent[slot];
        if known == address && known_len == len {
            return number;
        }
        let number = self.text(text);
        self.recent[slot] = (address, len, number);
        number
    }

    /// The numbers of an owner's texts: text and library, and the line.
    pub(super) fn owner(&mut self, owner: &LeaseOwner) -> [u64; 2] {
        let slot = owner.slot() % OWNERS;
        if let Some((_, words)) = self.owners[slot].as_ref().filter(|(known, _)| known.same(owner)) {
            return *words;
        }
        let text = self.text(owner);
        let library = owner.library().map_or(NONE, |library| self.fixed_text(library));
        let site = owner.site().map_or(NONE, |site| self.text(&site.to_trace()));
        let words = [pair(text, library), site.into()];
        self.owners[slot] = Some((owner.clone(), words));
        words
    }

    /// The number of any text.
    pub(super) fn text(&mut self, text: &str) -> u32 {
        if let Some(number) = self.numbers.get(text) {
            return *number;
        }
        let number = self.numbers.len();
        if number >= TEXTS_MAX {
            if self.is_full_of_texts() {
                Opened::lock().renew();
            }
            self.log.lose(1);
            return NONE;
        }
        let text: Arc<str> = text.into();
        self.last_text = Some(self.log.texts.append(self.last_text.as_deref(), Arc::clone(&text)));
        self.numbers.insert(text, number as u32);
        number as u32
    }

    /// True if this thread has to describe the variable: it has not done so lately.
    pub(super) fn is_new(&mut self, var: u64) -> bool {
        let slot = &mut self.described[var as usize % DESCRIBED];
        std::mem::replace(slot, var) != var
    }

    pub(super) fn on_event_loop(&self) {
        self.log.event_loop.store(true, Ordering::Relaxed);
    }
}

/// Models: `RUSTFLAGS="--cfg estafette_loom" cargo test -p estafette --profile model --lib models::`.
#[cfg(all(test, estafette_loom))]
mod models {
    use super::*;
    use estafette_sync::thread;

    #[test]
    fn a_body_that_a_reader_meets_has_its_beginning() {
        loom::model(|| {
            let body = Arc::new(RunningBody::default());
            let running = {
                let body = Arc::clone(&body);
                thread::spawn(move || {
                    body.set(3, 70);
                    body.clear();
                })
            };
            assert!(matches!(body.get(), None | Some((3, 70))));
            running.join().expect("it does not panic");
            assert_eq!(body.get(), None);
        });
    }
}
