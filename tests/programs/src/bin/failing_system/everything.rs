//! A program that uses everything, and keeps account: of each operation that was accepted, each deleter and
//! each capture.

use std::cell::RefCell;
use std::ffi::c_void;
use std::fs::File;
use std::io::Write;
use std::panic::AssertUnwindSafe;
use std::path::Path;
use std::process::ExitCode;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use estafette::bindings::{self, reaper};
use estafette::devices::DLDevice;
use estafette::devices::sim::{SimDevice, SimOptions, SimPace, SimQueue};
use estafette::exchange::flush_deleters;
use estafette::exchange::foreign_fence::{FENCE_VERSION, FenceCallback, OK, PENDING, RawFence};
use estafette::trace::{Recorder, TraceOptions};
use estafette::wait::Activity;
use estafette::{Access, BodyResult, DType, Engine, Error, ExportOptions, ImportOptions, Op, Tensor};
use estafette_report::perfetto;
use futures::executor::block_on;
use tests::foreign::{self, Deleted};

use crate::elsewhere::{OtherProcess, VALUE};
use crate::interposed;

/// Longer than anything here takes; what takes longer is lost.
const LONG: Duration = Duration::from_secs(20);

/// Bytes of the tensor that is large enough for its memory to be refused instead of the process to end.
const LARGE: i64 = 1 << 20;

/// Number of runs of the body of one operation; the bodies of all operations together also count their
/// captures that are still there.
#[derive(Clone)]
struct Run {
    times: Arc<AtomicUsize>,
    _capture: Arc<()>,
}

impl Run {
    fn note(&self) -> BodyResult {
        self.times.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }
}

struct Accepted {
    name: &'static str,
    op: Op,
    run: Run,
    /// Number of runs of the body if all goes well.
    times: usize,
}

/// Counts of accepted and refused calls.
#[derive(Default)]
struct Account {
    accepted: RefCell<Vec<Accepted>>,
    errors: RefCell<Vec<String>>,
    /// Forked children that ended by a signal or a panic.
    ended: RefCell<Vec<String>>,
    lost: RefCell<Vec<String>>,
    captures: Arc<()>,
}

impl Account {
    fn run(&self) -> Run {
        Run { times: Arc::default(), _capture: Arc::clone(&self.captures) }
    }

    fn lost(&self, what: impl Into<String>) {
        self.lost.borrow_mut().push(what.into());
    }

    /// Notes an error with all its causes.
    fn refused(&self, name: &str, error: &dyn std::error::Error) {
        let mut text = format!("{name}: {error}");
        let mut source = error.source();
        while let Some(cause) = source {
            text.push_str(&format!(" < {cause}"));
            source = cause.source();
        }
        self.errors.borrow_mut().push(text.replace('\n', " "));
    }

    fn ok<T, E: std::error::Error>(&self, name: &str, result: Result<T, E>) -> Option<T> {
        result.inspect_err(|error| self.refused(name, error)).ok()
    }

    fn op(&self, name: &'static str, run: &Run, times: usize, op: Result<Op, Error>) -> Option<Op> {
        let op = self.ok(name, op)?;
        self.accepted.borrow_mut().push(Accepted { name, op: op.clone(), run: run.clone(), times });
        Some(op)
    }

    /// Waits for everything that was accepted, and compares.
    fn settle(&self) {
        for Accepted { name, op, run, times } in self.accepted.take() {
            let outcome = op.wait_timeout(Some(LONG));
            let ran = run.times.load(Ordering::SeqCst);
            match outcome {
                Ok(()) if ran != times => {
                    self.lost(format!("{name} ended well and its body ran {ran} times"))
                }
                Ok(()) => {}
                Err(Error::Timeout(_)) => self.lost(format!("{name} never ended")),
                Err(_) if ran > times => self.lost(format!("{name} failed and its body ran {ran} times")),
                Err(error) => self.refused(name, &error),
            }
        }
    }
}

/// Once more where the first try was refused: what fails once does not fail again.
fn twice<T, E: std::error::Error>(
    account: &Account,
    name: &str,
    mut f: impl FnMut() -> Result<T, E>,
) -> Option<T> {
    account.ok(name, f()).or_else(|| account.ok(name, f()))
}

/// Runs it all, and prints an account.
pub fn run(folder: &Path) -> ExitCode {
    let account = Account::default();
    let deleted = Deleted::default();
    let owner = (!is_clock_failing()).then(OtherProcess::start);
    interposed::arm(true);
    let recorder = account.ok(
        "open a trace",
        Recorder::open(TraceOptions { memory_max: Some(4 << 20), ..TraceOptions::default() }),
    );
    let mut imported = 0;
    let workers = |count: usize| move || Engine::builder().workers(count).watchdog(LONG).build();
    if let Some(engine) = twice(&account, "start an engine", workers(2)) {
        imported += with_workers(&account, &engine, &deleted);
        owner.iter().for_each(|owner| elsewhere(&account, &engine, owner));
        imported += on_a_device(&account, &deleted);
        if !is_clock_failing() {
            imported += behind_a_silent_fence(&account, &engine, &deleted);
        }
        end(&account, &engine);
    }
    if let Some(engine) = twice(&account, "start an engine without workers", workers(0)) {
        alone(&account, &engine);
        end(&account, &engine);
    }
    if let Some(recorder) = recorder {
        let trace = recorder.finish();
        let file = folder.join("failing-system.pftrace");
        let written = File::create(&file).and_then(|mut file| {
            perfetto::write(&trace, &mut file)?;
            file.flush()
        });
        if account.ok("write the trace", written).is_some()
            && let Some(bytes) = account.ok("read the trace", std::fs::read(&file))
        {
            let read = perfetto::read(&bytes);
            // The decompressor makes an error of memory that it does not get, and the reader says that a part
            // is damaged.
            if read.operations.len() != trace.operations.len() && read.losses.is_empty() {
                account.lost("operations of the trace, without a word");
            }
        }
    }
    interposed::arm(false);
    if !flush_deleters(LONG) {
        account.lost("the reaper is stuck");
    }
    if deleted.count() != imported {
        account.lost(format!("{} of {imported} deleters ran", deleted.count()));
    }
    let leaked = reaper().stats().leaked;
    if leaked != 0 {
        account.lost(format!("{leaked} tensors leaked"));
    }
    if Arc::strong_count(&account.captures) != 1 {
        account.lost(format!("{} captures are still there", Arc::strong_count(&account.captures) - 1));
    }
    report(&account)
}

fn report(account: &Account) -> ExitCode {
    println!("struck {}", interposed::struck());
    account.errors.borrow().iter().for_each(|error| println!("error {error}"));
    account.ended.borrow().iter().for_each(|ended| println!("ended {ended}"));
    account.lost.borrow().iter().for_each(|lost| println!("lost {lost}"));
    println!("whole");
    if account.lost.borrow().is_empty() { ExitCode::SUCCESS } else { ExitCode::from(3) }
}

fn end(account: &Account, engine: &Engine) {
    account.settle();
    let ended = engine.shutdown_timeout(LONG);
    if !ended.drained || engine.stats().in_flight != 0 {
        account.lost(format!("the engine does not drain: {:?}; {}", ended.running, engine.diagnose()));
    }
}

/// Lets workers fall asleep, so the next submission must wake them.
fn doze() {
    std::thread::sleep(Duration::from_millis(2));
}

/// Returns the number of imports, failed ones included.
fn with_workers(account: &Account, engine: &Engine, deleted: &Deleted) -> usize {
    let foreign: Vec<_> = (0..4).map(|_| foreign::tensor(&[1.0, 2.0], deleted)).collect();
    let imported = foreign.len();
    let tensors: Vec<Tensor> = foreign
        .into_iter()
        // SAFETY: fresh tensors that describe their memory truly. On an error its deleter has been called.
        .filter_map(|foreign| account.ok("import", unsafe { engine.import(foreign) }))
        .collect();
    for tensor in &tensors {
        let run = account.run();
        let own = run.clone();
        doze();
        let op = engine.op("add").updates([tensor]).run(move |[], [], [mut tensor]| {
            tensor.as_mut_slice::<f32>()?[0] += 1.0;
            own.note()
        });
        account.op("add", &run, 1, op);
    }
    if let Some(tensor) = tensors.first() {
        let view = account.ok("export", tensor.export_wait(&ExportOptions::from(Access::Read)));
        let run = account.run();
        let own = run.clone();
        let op = engine.op("behind a lease").writes([tensor]).run(move |[], [_tensor]| own.note());
        account.op("behind a lease", &run, 1, op);
        doze();
        drop(view);
        account.ok("await", block_on(tensor.ready()));
    }
    if let Some(tensor) = tensors.get(1) {
        let run = account.run();
        let own = run.clone();
        let op = engine.op("asynchronous").writes([tensor]).run_future(move |[], [tensor]| async move {
            tokio::time::sleep(Duration::from_millis(1)).await;
            drop(tensor);
            own.note()
        });
        account.op("asynchronous", &run, 1, op);
        account.ok("await what is asynchronous", block_on(tensor.ready()));
    }
    waits_inside(account, engine);
    forks(account, engine, &tensors);
    replays(account, engine);
    failures(account, engine);
    let zeros = account.ok("allocate", engine.zeros(&[LARGE], DType::F32));
    drop((zeros, tensors));
    let _ = (engine.diagnose(), Activity::from(&engine.diagnose()), engine.stats());
    imported
}

/// Tensors of another process: what fails once works the second time.
fn elsewhere(account: &Account, engine: &Engine, owner: &OtherProcess) {
    let check = |x: Tensor| {
        x.wait_timeout(LONG)?;
        if x.to_vec::<i64>()? != [VALUE] {
            account.lost("what another process has written");
        }
        Ok::<_, Error>(())
    };
    let redeemed = twice(account, "use a ticket", || check(engine.from_ticket(&owner.ticket)?));
    let received = twice(account, "receive", || {
        let link = bindings::remote::block_on(engine, engine.connect(&owner.address), Some(LONG))?;
        match bindings::remote::block_on(engine, link.receive(), Some(LONG))? {
            Some(x) => check(x),
            None => {
                account.lost("a tensor of another process");
                Ok(())
            }
        }
    });
    let fails_once = std::env::var_os("FAILING_ALL").is_none();
    if fails_once && (redeemed.is_none() || received.is_none()) {
        account.lost("a second try");
    }
}

/// Operations that wait for others inside of them, so that spare workers start.
fn waits_inside(account: &Account, engine: &Engine) {
    for _ in 0..3 {
        let (outer, inner) = (account.run(), account.run());
        let (own, its) = (outer.clone(), inner.clone());
        let other = engine.clone();
        let op = engine.op("waits inside").run(move |[], []| {
            let started = other.op("inside").run(move |[], []| {
                std::thread::sleep(Duration::from_millis(1));
                its.note()
            })?;
            started.wait()?;
            own.note()
        });
        account.op("waits inside", &outer, 1, op);
    }
}

/// A fork while operations are in flight. The child uses its inherited handles.
fn forks(account: &Account, engine: &Engine, tensors: &[Tensor]) {
    // SAFETY: the child calls only this program's own code, which is the subject of the test, and ends by
    // `_exit`.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let body = AssertUnwindSafe(|| in_child(engine, tensors));
        let code = std::panic::catch_unwind(body).unwrap_or(101);
        // SAFETY: runs nothing that the parent has registered to run at its exit.
        unsafe { libc::_exit(code) };
    }
    assert!(child > 0, "the parent can fork");
    let until = Instant::now() + LONG;
    let mut status = 0;
    // SAFETY: waits for the child that was just made.
    while unsafe { libc::waitpid(child, &mut status, libc::WNOHANG) } == 0 {
        if Instant::now() >= until {
            // SAFETY: that child is there until it is waited for.
            unsafe { libc::kill(child, libc::SIGKILL) };
            return account.lost("a forked child hangs");
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    if libc::WIFSIGNALED(status) || libc::WEXITSTATUS(status) == 101 {
        account.ended.borrow_mut().push(format!("a forked child: {status:#x}"));
    } else if status != 0 {
        account.lost(format!("a forked child: {status:#x}"));
    }
}

/// Checks the promise for a forked child: each use returns the same error, dropped values leak, and an engine
/// of its own works as far as the system lets it. Returns an exit code.
fn in_child(engine: &Engine, tensors: &[Tensor]) -> i32 {
    let mut well = true;
    let mut forked = |what: &str, error: Option<Error>| {
        if !matches!(error, Some(Error::Forked)) {
            println!("lost {what} in a forked child: {error:?}");
            well = false;
        }
    };
    forked("an operation", engine.op("child").run(|[], []| Ok(())).err());
    forked("a new tensor", engine.zeros(&[1], DType::F32).err());
    forked("a wait for everything", engine.wait_all(Some(LONG)).err());
    let deleted = Deleted::default();
    // SAFETY: a fresh tensor that describes its memory truly.
    forked("an import", unsafe { engine.import(foreign::tensor(&[1.0], &deleted)) }.err());
    for tensor in tensors {
        // Its memory may be ready, or known to have failed.
        if let Err(Error::Timeout(error)) = tensor.wait_timeout(LONG) {
            forked("a wait", Some(Error::Timeout(error)));
        }
        forked("an export", tensor.export_wait(&ExportOptions::from(Access::Read)).err());
    }
    drop((engine.var(), engine.clone(), tensors.to_vec(), engine.diagnose()));
    match own_engine() {
        Err(error @ (Error::Forked | Error::Timeout(_))) => {
            println!("lost a child's own engine: {error:?}");
            3
        }
        _ if well => 0,
        _ => 3,
    }
}

fn own_engine() -> Result<(), Error> {
    let own = Engine::builder().workers(1).build()?;
    let x = own.zeros(&[1], DType::F32)?;
    own.op("child").writes([&x]).run(|[], [_x]| Ok(()))?.wait_timeout(Some(LONG))?;
    own.wait_all(Some(LONG))
}

fn replays(account: &Account, engine: &Engine) {
    let variable = engine.var();
    let run = account.run();
    let own = run.clone();
    let mut builder = engine.program("program");
    let node = builder.op("node").writes_vars(&[&variable]).run(move |[], []| own.note());
    if account.ok("record", node).is_none() {
        return;
    }
    let Some(program) = account.ok("record", builder.finish()) else { return };
    for _ in 0..3 {
        if let Some(replay) = account.ok("replay", program.replay()) {
            let before = run.times.load(Ordering::SeqCst);
            match replay.wait_timeout(Some(LONG)) {
                Ok(()) if run.times.load(Ordering::SeqCst) <= before.saturating_sub(1) => {
                    account.lost("a replay ran no node");
                }
                Ok(()) => {}
                Err(Error::Timeout(_)) => account.lost("a replay never ended"),
                Err(error) => account.refused("replay", &error),
            }
        }
    }
}

/// Failures and cancels that are meant.
fn failures(account: &Account, engine: &Engine) {
    let Some(tensor) = account.ok("allocate", engine.zeros(&[1], DType::F32)) else { return };
    let fails = engine.op("fails").writes([&tensor]).run(|[], [_tensor]| Err("on purpose".into()));
    if account.ok("fails", fails).is_some() && tensor.wait_timeout(LONG).is_ok() {
        account.lost("a failure");
    }
    let (cancelled, run) = (engine.var(), account.run());
    let Some(blocker) = account.ok(
        "blocker",
        engine.op("blocker").writes_vars(&[&cancelled]).run(|[], []| {
            std::thread::sleep(Duration::from_millis(3));
            Ok(())
        }),
    ) else {
        return;
    };
    let own = run.clone();
    let behind = engine.op("cancelled").writes_vars(&[&cancelled]).run(move |[], []| own.note());
    if let Some(behind) = account.ok("cancelled", behind) {
        let was_cancelled = behind.cancel();
        let outcome = behind.wait_timeout(Some(LONG));
        if outcome.is_ok() == was_cancelled || matches!(outcome, Err(Error::Timeout(_))) {
            account.lost(format!("a cancel: {was_cancelled}, {outcome:?}"));
        }
    }
    account.ok("blocker", blocker.wait_timeout(Some(LONG)));
}

/// True if this run is of the sweep over the clock. A wait for a fence asks for the time again and again,
/// so that its length is no number of calls, and a clock that fails in the callback of a fence is an open
/// point of the guarantees.
fn is_clock_failing() -> bool {
    std::env::var("FAILING_CALL").is_ok_and(|call| call == "clock_gettime")
}

/// A fence of another library that accepts a subscription and never calls: it has to be queried.
fn silent_fence() -> RawFence {
    unsafe extern "C" fn query(_: *mut c_void) -> i32 {
        // Pending when it is subscribed to, and done a while later.
        static QUERIES: AtomicUsize = AtomicUsize::new(0);
        if QUERIES.fetch_add(1, Ordering::SeqCst) < 10 { PENDING } else { OK }
    }
    unsafe extern "C" fn subscribe(_: *mut c_void, _: FenceCallback, _: *mut c_void, token: *mut u64) -> i32 {
        // SAFETY: the caller passes a writable place.
        unsafe { token.write(0) };
        OK
    }
    unsafe extern "C" fn count(_: *mut c_void) {}
    RawFence {
        version: FENCE_VERSION,
        size: size_of::<RawFence>() as u32,
        context: std::ptr::null_mut(),
        device: DLDevice::CPU,
        flags: 0,
        query: Some(query),
        wait: None,
        order_on: None,
        subscribe: Some(subscribe),
        unsubscribe: None,
        error: None,
        native: None,
        retain: Some(count),
        release: Some(count),
        reserved: [None; 3],
    }
}

/// An operation whose input is ready when a silent fence is. Returns the number of imports, failed ones
/// included.
fn behind_a_silent_fence(account: &Account, engine: &Engine, deleted: &Deleted) -> usize {
    bindings::exchange::query_overdue_after(Duration::from_millis(1));
    let raw = silent_fence();
    // SAFETY: a struct as it is described; its functions need no context.
    let fence = unsafe { bindings::exchange::import(NonNull::from(&raw), &[]) };
    let Some(fence) = account.ok("a silent fence", fence) else { return 0 };
    // SAFETY: a fresh tensor that describes its memory truly. On an error its deleter has been called.
    let tensor = unsafe {
        engine.import_with(
            foreign::tensor(&[1.0], deleted),
            ImportOptions { ready: fence.into(), ..ImportOptions::default() },
        )
    };
    if let Some(tensor) = account.ok("import behind a fence", tensor) {
        let run = account.run();
        let own = run.clone();
        let op = engine.op("behind a fence").updates([&tensor]).run(move |[], [], [_tensor]| own.note());
        account.op("behind a fence", &run, 1, op);
    }
    1
}

/// Work on a device with its own thread, whose fences the reactor observes. Returns the number of imports,
/// failed ones included.
fn on_a_device(account: &Account, deleted: &Deleted) -> usize {
    let start = || SimDevice::new(SimOptions { pace: SimPace::RealTime, ..SimOptions::default() });
    let Some(device) = twice(account, "start a device", start) else { return 0 };
    let build = || Engine::builder().workers(1).device(device.clone()).build();
    let Some(engine) = twice(account, "start an engine with a device", build) else { return 0 };
    let Some(queue) = account.ok("make a queue", estafette::devices::Device::create_queue(&*device)) else {
        return 0;
    };
    let imported = if is_clock_failing() { 0 } else { memory_on_a_device(account, &engine, &queue, deleted) };
    let variable = engine.var();
    for _ in 0..3 {
        let run = account.run();
        let own = run.clone();
        let op = engine.op("on the device").writes_vars(&[&variable]).on(&queue);
        let op = op.run_on(move |queue, [], []| {
            let queue = SimQueue::from_queue(queue).ok_or("a queue of the device")?;
            queue.launch("work", 1_000, || ())?;
            own.note()
        });
        account.op("on the device", &run, 1, op);
        account.ok("wait for the device", engine.wait_all(Some(LONG)));
    }
    end(account, &engine);
    imported
}

/// Memory that is to be released before the work on the device is over.
fn memory_on_a_device(
    account: &Account,
    engine: &Engine,
    queue: &Arc<dyn estafette::devices::Queue>,
    deleted: &Deleted,
) -> usize {
    // SAFETY: a fresh tensor that describes its memory truly. On an error its deleter has been called.
    let tensor = unsafe { engine.import(foreign::tensor(&[1.0], deleted)) };
    if let Some(tensor) = account.ok("import", tensor) {
        let run = account.run();
        let own = run.clone();
        let op = engine.op("uses memory on the device").updates([&tensor]).on(queue);
        let op = op.run_on(move |queue, [], [], [_tensor]| {
            let queue = SimQueue::from_queue(queue).ok_or("a queue of the device")?;
            queue.launch("long work", 1_000_000, || ())?;
            own.note()
        });
        account.op("uses memory on the device", &run, 1, op);
    }
    1
}

/// An engine whose operations run on threads that wait, and on one that stands in for waits with a timeout.
fn alone(account: &Account, engine: &Engine) {
    for _ in 0..3 {
        let run = account.run();
        let own = run.clone();
        let op = engine.op("alone").run(move |[], []| own.note());
        if let Some(op) = account.op("alone", &run, 1, op) {
            // The thread that stands in may be refused: then a wait without a limit runs it.
            if op.wait_timeout(Some(Duration::from_millis(500))).is_err() {
                account.ok("wait", op.wait());
            }
        }
    }
}
