//! A program that knows nothing of traces: tests run it with `ESTAFETTE_TRACE`. Its argument says how it
//! ends.
#![allow(clippy::unwrap_used, reason = "in a test, an unwrap is an assertion")]

use std::io::Read;
use std::time::Duration;

use estafette::Engine;

fn work(engine: &Engine, name: &'static str) {
    let x = engine.var();
    for _ in 0..10 {
        engine.op(name).writes_vars(&[&x]).run(|[], []| Ok(())).unwrap();
    }
    engine.wait_all(None).unwrap();
}

fn wait_for_input() {
    println!("ready");
    std::io::stdin().read_exact(&mut [0]).unwrap();
}

fn main() {
    let how = std::env::args().nth(1).unwrap();
    let [first, second] = ["first", "second"].map(|name| {
        let engine = Engine::builder().workers(1).build().unwrap();
        work(&engine, name);
        engine
    });
    match how.as_str() {
        "returns" => {}
        "exits in a body" => {
            let _ = second.op("leaves").run(|[], []| std::process::exit(0)).unwrap().wait();
        }
        "is shut down and aborts" => {
            assert!(first.shutdown_timeout(Duration::from_secs(60)).drained);
            std::process::abort();
        }
        "forks" => {
            // SAFETY: the child only exits, by way of the handlers of its exit.
            let child = unsafe { libc::fork() };
            if child == 0 {
                std::process::exit(0);
            }
            let mut status = 0;
            // SAFETY: `status` may be written.
            assert_eq!((unsafe { libc::waitpid(child, &raw mut status, 0) }, status), (child, 0));
            work(&second, "after the fork");
        }
        "works until it is killed" => {
            println!("ready");
            loop {
                work(&first, "last");
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        "waits for input" => wait_for_input(),
        "stalls" => {
            let x = first.var();
            let (go, gone) = std::sync::mpsc::channel::<()>();
            let (begins, began) = std::sync::mpsc::channel::<()>();
            let slow = first.op("slow").writes_vars(&[&x]).run(move |[], []| {
                begins.send(())?;
                Ok(gone.recv()?)
            });
            drop(slow.unwrap());
            // Only what waits for good can stall here.
            let watched = Engine::builder().workers(1).watchdog(Duration::from_millis(50)).build().unwrap();
            began.recv().unwrap();
            let late = watched.op("late").reads_vars(&[&x]).run(|[], []| Ok(())).unwrap();
            wait_for_input();
            go.send(()).unwrap();
            late.wait().unwrap();
        }
        other => panic!("{other:?} is no way to end"),
    }
}
