//! Calls in place of a body that is skipped: how collective operations notify the other ranks.

use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

use estafette::devices::{DLDevice, DeviceError, DeviceErrorKind, Fence, Order, Queue, QueueId};
use estafette::operation::OperationError;
use estafette::{Access, DType, Engine, Op};
use estafette_sync::sync::Mutex;
use tests::gate::Gate;
use tests::nothing_left::assert_nothing_left;
use tests::ops::{engine, fail, get, read, set, tensor, until, waits};
use tests::watchdog::Watchdog;

/// Calls, in order.
#[derive(Clone, Default)]
struct Calls(Arc<Mutex<Vec<String>>>);

impl Calls {
    fn note(&self, what: impl Into<String>) {
        self.0.lock().push(what.into());
    }

    fn on_skip(&self, name: &'static str) -> impl FnOnce(&OperationError) + Send + 'static {
        let calls = self.clone();
        move |cause| calls.note(format!("{name} skipped by {}", cause.operation()))
    }

    fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock())
    }
}

/// The operation that fails an output of `engine`, or is cancelled.
fn failure_of(op: &Op) -> String {
    op.wait().unwrap_err().operation().expect("an operation failed").operation().to_owned()
}

#[test]
fn a_failed_input_calls_it_in_the_turn_of_the_operation_and_the_cause_stays() {
    for workers in [0, 2] {
        let engine = engine(workers);
        let watchdog = Watchdog::of(&engine);
        let (calls, communicator) = (Calls::default(), engine.var());
        let x = [0.0, 1.0, 2.0].map(|value| tensor(&engine, value));
        let gate = Gate::on_tensors(&engine, std::slice::from_ref(&x[0]));
        let ops = ["first", "second", "third"].map(|name| {
            let at = ["first", "second", "third"].iter().position(|known| *known == name).unwrap();
            if at == 1 {
                fail(&engine, &x[1], "no number").wait().unwrap_err();
            }
            let noted = calls.clone();
            let op = engine.op(name).updates([&x[at]]).writes_vars(&[&communicator]);
            op.on_skip(calls.on_skip(name)).run(move |[], [], [_]| {
                noted.note(name);
                Ok(())
            })
        });
        let [first, second, third] = ops.map(Result::unwrap);
        assert!(waits(&engine, &second), "its turn is after the first");
        assert_eq!(calls.take(), [""; 0]);
        gate.open();
        first.wait().unwrap();
        third.wait().unwrap();
        assert_eq!(failure_of(&second), "fail");
        assert_eq!(x[1].wait().unwrap_err().operation().unwrap().operation(), "fail");
        assert_eq!(calls.take(), ["first", "second skipped by fail", "third"]);
        drop([first, second, third]);
        assert_nothing_left(&[&engine]);
        assert!(watchdog.still_watches());
    }
}

#[test]
fn a_cancelled_operation_calls_it_in_its_turn_even_if_it_only_reads() {
    for only_reads in [false, true] {
        let engine = engine(1);
        let (calls, x, y) = (Calls::default(), tensor(&engine, 0.0), tensor(&engine, 1.0));
        let gate = Gate::on_tensors(&engine, std::slice::from_ref(&x));
        let op = engine.op("all_reduce").reads([&x]);
        let op = if only_reads {
            op.on_skip(calls.on_skip("all_reduce")).run(|[_], []| Ok(()))
        } else {
            op.writes([&y]).on_skip(calls.on_skip("all_reduce")).run(|[_], [_]| Ok(()))
        };
        let op = op.unwrap();
        assert!(op.cancel());
        assert_eq!(failure_of(&op), "all_reduce");
        assert_eq!(calls.take(), [""; 0], "only reads: {only_reads}");
        let later = set(&engine, &x, 2.0);
        gate.open();
        later.wait().unwrap();
        assert_eq!(y.wait().is_err(), !only_reads);
        until("the turn of the operation has come", || !calls.0.lock().is_empty());
        assert_eq!(calls.take(), ["all_reduce skipped by all_reduce"]);
        drop((op, later));
        assert_nothing_left(&[&engine]);
    }
}

#[test]
fn a_cancelled_input_calls_it_and_waiters_hear_of_it_at_once() {
    let engine = engine(1);
    let (calls, x, y) = (Calls::default(), tensor(&engine, 0.0), tensor(&engine, 1.0));
    let lease = x.lease(Access::Write, "holds all up").try_now().unwrap().unwrap();
    let input = set(&engine, &x, 2.0);
    let op = engine.op("all_reduce").reads([&x]).writes([&y]).on_skip(calls.on_skip("all_reduce"));
    let op = op.run(|[_], [_]| Ok(())).unwrap();
    input.cancel();
    assert_eq!(y.wait().unwrap_err().operation().unwrap().operation(), "set");
    assert_eq!(calls.take(), [""; 0]);
    drop(lease);
    assert_eq!(failure_of(&op), "set");
    assert_eq!(calls.take(), ["all_reduce skipped by set"]);
    drop((op, input));
    assert_nothing_left(&[&engine]);
}

#[test]
fn an_operation_that_runs_drops_it_before_the_body() {
    let engine = engine(1);
    let held = Arc::new(());
    let (kept, seen, x) = (Arc::clone(&held), Arc::clone(&held), tensor(&engine, 0.0));
    let op = engine.op("all_reduce").writes([&x]).on_skip(move |_| drop(kept));
    let op = op.run(move |[], [_]| {
        assert_eq!(Arc::strong_count(&seen), 2, "the handler is gone");
        Err("of the body".into())
    });
    let op = op.unwrap();
    assert!(op.wait().unwrap_err().to_string().contains("of the body"), "an error of the body is no skip");
    // A description that is not submitted drops it as well.
    drop(engine.op("never").writes([&x]).on_skip({
        let kept = Arc::clone(&held);
        move |_| drop(kept)
    }));
    drop(op);
    until("the body is gone", || Arc::strong_count(&held) == 1);
}

#[test]
fn operands_without_memory_call_it_even_where_their_failure_was_cleared() {
    let engine = engine(1);
    let calls = Calls::default();
    let never = || {
        let never = engine.op("make").produce(|[]| Err::<estafette::Tensor, _>("no memory".into())).unwrap();
        never.wait().unwrap_err();
        never.clear_error().unwrap();
        never
    };
    let (read, written) = (never(), never());
    let op = engine.op("reads").reads([&read]).on_skip(calls.on_skip("reads")).run(|[_], []| Ok(()));
    op.unwrap().wait().unwrap_err();
    let op = engine.op("writes").writes([&written]).on_skip(calls.on_skip("writes")).run(|[], [_]| Ok(()));
    op.unwrap().wait().unwrap_err();
    let op = engine.op("outside").reads([&read]).on_skip(calls.on_skip("outside"));
    op.run_external(|completion| completion.complete(Ok(()))).unwrap().wait().unwrap_err();
    let made = engine.op("made").reads([&read]).on_skip(calls.on_skip("made"));
    let made = made.produce(|[_]| Err::<estafette::Tensor, _>("unreachable".into())).unwrap();
    made.wait().unwrap_err();
    assert_eq!(
        calls.take(),
        [
            "reads skipped by reads",
            "writes skipped by writes",
            "outside skipped by outside",
            "made skipped by made"
        ]
    );
}

#[test]
fn a_panic_of_it_changes_nothing() {
    let engine = engine(1);
    let x = tensor(&engine, 0.0);
    fail(&engine, &x, "no number");
    let op = engine.op("all_reduce").updates([&x]).on_skip(|_| panic!("of the handler"));
    assert_eq!(failure_of(&op.run(|[], [], [_]| Ok(())).unwrap()), "fail");
    set(&engine, &x, 1.0).wait().unwrap();
    assert_eq!(get(&x), 1.0);
    read(&engine, &x).wait().unwrap();
    assert_nothing_left(&[&engine]);
}

#[test]
fn a_shutdown_cancels_an_operation_behind_a_lease_and_it_is_called_when_the_lease_ends() {
    let engine = Engine::builder().workers(1).build().unwrap();
    let (calls, x) = (Calls::default(), engine.zeros(&[1], DType::F32).unwrap());
    let lease = x.lease(Access::Read, "a reader").try_now().unwrap().unwrap();
    let op = engine.op("all_reduce").updates([&x]).on_skip(calls.on_skip("all_reduce"));
    let op = op.run(|[], [], [_]| Ok(())).unwrap();
    let report = engine.shutdown_timeout(Duration::ZERO);
    assert_eq!(report.cancelled, ["all_reduce"]);
    drop(lease);
    until("its turn has come", || !calls.0.lock().is_empty());
    assert_eq!(failure_of(&op), "all_reduce");
}

/// A queue whose device cannot be made current.
#[derive(Debug)]
struct Lost(QueueId);

impl Queue for Lost {
    fn id(&self) -> QueueId {
        self.0
    }

    fn device(&self) -> DLDevice {
        DLDevice::CPU
    }

    fn in_order(&self) -> bool {
        true
    }

    fn order_after(&self, _: &Fence) -> Result<Order, DeviceError> {
        Ok(Order::Host)
    }

    fn record(&self) -> Result<Fence, DeviceError> {
        Err(DeviceError::new(DeviceErrorKind::Fault, "lost"))
    }

    fn make_current(&self) -> Result<bool, DeviceError> {
        Err(DeviceError::new(DeviceErrorKind::Fault, "the device is lost"))
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

#[test]
fn a_device_that_cannot_be_made_current_calls_it() {
    let engine = engine(1);
    let (calls, x) = (Calls::default(), tensor(&engine, 0.0));
    let queue: Arc<dyn Queue> = Arc::new(Lost(QueueId::next()));
    let enqueues = engine.op("enqueues").writes([&x]).on(&queue).on_skip(calls.on_skip("enqueues"));
    let enqueues = enqueues.run_on(|_queue, [], [_x]| Ok(())).unwrap();
    assert!(enqueues.wait().unwrap_err().to_string().contains("the device is lost"));
    let outside = engine.op("outside").writes([&x]).on(&queue).on_skip(calls.on_skip("outside"));
    let outside = outside.run_external(|end| end.complete(Ok(()))).unwrap();
    assert!(outside.wait().unwrap_err().to_string().contains("the device is lost"));
    assert_eq!(calls.take(), ["enqueues skipped by enqueues", "outside skipped by outside"]);
}
