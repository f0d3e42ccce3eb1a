//! Everything public that gives a view, a closure or a handle, used as it must not be, by code without
//! `unsafe`: it is refused, it panics, or it waits for its turn. No view is there without a grant, and none
//! outlives its operation. What must not compile is tested beside `OpBuilder::run`.
#![forbid(unsafe_code)]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use estafette::bindings;
use estafette::devices::{Fence, host};
use estafette::operation::{Operands as _, Tensors};
use estafette::operators::{Attributes, Closure, operators};
use estafette::wait::Activity;
use estafette::{
    Access, Completion, Error, ExportOptions, FailureKind, Op, Produced, Scope, Tensor, View, ViewMut,
};
use tests::gate::Gate;
use tests::ops::{engine, get, read, set, tensor, waits};
use tests::watchdog::Watchdog;

#[test]
fn operands_show_the_tensors_and_give_no_views() {
    let engine = engine(1);
    let x = tensor(&engine, 1.0);
    // All that can be called of the trait without what only the engine has.
    assert_eq!([x.clone()].tensors().len(), 1);
    assert_eq!(Tensors::from_iter([x.clone()]).tensors().len(), 1);
    let mut each = 0;
    [x].each(|_| each += 1);
    assert_eq!(each, 1);
}

#[test]
fn memory_that_is_written_is_not_shown_twice_in_any_form() {
    let engine = engine(1);
    let watchdog = Watchdog::of(&engine);
    let (x, y) = (tensor(&engine, 1.0), tensor(&engine, 2.0));
    let conflict =
        |result: Result<Op, Error>| assert!(matches!(result, Err(Error::Conflict(_))), "{result:?}");
    conflict(engine.op("twice").writes([&x, &x]).run(|[], [_, _]| Ok(())));
    conflict(engine.op("both").reads([&x]).writes([&x]).run(|[_], [_]| Ok(())));
    conflict(engine.op("slice").writes(&[x.clone(), y.clone(), x.clone()][..]).run(|[], _| Ok(())));
    conflict(engine.op("owned").reads(Tensors::from_iter([x.clone()])).writes([&x]).run(|_, [_]| Ok(())));
    conflict(engine.op("updates").reads([&x]).updates([&x]).run(|[_], [], [_]| Ok(())));
    conflict(engine.op("future").reads([&x]).writes([&x]).run_future(|[_], [_]| async { Ok(()) }));
    let detached = engine.op("detached").writes([&x, &x]).run_detached(|[], [_, _]| Ok(()));
    assert!(matches!(detached, Err(Error::Conflict(_))));
    let mut program = engine.program("both");
    assert!(program.op("node").reads([&x]).writes([&x]).run(|[_], [_]| Ok(())).is_err());
    assert!(program.op("node").writes([&x]).updates([&x]).run(|[], [_], [_]| Ok(())).is_err());
    let fill = |_: &[View<'_>], _: &mut [ViewMut<'_>], _: &Attributes| Ok(());
    operators().register_closure("misuse.fill", 1, 1, Closure::Destination(Box::new(fill))).unwrap();
    conflict(engine.operator("misuse.fill").unwrap().inputs(&[&x]).run_into(&[&x]));
    operators().unregister("misuse.fill").unwrap();
    assert!(watchdog.still_watches());
}

#[test]
fn a_result_that_is_its_own_operand_is_a_copy() {
    let engine = engine(1);
    let watchdog = Watchdog::of(&engine);
    let x = tensor(&engine, 1.0);
    let own = x.clone();
    let y = engine.op("itself").reads([&x]).produce(move |[_x]| Ok(Produced::from(own))).unwrap();
    set(&engine, &x, 5.0).wait().unwrap();
    assert_eq!((get(&y), get(&x)), (1.0, 5.0));
    assert!(watchdog.still_watches());
}

#[test]
fn a_scope_that_outlives_its_operation_lends_nothing() {
    let engine = engine(1);
    let watchdog = Watchdog::of(&engine);
    let (x, other) = (tensor(&engine, 1.0), tensor(&engine, 2.0));
    let kept: Arc<Mutex<Option<Scope>>> = Arc::default();
    let keep = Arc::clone(&kept);
    let stranger = other.clone();
    let op = engine.op("keeps its scope").writes([&x]).run_external(move |completion: Completion| {
        let scope = completion.scope().clone();
        assert!(scope.export(&stranger, &ExportOptions::from(Access::Read)).is_err(), "no operand");
        *keep.lock().unwrap() = Some(scope);
        completion.complete(Ok(()));
    });
    op.unwrap().wait().unwrap();
    let scope = kept.lock().unwrap().take().unwrap();
    assert!(scope.export(&x, &ExportOptions::from(Access::Write)).is_err());
    assert!(
        bindings::scope::access_of(&scope, &x).is_none()
            && bindings::scope::describe(&scope, &x).is_none()
            && scope.queue().is_none()
    );
    let inside = bindings::scope::make_current(&scope, || x.wait());
    assert!(inside.is_ok(), "it is no operation's code any more");
    assert!(watchdog.still_watches());
}

#[test]
fn a_view_of_an_operation_that_ended_keeps_its_access() {
    let engine = engine(2);
    let watchdog = Watchdog::of(&engine);
    let x = tensor(&engine, 1.0);
    let (give, take) = channel();
    let own = x.clone();
    let op = engine.op("lends").writes([&x]).run_external(move |completion: Completion| {
        give.send(completion.scope().export(&own, &ExportOptions::from(Access::Write)).unwrap()).unwrap();
        completion.complete(Ok(()));
    });
    op.unwrap().wait().unwrap();
    let view = take.recv().unwrap();
    let (reader, writer) = (read(&engine, &x), set(&engine, &x, 2.0));
    assert!(waits(&engine, &reader) && waits(&engine, &writer), "{}", engine.diagnose());
    drop(view);
    writer.wait().unwrap();
    assert!(watchdog.still_watches());
}

#[test]
fn what_is_forgotten_keeps_its_access() {
    let engine = engine(2);
    let watchdog = Watchdog::of(&engine);
    let (lease, guard) = (tensor(&engine, 1.0), tensor(&engine, 1.0));
    std::mem::forget(lease.lease(Access::Read, "who forgets").try_now().unwrap());
    let (done, is_done) = channel();
    let op = engine.op("forgets").writes([&guard]).run_future(move |[], [guard]| async move {
        std::mem::forget(guard);
        done.send(())?;
        Ok(())
    });
    is_done.recv().unwrap();
    let waiting = [set(&engine, &lease, 2.0), read(&engine, &guard)];
    assert!(waiting.iter().all(|op| waits(&engine, op)), "{}", engine.diagnose());
    assert!(!op.unwrap().is_done());
    // They wait for ever, which is what forgetting means; nothing else does.
    let other = tensor(&engine, 1.0);
    set(&engine, &other, 3.0).wait().unwrap();
    assert!(watchdog.still_watches());
}

#[test]
fn a_body_that_panics_while_it_has_views_ends_its_access_once() {
    let engine = engine(2);
    let watchdog = Watchdog::of(&engine);
    let (x, inside) = (tensor(&engine, 0.0), Arc::new(AtomicBool::new(false)));
    let mut ends = Vec::new();
    for round in 0..40 {
        let inside = Arc::clone(&inside);
        let op = engine.op("panics").writes([&x]).run(move |[], [mut x]| {
            assert!(!inside.swap(true, Ordering::SeqCst), "two are inside");
            x.as_mut_slice::<f32>()?[0] += 1.0;
            inside.store(false, Ordering::SeqCst);
            assert!(round % 2 == 0, "on purpose");
            Ok(())
        });
        ends.push(op.unwrap());
    }
    let failed = ends.iter().filter(|op| op.wait().is_err()).count();
    assert_eq!(failed, 20);
    assert!(watchdog.still_watches());
}

#[test]
fn a_completion_and_its_scope_are_used_by_many_threads_at_once() {
    let engine = engine(2);
    let watchdog = Watchdog::of(&engine);
    let x = tensor(&engine, 0.0);
    for _ in 0..50 {
        let gate = Gate::on_tensors(&engine, std::slice::from_ref(&x)).begun();
        let (scope, lent) = (gate.scope().clone(), AtomicUsize::new(0));
        std::thread::scope(|threads| {
            for _ in 0..2 {
                threads.spawn(|| {
                    while let Ok(view) = scope.export(&x, &ExportOptions::from(Access::Read)) {
                        lent.fetch_add(1, Ordering::Relaxed);
                        drop(view);
                    }
                });
            }
            threads.spawn(|| {
                while lent.load(Ordering::Relaxed) == 0 {
                    std::thread::yield_now();
                }
                gate.complete(Ok(()));
            });
        });
        set(&engine, &x, 1.0).wait().unwrap();
    }
    assert!(watchdog.still_watches());
}

#[test]
fn closures_that_are_called_at_any_time_use_everything() {
    let engine = engine(2);
    let watchdog = Watchdog::of(&engine);
    let x = tensor(&engine, 0.0);
    let uses = |engine: &estafette::Engine, x: &Tensor| {
        let _ =
            (x.version(), x.state(), engine.diagnose(), Activity::from(&engine.diagnose()), engine.stats());
        let _ = x.wait_timeout(Duration::ZERO);
        let _ = catch_unwind(AssertUnwindSafe(|| set(engine, x, 1.0)));
    };
    let (called, calls) = channel();
    let (there, own) = (engine.clone(), x.clone());
    let gate = Gate::on_tensors(&engine, std::slice::from_ref(&x)).begun();
    x.on_ready(move |_| {
        uses(&there, &own);
        called.send(()).unwrap();
    });
    let (completer, fence): (_, Fence) = host::promise("work");
    x.used_until(&fence).unwrap();
    gate.complete(Ok(()));
    completer.complete();
    calls.recv().unwrap();
    set(&engine, &x, 2.0).wait().unwrap();
    engine.submit_many(|| set(&engine, &x, 3.0)).wait().unwrap();
    assert!(watchdog.still_watches());
}

/// A result whose conversion panics.
struct Unconvertible;

impl From<Unconvertible> for Produced {
    fn from(_: Unconvertible) -> Self {
        panic!("a conversion")
    }
}

#[test]
fn a_conversion_of_a_result_that_panics_is_a_panic_of_the_operation() {
    let engine = engine(1);
    let watchdog = Watchdog::of(&engine);
    let produced = engine.op("converts").produce(|[]| Ok(Unconvertible)).unwrap();
    let error = produced.wait().unwrap_err();
    let failure = error.operation().unwrap();
    assert_eq!((failure.kind(), failure.message()), (FailureKind::Panic, "a conversion"));
    assert!(watchdog.still_watches());
}

#[test]
fn a_result_that_another_operation_writes_meanwhile_is_not_copied() {
    let engine = engine(2);
    let watchdog = Watchdog::of(&engine);
    let x = tensor(&engine, 1.0);
    let alias = || x.export_wait(&ExportOptions::from(Access::Alias)).unwrap();
    let writes = Gate::on_tensors(&engine, std::slice::from_ref(&x)).begun();
    let given = alias();
    let torn = engine.op("gives").produce(move |[]| Ok(given)).unwrap();
    let error = torn.wait().unwrap_err();
    let failure = error.operation().unwrap();
    assert_eq!(failure.kind(), FailureKind::Result);
    assert!(failure.message().contains("`gate`"), "{error}");
    writes.complete(Ok(()));
    set(&engine, &x, 2.0).wait().unwrap();
    // The next writer of the memory waits for something else, and may begin at any moment.
    let other = tensor(&engine, 1.0);
    let gate = Gate::on_tensors(&engine, std::slice::from_ref(&other)).begun();
    let next = engine.op("next").writes([&x, &other]).run(|[], [_x, _other]| Ok(())).unwrap();
    let given = alias();
    let torn = engine.op("gives").produce(move |[]| Ok(given)).unwrap();
    let error = torn.wait().unwrap_err();
    assert!(error.operation().unwrap().message().contains("`next`"), "{error}");
    gate.complete(Ok(()));
    next.wait().unwrap();
    // Once nothing writes, and where the operation itself or the result keeps writers out, it is copied.
    let given = alias();
    let copied = engine.op("gives").produce(move |[]| Ok(given)).unwrap();
    assert_eq!(get(&copied), 2.0);
    let (gone, going) = channel();
    let given = alias();
    let reads = engine.op("reads").reads([&x]).produce(move |[_x]| {
        going.recv()?;
        Ok(given)
    });
    let later = set(&engine, &x, 3.0);
    assert!(waits(&engine, &later));
    gone.send(()).unwrap();
    assert_eq!(get(&reads.unwrap()), 2.0);
    later.wait().unwrap();
    for access in [Access::Read, Access::Write] {
        let given = x.export_wait(&ExportOptions::from(access)).unwrap();
        let later = set(&engine, &x, 4.0);
        assert!(waits(&engine, &later));
        let leased = engine.op("leased").produce(move |[]| Ok(given)).unwrap();
        assert_eq!(get(&leased), if access == Access::Read { 3.0 } else { 4.0 });
        later.wait().unwrap();
    }
    assert!(watchdog.still_watches());
}
