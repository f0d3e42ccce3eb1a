//! A thread's side of the recorder: its buffers, and its list of texts.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;

use estafette_report::model::TrackKind;
use estafette_sync::platform;
use estafette_sync::sync::Mutex;
use estafette_sync::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use estafette_sync::thread_local;

use super::buffer::{TraceBuffer, WORDS};
use super::chain::{Chain, Link};
use super::encoding::{EventKind, NONE, WORDS_MAX, head, narrow, pair};
use super::free_list::FreeListHandle;
use super::ticks::Ticks;
use super::{EVENTS, OPEN, SESSION};
use crate::core::lease_info::LeaseOwner;

/// Texts that one thread keeps; what comes later has no name in the report, and is counted.
const TEXTS_MAX: usize = 1 << 16;

/// Static texts that a thread finds again without hashing.
const RECENT: usize = 64;

/// Variables that a thread remembers having described.
const DESCRIBED: usize = 256;

/// Lease owners that a thread finds again without formatting them.
const OWNERS: usize = 32;

/// One recorder, from opening to finishing.
#[derive(Debug)]
pub(super) struct Session {
    number: u32,
    pub(super) ticks: Ticks,
    /// Buffers that may still be taken.
    budget: AtomicUsize,
    free_list: FreeListHandle,
    pub(super) threads: Mutex<Vec<Arc<ThreadLog>>>,
}

impl Session {
    pub(super) fn new(number: u32, buffers: usize, ticks: Ticks) -> Self {
        let (budget, free_list) = (AtomicUsize::new(buffers), FreeListHandle::of(buffers));
        Self { number, ticks, budget, free_list, threads: Mutex::new(Vec::new()) }
    }

    /// Nothing more is expected to be written.
    pub(super) fn close(&self) {
        self.free_list.close();
    }

    pub(super) fn lost(&self) -> u64 {
        let threads = self.threads.lock();
        threads.iter().map(|thread| thread.lost.load(Ordering::Relaxed)).sum()
    }

    fn buffer(&self) -> Option<TraceBuffer> {
        self.budget
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1))
            .ok()
            .map(|_| self.free_list.take().unwrap_or_else(TraceBuffer::fresh))
    }
}

/// What one thread has noted.
#[derive(Debug)]
pub(super) struct ThreadLog {
    pub(super) name: String,
    kind: TrackKind,
    /// An event loop has been seen running here.
    pub(super) event_loop: AtomicBool,
    pub(super) buffers: Chain<TraceBuffer>,
    pub(super) texts: Chain<Arc<str>>,
    pub(super) lost: AtomicU64,
    pub(super) running: Body,
}

/// The body that runs on a thread and that no event notes yet: its operation, or 0, and when it began.
///
/// Only the thread itself writes it. A reader at the end may see the value change: then an event notes the body, too.
#[derive(Debug, Default)]
pub(super) struct Body {
    id: AtomicU64,
    ticks: AtomicU64,
}

impl Body {
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
        let name = current.name().map_or_else(unnamed, str::to_owned);
        let kind = match name.as_str() {
            "estafette-reactor" => TrackKind::Reactor,
            "estafette-reaper" => TrackKind::Reaper,
            name if name.starts_with("estafette-") => TrackKind::Worker,
            _ => TrackKind::Thread,
        };
        Self {
            name,
            kind,
            event_loop: AtomicBool::new(false),
            buffers: Chain::default(),
            texts: Chain::default(),
            lost: AtomicU64::new(0),
            running: Body::default(),
        }
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
    buffer: Option<Arc<Link<TraceBuffer>>>,
    last_text: Option<Arc<Link<Arc<str>>>>,
    /// Words of the buffer that are written.
    at: usize,
    /// The reading of the newest event.
    pub(super) last: u64,
    /// The newest wait that this thread came back from.
    pub(super) woken_from: u64,
    numbers: HashMap<Arc<str>, u32>,
    recent: [(usize, usize, u32); RECENT],
    owners: [Option<(LeaseOwner, [u64; 2])>; OWNERS],
    described: Box<[u64; DESCRIBED]>,
}

thread_local! {
    /// Boxed: a shared library has little room for what each of its threads is born with.
    static WRITER: RefCell<Option<Box<Writer>>> = const { RefCell::new(None) };
}

/// Lends the calling thread's writer, if tracing is on. Nothing foreign may be called meanwhile.
#[inline]
pub(super) fn with(f: impl FnOnce(&mut Writer)) {
    let open = OPEN.load(Ordering::Acquire) & !EVENTS;
    if open == 0 {
        return;
    }
    // A thread that is ending has no writer any more.
    let _ = WRITER.try_with(|writer| {
        let Ok(mut writer) = writer.try_borrow_mut() else { return };
        if writer.as_ref().is_none_or(|writer| writer.session.number != open) {
            *writer = Writer::register().map(Box::new);
        }
        if let Some(writer) = &mut *writer {
            f(writer);
        }
    });
}

impl Writer {
    #[cold]
    fn register() -> Option<Self> {
        let session = SESSION.lock().clone()?;
        let log = Arc::new(ThreadLog::of_this_thread());
        session.threads.lock().push(Arc::clone(&log));
        Some(Self {
            session,
            log,
            buffer: None,
            last_text: None,
            at: WORDS,
            last: 0,
            woken_from: 0,
            numbers: HashMap::new(),
            recent: [(0, 0, NONE); RECENT],
            owners: [const { None }; OWNERS],
            described: Box::new([0; DESCRIBED]),
        })
    }

    /// The time, kept for events that belong to the same moment.
    #[inline]
    pub(super) fn now(&mut self) -> u64 {
        self.last = self.session.ticks.now();
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

    /// Where an event of `len` words goes; if nowhere, it is counted.
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
        let Some(buffer) = self.session.buffer() else { return false };
        self.buffer = Some(self.log.buffers.append(self.buffer.as_deref(), buffer));
        self.at = 0;
        true
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
        let site = owner.site().map_or(NONE, |site| {
            // A path has no line break if reports of it are to be readable.
            self.text(&format!("{}\n{}\n{}", site.file, site.line, site.function))
        });
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
            self.log.lose(1);
            return NONE;
        }
        let text: Arc<str> = text.into();
        self.last_text = Some(self.log.texts.append(self.last_text.as_deref(), Arc::clone(&text)));
        self.numbers.insert(text, number as u32);
        number as u32
    }

    /// Whether this thread has to describe the variable: it has not done so lately.
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
            let body = Arc::new(Body::default());
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
