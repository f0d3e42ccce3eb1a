//! What all handles of one engine share.

use std::future::Future;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use estafette_devices::cpu::Pool;
use estafette_devices::{DLDevice, Device};
use estafette_graph::Graph;
use estafette_sync::sync::OnceLock;
use estafette_sync::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use crate::bell::Bell;
use crate::blocked::{self, On};
use crate::context;
use crate::error::Error;
use crate::exchange::fork;
use crate::operation::{Kind, OpGraph};
use crate::run::{self, ReadyOp};
use crate::stuck;

/// The process's graph. All engines share it, so tensors of one engine are ordered correctly in operations of another;
/// each operation runs in the pool of the engine it was submitted to.
pub(crate) fn graph() -> &'static OpGraph {
    static GRAPH: OnceLock<OpGraph> = OnceLock::new();
    GRAPH.get_or_init(Graph::immortal)
}

/// Shared by the handles of one engine and by its operations in flight; never by a thread.
pub(crate) struct Core {
    pub(crate) id: u64,
    pub(crate) pool: Pool<ReadyOp>,
    pub(crate) devices: Vec<Arc<dyn Device>>,
    pub(crate) lease_timeout: Duration,
    /// Operations that may be in flight before a submission waits.
    window: usize,
    in_flight: AtomicUsize,
    /// Rings when an operation has ended and when work has arrived that a waiting thread could run.
    pub(crate) bell: Bell,
    pub(crate) closing: AtomicBool,
    runtime: OnceLock<Runtime>,
    /// Called once per wait that only leases hold up: a garbage-collected language collects here.
    pub(crate) on_lease_wait: OnceLock<Box<dyn Fn() + Send + Sync>>,
    /// Asked now and then during a wait whether it shall end.
    pub(crate) on_wait: OnceLock<Box<dyn Fn() -> bool + Send + Sync>>,
    /// The fork generation it was made in.
    generation: u32,
}

/// Operations submitted from inside operations may exceed the window, or a full window could never drain; this many
/// times the window is the end of it.
const HARD_CAP: usize = 4;

/// How long a submission waits for room between looks at whether it waits in vain.
const WINDOW_LOOK: Duration = Duration::from_millis(20);

enum Runtime {
    Given(tokio::runtime::Handle),
    Own(Option<tokio::runtime::Runtime>),
}

impl Drop for Runtime {
    fn drop(&mut self) {
        if let Self::Own(runtime) = self
            && let Some(runtime) = runtime.take()
        {
            // The last handle may be dropped inside asynchronous code, where waiting for the runtime would panic.
            runtime.shutdown_background();
        }
    }
}

/// What a builder has collected.
pub(crate) struct CoreOptions {
    pub(crate) pool: Pool<ReadyOp>,
    pub(crate) devices: Vec<Arc<dyn Device>>,
    pub(crate) lease_timeout: Duration,
    pub(crate) window: usize,
    pub(crate) runtime: Option<tokio::runtime::Handle>,
}

impl Core {
    pub(crate) fn new(options: CoreOptions) -> Arc<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let runtime = OnceLock::new();
        if let Some(handle) = options.runtime {
            let _ = runtime.set(Runtime::Given(handle));
        }
        Arc::new(Self {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            pool: options.pool,
            devices: options.devices,
            lease_timeout: options.lease_timeout,
            window: options.window,
            in_flight: AtomicUsize::new(0),
            bell: Bell::default(),
            closing: AtomicBool::new(false),
            runtime,
            on_lease_wait: OnceLock::new(),
            on_wait: OnceLock::new(),
            generation: fork::generation(),
        })
    }

    /// Fails in a process that was forked from one with an engine: the reactor, the reaper and the graph's locks were left
    /// in an unknown state by threads that do not exist here, so a new engine would not help.
    pub(crate) fn check_process() -> Result<(), Error> {
        static FIRST: OnceLock<u32> = OnceLock::new();
        if *FIRST.get_or_init(fork::generation) == fork::generation() { Ok(()) } else { Err(Error::Forked) }
    }

    /// Fails in a forked child: the engine's threads do not exist there, and its locks may be held forever.
    pub(crate) fn check_fork(&self) -> Result<(), Error> {
        if self.generation == fork::generation() { Ok(()) } else { Err(Error::Forked) }
    }

    /// Fails in a forked child and after shutdown. Operations may still submit while the engine drains.
    pub(crate) fn check_usable(&self) -> Result<(), Error> {
        self.check_fork()?;
        if self.closing.load(Ordering::Acquire) && context::current().is_none() {
            return Err(Error::Shutdown);
        }
        Ok(())
    }

    pub(crate) fn device(&self, id: DLDevice) -> Option<&Arc<dyn Device>> {
        self.devices.iter().find(|device| device.id() == id)
    }

    /// Runs an asynchronous body. The runtime is made at first use.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) -> Result<(), Error> {
        if self.runtime.get().is_none() {
            let runtime = tokio::runtime::Builder::new_multi_thread()
                .worker_threads(1)
                .thread_name("estafette-async")
                .enable_all()
                .build()
                .map_err(|error| Error::Start(format!("asynchronous runtime: {error}")))?;
            // Losing the race drops a runtime that has done nothing.
            let _ = self.runtime.set(Runtime::Own(Some(runtime)));
        }
        match self.runtime.get() {
            Some(Runtime::Given(handle)) => drop(handle.spawn(task)),
            Some(Runtime::Own(Some(runtime))) => drop(runtime.spawn(task)),
            Some(Runtime::Own(None)) | None => return Err(Error::Shutdown),
        }
        Ok(())
    }

    /// Fails when whoever waits is wanted elsewhere.
    pub(crate) fn check_interrupt(&self) -> Result<(), Error> {
        match self.on_wait.get() {
            Some(interrupted) if interrupted() => Err(Error::Interrupted),
            _ => Ok(()),
        }
    }

    pub(crate) fn in_flight(&self) -> usize {
        self.in_flight.load(Ordering::SeqCst)
    }

    pub(crate) fn window(&self) -> usize {
        self.window
    }

    /// Takes a place in the window or refuses.
    pub(crate) fn try_admit(&self) -> Result<(), Error> {
        self.check_usable()?;
        let limit =
            if context::current().is_some() { self.window.saturating_mul(HARD_CAP) } else { self.window };
        // Not added and taken back: that would ring the bell, and a refused submission that waits would wake itself.
        let admitted = self.in_flight.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |in_flight| {
            (in_flight < limit).then_some(in_flight + 1)
        });
        admitted.map(drop).map_err(|in_flight| Error::WindowFull { in_flight, limit })
    }

    /// Takes a place in the window; while there is none, helps to run what is ready, then waits.
    pub(crate) fn admit(&self) -> Result<(), Error> {
        loop {
            match self.try_admit() {
                Err(Error::WindowFull { in_flight, limit }) => self.wait_for_room(in_flight, limit)?,
                other => return other,
            }
        }
    }

    fn wait_for_room(&self, in_flight: usize, limit: usize) -> Result<(), Error> {
        // Inside an operation only a wait for that very operation could be helped with, which would never end; its worker
        // is covered by a spare one instead.
        if (context::current().is_none() || self.alone()) && self.help_any() {
            return Ok(());
        }
        let _blocked = blocked::enter(On::AnyOther);
        let _spare = self.pool.is_worker().then(|| self.pool.blocking());
        let mut listening = self.bell.listen();
        let before = self.in_flight();
        if before < limit || self.pool.has_work() {
            return Ok(());
        }
        context::blocking(|| listening.wait_until(Instant::now() + WINDOW_LOOK));
        self.check_interrupt()?;
        if self.in_flight() >= before && !self.pool.has_work() {
            stuck::check_progress(self, in_flight)?;
        }
        Ok(())
    }

    /// As [`admit`](Self::admit), without blocking the thread.
    pub(crate) async fn admit_async(&self) -> Result<(), Error> {
        std::future::poll_fn(|cx| {
            self.help_alone(cx);
            for _ in 0..2 {
                match self.try_admit() {
                    // Register first, then look again, or a place freed in between would go unnoticed.
                    Err(Error::WindowFull { .. }) => self.bell.wake_at_ring(cx.waker()),
                    other => return Poll::Ready(other),
                }
            }
            Poll::Pending
        })
        .await
    }

    /// Runs one ready operation that any thread may run, whoever needs it.
    pub(crate) fn help_any(&self) -> bool {
        let Some(_helping) = context::begin_help() else { return false };
        match self.pool.take_matching(|job| job.0.payload().kind == Kind::Work || self.alone()) {
            Some(job) => {
                run::execute_one(job.0);
                true
            }
            None => false,
        }
    }

    /// Whether the engine has no worker, so that whoever waits must run everything.
    pub(crate) fn alone(&self) -> bool {
        self.pool.workers() == 0
    }

    /// Without workers, runs whatever is ready and makes sure to be polled again when more arrives.
    pub(crate) fn help_alone(&self, cx: &mut Context<'_>) {
        if self.alone() {
            while self.help_any() {}
            self.bell.wake_at_ring(cx.waker());
            while self.help_any() {}
        }
    }

    /// Called after operations were pushed to the pool.
    pub(crate) fn work_arrived(&self) {
        if self.alone() {
            self.bell.ring();
        }
    }

    /// Gives a place in the window back.
    pub(crate) fn operation_ended(&self) {
        self.in_flight.fetch_sub(1, Ordering::SeqCst);
        self.bell.ring();
    }

    /// Waits until nothing is in flight; false when `deadline` came first.
    pub(crate) fn wait_idle(&self, deadline: Option<Instant>) -> Result<bool, Error> {
        if context::current_with_core().is_some_and(|current| current.core == self.id) {
            return Err(Error::WouldDeadlock("waiting for all operations inside one of them".into()));
        }
        let _blocked = blocked::enter(On::AnyOther);
        let _spare = self.pool.is_worker().then(|| self.pool.blocking());
        loop {
            while self.alone() && self.help_any() {}
            let mut listening = self.bell.listen();
            if self.in_flight() == 0 {
                return Ok(true);
            }
            if self.alone() && self.pool.has_work() {
                continue;
            }
            let now = Instant::now();
            if deadline.is_some_and(|deadline| now >= deadline) {
                return Ok(false);
            }
            let look = now + WINDOW_LOOK;
            let before = self.in_flight();
            context::blocking(|| listening.wait_until(deadline.map_or(look, |deadline| look.min(deadline))));
            self.check_interrupt()?;
            if deadline.is_none() && self.in_flight() == before && !self.pool.has_work() {
                stuck::check_idle_progress(self)?;
            }
        }
    }
}

impl std::fmt::Debug for Core {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Core")
            .field("id", &self.id)
            .field("in_flight", &self.in_flight())
            .finish_non_exhaustive()
    }
}
