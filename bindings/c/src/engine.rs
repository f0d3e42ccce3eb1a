//! Engines.

use std::ffi::{CString, c_char};
use std::time::Duration;

use estafette::bindings::operators::OPTIONS_SIZE_MAX;
use estafette::bindings::{self, callback};
use estafette::{Engine, Error};

use crate::entry::{Answer, DONE, Refusal, entry, entry_unless_null, is_null, place};
use crate::handles::{Pinned, Table};
use crate::log;
use crate::options::{self, sized_options};
use crate::places::HandleKind;
use crate::status::estafette_status;
use crate::version::ESTAFETTE_FOREVER;

/// Schedules operations in the order that their data demands. Any thread may use an engine. One that is
/// destroyed while calls use it goes when the last of them returns.
#[derive(Debug)]
pub enum estafette_engine {}

static ENGINES: Table<Engine> = Table::new(HandleKind::Engine);

/// The engine of a handle.
pub(crate) fn engine(engine: *const estafette_engine) -> Result<Pinned<Engine>, Refusal> {
    ENGINES.get(engine, "engine")
}

/// A handle of an engine that was made elsewhere.
pub(crate) fn handle_of(engine: Engine) -> Result<*mut estafette_engine, Refusal> {
    Ok(ENGINES.reserve()?.fill(engine))
}

/// Options of an engine. All bytes zero, but for `size`, are the defaults.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct estafette_engine_options {
    /// `sizeof(estafette_engine_options)`.
    pub size: u32,
    /// Threads that run operations, at most 1,024: 0 for one per core, -1 for none: then threads that wait
    /// without a limit of time run what they wait for, those that submit help once much is ready, and for all
    /// other waits the engine starts a thread while they last (see `estafette_set_helping`).
    pub workers: i32,
    /// Operations that may be in flight before a submission waits; 0 for the default of 4,096.
    pub in_flight_limit: u64,
    /// The time that leases alone may hold up a wait, or a submission at the in-flight limit, before it ends
    /// with `ESTAFETTE_LEASE_HELD`, in nanoseconds; 0 for the default of 30 s.
    pub lease_timeout_ns: u64,
    /// Bytes of stack of each thread that runs operations, from 64 KiB to 1 TiB; 0 for what the system gives
    /// to threads (`ulimit -s`; 8 MiB where that is unlimited, and 2 MiB at least).
    pub stack_size: u64,
    /// 1: all memory of this engine, on CUDA devices too, can be shown to other processes (see
    /// `estafette_link_send`); 0: only that of `estafette_zeros_shared`.
    pub shared: u64,
    /// The time in nanoseconds after which a stall is logged as a warning, once: an operation, a lease, a
    /// wait, or memory whose deleter does not return, with its sentence of `estafette_diagnose`. Of those
    /// that stall for one reason, and what waits for them, the first is logged, with the number of the
    /// others. 0 for no such watch.
    pub watchdog_ns: u64,
}

// SAFETY: numbers and pointers, the size first.
sized_options!(unsafe estafette_engine_options, 24);

/// A limit of time as the engine wants it.
pub(crate) fn timeout(timeout_ns: u64) -> Option<Duration> {
    (timeout_ns != ESTAFETTE_FOREVER).then(|| Duration::from_nanos(timeout_ns))
}

/// The error of a wait for the rest of `limit`; its text names the whole limit.
pub(crate) fn within(error: Error, limit: Option<Duration>) -> Error {
    match (error, limit) {
        (Error::Timeout(_), Some(limit)) => Error::Timeout(limit),
        (error, _) => error,
    }
}

/// Starts an engine. `options` may be NULL for the defaults. The caller owns the result and gives it up by
/// `estafette_engine_destroy`.
///
/// Returns `ESTAFETTE_OK`; `ESTAFETTE_INVALID` for NULL `out` or a wrong option; `ESTAFETTE_FORKED`;
/// `ESTAFETTE_INTERNAL` when threads cannot be started. `*out` is written only on success. May be called by
/// any thread.
///
/// # Safety
/// `options` is NULL or as long as its size says; `out` is NULL or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn estafette_engine_create(
    options: *const estafette_engine_options,
    out: *mut *mut estafette_engine,
) -> estafette_status {
    entry(|| {
        let out = place(out, "out")?;
        // SAFETY: by contract of this function.
        let options = unsafe { options::read(options) }?;
        let mut builder = Engine::builder();
        builder = match options.workers {
            0 => builder,
            -1 => builder.workers(0),
            workers if workers > 0 => builder.workers(workers as usize),
            workers => {
                return Err(Refusal::invalid(format!("estafette_engine_options: workers is {workers}")));
            }
        };
        if options.in_flight_limit != 0 {
            builder = builder.in_flight_limit(usize::try_from(options.in_flight_limit).unwrap_or(usize::MAX));
        }
        if options.lease_timeout_ns != 0 {
            builder = builder.lease_timeout(Duration::from_nanos(options.lease_timeout_ns));
        }
        if options.stack_size != 0 {
            builder = builder.stack_size(usize::try_from(options.stack_size).unwrap_or(usize::MAX));
        }
        builder = match options.shared {
            0 => builder,
            1 => builder.shared(true),
            shared => return Err(Refusal::invalid(format!("estafette_engine_options: shared is {shared}"))),
        };
        if options.watchdog_ns != 0 {
            builder = builder.watchdog(Duration::from_nanos(options.watchdog_ns));
        }
        log::begin_from_environment();
        let vacant = ENGINES.reserve()?;
        let engine = builder.build()?;
        // SAFETY: writable, by contract.
        unsafe { out.write(vacant.fill(engine)) };
        DONE
    })
}

/// Releases an engine. Operations that were submitted still run. This call does not wait for them, but runs
/// what is ready where the engine has no workers (see `estafette_set_helping`). Tensors, leases and
/// operations that are held stay valid. To wait first, use `estafette_engine_shutdown` or
/// `estafette_wait_all`. NULL is legal and does nothing.
///
/// With the last handle of the engine, failures of its operations that nothing has retrieved are logged; see
/// `estafette_log_callback`.
///
/// Returns `ESTAFETTE_OK`; `ESTAFETTE_INVALID` for a handle that is not in use, as of an engine that was
/// destroyed before; `ESTAFETTE_FORKED`: there the engine is leaked. May be called by any thread. `engine`
/// may be any value.
#[unsafe(no_mangle)]
pub extern "C" fn estafette_engine_destroy(engine: *mut estafette_engine) -> estafette_status {
    entry_unless_null(engine, || {
        let held = self::engine(engine)?;
        if bindings::engine::is_last_handle(&held) {
            bindings::report(&held.unretrieved());
        }
        drop(held);
        ENGINES.release(engine, "engine")
    })
}

/// Refuses new submissions and blocks until everything in flight has ended, or for `timeout_ns`; then
/// operations that only leases hold up are cancelled. Calls that wait for links and doors of the engine
/// return `ESTAFETTE_SHUTDOWN`, except for those of operations. The engine is still to be destroyed.
///
/// Without a limit (`ESTAFETTE_FOREVER`), leases are waited for `lease_timeout_ns`; then what they hold up is
/// cancelled. Without a limit the call may run operations on this thread (see `estafette_set_helping`).
///
/// Failures of its operations that nothing has retrieved are logged; see `estafette_log_callback`. Their
/// number is in `estafette_stats`.
///
/// Returns `ESTAFETTE_OK` when everything has ended; `ESTAFETTE_LEASE_HELD` when operations were cancelled,
/// with their names and the leases; `ESTAFETTE_TIMEOUT` when some were still running;
/// `ESTAFETTE_WOULD_DEADLOCK` inside an operation of the engine, or where it would block in a callback: then
/// nothing happened; `ESTAFETTE_INVALID` for NULL or a handle that is not in use; `ESTAFETTE_FORKED`. May be
/// called by any thread that runs no operation. `engine` may be any value.
#[unsafe(no_mangle)]
pub extern "C" fn estafette_engine_shutdown(
    engine: *mut estafette_engine,
    timeout_ns: u64,
) -> estafette_status {
    entry(|| {
        let engine = self::engine(engine)?;
        if engine.stats().in_flight > 0 {
            callback::check()?;
            // Inside an operation the wait for all is refused before it begins, and the engine stays open.
            if let Err(error @ Error::WouldDeadlock(_)) = engine.wait_all(Some(Duration::ZERO)) {
                return Err(error.into());
            }
        }
        let report = engine.shutdown_timeout(timeout(timeout_ns).unwrap_or(Duration::MAX));
        bindings::report(&report.unretrieved);
        if report.drained {
            return DONE;
        }
        if report.cancelled.is_empty() || !report.running.is_empty() || report.unlisted > 0 {
            let mut running = report.running;
            running.extend((report.unlisted > 0).then(|| format!("{} without operands", report.unlisted)));
            let message = format!("still running: {}", running.join(", "));
            return Err(Refusal::new(estafette_status::ESTAFETTE_TIMEOUT, message));
        }
        let (cancelled, leases) = (report.cancelled.join(", "), report.leases.join("; "));
        let message = format!("cancelled: {cancelled}; they were held up by {leases}");
        Err(Refusal::new(estafette_status::ESTAFETTE_LEASE_HELD, message))
    })
}

/// Blocks until everything submitted to this engine has ended, or for `timeout_ns` (`ESTAFETTE_FOREVER` for
/// no limit). An open lease is not waited for. An operation that a lease holds up is, until
/// `lease_timeout_ns`. Fences that operations have ended with are not waited for: `estafette_wait` on the
/// outputs does that. Failures are reported where the outputs are used, not here. Without a limit it may run
/// whatever is ready on this thread (see `estafette_set_helping`); with one it runs nothing, so that it is
/// kept.
///
/// Returns `ESTAFETTE_OK`; `ESTAFETTE_TIMEOUT`; `ESTAFETTE_LEASE_HELD` when only leases hold up what is left;
/// `ESTAFETTE_WOULD_DEADLOCK` inside an operation, or where it would block in a callback; `ESTAFETTE_INVALID`
/// for NULL or a handle that is not in use; `ESTAFETTE_FORKED`. May be called by any thread. `engine` may be
/// any value.
#[unsafe(no_mangle)]
pub extern "C" fn estafette_wait_all(engine: *mut estafette_engine, timeout_ns: u64) -> estafette_status {
    entry(|| Ok(self::engine(engine)?.wait_all(timeout(timeout_ns))?))
}

/// Runs, on the calling thread, the operations of an engine without workers that are ready, and those that
/// they make ready in turn: for programs with one thread and a loop of their own. It waits for nothing.
/// `*ran`, which may be NULL, gets 1 if an operation was ready, else 0: that too where the engine has
/// workers, or helping is forbidden (see `estafette_set_helping`).
///
/// Returns `ESTAFETTE_OK`; `ESTAFETTE_INVALID` for NULL or a handle that is not in use; `ESTAFETTE_FORKED`.
/// May be called by any thread.
///
/// # Safety
/// `ran` is NULL or may be written. `engine` may be any value.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn estafette_run_ready(
    engine: *mut estafette_engine,
    ran: *mut i32,
) -> estafette_status {
    entry(|| {
        let has_run = self::engine(engine)?.run_ready();
        if !ran.is_null() {
            // SAFETY: writable, by contract.
            unsafe { ran.write(has_run.into()) };
        }
        DONE
    })
}

/// The waits of this moment, one line per operation, for people; and a line for each deleter of this process
/// that has run for more than a quarter of a second, and for the oldest memory behind it. The caller owns the
/// text and frees it by `estafette_string_free`.
///
/// Returns `ESTAFETTE_OK`; `ESTAFETTE_INVALID` for NULL or a handle that is not in use; `ESTAFETTE_FORKED`.
/// `*out` is written only on success. May be called by any thread, also while others wait.
///
/// # Safety
/// `out` is NULL or may be written. `engine` may be any value.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn estafette_diagnose(
    engine: *mut estafette_engine,
    out: *mut *mut c_char,
) -> estafette_status {
    entry(|| {
        let engine = self::engine(engine)?;
        let out = place(out, "out")?;
        let text = engine.diagnose().to_string().replace('\0', " ");
        let text = CString::new(text).map_err(|_| Refusal::invalid("the diagnosis holds a NUL"))?;
        // SAFETY: writable, by contract.
        unsafe { out.write(text.into_raw()) };
        DONE
    })
}

/// Counters of an engine and of the process.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct estafette_stats {
    /// `sizeof(estafette_stats)`, set by the caller; as much is written.
    pub size: u32,
    /// 0.
    pub reserved: u32,
    /// Operations in flight in this engine.
    pub in_flight: u64,
    /// The number of operations that may be in flight.
    pub in_flight_limit: u64,
    /// Deleters of imported tensors that have been called in this process.
    pub deleters: u64,
    /// Tensors of this process whose memory was leaked, because its last use can never be known to be over.
    pub leaked: u64,
    /// Tensors of this process that were given up and whose last use is not over yet.
    pub releasing: u64,
    /// Failures of this engine's operations that nothing has retrieved; see `estafette_log_callback`.
    pub unretrieved: u64,
}

/// Size of `estafette_stats` in its first version: older callers pass it.
const STATS_FIRST: usize = 48;

/// Counters. `stats->size` is set by the caller. Counters that this version of the library does not have are
/// set to 0.
///
/// Returns `ESTAFETTE_OK`; `ESTAFETTE_INVALID` for NULL, a handle that is not in use, or a wrong size;
/// `ESTAFETTE_FORKED`. May be called by any thread.
///
/// # Safety
/// `stats` is NULL or as long as its size says. `engine` may be any value.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn estafette_engine_stats(
    engine: *mut estafette_engine,
    stats: *mut estafette_stats,
) -> estafette_status {
    entry(|| {
        let engine = self::engine(engine)?;
        if stats.is_null() {
            return Err(is_null("stats"));
        }
        // SAFETY: readable as far as its size, which comes first.
        let size = unsafe { (&raw const (*stats).size).read() };
        if !(STATS_FIRST..=OPTIONS_SIZE_MAX).contains(&(size as usize)) {
            return Err(Refusal::invalid(format!(
                "estafette_stats: size is {size}, not {STATS_FIRST} to {OPTIONS_SIZE_MAX}"
            )));
        }
        let found = engine.stats();
        let found = estafette_stats {
            size,
            reserved: 0,
            in_flight: found.in_flight as u64,
            in_flight_limit: found.in_flight_limit as u64,
            deleters: found.deleters,
            leaked: found.leaked,
            releasing: found.releasing,
            unretrieved: found.unretrieved,
        };
        let length = (size as usize).min(size_of::<estafette_stats>());
        // SAFETY: `stats` is as long as its size says, and `found`, which has no padding, is as long as
        // `length`.
        unsafe { stats.cast::<u8>().copy_from_nonoverlapping((&raw const found).cast(), length) };
        if let Some(newer) = (size as usize).checked_sub(size_of::<estafette_stats>()) {
            // SAFETY: as above. Counters of newer versions, which this one does not count, are 0.
            unsafe { stats.add(1).cast::<u8>().write_bytes(0, newer) };
        }
        DONE
    })
}

/// Waits, for at most `timeout_ns`, until the deleters of all memory that was given up before this call have
/// been called: for tests, and before something that deleters need goes away. Memory is given up when its
/// handles are released and the operations and leases that use it have ended; fences that these, or an
/// import, have left are waited for too. An operation that has not ended holds its memory, and so does an
/// import with `DLPACK_FENCE_DESCRIBED_LATE` until it is ready: `estafette_wait_all` comes first where they
/// are to be waited for. In a callback it does not wait.
///
/// Returns `ESTAFETTE_OK`; `ESTAFETTE_TIMEOUT`; `ESTAFETTE_FORKED`. May be called by any thread, but not by a
/// deleter.
#[unsafe(no_mangle)]
pub extern "C" fn estafette_flush_deleters(timeout_ns: u64) -> estafette_status {
    entry(|| -> Answer {
        if estafette::exchange::flush_deleters(timeout(timeout_ns).unwrap_or(Duration::MAX)) {
            DONE
        } else {
            Err(Refusal::new(estafette_status::ESTAFETTE_TIMEOUT, "deleters are still to be called"))
        }
    })
}
