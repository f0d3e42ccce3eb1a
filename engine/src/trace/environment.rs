//! The trace that the environment asks for, of programs that were not written to be recorded.
//!
//! | variable | |
//! |---|---|
//! | `ESTAFETTE_TRACE` | the file; `%p` in it is the number of the process, `%%` is `%` |
//! | `ESTAFETTE_TRACE_LAST` | seconds: only so much before the end is kept |
//! | `ESTAFETTE_TRACE_SIGNAL` | the signal that asks for a snapshot: `USR1`, `USR2`, `HUP`, or a number |
//!
//! The trace begins with the first engine of the process and is saved when the process exits. What goes wrong
//! is a line on the standard error stream: the program runs all the same.

use std::ffi::OsStr;
use std::fmt::Display;
use std::io::Write;
use std::path::{Path, PathBuf};
// Outside of every protocol, as the switch: plain std. A handler of the process's exit uses them, when no
// execution of a model is left whose locks those of `estafette_sync` would be.
use std::sync::{Mutex, Once, OnceLock, PoisonError};
use std::time::Duration;

use estafette_report::shown::shown;
use estafette_sync::panic::contain_panic;
use estafette_sync::platform::exit::at_exit;
use estafette_sync::platform::signal as signals;
use estafette_sync::process::Generation;

use super::{Recorder, TraceOptions};

struct OpenTrace {
    recorder: Recorder,
    path: PathBuf,
    /// Words that were noted when it was last written.
    written: usize,
}

/// Names that are tried where others record to the file.
const NAMES_MAX: u32 = 1_000;

static OPEN: Mutex<Option<OpenTrace>> = Mutex::new(None);

/// The process that looked whether the environment asks for one.
static OF: OnceLock<Generation> = OnceLock::new();

/// Begins the trace, if the environment asks for one and this is the first call.
pub(crate) fn begin() {
    estafette_sync::per_process! {
        static ONCE: Once = Once::new();
    }
    ONCE.call_once(|| {
        // The work of a forked child is not recorded: the file is its parent's.
        if OF.set(Generation::current()).is_err() {
            return;
        }
        let Some(pattern) = std::env::var_os("ESTAFETTE_TRACE").filter(|pattern| !pattern.is_empty()) else {
            return;
        };
        match open(&pattern) {
            Ok(trace) => {
                *lock() = Some(trace);
                at_exit(save);
            }
            Err(error) => say(format_args!("nothing is recorded: {error}")),
        }
    });
}

/// An engine was shut down. Writes what was noted so far, if that is twice as much as when it was last
/// written.
pub(crate) fn engine_is_over() {
    if !is_of_this_process() {
        return;
    }
    if let Some(OpenTrace { recorder, path, written }) = &mut *lock() {
        let words = recorder.session.words();
        if words / 2 >= *written {
            *written = words.max(1);
            if let Err(error) = recorder.snapshot(&*path) {
                say(format_args!("the trace cannot be written to {}: {error}", path.display()));
            }
        }
    }
}

extern "C" fn save() {
    if !is_of_this_process() {
        return;
    }
    let Some(trace) = lock().take() else { return };
    // No panic may leave a function of C; the hook of panics has said what it was.
    let saved = contain_panic(|| trace.recorder.save());
    if let Ok(Err(unsaved)) = saved {
        say(unsaved);
    }
}

/// True if there is a trace, and of this process: a forked child's belongs to its parent.
fn is_of_this_process() -> bool {
    OF.get().is_some_and(|of| of.is_current())
}

fn lock() -> std::sync::MutexGuard<'static, Option<OpenTrace>> {
    OPEN.lock().unwrap_or_else(PoisonError::into_inner)
}

fn say(what: impl Display) {
    let text = what.to_string();
    // An error of standard error has no other place to be reported.
    let _ = writeln!(std::io::stderr(), "estafette: ESTAFETTE_TRACE: {}", shown(&text));
}

fn open(pattern: &OsStr) -> Result<OpenTrace, String> {
    let path = std::path::absolute(numbered(Path::new(pattern))).map_err(|error| error.to_string())?;
    let begin = |path: PathBuf| {
        let options = TraceOptions { last: last()?, signal: signal()?, ..TraceOptions::default() };
        let recorder = Recorder::open(options).map_err(|error| error.to_string())?;
        let recorder = recorder.with_file(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        Ok::<_, String>(OpenTrace { recorder, path, written: 0 })
    };
    let trace = begin(path.clone())?;
    if trace.recorder.is_alone() {
        return Ok(trace);
    }
    drop(trace);
    for attempt in 1..=NAMES_MAX {
        let path = of_this_process(&path, attempt);
        // A process of before had the same number.
        if path.exists() {
            continue;
        }
        let trace = begin(path)?;
        if trace.recorder.is_alone() {
            return Ok(trace);
        }
    }
    Err(format!("{}: there are traces of every name for it", path.display()))
}

/// The path that a pattern stands for in this process. One that is no UTF-8 is taken as it is.
fn numbered(pattern: &Path) -> PathBuf {
    let Some(text) = pattern.to_str() else { return pattern.to_owned() };
    let pieces: Vec<String> =
        text.split("%%").map(|piece| piece.replace("%p", &std::process::id().to_string())).collect();
    pieces.join("%").into()
}

/// `run.4711.pftrace` for `run.pftrace`; `run.4711-2.pftrace` at the second attempt.
fn of_this_process(path: &Path, attempt: u32) -> PathBuf {
    let mut name = path.file_stem().unwrap_or_default().to_owned();
    name.push(format!(".{}", std::process::id()));
    if attempt > 1 {
        name.push(format!("-{attempt}"));
    }
    if let Some(extension) = path.extension() {
        name.push(".");
        name.push(extension);
    }
    path.with_file_name(name)
}

fn last() -> Result<Option<Duration>, String> {
    let Some(text) = std::env::var_os("ESTAFETTE_TRACE_LAST").filter(|text| !text.is_empty()) else {
        return Ok(None);
    };
    let seconds = text.to_str().and_then(|text| text.parse().ok());
    let last =
        seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok()).filter(|last| !last.is_zero());
    last.map(Some).ok_or_else(|| {
        format!("ESTAFETTE_TRACE_LAST is {}, and is to be a number of seconds", text.display())
    })
}

fn signal() -> Result<Option<i32>, String> {
    let Some(text) = std::env::var_os("ESTAFETTE_TRACE_SIGNAL").filter(|text| !text.is_empty()) else {
        return Ok(None);
    };
    let known = text.to_str().and_then(|name| match name.strip_prefix("SIG").unwrap_or(name) {
        "USR1" => Some(signals::USR1),
        "USR2" => Some(signals::USR2),
        "HUP" => Some(signals::HUP),
        number => number.parse().ok(),
    });
    known.map(Some).ok_or_else(|| {
        format!(
            "ESTAFETTE_TRACE_SIGNAL is {}, and is to be USR1, USR2, HUP or the number of a signal",
            text.display()
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_has_the_number_of_the_process() {
        let own = std::process::id();
        let of = |pattern: &str| numbered(Path::new(pattern)).to_string_lossy().into_owned();
        assert_eq!(
            [of("100%%-%p"), of("a%%p"), of("plain")],
            [format!("100%-{own}"), "a%p".into(), "plain".into()]
        );
        assert_eq!(of_this_process(Path::new("a/run.x"), 1), Path::new(&format!("a/run.{own}.x")));
        assert_eq!(of_this_process(Path::new("run"), 3), Path::new(&format!("run.{own}-3")));
    }
}
