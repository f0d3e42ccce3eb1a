//! Traces of where the time went.

use std::ffi::c_char;
use std::path::Path;
use std::time::Duration;

use estafette::trace::{Recorder, TraceOptions, Unsaved};
use estafette_sync::sync::Mutex;

use crate::entry::{DONE, Refusal, entry, needed, place};
use crate::handles::Table;
use crate::options::{self, sized_options};
use crate::places::HandleKind;
use crate::status::estafette_status;

/// A trace notes where the time goes in all engines of the process. Several traces may be made at once. For
/// programs that are not to be changed, the environment variable `ESTAFETTE_TRACE` names a file that the
/// whole run is recorded to.
#[derive(Debug)]
pub enum estafette_trace {}

/// `None` once it was ended. A snapshot takes its time, and the end waits for it.
static TRACES: Table<Mutex<Option<Recorder>>> = Table::new(HandleKind::Trace);

fn over(trace: *const estafette_trace) -> Refusal {
    HandleKind::Trace.refusal(trace, "trace")
}

/// Options of a trace. All bytes zero, but for `size`, are the defaults.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct estafette_trace_options {
    /// `sizeof(estafette_trace_options)`.
    pub size: u32,
    /// A signal (such as `SIGUSR2`) that asks for a snapshot: `run.snapshot-1.pftrace` beside `run.pftrace`,
    /// then `run.snapshot-2.pftrace`, and after ten of them the first again. The library handles the signal
    /// until the process ends; its handler only counts, and a thread of the library writes the file. 0 for
    /// none.
    pub signal: i32,
    /// Bytes for what is noted until it is written; 0 for 256 MiB. What does not fit is counted, and the
    /// report says so.
    pub memory_max: u64,
    /// Keeps only what happened in so many nanoseconds before the end, or before a snapshot. 0 for
    /// everything.
    pub last_ns: u64,
}

// SAFETY: numbers and pointers, the size first.
sized_options!(unsafe estafette_trace_options, 24);

/// # Safety
/// `path` is NULL or ends with a NUL.
unsafe fn path<'a>(path: *const c_char) -> Result<&'a Path, Refusal> {
    // SAFETY: by contract of this function.
    Ok(Path::new(unsafe { needed(path, "path") }?))
}

fn unwritten(path: &Path, error: &std::io::Error) -> Refusal {
    Refusal::invalid(format!("path: {} cannot be written: {error}", path.display()))
}

/// Begins a trace, which `estafette_trace_end` writes to the file `path`. Until then what is noted is also
/// written to a file beside it, several times a second: `run.pftrace.4711.unfinished` for process 4711, which
/// stays if the process ends before in any way. `estafette report` reads both. `options` may be NULL for the
/// defaults.
///
/// Returns `ESTAFETTE_OK`; `ESTAFETTE_INVALID` for NULL, a path that is no UTF-8 or where no file can be
/// written, or a wrong option, such as a signal that the program handles; `ESTAFETTE_FORKED`. `*out` is
/// written only on success. May be called by any thread.
///
/// # Safety
/// `path` is NULL or ends with a NUL; `options` is NULL or as long as its size says; `out` is NULL or may be
/// written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn estafette_trace_begin(
    path: *const c_char,
    options: *const estafette_trace_options,
    out: *mut *mut estafette_trace,
) -> estafette_status {
    entry(|| {
        // SAFETY: by contract of this function.
        let path = unsafe { self::path(path) }?;
        let out = place(out, "out")?;
        // SAFETY: by contract of this function.
        let options = unsafe { options::read(options) }?;
        let given = |number: u64| Some(number).filter(|number| *number != 0);
        let options = TraceOptions {
            memory_max: given(options.memory_max).map(|bytes| usize::try_from(bytes).unwrap_or(usize::MAX)),
            last: given(options.last_ns).map(Duration::from_nanos),
            signal: Some(options.signal).filter(|signal| *signal != 0),
            ..TraceOptions::default()
        };
        let vacant = TRACES.reserve()?;
        let recorder = Recorder::open(options)?.to_file(path).map_err(|error| unwritten(path, &error))?;
        // SAFETY: writable, by contract.
        unsafe { out.write(vacant.fill(Mutex::new(Some(recorder)))) };
        DONE
    })
}

/// Ends a trace and writes its file. The file has its old content until the new one is whole.
///
/// Returns `ESTAFETTE_OK`; `ESTAFETTE_INTERNAL` when the file cannot be written: the text names the
/// unfinished file, which stays, and the trace is over all the same; `ESTAFETTE_INVALID` for NULL or a handle
/// that is not in use; `ESTAFETTE_FORKED`: there the trace is its parent's. May be called by any thread.
/// `trace` may be any value.
#[unsafe(no_mangle)]
pub extern "C" fn estafette_trace_end(trace: *mut estafette_trace) -> estafette_status {
    entry(|| {
        let recorder = TRACES.get(trace, "trace")?.lock().take().ok_or_else(|| over(trace))?;
        TRACES.release(trace, "trace")?;
        let unsaved = |error: Unsaved| Refusal::new(estafette_status::ESTAFETTE_INTERNAL, error.to_string());
        recorder.save().map(drop).map_err(unsaved)
    })
}

/// Writes what a trace has so far to the file `path`, and goes on.
///
/// Returns `ESTAFETTE_OK`; `ESTAFETTE_INVALID` for NULL, a handle that is not in use, or a file that cannot
/// be written, which is as it was before; `ESTAFETTE_FORKED`. May be called by any thread. `trace` may be any
/// value.
///
/// # Safety
/// `path` is NULL or ends with a NUL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn estafette_trace_snapshot(
    trace: *mut estafette_trace,
    path: *const c_char,
) -> estafette_status {
    entry(|| {
        // SAFETY: by contract of this function.
        let path = unsafe { self::path(path) }?;
        let recorder = TRACES.get(trace, "trace")?;
        let recorder = recorder.lock();
        let recorder = recorder.as_ref().ok_or_else(|| over(trace))?;
        recorder.snapshot(path).map_err(|error| unwritten(path, &error))?;
        DONE
    })
}
