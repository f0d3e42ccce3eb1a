//! The options of an engine, and its start.

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use estafette_devices::Device;
use estafette_devices::cpu::{Pool, PoolOptions};
use estafette_devices::host::HostDevice;
use estafette_sync::sync::OnceLock;
use estafette_sync::{process, stack};

use crate::core::context;
use crate::core::engine_core::{Core, CoreOptions};
use crate::core::error::Error;
use crate::core::runtime::Runtime;
use crate::engine::{Engine, EngineHandle};
use crate::exchange::callback;
use crate::exchange::foreign_fence::WAIT_WITHOUT_ENGINE;
use crate::trace;
use crate::wait::activity::{self, OnStall, Stall, StallWatch};
use crate::wait::diagnose::diagnose;
use crate::wait::fence;
use crate::wait::stand_in;

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

/// Collects the options of an [`Engine`].
pub struct EngineBuilder {
    workers: Option<usize>,
    in_flight_limit: usize,
    lease_timeout: Duration,
    quarantine_timeout: Duration,
    devices: Vec<Arc<dyn Device>>,
    runtime: Runtime,
    watch: Option<(Duration, OnStall)>,
    report_failures: bool,
    stack_size: Option<usize>,
    is_shared: bool,
}

impl EngineBuilder {
    /// Worker threads for host operations, at most [`WORKERS_MAX`]. Default: one per core.
    ///
    /// With 0 workers, threads that wait without a timeout run the operations; so do threads that submit,
    /// once many operations are ready. For waits with a timeout, waits that have slept in vain, futures and
    /// callbacks, and where helping is [forbidden](crate::wait::without_helping), the engine starts a thread.
    /// This thread runs ready operations for as long as these waits last.
    pub fn workers(mut self, workers: usize) -> Self {
        self.workers = Some(workers);
        self
    }

    /// True: memory of this engine comes from memory that other processes can be shown, of the host and of
    /// devices that have such. Default: no.
    #[cfg(feature = "links")]
    pub fn shared(mut self, is_shared: bool) -> Self {
        self.is_shared = is_shared;
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

    /// Operations that may be in flight before a submission waits. Default 4,096. An operation is in flight
    /// until its end is reported; device work that it leaves behind is bounded by the queues of the device.
    pub fn in_flight_limit(mut self, operations: usize) -> Self {
        self.in_flight_limit = operations;
        self
    }

    /// The time that leases alone may hold up a wait (blocking or asynchronous) or a submission at the
    /// in-flight limit. After this time the wait or submission ends with [`Error::LeaseHeld`]. After the same
    /// time, a submission that awaits a permit inside of an operation ends with [`Error::WouldDeadlock`]
    /// where everything in flight waits for such submissions. A body counts as waiting for one also where
    /// something outside could end its wait. Default 30 s.
    pub fn lease_timeout(mut self, timeout: Duration) -> Self {
        self.lease_timeout = timeout;
        self
    }

    /// The time that memory which a consumer released waits for the consumer's device work when the end of
    /// that work is unknown. After this time the memory is leaked, and writes that waited for the memory
    /// proceed. Default 60 s. See [`quarantine`](mod@crate::exchange::quarantine).
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
    /// first use. Without the feature `tokio` one thread polls all asynchronous bodies of an engine: there a
    /// body that blocks for another body waits for ever.
    ///
    /// A runtime of one thread (`new_current_thread`) runs bodies only while that thread polls. A task on
    /// such a runtime waits for ever when the task blocks for such a body, in
    /// [`run`](crate::operation::OpBuilder::run) at the in-flight limit or in a wait. Use the asynchronous
    /// forms in such a task ([`permit`](crate::operation::OpBuilder::permit)`().await`, `ready().await`).
    /// Copies to and from a device do not need this runtime: the engine's own one runs them.
    #[cfg(feature = "tokio")]
    pub fn tokio(mut self, runtime: tokio::runtime::Handle) -> Self {
        self.runtime = Runtime::given(runtime);
        self
    }

    /// True: the engine reports failures of its operations that the program has not retrieved
    /// ([`Unretrieved`](crate::operation::Unretrieved)), and lists them at its end. Default: true.
    pub fn report_failures(mut self, report: bool) -> Self {
        self.report_failures = report;
        self
    }

    /// Starts a watchdog thread that inspects the engine now and then. The watchdog logs, once each, what has
    /// been stalled for longer than `limit`: an operation, a lease, a wait of the program, or memory whose
    /// deleter does not return. Of those that stall for one reason, and what waits for them, the first is
    /// logged, with the number of the others. An operation that no worker takes stalls since it was granted.
    /// Each event has its sentence of [`Engine::diagnose`], the level *warn* of `tracing` and the target
    /// `estafette::stall`. Default: no watchdog.
    pub fn watchdog(self, limit: Duration) -> Self {
        self.on_stall(limit, activity::log)
    }

    /// As [`watchdog`](Self::watchdog), but calls `report` on the watchdog's thread instead of logging.
    pub fn on_stall(mut self, limit: Duration, report: impl Fn(Stall<'_>) + Send + Sync + 'static) -> Self {
        self.watch = Some((limit, Arc::new(report)));
        self
    }

    /// Starts the engine.
    ///
    /// # Errors
    /// [`Error::Invalid`] for more than [`WORKERS_MAX`] workers, a stack outside of [`STACK_SIZES`], an
    /// in-flight limit of 0 or a device given twice; [`Error::Start`] when threads cannot be started;
    /// [`Error::Forked`] for a device of a process that this one was forked from.
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
        if self.devices.iter().any(|device| device.is_inherited()) {
            return Err(Error::Forked);
        }
        renew_after_forks();
        trace::begin_from_environment();
        #[cfg(not(feature = "links"))]
        let host = HostDevice::new();
        #[cfg(feature = "links")]
        let host = if self.is_shared {
            HostDevice::with_memory(Arc::new(estafette_links::Arena))
        } else {
            HostDevice::new()
        };
        let mut devices: Vec<Arc<dyn Device>> = vec![host];
        for device in self.devices {
            if devices.iter().any(|known| known.id() == device.id()) {
                return Err(Error::invalid(format!("device {} is given twice", device.id())));
            }
            devices.push(device);
        }
        let name = "estafette".into();
        let options = PoolOptions { workers, name, stack_size, ..PoolOptions::default() };
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
            is_shared: self.is_shared,
        });
        let registered = stand_in::register(&core);
        if registered.is_some() {
            let _ = WAIT_WITHOUT_ENGINE.set(fence::wait_without_engine);
        }
        let handle = Arc::new(EngineHandle {
            core,
            ends_nothing: false,
            _registered: registered,
            watch: OnceLock::new(),
        });
        if let Some((limit, report)) = self.watch {
            let watched = Arc::downgrade(&handle);
            let watch = StallWatch::start(watched, |handle| diagnose(&handle.core), limit, report)
                .map_err(|error| Error::Start(format!("watchdog: {error}")))?;
            handle.watch.get_or_init(|| watch);
        }
        Ok(Engine { handle })
    }
}

impl Engine {
    /// An engine with the default options: one worker per core.
    ///
    /// # Errors
    /// As [`EngineBuilder::build`].
    pub fn new() -> Result<Self, Error> {
        Self::builder().build()
    }

    /// Options for a new engine.
    pub fn builder() -> EngineBuilder {
        EngineBuilder {
            workers: None,
            in_flight_limit: IN_FLIGHT_LIMIT_DEFAULT,
            lease_timeout: LEASE_TIMEOUT_DEFAULT,
            quarantine_timeout: QUARANTINE_TIMEOUT_DEFAULT,
            devices: Vec::new(),
            runtime: Runtime::default(),
            watch: None,
            report_failures: true,
            stack_size: None,
            is_shared: false,
        }
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

/// Makes children that are forked from now on begin without what their thread was doing for engines of this
/// process.
fn renew_after_forks() {
    estafette_sync::per_process! {
        static ONCE: OnceLock<()> = OnceLock::new();
    }
    ONCE.get_or_init(|| {
        process::at_fork(|| {
            context::forget();
            callback::forget();
            stand_in::forget();
            trace::forget();
        });
    });
}
