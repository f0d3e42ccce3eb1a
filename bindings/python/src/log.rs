//! Warnings and errors of the engine in Python's log: the logger ``estafette``. With
//! ``RUST_LOG=estafette=debug`` in the environment all events.
//!
//! The crates of the engine report them as events of `tracing`, on any thread, perhaps under a lock of
//! theirs. So an event is text in the queue of a [`Courier`]. The queue is bounded: what it has no room for
//! is counted.

use std::time::Duration;

use estafette::bindings::{EventReceiver, events_asked_for, receive_events};
use estafette_sync::sync::atomic::{AtomicUsize, Ordering};
use pyo3::prelude::*;
use pyo3::types::PyCFunction;
use tracing::Level;
use tracing::level_filters::LevelFilter;

use crate::error::show_failed;
use crate::interpreter::courier::Courier;

estafette_sync::per_process! {
    static COURIER: Courier = Courier::new("estafette-log", 1_000);
}

/// Events for which there was no room.
static LOST: AtomicUsize = AtomicUsize::new(0);

/// Makes the events of the engine go to Python's log.
pub fn install(py: Python<'_>) -> PyResult<()> {
    let all = events_asked_for();
    // False means that the module was initialized before.
    let _ = receive_events(Log { level: if all { Level::DEBUG } else { Level::WARN } });
    if all {
        // The variable alone is to be enough.
        let logger = logger(py)?;
        logger.call_method1("setLevel", (DEBUG,))?;
        if !logger.call_method0("hasHandlers")?.is_truthy()? {
            let logging = py.import("logging")?;
            // A program that configures logging later would get each event twice.
            let is_alone = PyCFunction::new_closure(py, None, None, |args, _| -> PyResult<bool> {
                let logger = self::logger(args.py())?;
                let propagates = logger.getattr("propagate")?.is_truthy()?;
                Ok(logger.getattr("handlers")?.len()? == 1
                    && !(propagates && logger.getattr("parent")?.call_method0("hasHandlers")?.is_truthy()?))
            })?;
            let handler = logging.call_method0("StreamHandler")?;
            handler.call_method1("addFilter", (is_alone,))?;
            logger.call_method1("addHandler", (handler,))?;
        }
    }
    Ok(())
}

/// Python's logger of this package.
pub fn logger(py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
    py.import("logging")?.call_method1("getLogger", ("estafette",))
}

/// Logs a stall; called on the engine's watchdog.
pub fn stalled(stall: estafette::wait::Stall<'_>) {
    push(Level::WARN, format!("stalled: {stall}"));
}

/// Waits until Python has everything that was logged, for at most `timeout`.
pub fn flush(py: Python<'_>, timeout: Duration) {
    COURIER.flush(py, timeout);
}

fn push(level: Level, text: String) {
    let job = move |py: Python<'_>| {
        log(py, level, &text);
        let lost = LOST.swap(0, Ordering::Relaxed);
        if lost > 0 {
            log(py, Level::WARN, &format!("{lost} more messages came too fast to be logged"));
        }
    };
    if !COURIER.send(Box::new(job)) {
        LOST.fetch_add(1, Ordering::Relaxed);
    }
}

fn log(py: Python<'_>, level: Level, text: &str) {
    // The numbers of `logging.ERROR`, `WARNING` and `INFO`.
    let level = match level {
        Level::ERROR => 40,
        Level::WARN => 30,
        Level::INFO => 20,
        _ => DEBUG,
    };
    let logged = logger(py).and_then(|logger| logger.call_method1("log", (level, "%s", text)));
    // A handler of the user's may fail.
    show_failed(py, logged);
}

/// The number of `logging.DEBUG`.
const DEBUG: i32 = 10;

/// Takes warnings and errors of the engine's crates, or more.
struct Log {
    level: Level,
}

impl EventReceiver for Log {
    const QUOTES: bool = false;

    fn level(&self) -> LevelFilter {
        self.level.into()
    }

    fn take(&self, level: Level, message: String, fields: &[String]) {
        let text = if fields.is_empty() { message } else { format!("{message} ({})", fields.join(", ")) };
        push(level, text);
    }
}
