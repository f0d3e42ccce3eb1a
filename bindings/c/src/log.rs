//! Log events for people, to a function of the caller's.

use std::cell::Cell;
use std::ffi::{CStr, c_char, c_void};
use std::io::Write as _;
use std::sync::{Arc, Once};

use estafette::bindings::{EventReceiver, events_asked_for, receive_events};
use estafette_report::shown::shown;
use estafette_sync::sync::{Mutex, OnceLock};
use tracing::Level;
use tracing::level_filters::LevelFilter;

use crate::context::{Context, estafette_drop};
use crate::entry::{DONE, Refusal, c_text, entry};
use crate::status::estafette_status;

/// Gets log events: a level (1 error, 2 warning, 3 information, 4 debug, 5 trace) and a text that is there
/// during the call. Any thread may call it, several at once. It must not block and must not throw; what it
/// calls of this library is not logged.
///
/// Among the errors is each failure of an operation that nothing has retrieved, neither by a wait, a
/// callback, a fence nor a lease: once, with the operation's name and the error, when the last handle and
/// version that carries it goes, or when its engine is shut down or destroyed. A cancelled operation has not
/// failed.
pub type estafette_log_callback =
    Option<unsafe extern "C" fn(context: *mut c_void, level: i32, message: *const c_char)>;

struct Sink {
    callback: unsafe extern "C" fn(*mut c_void, i32, *const c_char),
    context: Context,
    level: LevelFilter,
}

/// The sink of events.
static SINK: OnceLock<Mutex<Option<Arc<Sink>>>> = OnceLock::new();

fn sink() -> Option<Arc<Sink>> {
    SINK.get()?.lock().clone()
}

/// Sets where the log events of this copy of the library go, up to `level` (1 to 5, see
/// `estafette_log_callback`). It replaces an earlier one, whose `drop_context` is called when no thread runs
/// the callback any more. NULL `callback` turns logging off, and then `context` is not looked at. Without a
/// call of this, nothing is logged, unless `RUST_LOG=estafette=debug` in the environment asks for all events:
/// then they are lines on the standard error stream until a call of this, whose callback gets them instead.
///
/// Returns `ESTAFETTE_OK`; `ESTAFETTE_INVALID` for a level that is none; `ESTAFETTE_CONFLICT` when a Rust
/// program around this library has its own way of logging already; `ESTAFETTE_FORKED`. On an error the caller
/// keeps `context`. May be called by any thread.
///
/// # Safety
/// The functions may be called by any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn estafette_set_log(
    level: i32,
    callback: estafette_log_callback,
    context: *mut c_void,
    drop_context: estafette_drop,
) -> estafette_status {
    entry(|| {
        // The environment's request comes first, so that this call replaces it.
        begin_from_environment();
        let new = match callback {
            None => None,
            Some(callback) => {
                let level = match level {
                    1 => LevelFilter::ERROR,
                    2 => LevelFilter::WARN,
                    3 => LevelFilter::INFO,
                    4 => LevelFilter::DEBUG,
                    5 => LevelFilter::TRACE,
                    other => return Err(Refusal::invalid(format!("level is {other}"))),
                };
                install()?;
                Some(Arc::new(Sink { callback, context: Context::new(context, drop_context), level }))
            }
        };
        let place = SINK.get_or_init(Mutex::default);
        let old = std::mem::replace(&mut *place.lock(), new);
        // The context of the old function is given up under no lock.
        drop(old);
        tracing::callsite::rebuild_interest_cache();
        DONE
    })
}

/// Sends events to the standard error stream if the environment asks for events and nothing receives them
/// yet. Called for each engine.
pub(crate) fn begin_from_environment() {
    unsafe extern "C" fn print(_context: *mut c_void, _level: i32, message: *const c_char) {
        // SAFETY: the text is there during the call.
        let message = unsafe { CStr::from_ptr(message) };
        // A failure to write cannot be reported: there is no other stream.
        let _ = writeln!(std::io::stderr(), "estafette: {}", message.to_string_lossy());
    }
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        if events_asked_for() && install().is_ok() {
            let context = Context::new(std::ptr::null_mut(), None);
            let mut sink = SINK.get_or_init(Mutex::default).lock();
            sink.get_or_insert_with(|| {
                Arc::new(Sink { callback: print, context, level: LevelFilter::DEBUG })
            });
            drop(sink);
            tracing::callsite::rebuild_interest_cache();
        }
    });
}

/// Makes this copy of the library's events come here, once per process.
fn install() -> Result<(), Refusal> {
    static INSTALLED: OnceLock<bool> = OnceLock::new();
    if *INSTALLED.get_or_init(|| receive_events(Forward)) {
        return Ok(());
    }
    Err(Refusal::new(
        estafette_status::ESTAFETTE_CONFLICT,
        "another subscriber receives the log events of this process",
    ))
}

thread_local! {
    static IS_LOGGING: Cell<bool> = const { Cell::new(false) };
}

/// The calling thread passes an event on. What the callback does meanwhile is not logged: it may be under a
/// lock of its own.
struct InCallback;

impl InCallback {
    fn begin() -> Option<Self> {
        (!IS_LOGGING.replace(true)).then_some(Self)
    }
}

impl Drop for InCallback {
    fn drop(&mut self) {
        IS_LOGGING.set(false);
    }
}

/// Passes events on.
struct Forward;

impl EventReceiver for Forward {
    const QUOTES: bool = true;

    fn level(&self) -> LevelFilter {
        sink().map_or(LevelFilter::OFF, |sink| sink.level)
    }

    fn take(&self, level: Level, message: String, fields: &[String]) {
        let Some(_in_callback) = InCallback::begin() else { return };
        let Some(sink) = sink() else { return };
        let level = match level {
            Level::ERROR => 1,
            Level::WARN => 2,
            Level::INFO => 3,
            Level::DEBUG => 4,
            Level::TRACE => 5,
        };
        let line = fields.iter().fold(message, |line, field| line + " " + field);
        let text = c_text(&shown(&line).to_string());
        // SAFETY: the caller that set it promised that any thread may call it.
        unsafe { (sink.callback)(sink.context.pointer(), level, text.as_ptr()) };
    }
}
