//! Guarantee 4: failure follows the data, with its root cause, and no wait hangs because an operation failed.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;

use estafette::devices::{DeviceError, DeviceErrorKind, host};
use estafette::operation::OperationError;
use estafette::operators::{Closure, operators};
use estafette::tensor::TensorState;
use estafette::{
    Access, Completion, Engine, Error, ExportOptions, FailureKind, Op, Produced, Tensor, View, ViewMut,
};
use futures::executor::block_on;
use tests::foreign::{Deleted, Memory};
use tests::gate::Gate;
use tests::ops::{add, engine, fail, get, set, tensor, waits};
use tests::watchdog::Watchdog;

/// The root cause in `outcome`.
fn cause(outcome: Result<(), Error>) -> OperationError {
    let error = outcome.expect_err("it failed");
    error.operation().unwrap_or_else(|| panic!("{error:?} names no operation")).clone()
}

#[track_caller]
fn assert_cause(found: &OperationError, op: &Op, kind: FailureKind, message: &str) {
    let expected = (op.name(), op.id(), kind, message);
    assert_eq!((found.operation(), found.id(), found.kind(), found.message()), expected);
}

#[derive(Debug, PartialEq)]
struct OutOfPaper(u32);

impl std::fmt::Display for OutOfPaper {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "tray {} is out of paper", self.0)
    }
}

impl std::error::Error for OutOfPaper {}

#[test]
fn every_waiter_gets_name_id_and_message_of_the_root_cause_as_often_as_it_asks() {
    for workers in [0, 1, 2] {
        let engine = engine(workers);
        let watchdog = Watchdog::of(&engine);
        let (x, y) = (tensor(&engine, 1.0), tensor(&engine, 1.0));
        let early = (x.ready(), y.ready());
        let op = engine.op("print").writes([&x]).run(|[], [_x]| Err(OutOfPaper(3).into())).unwrap();
        let copy = engine.op("copy").reads([&x]).writes([&y]).run(|[_x], [_y]| panic!("skipped")).unwrap();
        let late = (x.ready(), y.ready());
        let message = "tray 3 is out of paper";
        for _ in 0..3 {
            for outcome in
                [x.wait(), y.wait(), op.wait(), copy.wait(), block_on(x.ready()), block_on(op.clone())]
            {
                let cause = cause(outcome);
                assert_cause(&cause, &op, FailureKind::Error, message);
                let source = std::error::Error::source(&cause).expect("the body's own error").downcast_ref();
                assert_eq!(source, Some(&OutOfPaper(3)));
                let text = format!("operation `print` (op {}) failed: {message}", op.id());
                assert_eq!(cause.to_string(), text);
            }
            for tensor in [&x, &y] {
                let TensorState::Failed(error) = tensor.state() else { panic!("{:?}", tensor.state()) };
                assert_cause(error.operation().unwrap(), &op, FailureKind::Error, message);
                let refused = tensor.export_wait(&ExportOptions::from(Access::Read)).unwrap_err();
                assert_cause(refused.operation().unwrap(), &op, FailureKind::Error, message);
                // The version is finished: it has failed.
                assert!(tensor.is_ready());
            }
        }
        assert_cause(&cause(block_on(late.0)), &op, FailureKind::Error, message);
        assert_cause(&cause(block_on(late.1)), &op, FailureKind::Error, message);
        // Waits for the previous version get it.
        block_on(early.0).unwrap();
        block_on(early.1).unwrap();
        assert!(watchdog.still_watches());
    }
}

#[test]
fn dependants_are_skipped_at_any_distance_and_nobody_else_is() {
    let engine = engine(2);
    let watchdog = Watchdog::of(&engine);
    let tensors: Vec<Tensor> = (0..50).map(|_| tensor(&engine, 1.0)).collect();
    let other = tensor(&engine, 1.0);
    let ran = Arc::new(AtomicUsize::new(0));
    let gate = Gate::on_tensors(&engine, &tensors[..1]);
    for pair in tensors.windows(2) {
        let ran = Arc::clone(&ran);
        let op = engine.op("step").reads([&pair[0], &other]).writes([&pair[1]]).run(move |[_a, _b], [_c]| {
            ran.fetch_add(1, Ordering::SeqCst);
            Ok(())
        });
        op.unwrap();
    }
    add(&engine, &other, 1.0);
    let root = gate.op().clone();
    gate.fail("no power");
    for tensor in &tensors {
        assert_cause(&cause(tensor.wait()), &root, FailureKind::Error, "no power");
    }
    assert_eq!(ran.load(Ordering::SeqCst), 0);
    // Tensors that skipped operations only read are good, and operations after them ran.
    assert_eq!(get(&other), 2.0);
    assert!(watchdog.still_watches());
}

#[test]
fn a_reader_that_fails_poisons_what_it_writes_and_not_what_it_reads() {
    let engine = engine(1);
    let watchdog = Watchdog::of(&engine);
    let (x, y) = (tensor(&engine, 5.0), tensor(&engine, 5.0));
    let op = engine.op("read").reads([&x]).writes([&y]).run(|[_x], [_y]| Err("no".into())).unwrap();
    assert_cause(&cause(y.wait()), &op, FailureKind::Error, "no");
    assert_eq!(get(&x), 5.0);
    assert!(watchdog.still_watches());
}

/// Submits an operation that panics.
type Submit<'a> = Box<dyn Fn() -> Op + 'a>;

#[test]
fn a_panic_of_any_kind_of_body_is_a_failure_with_its_text() {
    let engine = engine(1);
    let watchdog = Watchdog::of(&engine);
    let x = tensor(&engine, 1.0);
    let bodies: [(&str, Submit); 8] = [
        ("text", Box::new(|| engine.op("a").writes([&x]).run(|[], [_x]| panic!("text")).unwrap())),
        (
            "number 7",
            Box::new(|| engine.op("b").updates([&x]).run(|[], [], [_x]| panic!("number {}", 7)).unwrap()),
        ),
        (
            "a payload that is not text",
            Box::new(|| engine.op("c").writes([&x]).run(|[], [_x]| resume_unwind(Box::new(7_u8))).unwrap()),
        ),
        (
            "later",
            Box::new(|| {
                let op = engine.op("d").writes([&x]).run_future(|[], [_x]| async {
                    tokio::task::yield_now().await;
                    panic!("later")
                });
                op.unwrap()
            }),
        ),
        (
            "before the first await",
            Box::new(|| {
                let op = engine.op("e").writes([&x]).run_future(|[], [_x]| {
                    if true {
                        panic!("before the first await");
                    }
                    async { Ok(()) }
                });
                op.unwrap()
            }),
        ),
        ("outside", Box::new(|| engine.op("g").writes([&x]).run_external(|_end| panic!("outside")).unwrap())),
        (
            "caught, and the completion with it",
            Box::new(|| {
                let op = engine.op("h").writes([&x]).run_external(|end| {
                    let caught = catch_unwind(AssertUnwindSafe(move || {
                        let _end = end;
                        panic!("inside")
                    }));
                    assert!(caught.is_err());
                    panic!("caught, and the completion with it")
                });
                op.unwrap()
            }),
        ),
        (
            "with the completion elsewhere",
            Box::new(|| {
                let (away, kept) = channel();
                let op = engine.op("f").writes([&x]).run_external(move |end| {
                    away.send(end).unwrap();
                    panic!("with the completion elsewhere")
                });
                let op = op.unwrap();
                // The panic has already ended the operation.
                let _ = op.wait();
                let end: Completion = kept.recv().unwrap();
                end.complete(Ok(()));
                op
            }),
        ),
    ];
    for (message, submit) in bodies {
        let op = submit();
        assert_cause(&cause(op.wait()), &op, FailureKind::Panic, message);
        assert_cause(&cause(x.wait()), &op, FailureKind::Panic, message);
        assert!(op.wait().unwrap_err().to_string().contains("panicked"), "{op:?}");
        // For the updates among them.
        x.clear_error().unwrap();
    }
    let produced = [
        engine.op("i").produce(|[]| -> Result<Produced, _> { panic!("no result") }),
        engine.op("j").produce_external(|_end| panic!("no result")),
        engine.op("k").receive(|_end| panic!("no result")),
    ];
    let mut program = engine.program("program");
    program.op("node").writes([&x]).run_external(|_end| panic!("no result")).unwrap();
    let replay = program.finish().unwrap().replay().unwrap();
    for outcome in produced.map(|produced| produced.unwrap().wait()).into_iter().chain([replay.wait()]) {
        let cause = cause(outcome);
        assert_eq!((cause.kind(), cause.message()), (FailureKind::Panic, "no result"));
    }
    // A body that goes on after it has lost its completion to a panic has failed as well.
    let lost = engine.op("l").writes([&x]).run_external(|end| {
        let _ = catch_unwind(AssertUnwindSafe(move || {
            let _end = end;
            panic!("caught")
        }));
    });
    assert_eq!(cause(lost.unwrap().wait()).message(), "its body panicked");
    // The worker still runs.
    set(&engine, &x, 2.0);
    assert_eq!(get(&x), 2.0);
    assert!(watchdog.still_watches());
}

#[test]
fn whoever_looked_may_declare_a_version_good() {
    let engine = engine(1);
    let watchdog = Watchdog::of(&engine);
    let x = tensor(&engine, 1.0);
    fail(&engine, &x, "spilt");
    x.wait().unwrap_err();
    x.clear_error().unwrap();
    assert_eq!(get(&x), 1.0);
    // Not while a write is unfinished: there is no version to judge.
    let gate = Gate::on_tensors(&engine, std::slice::from_ref(&x));
    let refused = x.clear_error().unwrap_err();
    assert!(matches!(refused, Error::Conflict(_)), "{refused:?}");
    gate.open();
    assert!(watchdog.still_watches());
}

#[test]
fn a_result_without_memory_whose_failure_was_cleared_fails_its_readers_by_name() {
    let engine = engine(1);
    let watchdog = Watchdog::of(&engine);
    let produced =
        engine.op("leak").produce(|[]| -> Result<Produced, _> { Err("all of it".into()) }).unwrap();
    produced.wait().unwrap_err();
    produced.clear_error().unwrap();
    produced.wait().unwrap();
    let y = tensor(&engine, 1.0);
    let name = "tests.causes.first";
    let first = |inputs: &[View<'_>], outputs: &mut [ViewMut<'_>], _: &_| {
        outputs[0].as_mut_slice::<f32>()?[0] = inputs[0].as_slice::<f32>()?[0];
        Ok(())
    };
    operators().register_closure(name, 1, 1, Closure::Destination(Box::new(first))).unwrap();
    let readers = [
        engine.op("drink").reads([&produced]).run(|[_], []| Ok(())),
        engine.op("drink").reads([&produced]).run_future(|[_], []| async { Ok(()) }),
        engine.op("drink").reads([&produced]).updates([&y]).run(|[_], [], [_]| Ok(())),
        engine.operator(name).unwrap().inputs(&[&produced]).run_into(&[&y]),
    ];
    for reader in readers {
        let cause = cause(reader.unwrap().wait());
        assert_ne!(cause.kind(), FailureKind::Panic, "{cause:?}");
        assert!(cause.message().contains("`leak`"), "{}", cause.message());
    }
    let next = engine
        .op("drink")
        .reads([&produced])
        .produce(|[x]| Ok(Produced::from_vec(x.to_vec::<f32>()?, &[1])?))
        .unwrap();
    assert_ne!(cause(next.wait()).kind(), FailureKind::Panic);
    operators().unregister(name).unwrap();
    assert!(watchdog.still_watches());
}

#[test]
fn a_completion_may_come_from_any_thread_and_its_outcome_is_the_operations() {
    for workers in [0, 2] {
        let engine = engine(workers);
        let watchdog = Watchdog::of(&engine);
        let x = tensor(&engine, 1.0);
        for fails in [true, false] {
            let (op, end) = open(&engine, &x);
            let elsewhere = std::thread::spawn(move || {
                assert_eq!(end.scope().id(), end.scope().id());
                end.complete(if fails { Err("elsewhere".into()) } else { Ok(()) });
            });
            if fails {
                assert_cause(&cause(op.wait()), &op, FailureKind::Error, "elsewhere");
            } else {
                op.wait().unwrap();
            }
            elsewhere.join().unwrap();
            assert_eq!(x.wait().is_err(), fails);
        }
        assert!(watchdog.still_watches());
    }
}

/// An operation that overwrites `x` and has begun.
fn open(engine: &Engine, x: &Tensor) -> (Op, Completion) {
    let gate = Gate::on_tensors(engine, std::slice::from_ref(x));
    let op = gate.op().clone();
    (op, gate.begun())
}

#[test]
fn a_completion_that_is_dropped_fails_its_operation() {
    let engine = engine(1);
    let watchdog = Watchdog::of(&engine);
    let x = tensor(&engine, 1.0);
    let why = "its completion was dropped without being used";
    let (op, end) = open(&engine, &x);
    assert!(!x.is_ready());
    drop(end);
    assert_cause(&cause(x.wait()), &op, FailureKind::Error, why);
    // By a thread that panics, it says that.
    let (op, end) = open(&engine, &x);
    let thread = std::thread::spawn(move || {
        let _held = end;
        panic!("this thread is broken on purpose");
    });
    assert_cause(&cause(op.wait()), &op, FailureKind::Error, "its body panicked");
    assert!(thread.join().is_err());
    // And of an operation that should have produced.
    let y = engine.op("make").produce_external(drop).unwrap();
    assert_eq!(cause(y.wait()).message(), why);
    assert!(matches!(y.shape(), Err(Error::NotDefined(_))));
    let z = engine.op("make nothing").produce_external(|end| end.complete(Ok(()))).unwrap();
    assert_eq!(cause(z.wait()).kind(), FailureKind::Result);
    assert!(watchdog.still_watches());
}

#[test]
fn dependants_of_a_cancelled_operation_are_notified_at_once_even_behind_a_lease() {
    let engine = engine(1);
    let watchdog = Watchdog::of(&engine);
    let (x, y) = (tensor(&engine, 1.0), tensor(&engine, 0.0));
    let lease = x.export_wait(&ExportOptions::from(Access::Read)).unwrap();
    let write = set(&engine, &x, 2.0);
    let copy = engine.op("copy").reads([&x]).writes([&y]).run(|[_x], [_y]| Ok(())).unwrap();
    // A future that waits already, and later waits of every form.
    let before = y.ready();
    assert!(waits(&engine, &write) && waits(&engine, &copy));
    assert!(write.cancel());
    for outcome in [block_on(before), block_on(y.ready()), y.wait(), x.wait(), write.wait()] {
        assert_cause(&cause(outcome), &write, FailureKind::Cancelled, "cancelled before it began");
    }
    // The lease still holds the queue up; a healing write waits for it, as the order demands.
    let heal = set(&engine, &x, 3.0);
    assert!(waits(&engine, &heal));
    drop(lease);
    heal.wait().unwrap();
    assert_eq!(get(&x), 3.0);
    assert_cause(&cause(copy.wait()), &write, FailureKind::Cancelled, "cancelled before it began");
    assert!(watchdog.still_watches());
}

#[test]
fn what_a_cancelled_operation_was_to_read_fails_later_and_the_reported_cause_stays() {
    let engine = engine(1);
    let watchdog = Watchdog::of(&engine);
    let x = tensor(&engine, 1.0);
    let lease = x.export_wait(&ExportOptions::from(Access::Read)).unwrap();
    let write = fail(&engine, &x, "the input");
    let update = engine.op("update").updates([&x]).run(|[], [], [_x]| Ok(())).unwrap();
    assert!(update.cancel());
    assert_cause(&cause(x.wait()), &update, FailureKind::Cancelled, "cancelled before it began");
    drop(lease);
    write.wait().unwrap_err();
    block_on(x.writable()).unwrap();
    assert_cause(&cause(x.wait()), &update, FailureKind::Cancelled, "cancelled before it began");
    assert!(watchdog.still_watches());
}

#[test]
fn a_body_that_is_skipped_or_cancelled_is_dropped_and_what_it_owned_with_it() {
    let engine = engine(1);
    let watchdog = Watchdog::of(&engine);
    let x = tensor(&engine, 1.0);
    let owned = Arc::new(());
    let gate = Gate::on_tensors(&engine, std::slice::from_ref(&x));
    let ops: Vec<Op> = (0..3)
        .map(|_| {
            let owned = Arc::clone(&owned);
            engine.op("owner").updates([&x]).run(move |[], [], [_x]| {
                drop(owned);
                Ok(())
            })
        })
        .collect::<Result<_, _>>()
        .unwrap();
    assert!(ops[1].cancel());
    assert_eq!(Arc::strong_count(&owned), 3, "the body of one that is cancelled goes at once");
    gate.fail("upstream");
    engine.wait_all(None).unwrap();
    assert_eq!(Arc::strong_count(&owned), 1);
    assert!(watchdog.still_watches());
}

#[test]
fn a_fence_of_a_version_that_has_failed_fails_when_the_work_that_it_left_is_done() {
    let engine = engine(1);
    let watchdog = Watchdog::of(&engine);
    let y = tensor(&engine, 1.0);
    let (completer, work) = host::promise("work");
    let half = engine
        .op("half")
        .writes([&y])
        .run_external(move |end| end.complete_after(&work, Err("torn".into())))
        .unwrap();
    half.wait().unwrap_err();
    let ready = y.ready_fence();
    completer.complete();
    let outcome = ready.wait_timeout(None).expect("there is no limit");
    assert!(outcome.unwrap_err().to_string().contains("torn"));
    assert!(watchdog.still_watches());
}

/// Memory of two elements with a tensor for each, and one for both.
fn halves_and_whole(engine: &Engine) -> [Tensor; 3] {
    let memory = Memory::of(&[1.0, 2.0]);
    // SAFETY: fresh tensors that describe memory that they keep.
    [(0, 1), (1, 1), (0, 2)].map(|(start, len)| unsafe {
        engine.import(memory.tensor(start, len, &Deleted::default())).expect("a good tensor")
    })
}

#[test]
fn the_failure_of_a_tensor_with_parts_names_the_operation_whose_work_has_failed() {
    let engine = engine(1);
    let watchdog = Watchdog::of(&engine);
    for fails in [0, 1] {
        let [left, right, whole] = halves_and_whole(&engine);
        let completers = [("left", &left), ("right", &right)].map(|(name, half)| {
            let (completer, work) = host::promise(name);
            let op = engine.op(name).writes([half]);
            op.run_external(move |end| end.complete_after(&work, Ok(()))).unwrap().wait().unwrap();
            completer
        });
        let ready = whole.ready();
        let name = ["left", "right"][fails];
        for (at, completer) in completers.into_iter().enumerate() {
            if at == fails {
                completer.fail(DeviceError::new(DeviceErrorKind::Other, "dropped"));
            } else {
                completer.complete();
            }
        }
        assert_eq!(cause(block_on(ready)).operation(), name);
        assert_eq!(cause(whole.wait()).operation(), name);
    }
    assert!(watchdog.still_watches());
}
