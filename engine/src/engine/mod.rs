//! The engine handle and its builder.

use std::borrow::Cow;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use estafette_devices::cpu::{Pool, PoolOptions};
use estafette_devices::host::HostDevice;
use estafette_devices::{DLDevice, Device};
use estafette_sync::stack;
use estafette_sync::sync::OnceLock;
use estafette_sync::sync::atomic::Ordering;

use crate::copy::staging;
use crate::core::clock;
use crate::core::coalesced;
use crate::core::core_ref::CoreRef;
use crate::core::engine_core::{Core, CoreOptions, WaitHook, graph};
use crate::core::error::Error;
use crate::core::operation::{Kind, Name, OpHandle};
use crate::core::unretrieved::Unretrieved;
use crate::exchange::quarantine::{self, QuarantineStats};
use crate::exchange::{DType, Element, ManagedTensor, handed_back, reaper};
use crate::lease::owner::LeaseInfo;
use crate::operation::builder::OpBuilder;
use crate::operation::import::{self, ImportOptions};
use crate::program::ProgramBuilder;
use crate::tensor::handle::Tensor;
use crate::tensor::variable::Variable;
use crate::wait::activity::{self, Activity, OnStall, Stall, StallWatch};
use crate::wait::awaits::{Awaited, Pending};
use crate::wait::blocking::take_snapshot;
use crate::wait::diagnose::{Diagnosis, diagnose};
use crate::wait::inspect;

/// Default in-flight limit. So many operations keep any number of workers and devices busy, and their state
/// stays in a core's own cache. (With 65,536 the *random* workload of the benches takes three and a half
/// times as long per operation; with 512 the workload takes no less time than with this limit.)
const IN_FLIGHT_LIMIT_DEFAULT: usize = 4_096;

/// Default lease timeout: how long leases alone hold up a wait before the wait ends with their names.
const LEASE_TIMEOUT_DEFAULT: Duration = Duration::from_secs(30);

/// Default quarantine timeout: how long memory waits for a consumer's device work whose end is unknown.
const QUARANTINE_TIMEOUT_DEFAULT: Duration = Duration::from_secs(60);

/// Most worker threads that an engine may have. More workers than a machine's cores gain nothing, and each
/// start of a worker costs more the more workers there are: a thousand start in seconds, ten thousand in half
/// a minute.
pub const WORKERS_MAX: usize = 1_024;

/// Sizes, in bytes, that the stacks of an engine's threads may have. Less than 64 KiB is no room for a
/// function of any library. More than 1 TiB is more than a process can map for several threads.
pub const STACK_SIZES: RangeInclusive<usize> = 64 << 10..=1 << 40;

/// Schedules operations in the order that their data demands. A clone is another handle to the same engine.
///
/// Dropping the last handle detaches the engine: submitted operations still run, and nothing waits for them.
/// Use [`shutdown`](Self::shutdown) to wait for their end. The end of `main` ends the process, whatever is in
/// flight.
///
/// A failure of an operation shows where the program inspects its outcome or its outputs. A failure that the
/// program never retrieves is reported when its last version and handle are gone: at the level *error* of
/// `tracing` (target `estafette::unretrieved`; see [`on_unretrieved`](crate::operation::on_unretrieved)). The end of the
/// engine also names such failures ([`ShutdownReport::unretrieved`]).
#[derive(Clone)]
pub struct Engine {
    handle: Arc<Handle>,
}

struct Handle {
    core: CoreRef,
    /// Set once the handle is where the watch can find it.
    watch: OnceLock<StallWatch>,
}

impl Drop for Handle {
    fn drop(&mut self) {
        if self.core.check_fork().is_err() {
            // A forked child: the pool's threads do not exist here, and its locks may be held for ever.
            std::mem::forget(self.watch.take());
            return std::mem::forget(self.core.clone());
        }
        // Without workers nothing else would ever run what is ready.
        if self.core.has_no_workers() && !std::thread::panicking() {
            while self.core.help_any() {}
        }
        self.core.failures.close();
        self.core.detach();
        if self.core.has_no_workers() && !self.core.is_over() {
            self.core.stand_ins.want_to_the_end(&self.core);
        }
        self.core.clear_thread_cache();
    }
}

/// Collects the options of an [`Engine`].
pub struct EngineBuilder {
    workers: Option<usize>,
    in_flight_limit: usize,
    lease_timeout: Duration,
    quarantine_timeout: Duration,
    devices: Vec<Arc<dyn Device>>,
    runtime: Option<tokio::runtime::Handle>,
    watch: Option<(Duration, OnStall)>,
    report_failures: bool,
    stack_size: Option<usize>,
}

impl EngineBuilder {
    /// Worker threads for host operations, at most [`WORKERS_MAX`]. Default: one per core.
    ///
    /// With 0 workers, threads that wait without a timeout run the operations; so do threads that submit,
    /// once many operations are ready. For waits with a timeout, for futures, and where helping is
    /// [forbidden](crate::wait::set_helping), the engine starts a thread. This thread runs ready operations for as
    /// long as these waits last.
    pub fn workers(mut self, workers: usize) -> Self {
        self.workers = Some(workers);
        self
    }

    /// Bytes of stack of each thread that runs bodies: workers, and threads that stand in for them. Within
    /// [`STACK_SIZES`]. Default: the size that the system gives to threads, the limit `RLIMIT_STACK` of the
    /// process: 8 MiB where the limit is unlimited, and 2 MiB at least. `RUST_MIN_STACK` in the environment,
    /// a number of bytes, replaces the default.
    ///
    /// A stack takes address space at once, and memory as it is used. [`build`](Self::build) fails when the
    /// system has no address space for the stacks.
    pub fn stack_size(mut self, bytes: usize) -> Self {
        self.stack_size = Some(bytes);
        self
    }

    /// Operations that may be in flight before a submission waits. Default 4,096.
    pub fn in_flight_limit(mut self, operations: usize) -> Self {
        self.in_flight_limit = operations;
        self
    }

    /// How long leases alone may hold up a wait (blocking or asynchronous) or a submission at the in-flight
    /// limit. After this time the wait or submission ends with [`Error::LeaseHeld`]. Default 30 s.
    pub fn lease_timeout(mut self, timeout: Duration) -> Self {
        self.lease_timeout = timeout;
        self
    }

    /// How long memory that a consumer released waits for the consumer's device work when the end of that
    /// work is unknown. After this time the memory is leaked, and writes that waited for the memory proceed.
    /// Default 60 s. See [`quarantine`](crate::exchange::quarantine).
    pub fn quarantine_timeout(mut self, timeout: Duration) -> Self {
        self.quarantine_timeout = timeout;
        self
    }

    /// Adds a device beside the host.
    pub fn device(mut self, device: Arc<dyn Device>) -> Self {
        self.devices.push(device);
        self
    }

    /// The tokio runtime for asynchronous bodies. Default: the engine's own runtime with one thread, made at
    /// first use.
    ///
    /// A runtime of one thread (`new_current_thread`) runs bodies only while that thread polls. A task on
    /// such a runtime waits for ever when the task blocks for such a body, in [`run`](crate::operation::OpBuilder::run)
    /// at the in-flight limit or in a wait. Use the asynchronous forms in such a task
    /// ([`permit`](crate::operation::OpBuilder::permit)`().await`, `ready().await`).
    pub fn tokio(mut self, runtime: tokio::runtime::Handle) -> Self {
        self.runtime = Some(runtime);
        self
    }

    /// Whether the engine reports failures of its operations that the program has not retrieved
    /// ([`Unretrieved`]), and lists them at its end. Default: true.
    pub fn report_failures(mut self, report: bool) -> Self {
        self.report_failures = report;
        self
    }

    /// Starts a watchdog thread that inspects the engine now and then. The watchdog logs, once each, what has
    /// been stalled for longer than `limit`: an operation, a lease, a wait of the program, or memory whose
    /// deleter does not return. Each event has its sentence of [`Engine::diagnose`], the level *warn* of
    /// `tracing` and the target `estafette::stall`. Default: no watchdog.
    pub fn watchdog(self, limit: Duration) -> Self {
        self.on_stall(limit, activity::log)
    }

    /// As [`watchdog`](Self::watchdog), but calls `tell` on the watchdog's thread instead of logging.
    pub fn on_stall(mut self, limit: Duration, tell: impl Fn(Stall<'_>) + Send + Sync + 'static) -> Self {
        self.watch = Some((limit, Arc::new(tell)));
        self
    }

    /// Starts the engine.
    ///
    /// # Errors
    /// [`Error::Invalid`] for more than [`WORKERS_MAX`] workers, a stack outside of [`STACK_SIZES`], an
    /// in-flight limit of 0 or a device given twice; [`Error::Start`] when threads cannot be started;
    /// [`Error::Forked`] in a process forked from one that had an engine.
    pub fn build(self) -> Result<Engine, Error> {
        let workers = self
            .workers
            .unwrap_or_else(|| std::thread::available_parallelism().map_or(1, |cores| cores.get()));
        if workers > WORKERS_MAX {
            return Err(Error::invalid(format!("{workers} workers: an engine has at most {WORKERS_MAX}")));
        }
        let stack_size = match self.stack_size {
            None => stack::default_size(),
            Some(bytes) if STACK_SIZES.contains(&bytes) => bytes,
            Some(bytes) => {
                let (least, most) = (STACK_SIZES.start(), STACK_SIZES.end());
                let message =
                    format!("a stack of {bytes} bytes: a thread's stack has {least} to {most} bytes");
                return Err(Error::invalid(message));
            }
        };
        if self.in_flight_limit == 0 {
            return Err(Error::invalid("an in-flight limit of 0 permits no operation"));
        }
        Core::check_process()?;
        let mut devices: Vec<Arc<dyn Device>> = vec![HostDevice::new()];
        for device in self.devices {
            if devices.iter().any(|known| known.id() == device.id()) {
                return Err(Error::invalid(format!("device {} is given twice", device.id())));
            }
            devices.push(device);
        }
        let options = PoolOptions { workers, name: "estafette".into(), stack_size, ..PoolOptions::default() };
        let pool = Pool::new(options).map_err(|error| Error::Start(error.to_string()))?;
        let core = Core::shared(CoreOptions {
            pool,
            devices,
            lease_timeout: self.lease_timeout,
            quarantine_timeout: self.quarantine_timeout,
            in_flight_limit: self.in_flight_limit,
            runtime: self.runtime,
            report_failures: self.report_failures,
            stack_size,
        });
        let handle = Arc::new(Handle { core, watch: OnceLock::new() });
        if let Some((limit, tell)) = self.watch {
            let watched = Arc::downgrade(&handle);
            let watch = StallWatch::start(watched, |handle| diagnose(&handle.core), limit, tell)
                .map_err(|error| Error::Start(format!("watchdog: {error}")))?;
            handle.watch.get_or_init(|| watch);
        }
        Ok(Engine { handle })
    }
}

/// How a shutdown ended.
#[derive(Debug, Clone)]
pub struct ShutdownReport {
    /// True if every operation that was in flight has ended.
    pub drained: bool,
    /// Operations that were cancelled because only leases held them up.
    pub cancelled: Vec<String>,
    /// The leases that held up the operations in `cancelled`.
    pub leases: Vec<String>,
    /// Operations that were still running.
    pub running: Vec<String>,
    /// Failures of the engine's operations that the program had not retrieved.
    pub unretrieved: Unretrieved,
}

/// Counters of an engine and of the process.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct Stats {
    /// Operations in flight in this engine.
    pub in_flight: usize,
    /// Failures of this engine's operations that the program has not retrieved.
    pub unretrieved: u64,
    /// The engine's in-flight limit.
    pub in_flight_limit: usize,
    /// Deleters run by this process's reaper.
    pub released: u64,
    /// Deleters among them that belong to tensors of other libraries.
    pub deleters: u64,
    /// Tensors whose memory was leaked because the end of their last use can never be known.
    pub leaked: u64,
    /// Tensors handed to the reaper whose last use is not over yet.
    pub releasing: u64,
    /// Counters of this process's quarantine.
    pub quarantine: QuarantineStats,
    /// Bytes of pinned host memory that this process keeps for copies from and to devices.
    pub staging_bytes: u64,
    /// Tensors of other libraries whose memory this process released while their last use was pending, behind
    /// a wait of their allocator's stream ([`ImportOptions::release_stream`]).
    pub handed_back: u64,
}

impl Engine {
    /// Options for a new engine.
    pub fn builder() -> EngineBuilder {
        EngineBuilder {
            workers: None,
            in_flight_limit: IN_FLIGHT_LIMIT_DEFAULT,
            lease_timeout: LEASE_TIMEOUT_DEFAULT,
            quarantine_timeout: QUARANTINE_TIMEOUT_DEFAULT,
            devices: Vec::new(),
            runtime: None,
            watch: None,
            report_failures: true,
            stack_size: None,
        }
    }

    #[inline]
    pub(crate) fn core(&self) -> &CoreRef {
        &self.handle.core
    }

    /// Begins the description of an operation.
    #[inline(always)]
    pub fn op(&self, name: impl Into<Cow<'static, str>>) -> OpBuilder<'_> {
        OpBuilder::new(self.core(), Name::from(name.into()))
    }

    /// Runs `submit`, in which this thread submits many operations, and wakes the workers once for all of
    /// them: at the end of `submit`, or before the thread has to wait. Workers that are awake begin at once.
    ///
    /// Waking a sleeping thread costs its waker microseconds, many times the cost of a submission. Where
    /// `submit` waits by other means than the engine's, sleeping workers are notified of the work some
    /// milliseconds late.
    ///
    /// ```
    /// # let engine = estafette::Engine::builder().workers(1).build()?;
    /// let files: Vec<_> = (0..100).map(|_| engine.var()).collect();
    /// let ops = engine.submit_many(|| {
    ///     files.iter().map(|file| engine.op("touch").writes_vars(&[file]).run(|[], []| Ok(()))).collect::<Result<Vec<_>, _>>()
    /// })?;
    /// assert_eq!(ops.len(), 100);
    /// engine.wait_all(None)?;
    /// # Ok::<(), estafette::Error>(())
    /// ```
    pub fn submit_many<T>(&self, submit: impl FnOnce() -> T) -> T {
        coalesced::hold_back(self.core(), submit)
    }

    /// Begins to record a program: operations that are described once and run many times. Each run is one
    /// operation called `name`.
    pub fn program(&self, name: impl Into<Cow<'static, str>>) -> ProgramBuilder {
        ProgramBuilder::new(self, Name::from(name.into()))
    }

    /// A variable without memory, for order alone.
    pub fn var(&self) -> Variable {
        Variable::new()
    }

    /// Adopts a tensor of another library, without a copy. On an error its deleter has been called.
    ///
    /// The engine orders memory that overlaps known tensors with these tensors.
    ///
    /// # Errors
    /// [`Error::InvalidTensor`] names the field that breaks the rules; [`Error::Invalid`] for a device that
    /// the engine does not have.
    ///
    /// # Safety
    /// The description must be true: the memory exists, is initialized, and stays valid until the deleter is
    /// called. Only the engine's operations and leases write the memory meanwhile. The content of the memory
    /// is ready to be read.
    pub unsafe fn import(&self, managed: ManagedTensor) -> Result<Tensor, Error> {
        // SAFETY: by contract.
        unsafe { self.import_with(managed, ImportOptions::default()) }
    }

    /// As [`import`](Self::import), with options: memory that becomes ready later, that must not be written,
    /// or that its allocator reuses in the order of a stream.
    ///
    /// # Errors
    /// As [`import`](Self::import); [`Error::Invalid`] for a release stream of another device than the
    /// memory.
    ///
    /// # Safety
    /// As for [`import`](Self::import), once the fences of the options are done; and the promises of the
    /// options.
    #[inline]
    pub unsafe fn import_with(
        &self,
        managed: ManagedTensor,
        options: ImportOptions<'_>,
    ) -> Result<Tensor, Error> {
        import::import(self.core(), managed, options).map_err(|refused| refused.0)
    }

    /// As [`import_with`](Self::import_with), but a tensor that the engine refuses comes back, and its
    /// deleter was not called.
    ///
    /// # Errors
    /// As [`import_with`](Self::import_with).
    ///
    /// # Safety
    /// As for [`import_with`](Self::import_with).
    #[doc(hidden)]
    pub unsafe fn import_or_return(
        &self,
        managed: ManagedTensor,
        options: ImportOptions<'_>,
    ) -> Result<Tensor, Box<(Error, ManagedTensor)>> {
        import::import(self.core(), managed, options)
    }

    /// A tensor with the elements of a vector in row-major order, without a copy.
    ///
    /// # Errors
    /// [`Error::Invalid`] when `shape` does not hold exactly these elements.
    pub fn from_vec<T: Element>(&self, values: Vec<T>, shape: &[i64]) -> Result<Tensor, Error> {
        import::from_vec(self.core(), values, shape)
    }

    /// A tensor of zeros in host memory.
    ///
    /// # Errors
    /// [`Error::InvalidTensor`] for a shape that cannot be; [`Error::Device`] when memory is exhausted.
    pub fn zeros(&self, shape: &[i64], dtype: DType) -> Result<Tensor, Error> {
        import::allocate(self.core(), DLDevice::CPU, shape, dtype, |core, layout| {
            import::fresh(core, layout, true)
        })
    }

    /// A tensor of the given type and shape in host memory. Its bytes are zero: safe views must not see
    /// uninitialized memory.
    ///
    /// # Errors
    /// As [`zeros`](Self::zeros).
    pub fn empty(&self, shape: &[i64], dtype: DType) -> Result<Tensor, Error> {
        self.zeros(shape, dtype)
    }

    /// A tensor in the memory of `device`; its bytes are arbitrary. Where the host can use the memory the
    /// bytes are zero, as those of [`empty`](Self::empty).
    ///
    /// # Errors
    /// As [`zeros`](Self::zeros), and [`Error::Invalid`] for a device that the engine does not have.
    pub fn empty_on(&self, device: DLDevice, shape: &[i64], dtype: DType) -> Result<Tensor, Error> {
        import::allocate(self.core(), device, shape, dtype, import::unwritten)
    }

    /// The devices of this engine; the host is the first.
    pub fn devices(&self) -> &[Arc<dyn Device>] {
        &self.core().devices
    }

    /// How long a wait is held up by leases alone before it ends.
    pub fn lease_timeout(&self) -> Duration {
        self.core().lease_timeout
    }

    /// Waits until everything submitted to this engine has ended. Leases do not count. Without a timeout the
    /// wait may run any ready operation on this thread, unless helping is [forbidden](crate::wait::set_helping).
    /// With a timeout the wait runs nothing, so that the timeout is kept.
    ///
    /// # Errors
    /// [`Error::Timeout`]; [`Error::LeaseHeld`] when only leases hold up what is left;
    /// [`Error::WouldDeadlock`] inside an operation. Failures of operations are not reported here but at
    /// their outputs, and at the end of the engine.
    pub fn wait_all(&self, timeout: Option<Duration>) -> Result<(), Error> {
        self.core().check_fork()?;
        let deadline = timeout.and_then(clock::deadline);
        match (self.core().wait_idle(deadline)?, timeout) {
            (true, _) => Ok(()),
            (false, timeout) => Err(Error::Timeout(timeout.unwrap_or_default())),
        }
    }

    /// Runs, on this thread, the ready operations of an engine without workers, and operations that they make
    /// ready in turn. Waits for nothing: this function is for programs with one thread and a loop of their
    /// own. Returns whether an operation was ready. Runs nothing where the engine has workers, or where
    /// helping is [forbidden](crate::wait::set_helping).
    pub fn run_ready(&self) -> bool {
        let core = self.core();
        if !core.has_no_workers() || core.check_fork().is_err() || !core.help_any() {
            return false;
        }
        while core.help_any() {}
        true
    }

    /// The operations in flight, what each one waits for, and the deleters that do not return.
    pub fn diagnose(&self) -> Diagnosis {
        diagnose(self.core())
    }

    /// Counters.
    pub fn stats(&self) -> Stats {
        let reaper = reaper().stats();
        Stats {
            in_flight: self.core().in_flight(),
            unretrieved: self.unretrieved().count(),
            in_flight_limit: self.core().in_flight_limit(),
            released: reaper.released,
            deleters: reaper.deleters,
            leaked: reaper.leaked,
            releasing: reaper.pending,
            quarantine: quarantine::stats(),
            staging_bytes: staging::bytes(),
            handed_back: handed_back(),
        }
    }

    /// How many operations are running, ready and stalled right now. The cost is that of
    /// [`diagnose`](Self::diagnose): proportional to what is in flight.
    pub fn activity(&self) -> Activity {
        Activity::of(&self.diagnose())
    }

    /// Sets a hook that a wait calls once when only leases hold the wait up. A garbage collector should run
    /// in this hook, since it may release such leases. Only the first call counts.
    pub fn on_lease_wait(&self, hook: impl Fn() + Send + Sync + 'static) {
        let _ = self.core().on_lease_wait.set(Box::new(hook));
    }

    /// Sets a hook that each blocking wait calls now and then, on the waiting thread. When the hook returns
    /// true, the wait ends with [`Error::Interrupted`]. A language whose signal handlers run between its own
    /// instructions looks for them in this hook. Only the first call counts.
    pub fn on_wait(&self, hook: impl Fn() -> bool + Send + Sync + 'static) {
        self.on_wait_of(|| true, hook);
    }

    /// As [`on_wait`](Self::on_wait), for the waiting threads alone for which `concerns` returns true. Other
    /// threads are not woken to call the hook. `concerns` runs on the waiting thread.
    #[doc(hidden)]
    pub fn on_wait_of(
        &self,
        concerns: impl Fn() -> bool + Send + Sync + 'static,
        hook: impl Fn() -> bool + Send + Sync + 'static,
    ) {
        let _ = self.core().on_wait.set(WaitHook { concerns: Box::new(concerns), ends: Box::new(hook) });
    }

    /// Refuses new submissions and waits, asynchronously, until everything in flight has ended.
    ///
    /// The future has no timeout. Drop the future to stop waiting; use
    /// [`shutdown_timeout`](Self::shutdown_timeout) to cancel what leases hold up.
    pub async fn shutdown(&self) -> ShutdownReport {
        let core = self.core();
        core.closing.store(true, Ordering::Release);
        let mut listening = core.notifier.listen_async();
        let mut pending = Pending::default();
        std::future::poll_fn(|cx| {
            listening.register_waker(cx.waker());
            if core.in_flight() == 0 {
                return std::task::Poll::Ready(());
            }
            // The end of everything is not a matter of leases alone: this has no error.
            let _ = pending.poll(cx, || Awaited::room(core));
            std::task::Poll::Pending
        })
        .await;
        self.report_of_shutdown(true)
    }

    /// Refuses new submissions and blocks until everything in flight has ended, or for `timeout`. After the
    /// timeout the engine cancels operations that only leases hold up, and reports them with the leases. Runs
    /// nothing on this thread.
    pub fn shutdown_timeout(&self, timeout: Duration) -> ShutdownReport {
        let core = self.core();
        core.closing.store(true, Ordering::Release);
        if let Ok(true) = core.wait_idle(clock::deadline(timeout)) {
            return self.report_of_shutdown(true);
        }
        self.cancel_held()
    }

    fn report_of_shutdown(&self, drained: bool) -> ShutdownReport {
        ShutdownReport {
            drained,
            cancelled: Vec::new(),
            leases: Vec::new(),
            running: Vec::new(),
            unretrieved: self.unretrieved(),
        }
    }

    /// Failures of this engine's operations that the program has not retrieved so far.
    pub fn unretrieved(&self) -> Unretrieved {
        if self.core().check_fork().is_err() {
            Unretrieved::default()
        } else {
            self.core().failures.unretrieved()
        }
    }

    /// Cancels every operation of this engine that is queued behind leases only.
    fn cancel_held(&self) -> ShutdownReport {
        let core = self.core();
        let snapshot = take_snapshot();
        let mine = |op: &&OpHandle| op.payload().core.id == core.id && op.payload().is_counted();
        let waiting = graph().waiting();
        let (held, leases) = inspect::held(waiting.iter().filter(mine));
        let mut report = self.report_of_shutdown(false);
        report.leases = leases.iter().map(LeaseInfo::to_string).collect();
        report.leases.sort_unstable();
        report.leases.dedup();
        for op in snapshot.ops.iter().filter(|op| op.label.core == core.id && op.label.counted) {
            let list = if held.contains(&op.id) { &mut report.cancelled } else { &mut report.running };
            list.push(op.label.name.as_str().to_string());
        }
        for op in waiting {
            if held.contains(&op.id()) && op.payload().kind != Kind::Lease {
                crate::core::operation::Op::new(op).cancel();
            }
        }
        report.drained = report.cancelled.is_empty() && report.running.is_empty() && core.in_flight() == 0;
        report
    }
}

impl std::fmt::Debug for EngineBuilder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EngineBuilder")
            .field("workers", &self.workers)
            .field("in_flight_limit", &self.in_flight_limit)
            .field("devices", &self.devices)
            .field("watchdog", &self.watch.as_ref().map(|(limit, _)| limit))
            .finish_non_exhaustive()
    }
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine")
            .field("id", &self.core().id)
            .field("workers", &self.core().pool.workers())
            .field("in_flight", &self.core().in_flight())
            .finish()
    }
}
