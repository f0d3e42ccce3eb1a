//! Forks in the middle of things, and reports what the child and the parent then see. A program of its own,
//! since a child of the test harness could do nothing with its threads.

use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, mpsc};
use std::time::Duration;

use estafette::bindings;
use estafette::devices::sim::{SimDevice, SimOptions, SimPace};
use estafette::devices::{Device, Fence, host};
use estafette::lease::LeaseRequest;
use estafette::operation::ReadGuard;
use estafette::tensor::TensorState;
use estafette::trace::{Recorder, TraceOptions};
use estafette::wait::Ready;
use estafette::{
    Access, Completion, Engine, Error, ExportOptions, ImportOptions, Lease, ManagedTensor, Op, Tensor,
    Variable,
};
use estafette_sync::process::{self, Generation};
use futures::FutureExt;
use futures::executor::block_on;
use tests::churn::churn;
use tests::foreign::{self, Deleted};
use tests::gate::Gate;
use tests::ops;

/// Far longer than the child needs; it dies if it hangs.
const CHILD_SECONDS: u32 = 60;

/// Forks at moments that chance chooses, each followed by work in the child.
const MANY: usize = 300;

/// The first process.
static OF: OnceLock<Generation> = OnceLock::new();

/// Everything that is there when the process forks.
struct Things {
    engine: Engine,
    deleted: Deleted,
    idle: Tensor,
    alone: Tensor,
    busy: Tensor,
    exported: ManagedTensor,
    lease: Lease,
    /// Handles that end three operations that have begun.
    open: (Gate, Completion, ReadGuard),
    behind: Op,
    polled: ([LeaseRequest; 2], Ready),
    failed: Op,
    var: Variable,
    device: Arc<SimDevice>,
    promise: Fence,
    made: Generation,
}

fn main() -> ExitCode {
    let things = prepare();
    let many = std::env::args().any(|argument| argument == "many");
    // Threads that hold locks of the engine at the moment of the fork are what goes wrong.
    let busy = Arc::new(AtomicBool::new(true));
    let threads = [0, 1].map(|seed| {
        let (engine, busy) = (things.engine.clone(), Arc::clone(&busy));
        std::thread::spawn(move || {
            let deleted = Deleted::default();
            let mut imported = 0;
            while busy.load(Ordering::Relaxed) {
                imported += churn(&engine, 100, seed, &deleted).expect("the engine runs").imported;
            }
            deleted.settle_at(imported);
        })
    });
    if many {
        let engine = &things.engine;
        for round in 0..MANY {
            // The moment differs by what this thread does before.
            churn(engine, round % 7, round as u64, &Deleted::default()).expect("the engine runs");
            assert_eq!(engine.submit_many(|| child(|| work_in_child(&things, round))), 0, "round {round}");
        }
        busy.store(false, Ordering::Relaxed);
        threads.into_iter().for_each(|thread| thread.join().expect("the parent's threads are unaffected"));
        in_parent(things);
        println!("child and parent are well");
        return ExitCode::SUCCESS;
    }
    // SAFETY: the child calls only this program's own code, which is the subject of the test, and exits.
    let child = unsafe { libc::fork() };
    if child < 0 {
        eprintln!("cannot fork");
        return ExitCode::FAILURE;
    }
    if child == 0 {
        // SAFETY: an alarm for a process that has no other.
        unsafe { libc::alarm(CHILD_SECONDS) };
        let in_child = || {
            own_engine(&things);
            in_child(things);
        };
        let code = match std::panic::catch_unwind(std::panic::AssertUnwindSafe(in_child)) {
            Ok(()) => 0,
            Err(_) => 3,
        };
        if std::env::args().any(|argument| argument == "exit") {
            // A forked program that runs on ends like this: the values of its thread are dropped.
            std::process::exit(code);
        }
        // SAFETY: ends the child without running what the parent has registered to run at its exit.
        unsafe { libc::_exit(code) };
    }
    let mut status = 0;
    // SAFETY: waits for the child that was just made.
    let waited = unsafe { libc::waitpid(child, &mut status, 0) };
    assert_eq!(waited, child);
    busy.store(false, Ordering::Relaxed);
    threads.into_iter().for_each(|thread| thread.join().expect("the parent's threads are unaffected"));
    in_parent(things);
    if libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0 {
        println!("child and parent are well");
        return ExitCode::SUCCESS;
    }
    eprintln!("the child ended with status {status:#x}");
    ExitCode::FAILURE
}

fn prepare() -> Things {
    let engine = Engine::builder().workers(2).build().expect("an engine starts");
    let deleted = Deleted::default();
    // SAFETY: fresh tensors that describe their memory truly.
    let import = || unsafe { engine.import(foreign::tensor(&[1.0], &deleted)) }.expect("a good tensor");
    let (idle, busy, other, alone, lent) = (import(), import(), import(), import(), import());
    ops::set(&engine, &idle, 1.0).wait().expect("it runs");
    let exported = idle.export_wait(&ExportOptions::from(Access::Read)).expect("no lease is held");
    let lease = block_on(other.lease(Access::Write, "the parent")).expect("no lease is held");
    let gate = Gate::on_tensors(&engine, std::slice::from_ref(&busy));
    let completion = Gate::on_variable(&engine, &engine.var()).begun();
    let (send, guards) = mpsc::channel();
    let lends = engine.op("lends").reads([&lent]).run_future(|[x], []| async move {
        send.send(x)?;
        Ok(())
    });
    lends.expect("accepted");
    let guard = guards.recv().expect("the body begins");
    let behind = ops::add(&engine, &busy, 1.0);
    let polled = [(); 2].map(|()| {
        let mut request = busy.lease(Access::Read, "the parent");
        assert!((&mut request).now_or_never().is_none(), "the gate is closed");
        request
    });
    let mut ready = busy.ready();
    assert!((&mut ready).now_or_never().is_none(), "the gate is closed");
    let failed = engine.op("fails").run(|[], []| Err("not looked at".into())).expect("accepted");
    OF.get_or_init(Generation::current);
    estafette::operation::on_unretrieved(|failure| {
        // The threads of the parent have failures of their own, and so has the engine of the child.
        if failure.operation() == "fails" && OF.get().is_some_and(|of| of.is_inherited()) {
            eprintln!("reported in the child: {failure}");
        }
    });
    let (var, made) = (engine.var(), Generation::current());
    engine.op("writes").writes_vars(&[&var]).run(|[], []| Ok(())).expect("accepted").wait().expect("it runs");
    let device = SimDevice::new(SimOptions::default()).expect("a simulated device needs nothing");
    let (completer, promise) = host::promise("the parent's");
    // It never settles.
    std::mem::forget(completer);
    Things {
        engine,
        deleted,
        idle,
        alone,
        busy,
        exported,
        lease,
        open: (gate, completion, guard),
        behind,
        polled: (polled, ready),
        failed,
        var,
        device,
        promise,
        made,
    }
}

/// Runs `work` in a forked child, and returns its exit code; 3 for a panic there.
fn child(work: impl FnOnce()) -> i32 {
    // SAFETY: as in `main`; the child leaves by `_exit`.
    unsafe {
        let child = libc::fork();
        assert!(child >= 0, "cannot fork");
        if child == 0 {
            libc::alarm(CHILD_SECONDS);
            let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
            libc::_exit(if done.is_ok() { 0 } else { 3 });
        }
        let mut status = 0;
        assert_eq!(libc::waitpid(child, &mut status, 0), child);
        if libc::WIFEXITED(status) { libc::WEXITSTATUS(status) } else { -libc::WTERMSIG(status) }
    }
}

/// Short work of every kind, and the end of the process with more in flight.
fn work_in_child(things: &Things, round: usize) {
    let own = Engine::builder().workers(round % 3).build().expect("a child has an engine");
    let deleted = Deleted::default();
    let imported = churn(&own, 20, round as u64, &deleted).expect("the engine runs").imported;
    assert_forked("an operation", own.op("mixed").reads([&things.idle]).run(|[_x], []| Ok(())));
    own.wait_all(None).expect("everything ends");
    deleted.settle_at(imported);
    if round.is_multiple_of(2) {
        assert!(own.shutdown_timeout(Duration::from_secs(30)).drained);
    } else {
        let x = ops::tensor(&own, 0.0);
        (0..100).for_each(|_| drop(ops::add(&own, &x, 1.0)));
    }
}

/// An engine that is made in the child works completely, and knows what is not of its process.
fn own_engine(things: &Things) {
    let recorder = Recorder::open(TraceOptions::default()).expect("a child records for itself");
    let options = SimOptions { pace: SimPace::Immediate, ..SimOptions::default() };
    let device = SimDevice::new(options).expect("a device of the child's own");
    let own = Engine::builder().workers(2).device(device.clone());
    let own = own.build().expect("a child has an engine of its own");
    let deleted = Deleted::default();
    let imported = churn(&own, 100, 5, &deleted).expect("the engine runs").imported;
    let x = ops::tensor(&own, 1.0);
    let doubled = own.op("future").writes([&x]).run_future(|[], [mut x]| async move {
        tokio::time::sleep(Duration::from_millis(1)).await;
        x.view_mut().as_mut_slice::<f32>()?.fill(2.0);
        Ok(())
    });
    block_on(doubled.expect("accepted")).expect("the child has a runtime");
    assert_eq!(ops::get(&x), 2.0);
    // A lease holds the next write up.
    let exported = x.export_wait(&ExportOptions::from(Access::Read)).expect("no lease is held");
    let write = ops::set(&own, &x, 3.0);
    assert!(ops::waits(&own, &write), "the lease is held");
    drop(exported);
    block_on(x.ready()).expect("the lease has ended");
    assert_eq!(ops::get(&x), 3.0);
    let on_device = own.copy(&x, device.id()).expect("accepted");
    let back = own.copy(&on_device, estafette::devices::DLDevice::CPU).expect("accepted");
    assert_eq!(ops::get(&back), 3.0);
    own.op("fails").run(|[], []| Err("not well".into())).expect("accepted").wait().expect_err("it fails");

    // Handles of two processes meet here.
    let Things { idle, var, promise, .. } = things;
    assert_forked("a read", own.op("mixed").reads([&x, idle]).run(|[_x, _y], []| Ok(())));
    assert_forked("a write", own.op("mixed").writes([idle]).run_detached(|[], [_x]| Ok(())));
    assert_forked("a variable", own.op("mixed").writes_vars(&[var]).run(|[], []| Ok(())));
    let both = [(x.clone(), Access::Read), (idle.clone(), Access::Read)];
    assert_forked("two leases", own.lease_all(&both, "mixed").wait(None));
    assert_forked("a copy", own.copy(idle, device.id()));
    assert_forked("a device", Engine::builder().device(things.device.clone()).build());

    // A fork of the fork.
    let of_child = child(|| {
        assert_forked("the child's engine", own.op("child of the child").run(|[], []| Ok(())));
        assert_forked("the child's tensor", x.wait());
        work_in_child(things, 1);
    });
    assert_eq!(of_child, 0);
    drop((x, back, on_device, write));
    deleted.settle_at(imported);
    let options = ImportOptions { ready: promise.clone().into(), ..ImportOptions::default() };
    let never = Deleted::default();
    // SAFETY: a fresh tensor that describes its memory truly.
    let late = unsafe { own.import_with(foreign::tensor(&[1.0], &never), options) }.expect("accepted");
    let error = late.wait().expect_err("its fence settles in the parent").to_string();
    assert!(error.contains("forked child"), "{error}");
    drop(late);
    assert_eq!(never.count(), 0, "what settles in another process may be in use for ever");
    assert!(own.shutdown_timeout(Duration::from_secs(30)).drained);
    let names = format!("{:?}", recorder.finish());
    assert!(names.contains("future"), "the child's operations are in its trace: {names}");
}

fn assert_forked<T: std::fmt::Debug>(what: &str, result: Result<T, Error>) {
    assert!(matches!(result, Err(Error::Forked)), "{what} in the child: {result:?}");
}

fn in_child(things: Things) {
    let Things { engine, deleted, idle, alone, busy, exported, lease, behind, polled, .. } = things;
    let Things { open: (gate, completion, guard), failed, var, made, .. } = things;
    assert!(made.is_inherited());
    assert_forked("an operation", engine.op("child").reads([&idle]).run(|[_x], []| Ok(())));
    assert_forked("a refusing operation", engine.op("child").without_waiting().run(|[], []| Ok(())));
    assert_forked(
        "a produced tensor",
        engine.op("child").produce(|[]| Ok(foreign::tensor(&[1.0], &Deleted::default()))),
    );
    assert_forked("a new tensor", engine.from_vec(vec![1.0_f32], &[1]));
    assert_forked("an export", idle.export_wait(&ExportOptions::from(Access::Read)));
    assert_forked("an asynchronous export", block_on(idle.export(Access::Write)));
    assert_forked("a lease", engine.lease_all(&[(idle.clone(), Access::Read)], "the child").wait(None));
    assert_forked("a wait", busy.wait());
    assert_forked("a wait for an operation", behind.wait_timeout(Some(Duration::from_secs(1))));
    assert_forked("an await", busy.ready().now_or_never().unwrap_or(Ok(())));
    assert_forked("a wait for everything", engine.wait_all(Some(Duration::from_secs(1))));
    let state = busy.state();
    assert!(matches!(state, TensorState::Failed(Error::Forked)), "{state:?}");
    assert!(busy.is_ready(), "a wait returns at once");
    assert_forked("a cleared error", busy.clear_error());
    assert_eq!((idle.version(), var.version()), (0, 0), "their locks are the parent's");
    assert_forked("the end of all uses", busy.writable().now_or_never().unwrap_or(Ok(())));
    let ([awaited, waited], ready) = polled;
    assert_forked("an await that the parent began", awaited.now_or_never().expect("it ends at once"));
    assert_forked("such an await of a tensor", ready.now_or_never().expect("it ends at once"));
    assert_forked("a wait for what the parent polled", waited.wait(Some(Duration::from_secs(1))));
    let report = engine.shutdown().now_or_never().expect("a child waits for nothing");
    assert!(!report.drained);
    assert!(!engine.shutdown_timeout(Duration::from_secs(1)).drained);
    // More descriptions of operations than the thread keeps blocks for.
    let builders: Vec<_> = (0..1000).map(|_| engine.op("child")).collect();
    drop(builders);
    drop(engine.var());
    // A foreign tensor that is refused leaks: who knows what its deleter would need.
    let refused = Deleted::default();
    // SAFETY: a fresh tensor that describes its memory truly.
    assert_forked("an import", unsafe { engine.import(foreign::tensor(&[1.0], &refused)) });
    // Everything that is dropped leaks, quietly and counted, and without touching a lock.
    let before = process::leaked();
    drop(exported);
    assert_eq!(process::leaked(), before + 1, "the export is counted");
    let before = engine.stats().leaked;
    drop(alone);
    assert_eq!(engine.stats().leaked, before + 1, "the tensor is counted");
    // The operation ends in the parent.
    let in_flight = engine.stats().in_flight;
    assert_eq!(bindings::scope::name(completion.scope()), None);
    assert_forked("an operand", completion.scope().export(&busy, &ExportOptions::from(Access::Read)));
    completion.complete(Ok(()));
    drop((gate, guard));
    assert_eq!(engine.stats().in_flight, in_flight);
    // A failure that nothing has looked at is the parent's to report.
    assert_eq!(engine.unretrieved().count(), 0);
    drop((lease, behind, failed, idle, busy, engine));
    assert_eq!(deleted.count(), 0, "deleters belong to the parent");
}

fn in_parent(things: Things) {
    let Things { engine, deleted, idle, alone, busy, exported, lease, behind, polled, .. } = things;
    let Things { open: (gate, completion, guard), failed, var, made, .. } = things;
    assert!(made.is_current());
    assert_eq!(process::leaked(), 0);
    assert_eq!((idle.version(), var.version()), (1, 1));
    drop(polled);
    completion.complete(Ok(()));
    drop(guard);
    gate.open();
    behind.wait().expect("the parent's work goes on");
    failed.wait().expect_err("its body fails");
    assert_eq!(ops::get(&busy), 2.0);
    let write = ops::set(&engine, &idle, 5.0);
    assert!(ops::waits(&engine, &write), "the parent's lease is still held");
    drop(exported);
    write.wait().expect("the parent's lease has ended");
    drop((lease, write, behind, idle, alone, busy));
    engine.wait_all(Some(Duration::from_secs(30))).expect("everything ends");
    deleted.settle_at(5);
}
