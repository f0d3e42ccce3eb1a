//! Exports that nothing stands in the way of: they are as ordered as any other, and give up instead of
//! waiting.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use estafette::bindings;
use estafette::devices::{DLDevice, host};
use estafette::exchange::{Abi, ExportFlags, Layout, export};
use estafette::wait::Status;
use estafette::{Access, DType, Error, ExportOptions, ManagedTensor, Tensor};
use futures::FutureExt;
use futures::executor::block_on;
use tests::gate::Gate;
use tests::ops::{engine, get, set, tensor};
use tests::watchdog::Watchdog;

fn at_once(tensor: &Tensor) -> Option<ManagedTensor> {
    bindings::tensor::export_at_once(tensor, || "at once".into()).unwrap()
}

#[test]
fn a_reader_that_was_let_in_at_once_keeps_writers_out_and_is_named() {
    let engine = engine(2);
    let watchdog = Watchdog::of(&engine);
    let x = tensor(&engine, 1.0);
    let first = at_once(&x).unwrap();
    let second = at_once(&x).unwrap();
    assert!(first.flags().read_only && !first.flags().is_copied);
    let op = set(&engine, &x, 2.0);
    let diagnosis = engine.diagnose();
    let held = |op: &&estafette::wait::OpStatus| matches!(op.status, Status::Held(_));
    assert_eq!(diagnosis.operations.iter().filter(held).count(), 2, "{diagnosis}");
    assert!(diagnosis.to_string().contains("read lease taken by at once"), "{diagnosis}");
    drop(first);
    assert!(!op.is_done());
    drop(second);
    op.wait().unwrap();
    assert_eq!(get(&x), 2.0);
    assert!(watchdog.still_watches());
}

#[test]
fn what_would_have_to_wait_gives_up_and_leaves_nothing_behind() {
    let engine = engine(2);
    let x = tensor(&engine, 1.0);
    let gate = Gate::on_tensors(&engine, std::slice::from_ref(&x));
    assert!(at_once(&x).is_none(), "a write is under way");
    gate.open();
    x.wait().unwrap();
    set(&engine, &x, 2.0).wait().unwrap();
    assert!(engine.diagnose().operations.is_empty());
}

#[test]
fn a_failed_version_is_left_to_those_who_say_why() {
    let engine = engine(1);
    let x = tensor(&engine, 1.0);
    let failed = engine.op("fail").writes([&x]).run(|[], [_]| Err("broken".into())).unwrap();
    failed.wait().unwrap_err();
    assert!(at_once(&x).is_none());
    assert!(x.export_wait(&ExportOptions::from(Access::Read)).unwrap_err().to_string().contains("broken"));
}

#[test]
fn an_alias_is_to_be_had_whatever_is_under_way() {
    let engine = engine(1);
    let x = tensor(&engine, 1.0);
    let gate = Gate::on_tensors(&engine, std::slice::from_ref(&x));
    let alias = x.export_wait(&ExportOptions::from(Access::Alias)).unwrap();
    assert!(!alias.flags().read_only);
    gate.open();
    set(&engine, &x, 2.0).wait().unwrap();
    drop(alias);
}

#[test]
fn a_copy_waits_for_the_writer_whatever_access_it_names_and_waits_no_longer_than_it_may() {
    let engine = engine(2);
    let watchdog = Watchdog::of(&engine);
    for access in [Access::Read, Access::Alias, Access::Write] {
        let x = tensor(&engine, 1.0);
        let (completer, fence) = host::promise("a writer elsewhere");
        set(&engine, &x, 2.0);
        let op = engine.op("elsewhere").updates([&x]);
        op.run_external(move |end| end.complete_after(&fence, Ok(()))).unwrap().wait().unwrap();
        let alias = x.lease(Access::Alias, "one that copies later").wait(None).unwrap();
        let limit = Some(Duration::from_millis(1));
        let options = ExportOptions { copy: true, timeout: limit, ..ExportOptions::from(access) };
        assert!(bindings::tensor::try_export(&x, &options).unwrap().is_none());
        assert!(matches!(x.export_wait(&options), Err(Error::Timeout(_))));
        assert!(matches!(alias.export(&options), Err(Error::Timeout(_))));
        completer.complete();
        let options = ExportOptions { timeout: None, ..options };
        for copy in [x.export_wait(&options).unwrap(), alias.export(&options).unwrap()] {
            assert!(copy.flags().is_copied && !copy.flags().read_only);
            // SAFETY: the test's own memory, which nothing else uses.
            assert_eq!(get(&unsafe { engine.import(copy) }.unwrap()), 2.0);
        }
    }
    assert!(watchdog.still_watches());
}

#[test]
fn an_import_from_inside_such_a_lease_is_derived() {
    let engine = engine(1);
    let x = tensor(&engine, 1.0);
    let lent = at_once(&x).unwrap();
    // SAFETY: the engine's own memory, under the lease that the struct keeps.
    let derived = unsafe { engine.import(lent) }.unwrap();
    assert!(derived.is_read_only().unwrap());
    let op = set(&engine, &x, 2.0);
    assert_eq!(get(&derived), 1.0);
    assert!(!op.is_done());
    drop(derived);
    op.wait().unwrap();
}

#[test]
fn a_copy_for_a_consumer_is_flagged_and_holds_no_lease() {
    let engine = engine(1);
    let x = tensor(&engine, 1.0);
    let copy = bindings::tensor::export_as_copy(&x, &ExportOptions::from(Access::Alias)).unwrap();
    assert!(copy.flags().is_copied && !copy.flags().read_only);
    set(&engine, &x, 2.0).wait().unwrap();
}

#[test]
fn readers_that_come_and_go_never_see_a_writer_at_work() {
    let engine = engine(2);
    let x = tensor(&engine, 0.0);
    let writing = std::sync::Arc::new(AtomicBool::new(false));
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            for _ in 0..200 {
                let at_work = std::sync::Arc::clone(&writing);
                let op = engine.op("write").writes([&x]).run(move |[], [_]| {
                    at_work.store(true, Ordering::SeqCst);
                    std::hint::spin_loop();
                    at_work.store(false, Ordering::SeqCst);
                    Ok(())
                });
                op.unwrap().wait().unwrap();
            }
        });
        let reads = || {
            let mut let_in = false;
            // A reader that met only writers goes on until it is let in.
            while !writer.is_finished() || !let_in {
                let Some(lent) = at_once(&x) else { continue };
                assert!(!writing.load(Ordering::SeqCst), "let in while a writer was at work");
                let_in = true;
                drop(lent);
            }
        };
        std::thread::scope(|scope| {
            scope.spawn(reads);
            reads();
        });
        writer.join().unwrap();
    });
    assert!(engine.diagnose().operations.is_empty());
}

#[test]
fn whoever_wants_to_write_in_place_hears_of_the_last_holder_and_keeps_nobody_out() {
    let engine = engine(1);
    let x = tensor(&engine, 1.0);
    let (first, second) = (at_once(&x).unwrap(), at_once(&x).unwrap());
    let mut writable = Box::pin(x.writable());
    assert!(writable.as_mut().now_or_never().is_none());
    let late = at_once(&x).expect("an observer holds nothing up");
    drop(first);
    assert!(writable.as_mut().now_or_never().is_none());
    drop(second);
    block_on(writable).unwrap();
    drop(late);
}

#[test]
fn the_fence_of_a_holder_is_waited_for_by_the_next_writer() {
    let engine = engine(1);
    let x = tensor(&engine, 1.0);
    let lease = block_on(x.lease(Access::Read, "a device")).unwrap();
    let lent = at_once(&x).unwrap();
    drop(lease);
    let (completer, fence) = host::promise("the device's last read");
    // SAFETY: the engine's own memory, under the lease that the struct keeps.
    let derived = unsafe { engine.import(lent) }.unwrap();
    bindings::lease::imported_under(&derived).expect("it lies inside").release_after(fence);
    drop(derived);
    let op = set(&engine, &x, 2.0);
    assert!(!op.is_done(), "the device still reads");
    completer.complete();
    op.wait().unwrap();
}

#[test]
fn a_holder_is_found_also_after_its_tensor_was_collapsed_with_others() {
    let engine = engine(1);
    let memory = std::sync::Arc::new([0_u8; 64]);
    let part = |range: std::ops::Range<usize>| {
        let shape = [range.len() as i64];
        let layout = Layout::contiguous(DType::U8, DLDevice::CPU, &shape).unwrap();
        let data = memory[range].as_ptr().cast_mut();
        let keeper = std::sync::Arc::clone(&memory);
        // SAFETY: the keeper has the memory, and nothing here writes it.
        let managed =
            unsafe { export(&layout, data, ExportFlags::default(), Abi::Versioned, move || drop(keeper)) };
        // SAFETY: as above.
        unsafe { engine.import(managed) }.unwrap()
    };
    let parts: Vec<_> = (0..32).map(|at| part(2 * at..2 * at + 2)).collect();
    let lent = at_once(&parts[3]).unwrap();
    let whole = part(0..64);
    assert!(at_once(&parts[4]).is_none() && at_once(&whole).is_none(), "the collapse waits for the holder");
    // SAFETY: as above, under the lease.
    let derived = unsafe { engine.import(lent) }.unwrap();
    assert!(bindings::lease::imported_under(&derived).is_some());
    drop(derived);
    whole.wait().unwrap();
    drop(at_once(&parts[4]).expect("by way of an operation"));
    drop(at_once(&whole).expect("likewise"));
    assert!(engine.diagnose().is_idle());
}
