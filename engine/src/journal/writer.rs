//! A thread's side of the journal: its pages, and its list of texts.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;

use estafette_report::model::LaneKind;
use estafette_sync::sync::Mutex;
use estafette_sync::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use super::entry::{NONE, Tells, WORDS_MAX, head};
use super::page::{Page, WORDS};
use super::ticks::Ticks;
use super::{EVENTS, OPEN, SESSION};

/// Texts that one thread keeps; what comes later has no name in the report, and is counted.
const TEXTS_MAX: usize = 1 << 16;

/// Static texts that a thread finds again without hashing.
const RECENT: usize = 64;

/// Variables that a thread remembers having described.
const DESCRIBED: usize = 256;

/// One journal, from opening to finishing.
#[derive(Debug)]
pub(super) struct Session {
    number: u32,
    pub(super) ticks: Ticks,
    /// Pages that may still be taken.
    budget: AtomicUsize,
    pub(super) threads: Mutex<Vec<Arc<ThreadLog>>>,
}

impl Session {
    pub(super) fn new(number: u32, pages: usize, ticks: Ticks) -> Self {
        Self { number, ticks, budget: AtomicUsize::new(pages), threads: Mutex::new(Vec::new()) }
    }

    pub(super) fn lost(&self) -> u64 {
        let threads = self.threads.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        threads.iter().map(|thread| thread.lost.load(Ordering::Relaxed)).sum()
    }

    fn page(&self) -> Option<Arc<Page>> {
        self.budget
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1))
            .ok()
            .map(|_| Arc::new(Page::new()))
    }
}

/// What one thread has noted.
#[derive(Debug)]
pub(super) struct ThreadLog {
    pub(super) name: String,
    kind: LaneKind,
    /// An event loop has been seen running here.
    pub(super) event_loop: AtomicBool,
    pub(super) pages: Mutex<Vec<Arc<Page>>>,
    pub(super) texts: Mutex<Vec<Arc<str>>>,
    pub(super) lost: AtomicU64,
}

impl ThreadLog {
    fn of_this_thread() -> Self {
        let current = std::thread::current();
        let name = current.name().map_or_else(unnamed, str::to_owned);
        let kind = match name.as_str() {
            "estafette-reactor" => LaneKind::Reactor,
            "estafette-reaper" => LaneKind::Reaper,
            name if name.starts_with("estafette-") => LaneKind::Worker,
            _ => LaneKind::Thread,
        };
        Self {
            name,
            kind,
            event_loop: AtomicBool::new(false),
            pages: Mutex::default(),
            texts: Mutex::default(),
            lost: AtomicU64::new(0),
        }
    }

    pub(super) fn kind(&self) -> LaneKind {
        if self.event_loop.load(Ordering::Relaxed) { LaneKind::EventLoop } else { self.kind }
    }

    fn lose(&self, entries: u64) {
        self.lost.store(self.lost.load(Ordering::Relaxed) + entries, Ordering::Relaxed);
    }
}

/// What a thread goes by that Rust has not started: `main`, or its number in the system.
fn unnamed() -> String {
    let this = std::fs::read_link("/proc/thread-self").unwrap_or_default();
    let number = this.file_name().map(|number| number.to_string_lossy().into_owned());
    match number {
        Some(number) if number == std::process::id().to_string() => "main".into(),
        Some(number) => format!("thread {number}"),
        None => format!("{:?}", std::thread::current().id()),
    }
}

/// A thread that writes.
pub(super) struct Writer {
    session: Arc<Session>,
    log: Arc<ThreadLog>,
    page: Option<Arc<Page>>,
    /// Words of the page that are written.
    at: usize,
    /// The reading of the newest entry.
    pub(super) last: u64,
    /// The newest wait that this thread came back from.
    pub(super) woken_from: u64,
    numbers: HashMap<Arc<str>, u32>,
    recent: [(usize, usize, u32); RECENT],
    described: Box<[u64; DESCRIBED]>,
}

thread_local! {
    /// Boxed: a shared library has little room for what each of its threads is born with.
    static WRITER: RefCell<Option<Box<Writer>>> = const { RefCell::new(None) };
}

/// Lends the calling thread's writer, if a journal is open. Nothing foreign may be called meanwhile.
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
            *writer = Writer::enter().map(Box::new);
        }
        if let Some(writer) = &mut *writer {
            f(writer);
        }
    });
}

impl Writer {
    #[cold]
    fn enter() -> Option<Self> {
        let session = SESSION.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clone()?;
        let log = Arc::new(ThreadLog::of_this_thread());
        session.threads.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push(Arc::clone(&log));
        Some(Self {
            session,
            log,
            page: None,
            at: WORDS,
            last: 0,
            woken_from: 0,
            numbers: HashMap::new(),
            recent: [(0, 0, NONE); RECENT],
            described: Box::new([0; DESCRIBED]),
        })
    }

    /// The time, kept for entries that belong to the same moment.
    #[inline]
    pub(super) fn now(&mut self) -> u64 {
        self.last = self.session.ticks.now();
        self.last
    }

    /// Nanoseconds since the start, of a time that a device told.
    pub(super) fn since_start(&self, at_ns: u64) -> u64 {
        self.session.ticks.since_start(at_ns)
    }

    /// Writes an entry, or counts it as lost.
    #[inline(always)]
    pub(super) fn write<const N: usize>(&mut self, tells: Tells, ticks: u64, id: u64, words: [u64; N]) {
        self.put(2 + N, [head(tells, 2 + N, ticks), id].into_iter().chain(words));
    }

    /// As [`write`](Self::write), for `len` words, which are as many as fit into an entry.
    #[inline(always)]
    pub(super) fn write_all(
        &mut self,
        tells: Tells,
        ticks: u64,
        id: u64,
        len: usize,
        words: impl Iterator<Item = u64>,
    ) {
        debug_assert!(len + 2 <= WORDS_MAX, "the number of words has eight bits");
        self.put(2 + len, [head(tells, 2 + len, ticks), id].into_iter().chain(words.take(len)));
    }

    #[inline(always)]
    fn put(&mut self, len: usize, words: impl Iterator<Item = u64>) {
        if self.at + len > WORDS && !self.turn_page() {
            return self.log.lose(1);
        }
        if let Some(page) = &self.page {
            self.at = page.write(self.at, words);
        }
    }

    #[cold]
    fn turn_page(&mut self) -> bool {
        // The list is read once, when the journal is finished; entries of that moment would come too late anyway.
        let Ok(mut pages) = self.log.pages.try_lock() else { return false };
        let Some(page) = self.session.page() else { return false };
        pages.push(Arc::clone(&page));
        drop(pages);
        self.page = Some(page);
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
        let Ok(mut texts) = self.log.texts.try_lock() else { return NONE };
        let text: Arc<str> = text.into();
        texts.push(Arc::clone(&text));
        drop(texts);
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
