//! Later operations wait for work that is added while an operation runs, and tensors of the same memory are
//! ordered together.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use estafette::bindings::{self, Origin};
use estafette::devices::{DLDevice, Fence, host};
use estafette::exchange::flush_deleters;
use estafette::{Access, Completion, DType, Engine, Error, ExportOptions, ImportOptions, Produced, Tensor};
use tests::foreign::{Deleted, Memory};
use tests::gate::Gate;
use tests::ops::{alias_of, engine, read, set, tensor, waits};
use tests::watchdog::Watchdog;

/// The time in which a test looks for an event that comes too early. On a slow machine the test may miss one.
const EARLY: Duration = Duration::from_millis(200);

/// Lets `meanwhile` add something that lasts until a fence is done, while a host body writes `x`. Then the
/// access that `next` submits, and the deleter, have to wait for the fence.
fn outlasts_a_host_writer(
    meanwhile: impl Fn(&Engine, &Tensor, &Memory, Fence),
    next: impl FnOnce(&Engine, &Tensor, Arc<AtomicBool>) -> estafette::Op,
) {
    let engine = engine(2);
    let watchdog = Watchdog::of(&engine);
    let begin = || {
        let (memory, deleted) = (Memory::of(&[0.0; 48]), Deleted::default());
        // SAFETY: the memory is as described, and stays until its deleters have run.
        let x = unsafe { engine.import(memory.tensor(0, 4, &deleted)) }.unwrap();
        let (completer, fence) = host::promise("device work");
        let gate = Gate::on_tensors(&engine, std::slice::from_ref(&x)).begun();
        meanwhile(&engine, &x, &memory, fence);
        gate.complete(Ok(()));
        (x, completer, deleted)
    };

    let (x, completer, deleted) = begin();
    let over = Arc::new(AtomicBool::new(false));
    let next = next(&engine, &x, Arc::clone(&over));
    assert!(matches!(next.wait_timeout(Some(EARLY)), Err(Error::Timeout(_))), "it did not wait");
    over.store(true, Ordering::SeqCst);
    completer.complete();
    next.wait().unwrap();
    drop(x);
    deleted.settle_at(1);

    let (x, completer, deleted) = begin();
    engine.wait_all(None).unwrap();
    drop(x);
    flush_deleters(EARLY);
    assert_eq!(deleted.count(), 0, "memory was released early");
    completer.complete();
    deleted.settle_at(1);
    assert!(watchdog.still_watches());
}

fn write(engine: &Engine, x: &Tensor, over: Arc<AtomicBool>) -> estafette::Op {
    let op = engine
        .op("next")
        .writes([x])
        .run(move |[], [_x]| if over.load(Ordering::SeqCst) { Ok(()) } else { Err("it began early".into()) });
    op.unwrap()
}

#[test]
fn a_use_that_is_noted_while_a_host_body_writes_outlasts_it() {
    outlasts_a_host_writer(|_, x, _, fence| x.used_until(&fence).unwrap(), write);
}

#[test]
fn an_alias_lease_that_ends_while_a_host_body_writes_leaves_its_fence() {
    outlasts_a_host_writer(
        |_, x, _, fence| {
            let lease = x.lease(Access::Alias, "an owner who knows").wait(None).unwrap();
            lease.release_after(fence);
        },
        write,
    );
}

#[test]
fn the_fence_of_a_collapsed_tensor_outlasts_its_host_writer() {
    outlasts_a_host_writer(
        |engine, x, memory, fence| {
            let _parts = collapse(engine, memory);
            x.used_until(&fence).unwrap();
        },
        write,
    );
}

#[test]
fn a_fence_from_before_a_collapse_that_waits_outlasts_the_host_writer() {
    outlasts_a_host_writer(
        |engine, x, memory, fence| {
            x.used_until(&fence).unwrap();
            let _parts = collapse(engine, memory);
        },
        write,
    );
}

/// Beside the tensor of the first four elements as many others as keep variables of their own, and then one
/// of all of them.
fn collapse(engine: &Engine, memory: &Memory) -> Vec<Tensor> {
    let other = Deleted::default();
    // SAFETY: as above.
    let import = |start, len| unsafe {
        engine.import_with(
            memory.tensor(start, len, &other),
            ImportOptions { origin: Some(&|| Origin::Owner), ..ImportOptions::default() },
        )
    };
    let mut parts: Vec<_> = (2..24).map(|at| import(2 * at, 2).unwrap()).collect();
    parts.push(import(0, 48).unwrap());
    parts
}

#[test]
fn an_import_over_memory_that_a_host_body_writes_is_there_when_its_producer_says_so() {
    outlasts_a_host_writer(
        |engine, _x, memory, fence| {
            let other = Deleted::default();
            // SAFETY: as above.
            unsafe {
                engine.import_with(
                    memory.tensor(1, 2, &other),
                    ImportOptions { ready: fence.into(), ..ImportOptions::default() },
                )
            }
            .unwrap();
        },
        |engine, x, over| {
            let op = engine.op("next").reads([x]).run(move |[_x], []| {
                if over.load(Ordering::SeqCst) { Ok(()) } else { Err("it began early".into()) }
            });
            op.unwrap()
        },
    );
}

#[test]
fn memory_of_a_member_waits_for_its_fences_while_the_collapse_waits() {
    let (engine, deleted) = (engine(2), Deleted::default());
    let watchdog = Watchdog::of(&engine);
    let memory = Memory::of(&[0.0; 48]);
    // SAFETY: the memory is as described.
    let x = unsafe { engine.import(memory.tensor(0, 4, &deleted)) }.unwrap();
    // SAFETY: as above.
    let busy = unsafe { engine.import(memory.tensor(4, 2, &Deleted::default())) }.unwrap();
    let (completer, fence) = host::promise("device work");
    x.used_until(&fence).unwrap();
    // The collapse waits for this one, and what `x` carries is its group's only then.
    let (go, wait) = channel::<()>();
    let reader = engine.op("reads").reads([&busy]).run(move |[_busy], []| Ok(wait.recv()?)).unwrap();
    let parts = collapse(&engine, &memory);
    drop(x);
    flush_deleters(EARLY);
    assert_eq!(deleted.count(), 0, "memory was released early");
    completer.complete();
    deleted.settle_at(1);
    go.send(()).unwrap();
    reader.wait().unwrap();
    drop(parts);
    assert!(watchdog.still_watches());
}

#[test]
fn a_tensor_derived_from_a_view_that_became_an_alias_is_ordered_with_the_owner() {
    let (engine, deleted) = (engine(2), Deleted::default());
    let watchdog = Watchdog::of(&engine);
    // SAFETY: the memory is as described.
    let t = unsafe { engine.import(tests::foreign::tensor(&[1.0, 2.0], &deleted)) }.unwrap();
    let kept: Arc<Mutex<Option<Tensor>>> = Arc::default();
    let (keep, own, there) = (Arc::clone(&kept), t.clone(), engine.clone());
    let result = engine
        .op("aliases")
        .reads([&t])
        .result(alias_of(&[&t]))
        .produce_external(move |completion: Completion| {
            let scope = completion.scope().clone();
            let export = || scope.export(&own, &ExportOptions::from(Access::Read)).unwrap();
            let (first, second) = (export(), export());
            // SAFETY: an export describes its own memory.
            let derived = bindings::scope::make_current(&scope, || unsafe { there.import(second) }).unwrap();
            *keep.lock().unwrap() = Some(derived);
            completion.produce(Ok(Produced::from(first)));
        })
        .unwrap();
    result.wait().unwrap();
    let derived = kept.lock().unwrap().take().unwrap();
    let inside = Arc::new(AtomicUsize::new(0));
    let (go, wait) = channel::<()>();
    let (begun, has_begun) = channel::<()>();
    let reading = Arc::clone(&inside);
    let read = engine.op("read").reads([&derived]).run(move |[_derived], []| {
        reading.fetch_add(1, Ordering::SeqCst);
        begun.send(())?;
        wait.recv()?;
        reading.fetch_sub(1, Ordering::SeqCst);
        Ok(())
    });
    let read = read.unwrap();
    has_begun.recv().unwrap();
    let write = engine.op("write").writes([&t]).run(move |[], [_t]| match inside.load(Ordering::SeqCst) {
        0 => Ok(()),
        _ => Err("it wrote what another operation read".into()),
    });
    let write = write.unwrap();
    assert!(waits(&engine, &write), "{}", engine.diagnose());
    go.send(()).unwrap();
    read.wait().unwrap();
    drop(derived);
    // An alias that nothing was derived from has no lease: nothing keeps the writer.
    write.wait().unwrap();
    drop(result);
    assert!(watchdog.still_watches());
}

#[test]
fn a_promised_alias_of_a_part_beside_a_write_of_the_whole_is_refused_after_a_collapse() {
    let (engine, deleted) = (engine(1), Deleted::default());
    let watchdog = Watchdog::of(&engine);
    let memory = Memory::of(&[0.0; 40]);
    // SAFETY: the memory is as described.
    let import = |start, len| unsafe { engine.import(memory.tensor(start, len, &deleted)) }.unwrap();
    let parts: Vec<Tensor> = (0..20).map(|at| import(2 * at, 2)).collect();
    let whole = import(0, 40);
    let gate = engine.var();
    let closed = Gate::on_variable(&engine, &gate);
    let view = memory.clone();
    let produced = engine.op("view").reads([&parts[3]]).reads_vars(&[&gate]).result(alias_of(&[&parts[3]]));
    let produced =
        produced.produce(move |[_part]| Ok(Produced::from(view.tensor(6, 2, &Deleted::default()))));
    let produced = produced.unwrap();
    let refused = engine.op("both").reads([&produced]).writes([&whole]).run(|[_], [_]| Ok(()));
    assert!(matches!(refused, Err(Error::Conflict(_))), "{refused:?}");
    let mut builder = engine.program("both");
    let refused = builder.op("both").reads([&produced]).writes([&whole]).run(|[_], [_]| Ok(()));
    assert!(matches!(refused, Err(Error::Conflict(_))), "{refused:?}");
    closed.open();
    read(&engine, &produced).wait().unwrap();
    assert!(watchdog.still_watches());
}

#[test]
fn fences_that_were_done_before_a_host_writer_began_do_not_pile_up() {
    let engine = engine(1);
    let watchdog = Watchdog::of(&engine);
    let x = tensor(&engine, 0.0);
    for round in 0..20_u8 {
        let (completer, fence) = host::promise("device work");
        x.used_until(&fence).unwrap();
        completer.complete();
        set(&engine, &x, f32::from(round)).wait().unwrap();
    }
    assert!(x.is_ready() && x.device().unwrap() == DLDevice::CPU && x.dtype().unwrap() == DType::F32);
    let lease = x.lease(Access::Read, "at once").try_now().unwrap();
    assert!(lease.is_some());
    assert!(watchdog.still_watches());
}
