//! Hard case H39: owned guards, and slices of operands.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;

use estafette::operation::{ReadGuard, WriteGuard};
use estafette::{Error, FailureKind, Produced, Tensor};
use tests::ops::{add, engine, get, read, set, tensor, waits};
use tests::watchdog::Watchdog;

#[test]
fn asynchronous_bodies_get_owned_guards_that_may_go_anywhere() {
    fn anywhere<T: Send + 'static>(_: &T) {}
    let engine = engine(1);
    let watchdog = Watchdog::of(&engine);
    let (x, y) = (tensor(&engine, 3.0), tensor(&engine, 0.0));
    let op = engine.op("far").reads([&x]).writes([&y]).run_future(|[x], [mut y]| async move {
        anywhere::<ReadGuard>(&x);
        anywhere::<WriteGuard>(&y);
        let value = tokio::task::spawn_blocking(move || x.view().as_slice::<f32>().map(|x| x[0])).await??;
        y.view_mut().as_mut_slice::<f32>()?.fill(value * 2.0);
        Ok(())
    });
    op.unwrap().wait().unwrap();
    assert_eq!(get(&y), 6.0);
    assert!(watchdog.still_watches());
}

#[test]
fn the_access_ends_when_the_body_and_the_last_guard_have_ended() {
    let engine = engine(1);
    let watchdog = Watchdog::of(&engine);
    let (x, y) = (tensor(&engine, 1.0), tensor(&engine, 1.0));
    let (give, take) = channel();
    let op = engine.op("keeps").reads([&x]).writes([&y]).run_future(move |[x], [y]| async move {
        give.send((x, y))?;
        Ok(())
    });
    let op = op.unwrap();
    let (read_guard, mut write) = take.recv().unwrap();
    let (behind_x, behind_y) = (set(&engine, &x, 2.0), read(&engine, &y));
    assert!(waits(&engine, &behind_x) && waits(&engine, &behind_y), "{}", engine.diagnose());
    assert_eq!(read_guard.view().as_slice::<f32>().unwrap(), [1.0]);
    write.view_mut().as_mut_slice::<f32>().unwrap().fill(9.0);
    drop(write);
    // One guard holds the whole operation open.
    assert!(waits(&engine, &behind_y) && !op.is_done(), "{}", engine.diagnose());
    drop(read_guard);
    op.wait().unwrap();
    behind_x.wait().unwrap();
    behind_y.wait().unwrap();
    assert_eq!((get(&x), get(&y)), (2.0, 9.0));
    assert!(watchdog.still_watches());
}

#[test]
fn the_body_holds_the_access_when_its_guards_are_gone() {
    let engine = engine(1);
    let watchdog = Watchdog::of(&engine);
    let x = tensor(&engine, 1.0);
    let (go, wait) = tokio::sync::oneshot::channel::<()>();
    let (said, heard) = channel();
    let op = engine.op("early").writes([&x]).run_future(move |[], [x]| async move {
        drop(x);
        said.send(())?;
        Ok(wait.await?)
    });
    heard.recv().unwrap();
    let behind = add(&engine, &x, 1.0);
    assert!(waits(&engine, &behind), "{}", engine.diagnose());
    go.send(()).unwrap();
    behind.wait().unwrap();
    op.unwrap().wait().unwrap();
    assert!(watchdog.still_watches());
}

#[test]
fn the_outcome_is_the_bodys_even_if_a_guard_outlives_it() {
    let engine = engine(1);
    let watchdog = Watchdog::of(&engine);
    let x = tensor(&engine, 1.0);
    let (give, take) = channel();
    let op = engine.op("fails").writes([&x]).run_future(move |[], [x]| async move {
        give.send(x)?;
        Err("after the guard left".into())
    });
    let guard = take.recv().unwrap();
    drop(guard);
    let error = op.unwrap().wait().unwrap_err();
    assert!(error.to_string().contains("after the guard left"), "{error}");
    assert!(watchdog.still_watches());
}

#[test]
fn a_panic_in_an_asynchronous_body_is_caught_before_and_after_its_first_await() {
    let engine = engine(1);
    let watchdog = Watchdog::of(&engine);
    let x = tensor(&engine, 1.0);
    let early = engine.op("early").writes([&x]).run_future(|[], [_x]| {
        if true {
            panic!("before there is a future");
        }
        async { Ok(()) }
    });
    let late = engine.op("late").writes([&x]).run_future(|[], [_x]| async {
        tokio::task::yield_now().await;
        panic!("in the future")
    });
    for (op, text) in [(early, "before there is a future"), (late, "in the future")] {
        let error = op.unwrap().wait().unwrap_err();
        assert_eq!(error.operation().unwrap().kind(), FailureKind::Panic, "{error:?}");
        assert!(error.to_string().contains(text), "{error}");
    }
    set(&engine, &x, 4.0).wait().unwrap();
    assert_eq!(get(&x), 4.0);
    assert!(watchdog.still_watches());
}

#[test]
fn a_produced_tensor_is_defined_when_the_body_ends_although_a_guard_lives_on() {
    let engine = engine(1);
    let watchdog = Watchdog::of(&engine);
    let x = tensor(&engine, 1.0);
    let (give, take) = channel();
    let y = engine.op("makes").reads([&x]).produce_future(move |[x]| async move {
        let made = Produced::from_vec(vec![x.view().as_slice::<f32>()?[0] + 1.0], &[1])?;
        give.send(x)?;
        Ok(made)
    });
    let y = y.unwrap();
    let guard = take.recv().unwrap();
    assert!(!y.is_ready());
    drop(guard);
    assert_eq!(get(&y), 2.0);
    assert!(watchdog.still_watches());
}

#[test]
fn slices_of_operands_come_in_order_and_may_repeat_what_is_read() {
    let engine = engine(2);
    let watchdog = Watchdog::of(&engine);
    let inputs: Vec<Tensor> = (0..19).map(|value| tensor(&engine, value as f32)).collect();
    let reads: Vec<Tensor> = inputs.iter().chain(&inputs[..3]).cloned().collect();
    let outputs: Vec<Tensor> = (0..3).map(|_| tensor(&engine, 0.0)).collect();
    let op = engine.op("many").reads(&reads).writes(&outputs).run(|reads, mut writes| {
        let values: Vec<f32> =
            reads.iter().map(|read| Ok(read.as_slice::<f32>()?[0])).collect::<Result<_, Error>>()?;
        assert_eq!((values.len(), values[18], values[21]), (22, 18.0, 2.0));
        for (at, write) in writes.iter_mut().enumerate() {
            write.as_mut_slice::<f32>()?.fill(values[at * 5]);
        }
        Ok(())
    });
    op.unwrap().wait().unwrap();
    assert_eq!(outputs.iter().map(get).collect::<Vec<_>>(), [0.0, 5.0, 10.0]);
    // An operation without operands is legal.
    engine.op("none").reads(&[][..]).writes(&[][..]).run(|_, _| Ok(())).unwrap().wait().unwrap();
    assert!(watchdog.still_watches());
}

#[test]
fn a_blocking_wait_in_an_asynchronous_body_does_not_starve_other_asynchronous_bodies() {
    let engine = engine(1);
    let watchdog = Watchdog::of(&engine);
    let (x, ran) = (tensor(&engine, 1.0), Arc::new(AtomicBool::new(false)));
    let (inner, flag) = (engine.clone(), Arc::clone(&ran));
    let op = engine.op("blocks").run_future(move |[], []| async move {
        // Awaiting would be better; but the thread is the engine's, so the engine must not starve.
        let y = inner.op("other").reads([&x]).produce_future(move |[x]| async move {
            flag.store(true, Ordering::SeqCst);
            Ok(Produced::from_vec(x.view().as_slice::<f32>()?.to_vec(), &[1])?)
        })?;
        Ok(y.wait()?)
    });
    op.unwrap().wait().unwrap();
    assert!(ran.load(Ordering::SeqCst));
    assert!(watchdog.still_watches());
}
