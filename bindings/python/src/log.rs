//! Warnings and errors of the engine in Python's log: the logger ``estafette``.
//!
//! The crates of the engine report them as events of `tracing`, on any thread, perhaps under a lock of theirs. So an event is text in a
//! queue, and one thread passes the texts to Python. The queue is bounded: what it has no room for is counted.

use std::collections::VecDeque;
use std::fmt::{self, Write};
use std::time::{Duration, Instant};

use estafette_sync::sync::{Condvar, Mutex};
use estafette_sync::thread;
use pyo3::prelude::*;
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

use crate::interpreter::{guard, process};

/// Events that wait for Python at most.
const WAITING_MAX: usize = 1_000;

/// The queue of this process.
static QUEUE: Queue =
    Queue { state: Mutex::new(State::EMPTY), pushed: Condvar::new(), passed: Condvar::new() };

struct Queue {
    state: Mutex<State>,
    pushed: Condvar,
    /// Notified when everything was passed on.
    passed: Condvar,
}

struct State {
    waiting: VecDeque<(Level, String)>,
    /// How many there was no room for.
    lost: usize,
    /// Whether the thread is there, or an event on its way to Python.
    has_thread: bool,
    passing: bool,
}

impl State {
    const EMPTY: Self = Self { waiting: VecDeque::new(), lost: 0, has_thread: false, passing: false };
}

/// Makes the events of the engine go to Python's log.
pub fn install() {
    // An error means that the module was initialized before.
    let _ = tracing::subscriber::set_global_default(Log);
}

/// Logs a stall; called on the engine's watchdog.
pub fn stalled(stall: estafette::wait::Stall<'_>) {
    push(Level::WARN, format!("stalled: {stall}"));
}

/// Waits until Python has everything that was logged, for at most `timeout`.
pub fn flush(py: Python<'_>, timeout: Duration) {
    py.detach(|| {
        let until = Instant::now() + timeout;
        let mut state = QUEUE.state.lock();
        while state.passing || !state.waiting.is_empty() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            state = QUEUE.passed.wait_timeout(state, left).0;
        }
    });
}

fn push(level: Level, text: String) {
    if process::is_engines_child() {
        // The thread stayed in the parent, and the lock may have been held there.
        return;
    }
    let mut state = QUEUE.state.lock();
    if state.waiting.len() == WAITING_MAX {
        state.lost += 1;
        return;
    }
    state.waiting.push_back((level, text));
    if !state.has_thread {
        // Without a thread the texts wait for the next event.
        state.has_thread = thread::Builder::new().name("estafette-log".into()).spawn(pass_on).is_ok();
    }
    drop(state);
    QUEUE.pushed.notify_one();
}

/// Passes events on for as long as the process lasts.
fn pass_on() {
    let mut state = QUEUE.state.lock();
    loop {
        state.passing = false;
        let Some((level, text)) = state.waiting.pop_front() else {
            QUEUE.passed.notify_all();
            state = QUEUE.pushed.wait(state);
            continue;
        };
        state.passing = true;
        let lost = std::mem::take(&mut state.lost);
        drop(state);
        guard::attach(|py| {
            log(py, level, &text);
            if lost > 0 {
                log(py, Level::WARN, &format!("{lost} more messages came too fast to be logged"));
            }
        });
        state = QUEUE.state.lock();
    }
}

fn log(py: Python<'_>, level: Level, text: &str) {
    // The numbers of `logging.ERROR` and `logging.WARNING`.
    let level = if level == Level::ERROR { 40 } else { 30 };
    let logged = py
        .import("logging")
        .and_then(|logging| logging.call_method1("getLogger", ("estafette",)))
        .and_then(|logger| logger.call_method1("log", (level, "%s", text)));
    if let Err(error) = logged {
        // A handler of the user's that fails.
        error.write_unraisable(py, None);
    }
}

/// Takes warnings and errors of the engine's crates; spans are not kept.
struct Log;

impl Subscriber for Log {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= Level::WARN
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(LevelFilter::WARN)
    }

    fn event(&self, event: &Event<'_>) {
        let mut text = Text::default();
        event.record(&mut text);
        let Text { mut message, fields } = text;
        if !fields.is_empty() {
            message = format!("{message} ({fields})");
        }
        push(*event.metadata().level(), message);
    }

    fn new_span(&self, _span: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _span: &Id, _values: &Record<'_>) {}

    fn record_follows_from(&self, _span: &Id, _follows: &Id) {}

    fn enter(&self, _span: &Id) {}

    fn exit(&self, _span: &Id) {}
}

/// An event as people read it.
#[derive(Default)]
struct Text {
    message: String,
    fields: String,
}

impl Visit for Text {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.record_debug(field, &format_args!("{value}"));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let written = if field.name() == "message" {
            write!(self.message, "{value:?}")
        } else {
            let comma = if self.fields.is_empty() { "" } else { ", " };
            write!(self.fields, "{comma}{}={value:?}", field.name())
        };
        debug_assert!(written.is_ok(), "a string takes what is written");
    }
}
