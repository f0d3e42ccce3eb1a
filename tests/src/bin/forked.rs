//! Forks in the middle of things, and reports what the child and the parent then see. A program of its own,
//! since a child of the test harness could do nothing with its threads.

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use estafette::{Access, Engine, Error, ExportOptions, Lease, ManagedTensor, Op, Tensor};
use estafette_sync::process;
use futures::FutureExt;
use futures::executor::block_on;
use tests::churn::churn;
use tests::foreign::{self, Deleted};
use tests::gate::Gate;
use tests::ops;

/// Far longer than the child needs; it dies if it hangs.
const CHILD_SECONDS: u32 = 20;

/// Everything that is there when the process forks.
struct Things {
    engine: Engine,
    deleted: Deleted,
    idle: Tensor,
    alone: Tensor,
    busy: Tensor,
    exported: ManagedTensor,
    lease: Lease,
    gate: Gate,
    behind: Op,
    failed: Op,
}

fn main() -> ExitCode {
    let things = prepare();
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
    // SAFETY: the child calls only this program's own code, which is the subject of the test, and exits.
    let child = unsafe { libc::fork() };
    if child < 0 {
        eprintln!("cannot fork");
        return ExitCode::FAILURE;
    }
    if child == 0 {
        // SAFETY: an alarm for a process that has no other.
        unsafe { libc::alarm(CHILD_SECONDS) };
        let code = match std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| in_child(things))) {
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
    let (idle, busy, other, alone) = (import(), import(), import(), import());
    let exported = idle.export_wait(&ExportOptions::new(Access::Read)).expect("nobody holds it");
    let lease = block_on(other.lease(Access::Write, "the parent")).expect("nobody holds it");
    let gate = Gate::on_tensors(&engine, std::slice::from_ref(&busy));
    let behind = ops::add(&engine, &busy, 1.0);
    let failed = engine.op("fails").run(|[], []| Err("not looked at".into())).expect("accepted");
    estafette::operation::on_unretrieved(|failure| {
        // The threads of the parent have failures of their own.
        if process::is_forked() {
            eprintln!("reported in the child: {failure}");
        }
    });
    Things { engine, deleted, idle, alone, busy, exported, lease, gate, behind, failed }
}

fn assert_forked<T: std::fmt::Debug>(what: &str, result: Result<T, Error>) {
    assert!(matches!(result, Err(Error::Forked)), "{what} in the child: {result:?}");
}

fn in_child(things: Things) {
    let Things { engine, deleted, idle, alone, busy, exported, lease, gate, behind, failed } = things;
    assert!(process::is_forked());
    assert_forked("an operation", engine.op("child").reads([&idle]).run(|[_x], []| Ok(())));
    assert_forked("a refusing operation", engine.op("child").without_waiting().run(|[], []| Ok(())));
    assert_forked(
        "a produced tensor",
        engine.op("child").produce(|[]| Ok(foreign::tensor(&[1.0], &Deleted::default()))),
    );
    assert_forked("a new tensor", engine.from_vec(vec![1.0_f32], &[1]));
    assert_forked("an export", idle.export_wait(&ExportOptions::new(Access::Read)));
    assert_forked("an asynchronous export", block_on(idle.export(Access::Write)));
    assert_forked("a lease", engine.lease_all(&[(idle.clone(), Access::Read)], "the child").wait(None));
    assert_forked("a wait", busy.wait());
    assert_forked("a wait for an operation", behind.wait_timeout(Some(Duration::from_secs(1))));
    assert_forked("an await", busy.ready().now_or_never().unwrap_or(Ok(())));
    assert_forked("a wait for everything", engine.wait_all(Some(Duration::from_secs(1))));
    assert_forked("an engine", Engine::builder().workers(1).build());
    // More descriptions of operations than the thread keeps blocks for.
    let drafts: Vec<_> = (0..1000).map(|_| engine.op("child")).collect();
    drop(drafts);
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
    // A failure that nothing has looked at is the parent's to report.
    assert!(engine.unretrieved().is_empty());
    drop((lease, gate, behind, failed, idle, busy, engine));
    assert_eq!(deleted.count(), 0, "deleters belong to the parent");
}

fn in_parent(things: Things) {
    let Things { engine, deleted, idle, alone, busy, exported, lease, gate, behind, failed } = things;
    assert!(!process::is_forked());
    assert_eq!(process::leaked(), 0);
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
    deleted.settle_at(4);
}
