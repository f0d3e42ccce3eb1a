//! Tokio runtimes whose threads block in the engine.

use std::sync::mpsc::channel;

use estafette::Engine;
use futures::channel::oneshot;
use tests::gate::Gate;
use tests::nothing_left::assert_nothing_left;
use tests::watchdog::Watchdog;

fn one_worker() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(1).build().unwrap()
}

#[test]
fn a_submission_that_blocks_a_task_holds_up_no_other_task() {
    let (runtime, engine) = (one_worker(), Engine::builder().workers(1).in_flight_limit(1).build().unwrap());
    let watchdog = Watchdog::of(&engine);
    let gate = Gate::on_variable(&engine, &engine.var());
    let own = engine.clone();
    let (begun, begins) = oneshot::channel();
    let blocks = runtime.spawn(async move {
        begun.send(()).unwrap();
        own.op("blocks").run(|[], []| Ok(()))?.await
    });
    runtime.block_on(async {
        tokio::spawn(async move {
            begins.await.unwrap();
            gate.open();
        })
        .await
        .unwrap();
        blocks.await.unwrap().unwrap();
    });
    assert_nothing_left(&[&engine]);
    assert!(watchdog.still_watches());
}

#[test]
fn a_submission_that_blocks_a_task_of_a_body_does_not_hold_up_the_body() {
    let runtime = one_worker();
    let engine =
        Engine::builder().workers(1).in_flight_limit(1).tokio(runtime.handle().clone()).build().unwrap();
    let watchdog = Watchdog::of(&engine);
    let own = engine.clone();
    let (begun, begins) = oneshot::channel();
    let (give, given) = channel();
    let body = engine.op("body").run_future(move |[], []| async move {
        let task = tokio::spawn(async move {
            begun.send(()).unwrap();
            // Outside of the body, which takes the one permit.
            own.op("of a task").run(|[], []| Ok(()))
        });
        give.send(task)?;
        Ok(begins.await?)
    });
    body.unwrap().wait().unwrap();
    let task = given.recv().unwrap();
    futures::executor::block_on(task).unwrap().unwrap().wait().unwrap();
    assert_nothing_left(&[&engine]);
    assert!(watchdog.still_watches());
}

#[test]
fn a_task_that_blocks_where_the_runtime_of_another_is_entered_waits() {
    let (entered, engine) = (one_worker(), Engine::builder().workers(1).in_flight_limit(1).build().unwrap());
    let watchdog = Watchdog::of(&engine);
    let gate = Gate::on_variable(&engine, &engine.var());
    let opens = std::thread::spawn(|| gate.open());
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        let _entered = entered.enter();
        engine.op("blocks").run(|[], []| Ok(())).unwrap().wait().unwrap();
    });
    opens.join().unwrap();
    assert_nothing_left(&[&engine]);
    assert!(watchdog.still_watches());
}
