//! Hard cases H5 to H7: definition and aliases.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;

use estafette::bindings;
use estafette::devices::host;
use estafette::operation::{Copying, ResultOptions};
use estafette::tensor::TensorState;
use estafette::{Access, DType, Engine, Error, ExportOptions, FailureKind, ManagedTensor, Produced, Tensor};
use futures::FutureExt;
use futures::executor::block_on;
use tests::foreign::{Deleted, Memory};
use tests::gate::Gate;
use tests::ops::{add, alias_of, engine, fail, get, like, read, set, tensor, until, waits};
use tests::watchdog::Watchdog;

/// A tensor over part of `memory`.
fn import(engine: &Engine, memory: &Memory, start: usize, len: usize, deleted: &Deleted) -> Tensor {
    // SAFETY: a fresh tensor that describes its own memory.
    unsafe { engine.import(memory.tensor(start, len, deleted)) }.expect("a good tensor")
}

/// Memory with two tensors: the first two elements and the last two of three.
fn overlapping(engine: &Engine) -> (Memory, Tensor, Tensor, Deleted) {
    let (memory, deleted) = (Memory::of(&[1.0, 2.0, 3.0]), Deleted::default());
    let (a, b) = (import(engine, &memory, 0, 2, &deleted), import(engine, &memory, 1, 2, &deleted));
    (memory, a, b, deleted)
}

#[test]
fn a_produced_result_that_overlaps_known_memory_is_copied() {
    let engine = engine(2);
    let watchdog = Watchdog::of(&engine);
    let (memory, deleted) = (Memory::of(&[1.0, 2.0, 3.0]), Deleted::default());
    let x = import(&engine, &memory, 0, 3, &deleted);
    let (inside, counted) = (memory.clone(), deleted.clone());
    let view = engine.op("x[1:]").reads([&x]).produce(move |[_x]| Ok(inside.tensor(1, 2, &counted))).unwrap();
    view.wait().unwrap();
    assert_ne!(view.data_ptr().unwrap(), memory.address().wrapping_add(1).cast_const().cast());
    // The original's deleter has run; the copy has a life of its own.
    deleted.settle_at(1);
    set(&engine, &x, 9.0).wait().unwrap();
    assert_eq!(view.to_vec::<f32>().unwrap(), [2.0, 3.0]);
    assert!(watchdog.still_watches());
}

#[test]
fn a_produced_result_that_overlaps_is_a_conflict_when_copying_is_off() {
    let engine = engine(2);
    let watchdog = Watchdog::of(&engine);
    let (memory, deleted) = (Memory::of(&[1.0, 2.0, 3.0]), Deleted::default());
    let x = import(&engine, &memory, 0, 3, &deleted);
    let (inside, counted) = (memory.clone(), deleted.clone());
    let refused = ResultOptions { copying: Copying::Refused, ..ResultOptions::default() };
    let op = engine.op("x[1:]").reads([&x]).result(refused);
    let view = op.produce(move |[_x]| Ok(inside.tensor(1, 2, &counted))).unwrap();
    let error = view.wait().unwrap_err();
    let cause = error.operation().unwrap();
    assert_eq!((cause.operation(), cause.kind()), ("x[1:]", FailureKind::Result));
    assert!(matches!(source(cause), Error::Conflict(_)), "{cause:?}");
    assert!(matches!(view.shape(), Err(Error::NotDefined(_))));
    deleted.settle_at(1);
    // Memory of its own is not a conflict.
    let own = engine.op("copy").reads([&x]).result(refused);
    let own = own.produce(|[x]| Ok(Produced::from_vec(x.to_vec::<f32>()?, &[3])?)).unwrap();
    assert_eq!(own.to_vec::<f32>().unwrap(), [1.0, 2.0, 3.0]);
    assert!(watchdog.still_watches());
}

#[test]
fn the_memory_of_a_result_that_is_copied_is_not_written_until_the_copy_is_made() {
    type Result = fn(&Engine, ManagedTensor) -> Produced;
    let results: [Result; 2] = [
        |_engine, managed| managed.into(),
        // SAFETY: a fresh tensor that describes its own memory.
        |engine, managed| unsafe { engine.import(managed) }.expect("a good tensor").into(),
    ];
    for copying in [Copying::Allowed, Copying::Always] {
        let options = ResultOptions { copying, ..ResultOptions::default() };
        for result in results {
            let engine = engine(2);
            let watchdog = Watchdog::of(&engine);
            let (memory, deleted) = (Memory::of(&[1.0, 2.0, 3.0]), Deleted::default());
            let x = import(&engine, &memory, 0, 3, &deleted);
            let (completer, content) = host::promise("the content");
            let (own, counted) = (engine.clone(), deleted.clone());
            // The operation does not say that it uses the memory.
            let view = engine.op("x[1:]").result(options).produce_external(move |end| {
                bindings::operation::produce_after(
                    end,
                    &content,
                    Ok(result(&own, memory.tensor(1, 2, &counted))),
                );
            });
            let view = view.unwrap();
            until("the copy reads the memory", || x.writable().now_or_never().is_none());
            let write = set(&engine, &x, 9.0);
            completer.complete();
            assert_eq!(view.to_vec::<f32>().unwrap(), [2.0, 3.0]);
            write.wait().unwrap();
            assert_eq!(x.to_vec::<f32>().unwrap(), [9.0; 3]);
            deleted.settle_at(1);
            assert!(watchdog.still_watches());
        }
    }
}

fn source(cause: &estafette::operation::OperationError) -> &Error {
    std::error::Error::source(cause)
        .and_then(|error| error.downcast_ref())
        .expect("the engine's own error is the source")
}

#[test]
fn a_produced_result_declared_alias_of_a_tensor_is_ordered_with_it() {
    let engine = engine(2);
    let watchdog = Watchdog::of(&engine);
    let (memory, deleted) = (Memory::of(&[1.0, 2.0, 3.0]), Deleted::default());
    let x = import(&engine, &memory, 0, 3, &deleted);
    let (inside, counted) = (memory.clone(), deleted.clone());
    let op =
        engine.op("x[1:]").reads([&x]).result(ResultOptions { copying: Copying::Refused, ..alias_of(&[&x]) });
    let view = op.produce(move |[_x]| Ok(inside.tensor(1, 2, &counted))).unwrap();
    // Ordered from the submission on, in both directions.
    set(&engine, &x, 5.0);
    add(&engine, &view, 1.0);
    add(&engine, &x, 10.0);
    assert_eq!(view.to_vec::<f32>().unwrap(), [16.0, 16.0]);
    assert_eq!(x.to_vec::<f32>().unwrap(), [15.0, 16.0, 16.0]);
    assert_eq!(view.data_ptr().unwrap(), memory.address().wrapping_add(1).cast_const().cast());
    // A failure of one is a failure of the other.
    fail(&engine, &view, "broken through the view");
    assert!(x.wait().unwrap_err().to_string().contains("broken through the view"));
    assert!(watchdog.still_watches());
}

#[test]
fn a_write_beside_a_promised_alias_of_the_same_tensor_is_refused() {
    let engine = engine(1);
    let watchdog = Watchdog::of(&engine);
    let gate = engine.var();
    let shut = Gate::on_variable(&engine, &gate);
    let (memory, deleted) = (Memory::of(&[1.0, 2.0]), Deleted::default());
    let x = import(&engine, &memory, 0, 2, &deleted);
    let view = engine.op("x[1:]").reads([&x]).reads_vars(&[&gate]).result(alias_of(&[&x]));
    let view = view.produce(move |[_x]| Ok(memory.tensor(1, 1, &deleted))).unwrap();
    assert!(!bindings::tensor::is_defined(&view));
    let refused = engine.op("both").reads([&x]).writes([&view]).run(|[_x], [_view]| Ok(())).unwrap_err();
    assert!(matches!(refused, Error::Conflict(_)), "{refused:?}");
    shut.open();
    view.wait().unwrap();
    assert!(watchdog.still_watches());
}

#[test]
fn returning_an_operand_itself_copies_it_even_when_a_writer_is_queued_behind() {
    let engine = engine(2);
    let watchdog = Watchdog::of(&engine);
    let x = tensor(&engine, 1.0);
    let (go, wait) = channel::<()>();
    let inside = x.clone();
    let identity = engine.op("identity").reads([&x]);
    let same = identity.produce(move |[_x]| {
        wait.recv()?;
        Ok(inside)
    });
    let same = same.unwrap();
    set(&engine, &x, 2.0);
    go.send(()).unwrap();
    assert_eq!((get(&same), get(&x)), (1.0, 2.0));
    assert_ne!(same.data_ptr().unwrap(), x.data_ptr().unwrap());
    assert!(watchdog.still_watches());
}

#[test]
fn returning_a_tensor_that_somebody_writes_fails_instead_of_racing() {
    let engine = engine(2);
    let watchdog = Watchdog::of(&engine);
    let x = tensor(&engine, 1.0);
    let shut = Gate::on_tensors(&engine, std::slice::from_ref(&x));
    let other = x.clone();
    let same = engine.op("other").produce(move |[]| Ok(other)).unwrap();
    let error = same.wait().unwrap_err();
    assert!(error.to_string().contains("not ready"), "{error}");
    shut.open();
    // A fresh tensor of the engine without other handles gives its memory away.
    let inner = engine.clone();
    let fresh = engine.op("fresh").produce(move |[]| Ok(inner.from_vec(vec![4.0_f32], &[1])?)).unwrap();
    assert_eq!(get(&fresh), 4.0);
    assert!(watchdog.still_watches());
}

#[test]
fn granted_means_that_inputs_are_defined() {
    let engine = engine(2);
    let watchdog = Watchdog::of(&engine);
    let (go, wait) = channel::<()>();
    let late = engine.op("late").produce(move |[]| {
        wait.recv()?;
        Ok(Produced::from_vec(vec![1.0_f32, 2.0], &[2])?)
    });
    let late = late.unwrap();
    // Used before its shape is known: read, updated, overwritten, exported.
    let sum = engine.op("sum").reads([&late]);
    let sum = sum
        .produce(|[x]| Ok(Produced::from_vec(vec![x.as_slice::<f32>()?.iter().sum::<f32>()], &[])?))
        .unwrap();
    add(&engine, &late, 1.0);
    let exported = late.export(Access::Read);
    let overwritten = late.clone();
    assert!(matches!(late.state(), TensorState::Undefined));
    go.send(()).unwrap();
    let exported = block_on(exported).unwrap();
    assert_eq!(exported.describe().unwrap().shape(), [2]);
    drop(exported);
    set(&engine, &overwritten, 7.0);
    assert_eq!((get(&sum), late.to_vec::<f32>().unwrap()), (3.0, vec![7.0, 7.0]));
    assert!(watchdog.still_watches());
}

#[test]
fn whatever_is_chained_on_a_tensor_that_never_came_gets_the_root_cause() {
    let engine = engine(2);
    let watchdog = Watchdog::of(&engine);
    let (go, wait) = channel::<()>();
    let never = engine.op("never").produce(move |[]| {
        wait.recv()?;
        Err::<Produced, _>("there is nothing".into())
    });
    let never = never.unwrap();
    let ran = Arc::new(AtomicBool::new(false));
    let body = |ran: &Arc<AtomicBool>| {
        let ran = Arc::clone(ran);
        move || ran.store(true, Ordering::SeqCst)
    };
    let (a, b, c, d) = (body(&ran), body(&ran), body(&ran), body(&ran));
    // Also a pure write, which does not look at the version that it replaces: there is no memory.
    let before = engine.op("overwrite").writes([&never]).run(move |[], [_x]| {
        a();
        Ok(())
    });
    let future = engine.op("overwrite").writes([&never]).run_future(move |[], [_x]| async move {
        b();
        Ok(())
    });
    let external = engine.op("overwrite").writes([&never]).run_external(move |completion| {
        c();
        completion.complete(Ok(()));
    });
    let read = read(&engine, &never);
    let export = never.export(Access::Read);
    go.send(()).unwrap();
    let after = engine.op("overwrite").writes([&never]).run(move |[], [_x]| {
        d();
        Ok(())
    });
    let ops = [before.unwrap(), future.unwrap(), external.unwrap(), read, after.unwrap()];
    let errors = ops.iter().map(|op| op.wait().unwrap_err());
    let errors = errors.chain([block_on(export).unwrap_err(), never.wait().unwrap_err()]);
    for error in errors {
        let cause = error.operation().unwrap_or_else(|| panic!("{error:?}"));
        assert_eq!((cause.operation(), cause.kind()), ("never", FailureKind::Error), "{error:?}");
        assert!(error.to_string().contains("there is nothing"), "{error}");
    }
    assert!(!ran.load(Ordering::SeqCst));
    assert!(matches!(never.shape(), Err(Error::NotDefined(_))));
    assert!(matches!(never.state(), TensorState::Failed(_)));
    assert!(watchdog.still_watches());
}

#[test]
fn attributes_of_an_undefined_tensor_are_not_defined_unless_like_declares_them() {
    let engine = engine(1);
    let watchdog = Watchdog::of(&engine);
    let (go, wait) = channel::<()>();
    let (late, like) = (engine.op("late"), engine.op("like").result(like(DType::F32, &[2, 1])));
    let late = late.produce(move |[]| {
        wait.recv()?;
        Ok(Produced::from_vec(vec![1.0_f32], &[1])?)
    });
    let late = late.unwrap();
    let like =
        like.reads([&late]).produce(|[_late]| Ok(Produced::from_vec(vec![1.0_f32, 2.0], &[2, 1])?)).unwrap();
    for error in [
        late.shape().unwrap_err(),
        late.dtype().unwrap_err(),
        late.device().unwrap_err(),
        late.layout().unwrap_err(),
        late.data_ptr().unwrap_err(),
        like.data_ptr().unwrap_err(),
    ] {
        assert!(matches!(error, Error::NotDefined(_)), "{error:?}");
    }
    assert_eq!((like.shape().unwrap().as_slice(), like.dtype().unwrap()), (&[2, 1][..], DType::F32));
    go.send(()).unwrap();
    like.wait().unwrap();
    assert_eq!(late.shape().unwrap().as_slice(), [1]);
    assert_eq!(like.shape().unwrap().as_slice(), [2, 1]);
    assert!(watchdog.still_watches());
}

#[test]
fn a_result_that_is_not_what_like_declared_fails_the_operation() {
    let engine = engine(1);
    let watchdog = Watchdog::of(&engine);
    let deleted = Deleted::default();
    let counted = deleted.clone();
    let op = engine.op("liar").result(like(DType::F32, &[3]));
    let liar = op.produce(move |[]| Ok(tests::foreign::tensor(&[1.0, 2.0], &counted))).unwrap();
    let error = liar.wait().unwrap_err();
    assert_eq!(error.operation().unwrap().kind(), FailureKind::Result);
    assert!(error.to_string().contains("float32 [3] was declared"), "{error}");
    deleted.settle_at(1);
    assert!(watchdog.still_watches());
}

#[test]
fn overlapping_imports_share_variables_and_are_ordered() {
    let engine = engine(4);
    let watchdog = Watchdog::of(&engine);
    let (_memory, a, b, deleted) = overlapping(&engine);
    for round in 0..200 {
        set(&engine, &a, round as f32);
        add(&engine, &b, 0.5);
    }
    assert_eq!(a.to_vec::<f32>().unwrap(), [199.0, 199.5]);
    fail(&engine, &b, "through b");
    assert!(a.wait().unwrap_err().to_string().contains("through b"));
    set(&engine, &a, 1.0).wait().unwrap();
    drop((a, b));
    deleted.settle_at(2);
    assert!(watchdog.still_watches());
}

#[test]
fn overlapping_operands_of_one_operation_are_refused_when_one_is_written() {
    let engine = engine(1);
    let watchdog = Watchdog::of(&engine);
    let (_memory, a, b, _deleted) = overlapping(&engine);
    let refused = [
        engine.op("rw").reads([&a]).writes([&b]).run(|[_a], [_b]| Ok(())).unwrap_err(),
        engine.op("ww").writes([&a, &b]).run(|[], [_a, _b]| Ok(())).unwrap_err(),
        engine.op("ww").writes([&a, &a]).run(|[], [_a, _b]| Ok(())).unwrap_err(),
        engine.op("ru").reads([&a]).updates([&a]).run(|[_a], [], [_b]| Ok(())).unwrap_err(),
    ];
    for error in refused {
        assert!(matches!(error, Error::Conflict(_)), "{error:?}");
    }
    engine.op("rr").reads([&a, &b, &a]).run(|[_a, _b, _c], []| Ok(())).unwrap().wait().unwrap();
    assert!(watchdog.still_watches());
}

#[test]
fn an_operand_without_elements_overlaps_none_that_it_lies_in() {
    let engine = engine(1);
    let watchdog = Watchdog::of(&engine);
    let (memory, deleted) = (Memory::of(&[1.0, 2.0, 3.0, 4.0]), Deleted::default());
    let (whole, empty) = (import(&engine, &memory, 0, 4, &deleted), import(&engine, &memory, 1, 0, &deleted));
    engine.op("few").reads([&empty]).writes([&whole]).run(|[_empty], [_whole]| Ok(())).unwrap();
    let mut many: Vec<Tensor> = (0..40).map(|_| tensor(&engine, 0.0)).collect();
    many.push(empty);
    let op = engine.op("many").reads(&many).writes([&whole]);
    op.run_external(|end| end.complete(Ok(()))).unwrap().wait().unwrap();
    assert!(watchdog.still_watches());
}

#[test]
fn ranges_are_shared_by_all_engines_of_the_process() {
    let (one, two) = (engine(1), engine(1));
    let watchdogs = [Watchdog::of(&one), Watchdog::of(&two)];
    let (memory, deleted) = (Memory::of(&[0.0, 0.0]), Deleted::default());
    let (a, b) = (import(&one, &memory, 0, 2, &deleted), import(&two, &memory, 0, 2, &deleted));
    let shut = Gate::on_tensors(&one, std::slice::from_ref(&a));
    let behind = set(&two, &b, 3.0);
    assert!(waits(&two, &behind), "{}", two.diagnose());
    shut.open();
    // Linked as promises: a tensor of one engine in operations of the other, each run by the workers of its
    // own.
    let (mut ops, mut expected) = (Vec::new(), 3.0);
    for round in 0..200 {
        let engine = if round % 3 == 0 { &one } else { &two };
        let tensor = if round % 2 == 0 { &a } else { &b };
        ops.push(add(engine, tensor, 1.0));
        expected += 1.0;
    }
    assert_eq!((get(&a), get(&b)), (expected, expected));
    // A lease taken through one engine is honoured by the other, and so is a derived import.
    let array = a.export_wait(&ExportOptions::from(Access::Read)).unwrap();
    let write = set(&two, &b, 1.0);
    assert!(waits(&two, &write), "{}", two.diagnose());
    // SAFETY: the lease keeps the memory, which this test owns.
    let derived = unsafe { two.import(array) }.unwrap();
    assert_eq!(get(&derived), expected);
    drop(derived);
    write.wait().unwrap();
    fail(&one, &a, "in the first engine");
    assert!(b.wait().unwrap_err().to_string().contains("in the first engine"));
    drop((a, b, ops, behind, write));
    deleted.settle_at(2);
    assert!(watchdogs.iter().all(Watchdog::still_watches));
}

#[test]
fn an_operation_runs_on_the_workers_of_its_own_engine_whoever_grants_it() {
    let (one, two) = (engine(1), engine(1));
    let watchdogs = [Watchdog::of(&one), Watchdog::of(&two)];
    let x = tensor(&one, 0.0);
    let shut = Gate::on_tensors(&one, std::slice::from_ref(&x));
    let thread_of = |engine: &Engine| {
        let (said, heard) = channel();
        engine
            .op("who")
            .updates([&x])
            .run(move |[], [], [_x]| Ok(said.send(std::thread::current().id())?))
            .unwrap();
        heard
    };
    let heard: Vec<_> = (0..6).map(|round| thread_of(if round % 2 == 0 { &one } else { &two })).collect();
    shut.open();
    let threads: Vec<_> = heard.into_iter().map(|heard| heard.recv().unwrap()).collect();
    assert_eq!((threads[0], threads[1]), (threads[2], threads[3]));
    assert_eq!((threads[0], threads[1]), (threads[4], threads[5]));
    assert_ne!(threads[0], threads[1]);
    assert!(watchdogs.iter().all(Watchdog::still_watches));
}

#[test]
fn a_range_is_gone_before_its_deleter_runs() {
    let engine = engine(1);
    let watchdog = Watchdog::of(&engine);
    let deleted = Deleted::default();
    let memory = Memory::of(&[1.0, 2.0]);
    let x = import(&engine, &memory, 0, 2, &deleted);
    set(&engine, &x, 3.0).wait().unwrap();
    fail(&engine, &x, "the old owner's problem").wait().unwrap_err();
    drop(x);
    deleted.settle_at(1);
    // The same addresses in a new tensor: they carry no state of the old tensor.
    let fresh = import(&engine, &memory, 0, 2, &deleted);
    assert_eq!((fresh.version(), fresh.to_vec::<f32>().unwrap()), (0, vec![3.0, 3.0]));
    drop(fresh);
    deleted.settle_at(2);
    assert!(watchdog.still_watches());
}

/// More tensors than a tensor may overlap without collapsing them.
const MANY: usize = 40;

#[test]
fn a_tensor_overlapping_very_many_others_collapses_them_into_one_group() {
    let engine = engine(3);
    let watchdog = Watchdog::of(&engine);
    let (memory, deleted) = (Memory::of(&[0.0; MANY]), Deleted::default());
    let parts: Vec<_> = (0..MANY).map(|at| import(&engine, &memory, at, 1, &deleted)).collect();
    // During the collapse work is pending, a version has failed, and a lease is open.
    let shut = Gate::on_tensors(&engine, &[parts[0].clone()]);
    for part in &parts[1..] {
        add(&engine, part, 1.0);
    }
    fail(&engine, &parts[5], "failed before the collapse");
    let array = parts[7].export_wait(&ExportOptions::from(Access::Read)).unwrap();
    let early = parts[9].ready();
    let whole = import(&engine, &memory, 0, MANY, &deleted);
    let read = read(&engine, &whole);
    assert!(waits(&engine, &read), "the whole waits for its parts: {}", engine.diagnose());
    block_on(early).unwrap();
    shut.open();
    assert!(waits(&engine, &read) || array.flags().read_only, "{}", engine.diagnose());
    drop(array);
    let error = read.wait().unwrap_err();
    assert!(
        error.to_string().contains("failed before the collapse"),
        "the failure was carried over: {error}"
    );
    assert!(whole.wait().is_err());
    // From now on the whole and its parts are ordered.
    set(&engine, &whole, 100.0);
    for round in 0..50 {
        add(&engine, &parts[round % MANY], 1.0);
        add(&engine, &whole, 1.0);
    }
    let expected: Vec<f32> = (0..MANY).map(|at| if at < 10 { 152.0 } else { 151.0 }).collect();
    assert_eq!(whole.to_vec::<f32>().unwrap(), expected);
    for (part, expected) in parts.iter().zip(expected) {
        assert_eq!(get(part), expected);
    }
    // The parts lose their order of their own, but no operation is stuck.
    engine.wait_all(None).unwrap();
    assert!(engine.diagnose().is_idle(), "{}", engine.diagnose());
    drop((parts, whole, read));
    deleted.settle_at(MANY + 1);
    assert!(watchdog.still_watches());
}

#[test]
fn a_result_may_be_declared_alias_of_a_tensor_that_was_collapsed() {
    let engine = engine(2);
    let watchdog = Watchdog::of(&engine);
    let (memory, deleted) = (Memory::of(&[0.0; MANY]), Deleted::default());
    let parts: Vec<_> = (0..MANY).map(|at| import(&engine, &memory, at, 1, &deleted)).collect();
    let whole = import(&engine, &memory, 0, MANY, &deleted);
    for of in [&parts[3], &whole] {
        let (inside, counted) = (memory.clone(), deleted.clone());
        let view = engine
            .op("view")
            .reads([of])
            .result(ResultOptions { copying: Copying::Refused, ..alias_of(&[of]) });
        let view = view.produce(move |[_x]| Ok::<ManagedTensor, _>(inside.tensor(3, 1, &counted))).unwrap();
        view.wait().unwrap();
        set(&engine, &parts[3], 1.0);
        add(&engine, &view, 1.0);
        add(&engine, &whole, 1.0);
        assert_eq!((get(&view), get(&parts[3])), (3.0, 3.0));
    }
    assert!(watchdog.still_watches());
}
