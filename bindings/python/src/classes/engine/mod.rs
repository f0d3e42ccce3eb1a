//! The class `Engine`: creation, waits, queries and shutdown.
//!
//! Its other methods have files of their own:
//!
//! | part | what it has |
//! |---|---|
//! | `allocation` | `empty`, `zeros`, `var` |
//! | `import` | `from_dlpack`, `from_arrow`, and the exchange table |
//! | `promises` | `from_future`, `from_mxnet` |
//! | `remote` | `door`, `connect`, `from_ticket` |
//! | `submission` | `submit`, `call`, their asynchronous forms, programs, `access` |

mod allocation;
mod import;
mod promises;
pub mod remote;
mod submission;

use std::sync::Arc;
use std::time::Duration;

use estafette::bindings::set_program_lock;
use estafette::bindings::{self, reaper};
use estafette::engine::ShutdownReport;
use estafette::wait::{Activity, OpStatus, Status};
use estafette::{Engine, Tensor};
use estafette_sync::process::ProcessBound;
use estafette_sync::sync::atomic::Ordering;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::arguments::{count, seconds};
use crate::asyncio::awaiting::Awaiter;
use crate::asyncio::stopped_loop;
use crate::classes::handle::{EngineHandle, EngineState};
use crate::classes::operators::PyOperators;
use crate::classes::remote::prepare_queues;
use crate::classes::report;
use crate::classes::tensor::PyTensor;
use crate::error::{self, OrRaise, import_module, raise, shutting_down};
use crate::exchange::export::EXPORTED;
use crate::exchange::import::IMPORTED;
use crate::interpreter::allocator;
use crate::interpreter::exit;
use crate::interpreter::guard;
use crate::interpreter::interrupt::{self, Interrupts};
use crate::interpreter::kept::Kept;
use crate::interpreter::python_lock::PythonLock;
use crate::interpreter::thread_state;
use crate::log;
use crate::submission::{body, using};
use crate::unretrieved::{self, Failures};

/// A wait with a shorter timeout than this is one of a program that polls.
const POLL_MAX: Duration = Duration::from_millis(10);

/// Schedules operations in the order that their data demands.
///
/// The results are the same as if the operations had run one by one in the order of submission. As a context
/// manager, it waits at the end of the block until everything submitted has ended::
///
///     >>> with est.Engine(workers=2) as eng:
///     ...     x = eng.from_dlpack(np.arange(3.0))
///     ...     y = eng.call(np.square, x, using=np.from_dlpack)
///     ...     eng.submit(lambda y: np.add(y, 1, out=y), writes=[y], using=np.from_dlpack)
///     ...     np.from_dlpack(y).tolist()
///     <estafette.Operation ...>
///     [1.0, 2.0, 5.0]
///
/// workers: threads for operations, at most 1,024; default one per core. Python functions share the
///     interpreter's lock, so the engine measures how many of its workers run at once with the best
///     throughput. With 0, operations run on threads that wait without a timeout, and on threads that submit
///     once 32 operations are ready; for an ``await``, a callback or a wait with a timeout the engine starts
///     a thread. A program that only asks `done` or `is_ready` runs none.
/// in_flight_limit: operations in flight before a submission waits; default 4,096.
/// lease_timeout: seconds that leases alone may hold up a wait (blocking or ``await``), or a submission at
///     the in-flight limit, before the wait raises `LeaseHeldError`; default 30. A blocking wait for a lease
///     of the same thread raises at once. A submission raises `WouldDeadlockError` at once if only such
///     leases keep the in-flight limit reached.
/// watchdog: seconds after which the logger ``estafette`` of `logging` logs, once each, a stalled operation
///     or a deleter that does not return, with its line of `diagnose()`; default None, never.
/// failures: what happens to an *unretrieved* failure of an operation: no wait, no ``await`` and no use of
///     the operation's outputs has raised it. ``"raise"``, the default: the failure is reported when the
///     operation's last tensor or `Operation` object is dropped, at the level *error* of the logger
///     ``estafette`` (if logging is configured) and by `sys.unraisablehook`; the end of the block, or
///     `shutdown`, raises the failure, several failures as an ``ExceptionGroup``. If the block raises another
///     exception, the end of the block reports the failures instead. ``"log"``: the failure is reported and
///     never raised. ``"ignore"``: neither. Cancelled operations are not failures.
/// stack_size: bytes of stack of each thread that runs operations, from 64 KiB to 1 TiB, or 0 for the
///     system's size (``ulimit -s``; 8 MiB if unlimited, and 2 MiB at least); default the value of
///     `threading.stack_size` when the engine is made, as for Python's own threads.
/// using: the function that makes arrays of tensors, for calls that name none, for example
///     ``np.from_dlpack``. Without it functions get the tensors themselves, except for those of a library, as
///     ``np.add``, which get its own arrays, also where the engine's is the ``from_dlpack`` of another
///     library. NumPy's functions, which take arrays of others, get what the engine's makes.
/// shared: True if other processes can be shown all memory that the engine makes, of the host and of CUDA
///     devices; default False.
#[pyclass(frozen, module = "estafette", name = "Engine", weakref)]
pub struct PyEngine {
    pub(super) handle: EngineHandle,
}

impl PyEngine {
    /// `engine` with what it needs for Python functions and for the interpreter's exit; as it is, if Python
    /// has it already.
    pub(super) fn of(engine: Engine, failures: Failures, using: using::Default) -> Self {
        let handle = exit::known(&engine).unwrap_or_else(|| {
            allocator::keep_freed_arrays();
            bindings::engine::share_lock(&engine, Arc::new(PythonLock));
            reaper().on_start(thread_state::prepare);
            set_program_lock(guard::without_lock);
            bindings::engine::on_lease_wait(&engine, collect_garbage);
            bindings::engine::on_wait(&engine, Interrupts);
            estafette::operation::on_unretrieved(unretrieved::reporter);
            let shared = EngineState { engine: ProcessBound::new(engine), failures, using, is_watched: true };
            let handle = EngineHandle { shared: Arc::new(shared) };
            exit::watch(&handle);
            handle
        });
        Self { handle }
    }

    pub(super) fn engine(&self, py: Python<'_>) -> PyResult<&Engine> {
        self.handle.engine(py)
    }

    pub(super) fn wrap(&self, tensor: Tensor) -> PyTensor {
        PyTensor::new(tensor, self.handle.clone())
    }

    pub(super) fn object<'py>(&self, py: Python<'py>, tensor: Tensor) -> PyResult<Bound<'py, PyTensor>> {
        PyTensor::object(py, tensor, self.handle.clone())
    }

    /// Waits for everything in flight, then cancels the operations that only leases hold up.
    fn drain(&self, py: Python<'_>, timeout: Option<Duration>) -> PyResult<ShutdownReport> {
        let engine = self.engine(py)?;
        let at_once = timeout.is_some_and(|timeout| timeout.is_zero());
        if !at_once && engine.stats().in_flight > 0 && !stopped_loop::may_block(py)? {
            return Err(would_stop_the_loop(py));
        }
        let report = guard::detach(py, || engine.shutdown_timeout(timeout.unwrap_or(Duration::MAX)));
        match interrupt::take() {
            Some(raised) => Err(raised),
            None => Ok(report),
        }
    }

    /// Raises or reports unretrieved failures.
    fn conclude(&self, py: Python<'_>, raising: bool, ended: Option<&ShutdownReport>) -> PyResult<()> {
        unretrieved::conclude(py, self.engine(py)?, self.handle.shared.failures, raising, ended)
    }
}

fn stats(py: Python<'_>, engine: &Engine) -> PyResult<Py<PyAny>> {
    let (stats, live) = guard::detach(py, || (engine.stats(), Activity::from(&engine.diagnose())));
    let (imported, exported) = (IMPORTED.load(Ordering::Relaxed), EXPORTED.load(Ordering::Relaxed));
    report::stats(py, &stats, &live, imported, exported)
}

/// The state of each engine of this process: `Stats` and `Diagnosis`.
#[pyfunction(name = "_engine_states")]
pub fn engine_states(py: Python<'_>) -> PyResult<Vec<(Py<PyAny>, Py<PyAny>)>> {
    let state = |shared: Arc<EngineState>| {
        let engine = shared.engine.get().or_raise(py)?;
        let diagnosis = guard::detach(py, || engine.diagnose());
        Ok((stats(py, engine)?, report::diagnosis(py, &diagnosis)?))
    };
    exit::there().into_iter().map(state).collect()
}

#[pymethods]
impl PyEngine {
    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        // Other objects that hold the engine may need it.
        let is_held = Arc::strong_count(&self.handle.shared) > 1;
        let using = self.handle.shared.using.as_deref().filter(|_| !is_held);
        using.map_or(Ok(()), |using| visit.call(using))
    }

    #[new]
    #[pyo3(signature = (
        workers = None, *, in_flight_limit = None, lease_timeout = None, watchdog = None, failures = None, stack_size = None,
        using = None, shared = false
    ))]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments of the Python class")]
    fn new(
        py: Python<'_>,
        workers: Option<&Bound<'_, PyAny>>,
        in_flight_limit: Option<&Bound<'_, PyAny>>,
        lease_timeout: Option<f64>,
        watchdog: Option<f64>,
        failures: Option<&Bound<'_, PyAny>>,
        stack_size: Option<&Bound<'_, PyAny>>,
        using: Option<Bound<'_, PyAny>>,
        shared: bool,
    ) -> PyResult<Self> {
        if let Some(using) = &using
            && !using.is_callable()
        {
            return Err(body::not_a_using(using)?);
        }
        if guard::is_closed() {
            return Err(shutting_down(py));
        }
        prepare_queues(py, shared)?;
        let failures = Failures::parse(failures)?;
        let mut builder = Engine::builder().shared(shared).report_failures(failures != Failures::Ignore);
        if let Some(workers) = count("workers", 0, workers)? {
            builder = builder.workers(workers);
        }
        if let Some(in_flight_limit) = count("in_flight_limit", 1, in_flight_limit)? {
            builder = builder.in_flight_limit(in_flight_limit);
        }
        let stack_size = match count("stack_size", 0, stack_size)? {
            None => import_module(py, "threading")?.call_method0("stack_size")?.extract()?,
            Some(bytes) => bytes,
        };
        // 0 is the system's default, as in `threading.stack_size`.
        if stack_size != 0 {
            builder = builder.stack_size(stack_size);
        }
        if let Some(limit) = seconds("watchdog", watchdog)? {
            builder = builder.on_stall(limit, log::stalled);
        }
        if lease_timeout.is_some() {
            let limit = seconds("lease_timeout", lease_timeout)?.unwrap_or(Duration::MAX);
            builder = builder.lease_timeout(limit);
        }
        let engine = builder.build().or_raise(py)?;
        Ok(Self::of(engine, failures, using.map(|using| Kept::new(using.unbind()))))
    }

    /// Number of worker threads.
    #[getter]
    fn workers(&self, py: Python<'_>) -> PyResult<usize> {
        Ok(self.engine(py)?.stats().workers)
    }

    /// The operators of this process, by name. Calls through this mapping run in this engine.
    #[getter]
    fn operators(&self) -> PyOperators {
        PyOperators::new(self.handle.clone())
    }

    /// Blocks until every operation of this engine has ended, at most `timeout` seconds. This method does not
    /// raise the failures of operations; their outputs do, and so does the end of the engine. Raises
    /// `WouldDeadlockError` where an operation goes on only when an event loop does that this thread ran and
    /// has stopped.
    #[pyo3(signature = (timeout = None))]
    fn wait_all(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<()> {
        let engine = self.engine(py)?;
        let timeout = seconds("timeout", timeout)?;
        if engine.stats().in_flight == 0 {
            return Ok(());
        }
        if !stopped_loop::may_block(py)? {
            return Err(would_stop_the_loop(py));
        }
        let waited = guard::detach(py, || engine.wait_all(timeout));
        let blocker = || {
            // A diagnosis looks at everything in flight: too much for a program that polls.
            timeout.filter(|timeout| *timeout >= POLL_MAX)?;
            let waits = |op: &&OpStatus| !matches!(op.status, Status::Waiting | Status::Cancelled);
            engine.diagnose().operations.iter().find(waits).map(ToString::to_string)
        };
        error::or_say_why(py, waited, blocker)
    }

    /// Returns which operation waits for which, and which deleter does not return, at this moment: print the
    /// result, or read its fields.
    fn diagnose(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let engine = self.engine(py)?;
        let diagnosis = guard::detach(py, || engine.diagnose());
        report::diagnosis(py, &diagnosis)
    }

    /// Returns counters, and the operations that are running, ready and stalled at this moment.
    fn stats(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        stats(py, self.engine(py)?)
    }

    /// Refuses new submissions and waits until every operation in flight has ended, at most `timeout`
    /// seconds. Operations that only leases hold up are then cancelled, and reported with the leases. Without
    /// a timeout, the call waits as long as an operation runs, and `lease_timeout` seconds for leases. What
    /// waits for links and doors of the engine, except for functions of operations, ends by `ShutdownError`.
    ///
    /// Raises unretrieved failures: one failure as itself, several as an ``ExceptionGroup``. The argument
    /// `failures` of the class selects other ways.
    #[pyo3(signature = (timeout = None))]
    fn shutdown(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Py<PyAny>> {
        let ended = self.drain(py, seconds("timeout", timeout)?)?;
        self.conclude(py, false, Some(&ended))?;
        report::shutdown(py, &ended)
    }

    /// True if the engine takes operations: not after its shutdown, nor in a forked child.
    fn _is_usable(&self) -> bool {
        self.handle.shared.engine.get().is_ok_and(|engine| bindings::engine::check_usable(engine).is_ok())
    }

    /// As `shutdown(0)`, without reports of failures.
    fn _cancel_held(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        report::shutdown(py, &self.drain(py, Some(Duration::ZERO))?)
    }

    /// Raises or reports unretrieved failures, after every operation has ended.
    fn _conclude(&self, py: Python<'_>, raising: bool) -> PyResult<()> {
        self.conclude(py, raising, None)
    }

    fn __enter__(this: Bound<'_, Self>) -> Bound<'_, Self> {
        this
    }

    #[pyo3(signature = (*exception))]
    fn __exit__(&self, py: Python<'_>, exception: &Bound<'_, PyTuple>) -> PyResult<()> {
        let ended = self.drain(py, None)?;
        let lifecycle = import_module(py, "estafette._lifecycle")?;
        let warned = lifecycle.call_method1("warn_of_leases", (report::shutdown(py, &ended)?,));
        // The warning may be raised as an exception, which must not hide the failures.
        self.conclude(py, is_raising(exception)? || warned.is_err(), Some(&ended))?;
        warned.map(drop)
    }

    fn __aenter__(this: Bound<'_, Self>) -> Awaiter {
        Awaiter::done(Ok(this.into_any().unbind()))
    }

    #[pyo3(signature = (*exception))]
    fn __aexit__<'py>(
        this: &Bound<'py, Self>,
        exception: &Bound<'py, PyTuple>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let lease_timeout = bindings::engine::lease_timeout(this.get().engine(this.py())?).as_secs_f64();
        import_module(this.py(), "estafette._lifecycle")?
            .call_method1("leave", (this, lease_timeout, is_raising(exception)?))
    }

    /// Refuses new submissions and returns an awaitable of the end of everything in flight, leases included.
    fn _drained(&self, py: Python<'_>) -> PyResult<Awaiter> {
        let engine = self.engine(py)?.clone();
        Ok(Awaiter::pending(async move { engine.shutdown().await }, |py, _| Ok(py.None())))
    }

    fn __repr__(&self) -> String {
        match self.handle.shared.engine.get() {
            Ok(engine) => {
                let stats = engine.stats();
                format!("<estafette.Engine, {} workers, {} in flight>", stats.workers, stats.in_flight)
            }
            Err(_) => "<estafette.Engine of the parent process>".into(),
        }
    }
}

/// Returns true if a block ends by an exception, read from the arguments of its end.
fn is_raising(exception: &Bound<'_, PyTuple>) -> PyResult<bool> {
    Ok(!exception.is_empty() && !exception.get_item(0)?.is_none())
}

/// The error for a synchronous wait for all operations on the thread of an event loop.
fn would_stop_the_loop(py: Python<'_>) -> PyErr {
    let message = "operations are in flight, and waiting for them here would stop the running event loop; write \
                   `async with est.Engine() as eng`, or `await` what was submitted";
    raise(py, "WouldBlockError", message)
}

/// A wait that only leases hold up collects garbage: unreachable views still have leases.
fn collect_garbage() {
    guard::attach(|py| {
        let lifecycle = import_module(py, "estafette._lifecycle");
        if let Err(error) = lifecycle.and_then(|lifecycle| lifecycle.call_method0("collect"))
            && !interrupt::note(py, &error)
        {
            error.write_unraisable(py, None);
        }
    });
}
