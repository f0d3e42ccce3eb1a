//! Operations without a handle.

use std::time::Duration;

use estafette::{Access, Engine, Error, FailureKind};
use tests::ops::{engine, get, tensor};
use tests::watchdog::Watchdog;

/// An operation that sets `x` to `value`, or fails.
fn set(engine: &Engine, x: &estafette::Tensor, value: Result<f32, &'static str>) -> Result<(), Error> {
    engine.op("set").writes([x]).run_detached(move |[], [mut x]| {
        x.as_mut_slice::<f32>()?.fill(value?);
        Ok(())
    })
}

#[test]
fn they_keep_their_order_and_their_failures_go_with_the_data() {
    for workers in [0, 2] {
        let engine = engine(workers);
        let watchdog = Watchdog::of(&engine);
        let x = tensor(&engine, 0.0);
        for value in 0..200 {
            set(&engine, &x, Ok(value as f32)).unwrap();
        }
        assert_eq!(get(&x), 199.0);
        set(&engine, &x, Err("out of numbers")).unwrap();
        assert!(x.wait().unwrap_err().to_string().contains("out of numbers"));
        set(&engine, &x, Ok(1.0)).unwrap();
        assert_eq!(get(&x), 1.0);
        assert!(watchdog.still_watches());
    }
}

#[test]
fn a_shutdown_with_a_deadline_cancels_them_too() {
    let engine = engine(1);
    let watchdog = Watchdog::of(&engine);
    let x = tensor(&engine, 1.0);
    let lease = futures::executor::block_on(x.export(Access::Read)).unwrap();
    set(&engine, &x, Ok(2.0)).unwrap();
    let report = engine.shutdown_timeout(Duration::from_millis(20));
    assert_eq!(report.cancelled, ["set"], "{report:?}");
    drop(lease);
    let error = x.wait().unwrap_err();
    assert!(matches!(&error, Error::Cancelled(cause) if cause.kind() == FailureKind::Cancelled), "{error:?}");
    assert!(watchdog.still_watches());
}

#[test]
fn a_refused_one_drops_its_body() {
    let engine = engine(1);
    let x = tensor(&engine, 0.0);
    assert!(engine.shutdown_timeout(Duration::from_secs(10)).drained);
    let held = std::sync::Arc::new(());
    let body = std::sync::Arc::clone(&held);
    let refused = engine.op("late").writes([&x]).run_detached(move |[], [_x]| {
        drop(body);
        Ok(())
    });
    assert!(matches!(refused, Err(Error::Shutdown)), "{refused:?}");
    assert_eq!(std::sync::Arc::strong_count(&held), 1);
}
