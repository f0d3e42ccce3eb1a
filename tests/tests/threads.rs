//! Hard case H10: threads never own the engine. A binary of its own, since it counts the threads of the
//! process.
#![allow(clippy::unwrap_used, reason = "in a test, an unwrap is an assertion")]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tests::gate::Gate;
use tests::ops::{engine, tensor, until};
use tests::watchdog::Watchdog;

/// Threads of pools and asynchronous runtimes: all but the process's reactor and reaper, which stay.
fn threads_of_engines() -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").expect("Linux tells the threads of a process");
    let names = tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok());
    let of_process = ["estafette-react", "estafette-reape"];
    names.filter(|name| name.starts_with("estafette") && !of_process.contains(&name.trim())).count()
}

#[test]
fn threads_never_own_the_engine() {
    let watchdog = Watchdog::alone();
    assert_eq!(threads_of_engines(), 0);
    // Dropped idle, by the thread that made it.
    let idle = engine(3);
    tensor(&idle, 1.0).wait().unwrap();
    until("all workers have begun", || threads_of_engines() == 3);
    drop(idle);
    until("idle threads leave", || threads_of_engines() == 0);
    // Dropped with work pending, with blocked workers that have spare ones, and with its own runtime in use.
    let busy = engine(2);
    let x = tensor(&busy, 0.0);
    let gate = Gate::on_tensors(&busy, std::slice::from_ref(&x));
    let ran = Arc::new(AtomicUsize::new(0));
    for _ in 0..2 {
        let (waited, ran) = (x.clone(), Arc::clone(&ran));
        let op = busy.op("blocked").run(move |[], []| {
            waited.wait()?;
            ran.fetch_add(1, Ordering::SeqCst);
            Ok(())
        });
        drop(op.unwrap());
    }
    let counted = Arc::clone(&ran);
    let future = busy.op("asynchronous").updates([&x]).run_future(move |[], [], [_x]| async move {
        tokio::task::yield_now().await;
        counted.fetch_add(1, Ordering::SeqCst);
        Ok(())
    });
    drop((future.unwrap(), busy, x));
    until("the workers have begun", || threads_of_engines() >= 2);
    gate.open();
    until("everything pending has run", || ran.load(Ordering::SeqCst) == 3);
    until("all threads leave", || threads_of_engines() == 0);
    assert!(watchdog.still_watches());
}
