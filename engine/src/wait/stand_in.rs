//! Threads that run an engine's operations in place of threads that wait and must not run them.
//!
//! A wait with a timeout must return in time, whatever its operations do; a future must not hold up its
//! executor; code inside [`without_helping`](crate::wait::without_helping) may hold locks. In an engine with
//! workers the workers run what such waits need. Two cases are left, and a *stand-in* serves both:
//!
//! - An engine without workers. A wait keeps a [`StandIn`] for as long as the wait lasts; a wait without a
//!   timeout does so once it has slept in vain, since no queue says which operation settles a fence. While a
//!   `StandIn` exists, a thread of the engine takes any ready operation.
//! - A pool whose threads are all blocked in waits of their own
//!   ([`Pool::are_all_blocked`](estafette_devices::cpu::Pool::are_all_blocked)). A wait that needs what the
//!   pool cannot take makes a stand-in take it.
//!
//! At most one stand-in of an engine takes operations at a time. When its operation waits in turn, the
//! stand-in counts as blocked, and the next stand-in is called. [`STAND_INS_MAX`] bounds their number.
//!
//! The system may refuse the thread. Futures and callbacks do not ask again, so the
//! [watcher](crate::wait::awaits) does for them.

use std::cell::RefCell;
use std::fmt;
use std::sync::{Arc, Weak};

use estafette_devices::log_panic;
use estafette_sync::essential::essential;
use estafette_sync::sync::atomic::{AtomicUsize, Ordering};
use estafette_sync::sync::{Condvar, Mutex, MutexGuard};
use estafette_sync::thread;
use estafette_sync::thread_local;
use estafette_sync::time::{Duration, Instant};
use smallvec::SmallVec;

use crate::core::core_ref::CoreRef;
use crate::core::engine_core::Core;
use crate::core::error::Error;
use crate::operation::run;
use crate::wait::awaits;

/// The most stand-ins of one engine. Each but the last is a thread that is blocked in a wait of an operation
/// that it runs. So this number bounds how deep waits may nest where nothing else runs what they need.
const STAND_INS_MAX: usize = 64;

/// The time that an unwanted stand-in rests before its thread ends: long enough for a program that waits
/// again and again.
const REST: Duration = Duration::from_millis(200);

/// The time after which the system that has refused a stand-in is asked again.
const REFUSED_FOR: Duration = Duration::from_millis(50);

/// Longest sleep of a stand-in of an engine without workers between checks whether it is still wanted.
const NAP: Duration = Duration::from_millis(100);

estafette_sync::per_process! {
    /// Number of engines without workers.
    static WORKERLESS: AtomicUsize = AtomicUsize::new(0);
    /// Engines without workers of which the program has a handle. [`WORKERLESS`] also counts engines that run
    /// on without a handle.
    static HANDLES: Mutex<Vec<Weak<CoreRef>>> = Mutex::new(Vec::new());
    /// Engines whose stand-in the system has refused.
    static REFUSED: Mutex<Vec<CoreRef>> = Mutex::new(Vec::new());
}

/// Asks again for the stand-ins that the system has refused and that are still wanted.
pub(crate) fn call_refused() {
    let refused = std::mem::take(&mut *REFUSED.lock());
    for core in refused.iter().filter(|core| core.stand_ins.is_wanted()) {
        core.stand_ins.call_again(core);
    }
}

/// Registers an engine without workers for [`StandInSet::want_all`], while the result lives. `None` for an
/// engine with workers.
pub(crate) fn register(core: &CoreRef) -> Option<Arc<CoreRef>> {
    let core = core.has_no_workers().then(|| Arc::new(core.clone()))?;
    let mut handles = HANDLES.lock();
    handles.retain(|handle| handle.strong_count() > 0);
    handles.push(Arc::downgrade(&core));
    Some(core)
}

thread_local! {
    /// The engine that this thread stands in for, and how many blocking sections it is in.
    static STANDS_IN: RefCell<Option<(CoreRef, usize)>> = const { RefCell::new(None) };
}

/// For a forked child: its thread stands in for no engine.
pub(crate) fn forget() {
    let forget = |place: &RefCell<_>| {
        place.try_borrow_mut().map(|mut engine| std::mem::forget(Option::take(&mut engine)))
    };
    // The thread may be ending, where forks are noticed late.
    let _ = STANDS_IN.try_with(forget);
}

/// The stand-ins of one engine.
#[derive(Debug, Default)]
pub(crate) struct StandIns {
    /// Number of waits that want a stand-in.
    wanted: AtomicUsize,
    threads: Mutex<StandInThreads>,
    called: Condvar,
}

#[derive(Debug, Default)]
struct StandInThreads {
    /// Threads that have not ended.
    alive: usize,
    /// Threads that rest.
    resting: usize,
    /// Resting threads that have been called.
    calls: usize,
    /// Threads whose operation waits.
    blocked: usize,
}

impl StandInThreads {
    /// Threads that take operations, or are about to.
    fn active(&self) -> usize {
        self.alive - self.blocked - (self.resting - self.calls)
    }
}

/// Makes a thread of an engine run what is ready, until dropped.
#[derive(Debug)]
pub(crate) struct StandIn {
    core: CoreRef,
}

impl Drop for StandIn {
    fn drop(&mut self) {
        self.core.stand_ins.wanted.fetch_sub(1, Ordering::SeqCst);
    }
}

/// The reason why there is no stand-in.
#[derive(Debug)]
pub(crate) enum NoStandIn {
    /// The engine has [`STAND_INS_MAX`] stand-ins.
    TooMany,
    /// The system has refused the thread.
    Refused(std::io::Error),
}

impl fmt::Display for NoStandIn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooMany => f.write_str(
                "every thread that could run it is blocked in a wait inside of an operation; nest fewer waits, or give the engine more \
                 workers",
            ),
            Self::Refused(error) => write!(f, "a thread to run it cannot be started: {error}"),
        }
    }
}

/// The stand-ins that one wait wants, at most one per engine.
#[derive(Debug, Default)]
pub(crate) struct StandInSet {
    wanted: SmallVec<[StandIn; 1]>,
    /// True if something was ready when the wait relied on a stand-in last, and none was available.
    hopeless: bool,
}

impl StandInSet {
    /// For a wait that runs no operation of `core` on its thread: ends caller-runs, and
    /// [relieves](Self::relieve) the thread.
    pub(crate) fn for_waiter(core: &CoreRef) -> Self {
        core.end_caller_runs();
        let mut set = Self::default();
        set.relieve(core);
        set
    }

    /// As [`want`](Self::want), where only waiting threads run what is ready, and the calling thread must
    /// not: without workers.
    pub(crate) fn relieve(&mut self, core: &CoreRef) -> Option<NoStandIn> {
        if core.has_no_workers() { self.want(core) } else { None }
    }

    /// Requests a stand-in of `core`, and starts or calls its thread. Returns why no stand-in is available.
    pub(crate) fn want(&mut self, core: &CoreRef) -> Option<NoStandIn> {
        if self.wanted.iter().all(|known| !known.core.same(core)) {
            core.stand_ins.wanted.fetch_add(1, Ordering::SeqCst);
            self.wanted.push(StandIn { core: core.clone() });
        }
        core.stand_ins.call(core)
    }

    /// Requests a stand-in of each engine without workers that has something ready, for a wait that knows no
    /// engine.
    pub(crate) fn want_all(&mut self) {
        let cores: Vec<Arc<CoreRef>> = HANDLES.lock().iter().filter_map(Weak::upgrade).collect();
        for core in cores.iter().filter(|core| core.pool.has_work()) {
            core.end_caller_runs();
            self.want(core);
        }
    }

    /// Something has moved: what was ready before may have run.
    pub(crate) fn start_over(&mut self) {
        self.hopeless = false;
    }

    /// As [`relieve`](Self::relieve), for a wait inside of an operation, which cannot know what is safe to
    /// run on its own thread: what is ready may wait for that operation. Called again after a while.
    ///
    /// # Errors
    /// [`Error::WouldDeadlock`] when no stand-in was available twice in a row for what is ready: other
    /// threads that could run it have had the time.
    pub(crate) fn rely_on(&mut self, core: &CoreRef, what: &str) -> Result<(), Error> {
        let missing = self.relieve(core).filter(|_| core.pool.has_work());
        let before = std::mem::replace(&mut self.hopeless, missing.is_some());
        match missing.filter(|_| before) {
            None => Ok(()),
            Some(missing) => {
                let message = format!("{what} may wait for an operation that is ready, but {missing}");
                Err(Error::WouldDeadlock(message))
            }
        }
    }
}

/// An engine without workers was made.
pub(crate) fn workerless_made() {
    WORKERLESS.fetch_add(1, Ordering::Relaxed);
}

/// An engine without workers is gone.
pub(crate) fn workerless_gone() {
    WORKERLESS.fetch_sub(1, Ordering::Relaxed);
}

/// True if there may be an engine without workers besides `core`.
pub(crate) fn others_without_workers(core: &Core) -> bool {
    WORKERLESS.load(Ordering::Relaxed) > usize::from(core.has_no_workers())
}

/// Counts the calling thread as blocked, if it is a stand-in, until this is dropped.
pub(crate) struct Blocked(());

impl Blocked {
    pub(crate) fn register() -> Option<Self> {
        let enter = |stands_in: &RefCell<Option<(CoreRef, usize)>>| {
            let mut stands_in = stands_in.borrow_mut();
            let (core, depth) = stands_in.as_mut()?;
            *depth += 1;
            Some((*depth == 1).then(|| core.clone()))
        };
        // A thread that ends stands in for nothing.
        let core = STANDS_IN.try_with(enter).ok().flatten()?;
        if let Some(core) = core {
            core.stand_ins.threads().blocked += 1;
            // In an engine with workers, the wait that finds all threads blocked calls a stand-in.
            if core.stand_ins.is_kept(&core) {
                // If there are too many, the waits find out.
                core.stand_ins.call(&core);
            }
        }
        Some(Self(()))
    }
}

impl Drop for Blocked {
    fn drop(&mut self) {
        let core = STANDS_IN.with_borrow_mut(|stands_in| {
            // A forked child has no stand-ins.
            let (core, depth) = stands_in.as_mut()?;
            *depth -= 1;
            (*depth == 0).then(|| core.clone())
        });
        if let Some(core) = core {
            core.stand_ins.threads().blocked -= 1;
        }
    }
}

/// True if the calling thread is a stand-in of any engine.
pub(crate) fn is_one() -> bool {
    STANDS_IN.try_with(|stands_in| stands_in.borrow().is_some()).unwrap_or(false)
}

impl StandIns {
    fn threads(&self) -> MutexGuard<'_, StandInThreads> {
        // Nothing foreign runs under this lock.
        self.threads.lock()
    }

    fn is_wanted(&self) -> bool {
        self.wanted.load(Ordering::SeqCst) > 0
    }

    /// True if a wait relies on a stand-in for as long as it lasts, since the engine has no workers.
    fn is_kept(&self, core: &Core) -> bool {
        core.has_no_workers() && self.is_wanted()
    }

    /// Requests a stand-in for as long as the engine, whose last handle is gone, has operations in flight.
    pub(crate) fn want_to_the_end(&self, core: &CoreRef) {
        self.wanted.fetch_add(1, Ordering::SeqCst);
        self.call(core);
    }

    /// Makes sure that a stand-in takes operations. Returns why none does.
    fn call(&self, core: &CoreRef) -> Option<NoStandIn> {
        let none = self.call_again(core);
        if let Some(NoStandIn::Refused(error)) = &none {
            tracing::warn!(%error, "cannot start a thread that stands in for waiting ones");
        }
        none
    }

    /// As [`call`](Self::call), without a word about a refusal.
    fn call_again(&self, core: &CoreRef) -> Option<NoStandIn> {
        let mut threads = self.threads();
        if threads.active() > 0 {
            return None;
        }
        if threads.resting > threads.calls {
            threads.calls += 1;
            drop(threads);
            self.called.notify_one();
            return None;
        }
        if threads.alive >= STAND_INS_MAX {
            return Some(NoStandIn::TooMany);
        }
        threads.alive += 1;
        drop(threads);
        let own = core.clone();
        let body = move || essential("a thread that stands in for waiting ones", || stand_in(own));
        let thread = thread::Builder::new().name("estafette-stand-in".into()).stack_size(core.stack_size);
        let started = thread.spawn(body);
        if let Err(error) = started {
            self.threads().alive -= 1;
            let mut refused = REFUSED.lock();
            if refused.iter().all(|known| !known.same(core)) {
                refused.push(core.clone());
            }
            drop(refused);
            awaits::inspect_by(Instant::now() + REFUSED_FOR);
            return Some(NoStandIn::Refused(error));
        }
        None
    }

    /// Rests until called. Returns false when no call came for a while, and the thread is to end.
    fn rest(&self, core: &CoreRef) -> bool {
        let until = Instant::now() + REST;
        let mut threads = self.threads();
        threads.resting += 1;
        // A wait that requested a stand-in in the meantime may have found this thread active, and two active
        // stand-ins may both rest.
        let is_left = || self.is_wanted() && core.lacks_thread();
        if threads.active() == 0 && !core.is_over() && (self.is_kept(core) || is_left()) {
            threads.resting -= 1;
            return true;
        }
        let is_called;
        (threads, is_called) = self.called.wait_while(threads, Some(until), |threads| threads.calls == 0);
        threads.resting -= 1;
        let counted = if is_called { &mut threads.calls } else { &mut threads.alive };
        *counted -= 1;
        is_called
    }

    /// True if the calling stand-in continues: it is wanted, and the only one that takes operations.
    fn continues(&self, core: &CoreRef) -> bool {
        self.is_wanted() && !core.is_over() && core.has_no_free_thread() && self.threads().active() <= 1
    }
}

/// The body of a stand-in.
fn stand_in(core: CoreRef) {
    STANDS_IN.set(Some((core.clone(), 0)));
    loop {
        while core.stand_ins.continues(&core) {
            if let Some(job) = core.pool.try_take() {
                log_panic("what an operation left behind", || run::execute(job.0));
                continue;
            }
            if !core.stand_ins.is_kept(&core) {
                // In an engine with workers, a wait that finds work which the pool cannot take calls a
                // stand-in again.
                break;
            }
            let mut listening = core.notifier.listen();
            if !core.pool.has_work() && core.stand_ins.continues(&core) {
                listening.wait_until(Some(Instant::now() + NAP));
            }
        }
        if !core.stand_ins.rest(&core) {
            break;
        }
    }
    STANDS_IN.set(None);
    core.clear_thread_cache();
}
