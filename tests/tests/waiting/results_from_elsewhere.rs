//! Results from outside: an operation gets its completion at once, and ends when the result comes.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use estafette::bindings;
use estafette::{Completion, Engine, Error, FailureKind, Produced, Tensor};
use futures::executor::block_on;
use tests::ops::{engine, get, read, set, status, tensor, until};
use tests::watchdog::Watchdog;

/// A tensor whose result is pending, and the completion that delivers it.
fn promised(engine: &Engine) -> (Tensor, Completion) {
    let slot = Arc::new(Mutex::new(None));
    let left = Arc::clone(&slot);
    let tensor = engine.op("promised").receive(move |end| *left.lock().unwrap() = Some(end)).unwrap();
    let end = slot.lock().unwrap().take().expect("it was called before `receive` has returned");
    (tensor, end)
}

fn one(value: f32) -> Produced {
    Produced::from_vec(vec![value], &[1]).unwrap()
}

#[test]
fn the_result_comes_from_any_thread_and_others_chain_on_it() {
    for workers in [0, 1] {
        let engine = engine(workers);
        let watchdog = Watchdog::of(&engine);
        let (x, end) = promised(&engine);
        let chained = engine
            .op("chained")
            .reads([&x])
            .produce(|[x]| Ok(Produced::from_vec(vec![x.as_slice::<f32>()?[0] * 2.0], &[1])?))
            .unwrap();
        assert!(!bindings::tensor::is_defined(&x) && !chained.is_ready());
        std::thread::spawn(move || end.produce(Ok(one(4.0)))).join().unwrap();
        assert!(x.is_ready());
        chained.wait().unwrap();
        assert_eq!(get(&chained), 8.0);
        assert!(watchdog.still_watches());
    }
}

#[test]
fn it_needs_no_worker_to_begin_and_none_to_end() {
    let engine = engine(1);
    let watchdog = Watchdog::of(&engine);
    let (released, wait) = std::sync::mpsc::channel::<()>();
    let busy = engine.op("busy").run(move |[], []| Ok(wait.recv()?)).unwrap();
    let (x, end) = promised(&engine);
    end.produce(Ok(one(1.0)));
    assert!(x.is_ready() && !busy.is_done());
    drop(released);
    let _ = busy.wait();
    assert!(watchdog.still_watches());
}

#[test]
fn what_was_called_off_is_cancelled_with_its_reason_and_so_is_what_depends_on_it() {
    let engine = engine(1);
    let watchdog = Watchdog::of(&engine);
    let (x, end) = promised(&engine);
    let behind = read(&engine, &x);
    end.cancel("it is not wanted any more".into());
    for error in [x.wait().unwrap_err(), behind.wait().unwrap_err()] {
        let Error::Cancelled(failure) = &error else { panic!("{error}") };
        assert_eq!(failure.kind(), FailureKind::Cancelled);
        assert_eq!((failure.operation(), failure.message()), ("promised", "it is not wanted any more"));
        assert!(std::error::Error::source(failure).is_some());
    }
    assert!(watchdog.still_watches());
}

#[test]
fn it_is_in_flight_until_the_result_comes() {
    let engine = Engine::builder().workers(1).in_flight_limit(1).build().unwrap();
    let watchdog = Watchdog::of(&engine);
    let (x, end) = promised(&engine);
    assert_eq!(engine.stats().in_flight, 1);
    assert_eq!(engine.diagnose().operations[0].name, "promised");
    assert!(matches!(
        engine.op("more").without_waiting().run(|[], []| Ok(())),
        Err(Error::InFlightLimit { .. })
    ));
    assert!(matches!(engine.wait_all(Some(Duration::from_millis(5))), Err(Error::Timeout(_))));
    let second = async { engine.op("second").permit().await?.receive(|end| end.produce(Ok(one(2.0)))) };
    std::thread::spawn(move || end.produce(Ok(one(1.0)))).join().unwrap();
    assert_eq!(get(&block_on(second).unwrap()), 2.0);
    assert_eq!(get(&x), 1.0);
    until("the places are free again", || engine.stats().in_flight == 0);
    assert!(watchdog.still_watches());
}

#[test]
fn a_completion_that_is_dropped_and_a_start_that_panics_fail_it() {
    let engine = engine(1);
    let watchdog = Watchdog::of(&engine);
    let dropped = engine.op("dropped").receive(drop).unwrap();
    let panics = engine.op("panics").receive(|_end| panic!("not today")).unwrap();
    assert_eq!(dropped.wait().unwrap_err().operation().unwrap().kind(), FailureKind::Error);
    let failure = panics.wait().unwrap_err();
    assert!(failure.to_string().contains("panic"), "{failure}");
    assert!(watchdog.still_watches());
}

#[test]
fn with_operands_it_begins_when_they_are_ready() {
    let engine = engine(1);
    let watchdog = Watchdog::of(&engine);
    let x = tensor(&engine, 0.0);
    let gate = tests::gate::Gate::on_tensors(&engine, std::slice::from_ref(&x));
    let write = set(&engine, &x, 3.0);
    let late = engine.op("late").reads([&x]).receive(|end| end.produce(Ok(one(1.0)))).unwrap();
    assert!(!late.is_ready() && status(&engine, &write).is_some());
    gate.open();
    assert_eq!(get(&late), 1.0);
    assert_eq!(get(&x), 3.0);
    assert!(watchdog.still_watches());
}
