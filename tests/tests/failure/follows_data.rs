//! Guarantees about failure: a failure follows the data, with its root cause, and an overwrite heals it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;

use estafette::tensor::TensorState;
use estafette::{Access, Error, ExportOptions, FailureKind, Produced};
use futures::executor::block_on;
use tests::foreign::{self, Deleted};
use tests::gate::Gate;
use tests::ops::{add, engine, fail, get, read, set, tensor, until};
use tests::watchdog::Watchdog;

fn assert_caused_by(error: &Error, operation: &str, message: &str) {
    let cause = error.operation().unwrap_or_else(|| panic!("no operation is named: {error:?}"));
    assert_eq!((cause.operation(), cause.message()), (operation, message), "{error}");
    assert!(error.to_string().contains(operation) && error.to_string().contains(message), "{error}");
}

#[test]
fn failure_follows_data_with_the_root_cause_as_often_as_asked() {
    for workers in [0, 1, 3] {
        let engine = engine(workers);
        let watchdog = Watchdog::of(&engine);
        let (x, y, bystander) = (tensor(&engine, 1.0), tensor(&engine, 1.0), tensor(&engine, 1.0));
        let root = fail(&engine, &x, "the root");
        let copied =
            engine.op("copy").reads([&x]).writes([&y]).run(|[_x], [_y]| panic!("never runs")).unwrap();
        let made =
            engine.op("make").reads([&y]).produce(|[_y]| -> Result<Produced, _> { panic!("never runs") });
        let made = made.unwrap();
        let beside = add(&engine, &bystander, 1.0);
        for _ in 0..3 {
            for error in [
                root.wait().unwrap_err(),
                copied.wait().unwrap_err(),
                x.wait().unwrap_err(),
                y.wait().unwrap_err(),
                block_on(y.ready()).unwrap_err(),
                made.wait().unwrap_err(),
                block_on(made.export(Access::Read)).unwrap_err(),
                y.export_wait(&ExportOptions::from(Access::Write)).unwrap_err(),
                y.to_vec::<f32>().unwrap_err(),
            ] {
                assert_caused_by(&error, "fail", "the root");
                assert_eq!(error.operation().unwrap().id(), root.id());
                assert_eq!(error.operation().unwrap().kind(), FailureKind::Error);
            }
            assert!(
                matches!(y.state(), TensorState::Failed(error) if error.operation().unwrap().id() == root.id())
            );
        }
        beside.wait().unwrap();
        assert_eq!(get(&bystander), 2.0);
        engine.wait_all(None).unwrap();
        assert!(watchdog.still_watches());
    }
}

#[test]
fn the_bodys_own_error_is_the_source() {
    #[derive(Debug, thiserror::Error)]
    #[error("number {0} is unlucky")]
    struct Unlucky(u32);
    let engine = engine(1);
    let watchdog = Watchdog::of(&engine);
    let x = tensor(&engine, 1.0);
    engine.op("typed").writes([&x]).run(|[], [_x]| Err(Unlucky(13).into())).unwrap();
    let error = x.wait().unwrap_err();
    let source = std::error::Error::source(error.operation().unwrap()).unwrap();
    assert_eq!(source.downcast_ref::<Unlucky>().unwrap().0, 13);
    assert_caused_by(&error, "typed", "number 13 is unlucky");
    assert!(watchdog.still_watches());
}

#[test]
fn panics_are_caught_whatever_they_carry() {
    let engine = engine(1);
    let watchdog = Watchdog::of(&engine);
    let x = tensor(&engine, 1.0);
    engine.op("text").writes([&x]).run(|[], [_x]| panic!("static text")).unwrap();
    assert_caused_by(&x.wait().unwrap_err(), "text", "static text");
    engine.op("format").writes([&x]).run(|[], [_x]| panic!("{}", 1 + 1)).unwrap();
    assert_caused_by(&x.wait().unwrap_err(), "format", "2");
    engine.op("payload").writes([&x]).run(|[], [_x]| std::panic::panic_any(7_u8)).unwrap();
    let error = x.wait().unwrap_err();
    assert_eq!(error.operation().unwrap().kind(), FailureKind::Panic);
    engine.op("external").writes([&x]).run_external(|_completion| panic!("in the start")).unwrap();
    let error = x.wait().unwrap_err();
    assert_eq!(error.operation().unwrap().operation(), "external");
    // The worker still runs operations.
    set(&engine, &x, 2.0).wait().unwrap();
    assert_eq!(get(&x), 2.0);
    assert!(watchdog.still_watches());
}

/// Panics when dropped.
struct Grenade;

impl Drop for Grenade {
    fn drop(&mut self) {
        panic!("dropped a grenade");
    }
}

#[test]
fn a_panic_while_a_body_or_its_panic_is_dropped_harms_nobody() {
    let engine = engine(1);
    let watchdog = Watchdog::of(&engine);
    let x = tensor(&engine, 1.0);
    // In what a skipped body has captured.
    fail(&engine, &x, "the root");
    let grenade = Grenade;
    let skipped = engine.op("skipped").updates([&x]).run(move |[], [], [_x]| {
        let _kept = &grenade;
        Ok(())
    });
    assert_caused_by(&skipped.unwrap().wait().unwrap_err(), "fail", "the root");
    // In what a body has captured that ran.
    let grenade = Grenade;
    let ran = engine.op("ran").writes([&x]).run(move |[], [_x]| {
        let _kept = &grenade;
        Ok(())
    });
    assert_eq!(ran.unwrap().wait().unwrap_err().operation().unwrap().kind(), FailureKind::Panic);
    // In the payload of a panic.
    let payload = engine.op("payload").writes([&x]).run(|[], [_x]| std::panic::panic_any(Grenade));
    assert!(payload.unwrap().wait().is_err());
    set(&engine, &x, 2.0).wait().unwrap();
    assert_eq!(get(&x), 2.0);
    engine.wait_all(None).unwrap();
    assert!(watchdog.still_watches());
}

#[test]
fn a_dropped_completion_fails_the_operation() {
    let engine = engine(1);
    let watchdog = Watchdog::of(&engine);
    let x = tensor(&engine, 1.0);
    let gate = Gate::on_tensors(&engine, std::slice::from_ref(&x));
    let behind = read(&engine, &x);
    drop(gate.begun());
    assert_caused_by(&behind.wait().unwrap_err(), "gate", "its completion was dropped without being used");
    let made = engine.op("made").produce_external(drop).unwrap();
    assert_caused_by(&made.wait().unwrap_err(), "made", "its completion was dropped without being used");
    // An operation that promised a tensor and brings none, and the other way round.
    let none = engine.op("none").produce_external(|completion| completion.complete(Ok(()))).unwrap();
    assert_eq!(none.wait().unwrap_err().operation().unwrap().kind(), FailureKind::Result);
    let some = engine.op("some").writes([&x]).run_external(|completion| {
        completion.produce(Ok(Produced::from_vec(vec![1.0_f32], &[1]).expect("one element")));
    });
    assert_eq!(some.unwrap().wait().unwrap_err().operation().unwrap().kind(), FailureKind::Result);
    assert!(watchdog.still_watches());
}

#[test]
fn a_later_pure_write_starts_a_clean_version_and_an_update_does_not() {
    let engine = engine(2);
    let watchdog = Watchdog::of(&engine);
    let x = tensor(&engine, 1.0);
    fail(&engine, &x, "the root");
    let update = add(&engine, &x, 1.0);
    let between = read(&engine, &x);
    let write = set(&engine, &x, 5.0);
    let after = add(&engine, &x, 1.0);
    assert_caused_by(&update.wait().unwrap_err(), "fail", "the root");
    assert_caused_by(&between.wait().unwrap_err(), "fail", "the root");
    write.wait().unwrap();
    after.wait().unwrap();
    assert_eq!(get(&x), 6.0);
    assert!(watchdog.still_watches());
}

#[test]
fn dropping_a_future_cancels_the_waiting_and_not_the_work() {
    for workers in [0, 1] {
        let engine = engine(workers);
        let watchdog = Watchdog::of(&engine);
        let x = tensor(&engine, 1.0);
        let ran = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&ran);
        let op = engine.op("counts").updates([&x]).run(move |[], [], [_x]| {
            counted.fetch_add(1, Ordering::SeqCst);
            Ok(())
        });
        drop(x.ready());
        drop(x.writable());
        drop(x.export(Access::Write));
        drop(op.unwrap());
        engine.wait_all(None).unwrap();
        assert_eq!(ran.load(Ordering::SeqCst), 1);
        until("what was given up leaves", || engine.diagnose().is_idle());
        assert!(watchdog.still_watches());
    }
}

#[test]
fn deleters_run_after_failures_cancels_and_skips_too() {
    let engine = engine(2);
    let watchdog = Watchdog::of(&engine);
    let deleted = Deleted::default();
    let variable = engine.var();
    let shut = Gate::on_variable(&engine, &variable);
    for round in 0..100 {
        // SAFETY: a fresh tensor that describes its own memory.
        let x = unsafe { engine.import(foreign::tensor(&[1.0], &deleted)) }.unwrap();
        let op =
            engine.op("fate").reads_vars(&[&variable]).updates([&x]).run(move |[], [], [_x]| {
                match round % 3 {
                    0 => Err("an error".into()),
                    1 => panic!("a panic"),
                    _ => Ok(()),
                }
            });
        add(&engine, &x, 1.0);
        if round % 4 == 0 {
            assert!(op.unwrap().cancel());
        }
    }
    shut.open();
    engine.wait_all(None).unwrap();
    deleted.settle_at(100);
    assert!(watchdog.still_watches());
}

#[test]
fn a_failed_operation_is_reported_once_it_is_out_of_the_way() {
    let engine = engine(1);
    let watchdog = Watchdog::of(&engine);
    let x = tensor(&engine, 1.0);
    let (go, wait) = channel::<()>();
    let op = engine.op("fails").writes([&x]).run(move |[], [_x]| {
        wait.recv()?;
        Err("soon".into())
    });
    let mut op = op.unwrap();
    assert!(futures::FutureExt::now_or_never(&mut op).is_none());
    go.send(()).unwrap();
    assert_caused_by(&block_on(&mut op).unwrap_err(), "fails", "soon");
    // Code that sees the end also sees the state that the operation left.
    assert!(matches!(x.state(), TensorState::Failed(_)));
    assert!(op.is_done());
    assert!(watchdog.still_watches());
}
