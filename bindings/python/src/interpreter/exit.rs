//! The interpreter's exit, while engines and operations are still alive.
//!
//! 1. What is in flight runs to its end, as with `concurrent.futures`. That is waited for twice: before
//!    Python joins its threads, as bodies may need them, and after, for what those threads have submitted.
//!    The wait ends when no operation has ended for a while, when only leases hold up what is left, or by
//!    Ctrl-C; then what is left is named on the standard error.
//! 2. Failures that nothing has looked at are reported; callbacks that are due are called, and what the
//!    engine has logged reaches Python's log. In a process that `multiprocessing` has started this happens
//!    before Python joins its threads, as those that were forked end without the rest.
//! 3. The guard closes: operations that have not begun fail instead of calling Python. Those that run get a
//!    moment to end, then an exception. One that is in C for longer stays there when it comes back to the
//!    finalizing interpreter (`finalization.rs`).
//! 4. Links are closed.
//! 5. The reaper runs the deleters that are due, which may need the interpreter, and stops; later ones leak.
//!    The process ends anyway.
//!
//! Memory that other libraries still hold stays valid to the end: nothing is freed here.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use estafette::bindings::{self, reaper};
use estafette::wait::{OpStatus, Status};
use estafette::{Engine, Error};
use estafette_sync::sync::Mutex;
use estafette_sync::sync::atomic::{AtomicBool, Ordering};
use pyo3::exceptions::PyKeyboardInterrupt;
use pyo3::prelude::*;

use crate::classes::handle::{EngineHandle, EngineState};
use crate::classes::{promise, remote};
use crate::error::{class, show_failed};
use crate::interpreter::guard;
use crate::interpreter::interrupt;
use crate::interpreter::once::{intern, loaded};
use crate::log;
use crate::submission::running;

/// The time that the exit waits while no operation ends, and that functions which run then may take to end by
/// themselves.
const GRACE: Duration = Duration::from_secs(5);

/// Time that functions get to end after an interrupt.
const LAST_GRACE: Duration = Duration::from_secs(1);

/// Time that due deleters get.
const DELETERS: Duration = Duration::from_secs(5);

/// The time between two queries of what is in flight.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// So many operations are named; the rest is counted.
const NAMED: usize = 10;

estafette_sync::per_process! {
    /// The live engines of this process.
    static ENGINES: Mutex<Vec<Weak<EngineState>>> = Mutex::new(Vec::new());
    /// Engines without an object, with operations in flight.
    static LEFT: Mutex<Vec<Engine>> = Mutex::new(Vec::new());
    /// The exit no longer waits for operations in flight, which were named.
    static ABANDONED: AtomicBool = AtomicBool::new(false);
    /// The exit waits.
    static WAITS: AtomicBool = AtomicBool::new(false);
}

/// Called when an engine was made: the exit waits for its operations.
pub fn watch(engine: &EngineHandle) {
    let mut engines = ENGINES.lock();
    engines.retain(|known| known.strong_count() > 0);
    engines.push(Arc::downgrade(&engine.shared));
}

/// Called when the last object of an engine goes whose operations have not all ended.
pub fn detach(engine: &Engine) {
    LEFT.lock().push(engine.clone());
    bindings::engine::detach(engine.clone(), |engine| {
        let ended: Vec<_> =
            LEFT.lock().extract_if(.., |left| bindings::engine::is_same(left, engine)).collect();
        drop(ended);
    });
}

/// The shared state of an engine's objects that Python has.
pub fn known(engine: &Engine) -> Option<EngineHandle> {
    let is_it = |shared: &Arc<EngineState>| {
        shared.engine.get().is_ok_and(|known| bindings::engine::is_same(known, engine))
    };
    there().into_iter().find(is_it).map(|shared| EngineHandle { shared })
}

/// Called by `threading`, on the main thread, before it joins the threads of the program.
#[pyfunction(name = "_before_threads_end")]
pub fn before_threads_end(py: Python<'_>) {
    finish(py, false);
    if is_child_of_multiprocessing(py).unwrap_or(false) {
        // Processes that *fork* and *forkserver* start end by `os._exit` after this function, without
        // `atexit`.
        report_what_is_left(py);
    }
}

/// Called by `atexit`, on the main thread.
#[pyfunction(name = "_at_exit")]
pub fn at_exit(py: Python<'_>) {
    finish(py, true);
    report_what_is_left(py);
    let grace = grace();
    if ENGINES.lock().is_empty() {
        // None was ever made in this process, which may be a forked child.
        return;
    }
    // Finalizers that run later raise errors of this package, when its modules are gone.
    show_failed(py, class(py, "ShutdownError"));
    if !guard::close(py, grace) {
        running::interrupt_all(py);
        guard::close(py, LAST_GRACE);
    }
    remote::close_links(py);
    py.detach(|| {
        reaper().flush(DELETERS);
        reaper().stop(DELETERS);
    });
}

fn is_child_of_multiprocessing(py: Python<'_>) -> PyResult<bool> {
    let Some(module) = loaded(py, intern!(py, "multiprocessing.process"))? else { return Ok(false) };
    Ok(!module.call_method0(intern!(py, "parent_process"))?.is_none())
}

/// Reports failures that nothing has looked at, calls callbacks that are due, and hands over what the engine
/// has logged.
fn report_what_is_left(py: Python<'_>) {
    for engine in all() {
        bindings::report(&engine.unretrieved());
    }
    promise::flush(py, grace());
    log::flush(py, LAST_GRACE);
}

/// The time that callbacks and functions which run may take: none if an engine was abandoned, which had its
/// time.
fn grace() -> Duration {
    if ABANDONED.load(Ordering::Relaxed) { Duration::ZERO } else { GRACE }
}

/// True if the exit waits for what is in flight.
pub fn waits() -> bool {
    WAITS.load(Ordering::Relaxed)
}

/// The engines of this process that are there.
pub fn there() -> Vec<Arc<EngineState>> {
    ENGINES.lock().iter().filter_map(Weak::upgrade).collect()
}

/// The engines of this process with something to wait for, or to report.
fn all() -> Vec<Engine> {
    let left = LEFT.lock().clone();
    there().iter().filter_map(|shared| shared.engine.get().ok().cloned()).chain(left).collect()
}

/// Waits for what is in flight. In the `last` wait nothing is left that could return a lease.
fn finish(py: Python<'_>, last: bool) {
    if ABANDONED.load(Ordering::Relaxed) {
        return;
    }
    let engines = all();
    if in_flight(&engines) == 0 {
        return;
    }
    WAITS.store(true, Ordering::Relaxed);
    let outcome = guard::detach(py, || wait(&engines));
    WAITS.store(false, Ordering::Relaxed);
    // An error that a signal handler has raised ends the wait, and no more: the exit goes on.
    let interrupted = interrupt::take().is_some();
    match outcome {
        ExitOutcome::Ended => {}
        ExitOutcome::Held if !last => {}
        ExitOutcome::Held | ExitOutcome::Abandoned => {
            ABANDONED.store(true, Ordering::Relaxed);
            let said = say_abandoned(py, &engines, interrupted).or_else(|error| {
                // Ctrl-C during the report must not hide the report.
                let again = error.is_instance_of::<PyKeyboardInterrupt>(py);
                if again { say_abandoned(py, &engines, true) } else { Err(error) }
            });
            show_failed(py, said);
        }
    }
}

enum ExitOutcome {
    /// Nothing is in flight.
    Ended,
    /// Only leases block the operations in flight.
    Held,
    /// No operation has ended for [`GRACE`], or the wait was interrupted.
    Abandoned,
}

fn in_flight(engines: &[Engine]) -> usize {
    engines.iter().map(|engine| engine.stats().in_flight).sum()
}

fn wait(engines: &[Engine]) -> ExitOutcome {
    let mut fewest = usize::MAX;
    let mut until = Instant::now() + GRACE;
    loop {
        for engine in engines {
            if let Err(Error::Interrupted) = engine.wait_all(Some(POLL_INTERVAL)) {
                return ExitOutcome::Abandoned;
            }
        }
        let left = in_flight(engines);
        if left == 0 {
            return ExitOutcome::Ended;
        }
        // Operations that submit others could go on for ever, so what counts is that there are fewer.
        if left < fewest {
            fewest = left;
            until = Instant::now() + GRACE;
        }
        if engines.iter().all(is_held) {
            return ExitOutcome::Held;
        }
        if Instant::now() >= until {
            return ExitOutcome::Abandoned;
        }
    }
}

/// True if nothing of the engine runs or may run: what is in flight is behind leases.
fn is_held(engine: &Engine) -> bool {
    let waiting = in_order(engine);
    // Operations without operands are not among them, and none of those waits for anything.
    waiting.len() == engine.stats().in_flight
        && waiting.iter().all(|op| matches!(op.status, Status::Waiting | Status::Cancelled))
}

/// The operations in flight, without leases.
fn in_order(engine: &Engine) -> Vec<OpStatus> {
    let mut operations = engine.diagnose().operations;
    operations.retain(|op| op.lease.is_none() && op.name != "ready");
    operations
}

fn say_abandoned(py: Python<'_>, engines: &[Engine], interrupted: bool) -> PyResult<()> {
    let (operations, in_flight) = guard::detach(py, || {
        let operations: Vec<OpStatus> = engines.iter().flat_map(in_order).collect();
        (operations, in_flight(engines))
    });
    let mut lines: Vec<String> = operations.iter().map(OpStatus::to_string).collect();
    // Operations without operands are not among those in order.
    for (op, function) in running::all_running(py) {
        if operations.iter().all(|known| known.id != op) {
            lines.push(format!("operation {op} is running {}", function.bind(py).repr()?));
        }
    }
    lines.truncate(NAMED);
    let more = in_flight.saturating_sub(lines.len());
    py.import("estafette._failures")?.call_method1("say_abandoned", (lines, more, interrupted))?;
    Ok(())
}
